"""Conversations over a socket with an in-memory region."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, NotEnoughRegions, OutcomeUnknown
from georelay.ids import RegionNumber
from georelay.wire.batch import build_batch
from mesh.replication.ports import Published
from region.api import answer_room
from region.api.publishing import RecordPublisher
from region.controller.topic import Homes
from region.security.access import Access
from region.security.acl_core import AclIndex
from region.security.audit import AuditLog
from region.text import answers as answers_module
from region.text import connection as connection_module
from region.text import delivery as delivery_module
from region.text import listener as listener_module


class NothingAllowed:
    version = 1
    enforced = True
    index = AclIndex()


async def test_a_person_creates_publishes_subscribes_and_commits(bed: Any) -> None:
    person = await bed.person()
    assert await person.ask("CRTP orders 2") == "OK orders 2"
    assert await person.ask('PUBS orders {"Header":{"h":"1"},"Key":"k","Body":"first"}') == "OK 0 0"
    assert await person.ask('PUBS orders {"Key":"k","Body":{"n":2}}') == "OK 0 1"
    assert await person.ask("SUBS orders billing 0-0") == "OK 1 orders group billing"
    assert await person.read() == "PARTS 1 0"
    assert await person.read() == 'REC orders 1.0 0 {"Header":{"h":"1"},"Key":"k","Body":"first"}'
    assert await person.read() == 'REC orders 1.0 1 {"Header":{},"Key":"k","Body":"{\\"n\\":2}"}'
    assert await person.ask("DONE orders 1.0 0") == "OK 1"
    assert await person.ask("UNSB 1") == "OK 1"
    assert await person.ask("SUBS orders billing 0-0") == "OK 2 orders group billing"
    assert (await person.until("REC")).startswith("REC orders 2.0 1 ")  # the first one is done
    assert await person.ask("QUIT") == "OK bye"
    assert await person.read() == ""


async def test_records_that_come_later_are_delivered_when_they_come(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    reader, writer = await bed.person(), await bed.person()
    assert await reader.ask("SUBS orders -") == "OK 1 orders no group"
    for number in range(3):
        assert await writer.ask(json.dumps({"Body": str(number)}).join(["PUBS orders ", ""])) == f"OK 0 {number}"
        assert (await reader.until("REC")).startswith(f"REC orders 1.0 {number} ")


async def test_publishes_that_are_sent_together_are_answered_in_order_and_stored_in_order(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    person = await bed.person()
    person.type(*(f'PUBS orders {{"Body":"{number}"}}' for number in range(100)), "RESOLVE orders")
    assert [await person.read() for _ in range(100)] == [f"OK 0 {number}" for number in range(100)]
    assert await person.until("OK") == "OK topic orders partitions 1 home 1"
    assert await person.ask("SUBS orders -") == "OK 1 orders no group"
    bodies = [json.loads((await person.until("REC")).split(" ", 4)[4])["Body"] for _ in range(100)]
    assert bodies == [str(number) for number in range(100)]


async def test_two_members_share_a_topic_and_one_takes_over(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.text.membership.HEARTBEAT_S", 0.02)
    bed.cluster.add_topic("orders", 4)
    for partition in range(4):
        bed.cluster.streams["orders", partition].add(b"a", b"b")
    first = await bed.person()
    assert await first.ask("SUBS orders billing") == "OK 1 orders group billing: partitions follow"
    assert await first.read() == "PARTS 1 0,1,2,3"
    second = await bed.person()
    second.type("SUBS orders billing")
    assert await first.until("PARTS 1 none")
    shares = {await first.until("PARTS"), await second.until("PARTS")}
    assert shares == {"PARTS 1 0,1", "PARTS 1 2,3"}
    line = await second.until("REC")
    _, topic, token, offset, _ = line.split(" ", 4)
    assert await second.ask(f"DONE {topic} {token} {offset}") == f"OK {int(offset) + 1}"
    second.writer.close()
    assert await first.until("PARTS 1 0,1,2,3") == "PARTS 1 0,1,2,3"
    taken = f"REC orders 1.{token.partition('.')[2]} {int(offset) + 1} "
    assert (await first.until(taken)).startswith(taken)  # not the one that is done


@pytest.mark.parametrize("how", ["QUIT", "abort", "UNSB"])
async def test_a_member_leaves_its_group_however_it_ends_and_however_slow_the_coordinator_is(
    bed: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    left = asyncio.Event()
    call = bed.coordinators.call

    async def slow_call(part: Any, key: str, operation: str, body: Any, **options: Any) -> Any:
        if operation == "leave":
            await asyncio.sleep(0.05)
            left.set()
        return await call(part, key, operation, body, **options)

    monkeypatch.setattr(bed.coordinators, "call", slow_call)
    bed.cluster.add_topic("orders", 2)
    person = await bed.person()
    await person.ask("SUBS orders billing")
    await person.until("PARTS")
    if how == "abort":
        person.writer.transport.abort()
    else:
        person.type("UNSB 1" if how == "UNSB" else "QUIT")
    async with asyncio.timeout(5):
        await left.wait()
    other = await bed.person()
    await other.ask("SUBS orders billing")
    assert await other.until("PARTS") == "PARTS 1 0,1"  # at once: it need not wait for a session to end


async def test_resolve_shows_the_brokers_of_the_region(bed: Any) -> None:
    person = await bed.person()
    person.type("RESOLVE")
    assert await person.read() == "* broker 1001 up kafka 127.0.0.1:9092"
    assert await person.read() == "OK region us brokers 1"
    assert await person.ask("RESOLVE ghost") == "ERR UNKNOWN_TOPIC topic 'ghost' does not exist"


async def test_resolve_names_the_homes_that_partitions_have_now(bed: Any) -> None:
    bed.cluster.add_topic("orders", 2)
    bed.cluster.stream("orders", 1).home = RegionNumber(2)  # it moved
    person = await bed.person()
    person.type("RESOLVE orders")
    assert await person.read() == "* partition 0 leader 1001 replicas 1001 home 1"
    assert await person.read() == "* partition 1 leader 1001 replicas 1001 home 2"
    assert await person.read() == "OK topic orders partitions 2 home 1,2"


async def test_who_asks_for_a_level_is_told_what_was_reached_and_where_the_record_is(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    person = await bed.person()
    bed.cluster.regions_reached = 2
    assert await person.ask('PUBS orders geo:2 {"Body":"a"}') == "OK 0 0 STORED geo:2 1,2 epoch 1"
    assert await person.ask('PUBS orders geo:majority within 2s {"Body":"b"}') == "OK 0 1 STORED geo:2 1,2 epoch 1"
    assert await person.ask('PUBS orders region {"Body":"c"}') == "OK 0 2 STORED region 1 epoch 1"
    assert await person.ask('PUBS orders {"Body":"d"}') == "OK 0 3"
    bed.cluster.regions_reached = 1
    assert await person.ask('PUBS orders geo:all within 500ms {"Body":"e"}') == (
        "ERR DURABILITY_PENDING PENDING 0 4 region 1 epoch 1: "
        "geo:all was not reached within 500 ms; do not send it again"
    )
    asked = [str(level.durability) for level in bed.cluster.levels]
    assert asked == ["geo:2", "geo:majority", "region", "region", "geo:all"]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (NotEnoughRegions("1 is reached now"), "ERR NOT_ENOUGH_REGIONS NOT_STORED 1 is reached now"),
        (OutcomeUnknown("the link broke"), "ERR OUTCOME_UNKNOWN UNKNOWN the link broke"),
    ],
)
async def test_who_asks_for_a_level_is_told_whether_a_failed_publish_is_stored(
    bed: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, answer: str
) -> None:
    async def publish(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(RecordPublisher, "publish", publish)
    bed.cluster.add_topic("orders")
    person = await bed.person()
    assert await person.ask("PUBS orders geo:2 {}") == answer
    assert await person.ask("PUBS orders {}") == answer.replace("NOT_STORED ", "").replace("UNKNOWN the", "the")
    assert await person.ask("PUBS orders geo:2 {") == (
        "ERR BAD_REQUEST NOT_STORED not JSON: Expecting property name enclosed in double quotes at character 2"
    )


async def test_a_publish_without_an_answer_is_unknown_once_its_time_is_over(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "DECIDE_MS_MAX", 20)
    bed.cluster.add_topic("orders")
    bed.cluster.streams["orders", 0].auto_commit = False
    person = await bed.person()
    assert (await person.ask("PUBS orders region {}")).startswith("ERR OUTCOME_UNKNOWN UNKNOWN no answer in 0 s")


async def test_a_home_that_is_cut_off_from_control_says_so(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.add_topic("orders")
    publish = bed.cluster.publish

    def isolated(*given: Any, **options: Any) -> asyncio.Future[Published]:
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        stored = publish(*given, **options)
        stored.add_done_callback(lambda done: answer.set_result(replace(done.result(), is_isolated=True)))
        return answer

    monkeypatch.setattr(bed.cluster, "publish", isolated)
    person = await bed.person()
    assert await person.ask("PUBS orders {}") == "OK 0 0 isolated"
    assert await person.ask("PUBS orders region {}") == "OK 0 1 STORED region 1 epoch 1 isolated"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("CRTP orders", "ERR TOPIC_EXISTS"),
        ("CRTP eu.x y", "ERR BAD_REQUEST partitions 'y'"),
        ("PUBS orders {", "ERR BAD_REQUEST not JSON"),
        ('PUBS eu.clicks {"Body":"x"}', "ERR POLICY_VIOLATION"),
        ("SUBS ghost g", "ERR UNKNOWN_TOPIC"),
        ("SUBS orders g 7-7", "ERR UNKNOWN_TOPIC"),
        ("CONS orders 0 0", "ERR OFFSET_OUT_OF_RANGE there is no record at 0 yet: the next one will be 0"),
        ("CONS ghost 0", "ERR UNKNOWN_TOPIC"),
        ("DONE orders 9 1", "ERR BAD_REQUEST there is no subscription 9"),
        ("UNSB 9", "ERR BAD_REQUEST there is no subscription 9"),
        ("HELLO", "ERR BAD_REQUEST unknown command"),
    ],
)
async def test_every_mistake_has_one_clear_line_and_the_connection_goes_on(bed: Any, line: str, answer: str) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.add_topic("eu.clicks", 1, homes=Homes.EVERY, mirror_of="clicks")
    person = await bed.person()
    assert (await person.ask(line)).startswith(answer)
    assert await person.ask("HELP") == "OK"


async def test_a_topic_cannot_be_created_while_its_home_is_away(bed: Any) -> None:
    bed.cluster.create_errors.append(HomeUnreachable("the definitions home cannot be reached"))
    person = await bed.person()
    assert await person.ask("CRTP orders") == "ERR HOME_UNREACHABLE the definitions home cannot be reached"


async def test_committing_without_a_group_is_refused(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.streams["orders", 0].add(b"a")
    person = await bed.person()
    await person.ask("SUBS orders -")
    await person.until("REC")
    assert await person.ask("DONE orders 1 0") == "ERR BAD_REQUEST a subscription without a group stores nothing"


async def test_a_count_is_how_many_partitions_a_member_takes_at_most(bed: Any) -> None:
    bed.cluster.add_topic("orders", 3)
    person = await bed.person()
    assert await person.ask("SUBS orders billing 2") == "OK 1 orders group billing: partitions follow"
    assert await person.until("PARTS") == "PARTS 1 0,1"
    assert await person.ask("SUBS orders - 2") == "OK 2 orders no group"
    assert await person.until("PARTS") == "PARTS 2 0,1"


async def test_a_record_is_shown_by_its_offset_and_nothing_is_committed(bed: Any) -> None:
    bed.cluster.add_topic("orders", 2)
    stream = bed.cluster.streams["orders", 1]
    stream.add(b"a")
    stream.add(b"b")
    person = await bed.person()
    person.type("CONS orders 1 1")
    assert await person.read() == 'REC orders 1 1 {"Header":{},"Key":null,"Body":"b"}'
    assert await person.read() == "OK 1 2"
    refusal = await person.ask("CONS orders 1")
    assert refusal == "ERR BAD_REQUEST topic 'orders' has 2 partitions: CONS orders 0 1"
    assert (await person.ask("CONS orders 2 0")).startswith("ERR UNKNOWN_TOPIC")
    stream.log_start = 1
    assert await person.ask("CONS orders 1 0") == "ERR OFFSET_OUT_OF_RANGE offset 0 is below the log start 1"
    (*_, session) = bed.recorder.sessions[-1]
    assert session.batches  # it counts as delivered


async def test_what_cannot_be_read_is_stepped_over_and_said(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.streams["orders", 0]
    stream.add(b"a")
    raw = build_batch([(b"b", None, ())] * 2, timestamps_ms=1)
    stream.add_raw(raw[:-4] + bytes(4))  # the second record of it is none
    stream.add(b"c")
    person = await bed.person()
    await person.ask("SUBS orders -")
    assert [(await person.until("REC")).split()[3] for _ in range(2)] == ["0", "1"]
    why = "record 1 of the batch"
    assert (await person.until("SKIP")).startswith(f"SKIP orders 1.0 2 cannot be read: {why}")
    assert (await person.until("REC")).split()[3] == "3"
    assert (await person.ask("CONS orders 2")).endswith(": ask for 3")


async def test_records_that_retention_removed_are_stepped_over_and_said(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.streams["orders", 0]
    stream.add(b"a")
    stream.add(b"b")
    person = await bed.person()
    await person.ask("SUBS orders billing 0-0")
    await person.until("REC")
    await person.ask("DONE orders 1 0")
    await person.ask("UNSB 1")
    stream.add(b"c")
    stream.log_start = 2
    await person.ask("SUBS orders billing 0-0")
    assert await person.until("SKIP") == "SKIP orders 2.0 1 is not in the log; going on at 2"
    assert (await person.until("REC")).startswith("REC orders 2.0 2 ")


async def test_a_subscription_to_a_topic_that_is_deleted_ends_with_a_line(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.streams["orders", 0].add(b"a")
    person = await bed.person()
    await person.ask("SUBS orders -")
    await person.until("REC")
    del bed.cluster.views["orders"]
    stream = bed.cluster.streams.pop(("orders", 0))
    stream.add(b"b")
    assert (await person.until("END")).startswith("END 1 UNKNOWN_TOPIC")
    assert (await person.ask("UNSB 1")).startswith("ERR BAD_REQUEST")


# --- sign-in and access ------------------------------------------------------------------------------


async def test_with_users_only_a_right_sign_in_opens_the_connection(bed: Any) -> None:
    bed.sign_in.users["alice"] = "right"
    bed.cluster.add_topic("orders")
    person = await bed.person()
    assert (await person.ask("PUBS orders {}")).startswith("ERR UNAUTHENTICATED sign in first")
    assert await person.ask("AUTH alice wrong") == "ERR UNAUTHENTICATED wrong user or password"
    assert await person.ask("AUTH alice right") == "OK signed in as alice"
    assert await person.ask("PUBS orders {}") == "OK 0 0"


async def test_three_wrong_sign_ins_close_the_connection(bed: Any) -> None:
    bed.sign_in.users["alice"] = "right"
    person = await bed.person()
    for _ in range(3):
        assert (await person.ask("AUTH alice wrong")).startswith("ERR UNAUTHENTICATED")
    assert await person.read() == ""


@pytest.mark.parametrize(
    "line", ["CRTP new", "PUBS orders {}", "SUBS orders g", "CONS orders 0", "RESOLVE orders", "PUBS ghost {}"]
)
async def test_who_has_no_right_is_told_so_and_nothing_about_what_exists(bed: Any, line: str) -> None:
    bed.cluster.add_topic("orders")
    bed.access = Access(NothingAllowed())
    person = await bed.person()
    answer = await person.ask(line)
    assert answer.startswith("ERR ACCESS_DENIED")
    assert "orders" not in answer and "ghost" not in answer
    assert list(bed.cluster.views) == ["orders"]


# --- limits ------------------------------------------------------------------------------------------


async def test_a_line_that_is_too_long_is_refused_and_the_next_is_read(bed: Any) -> None:
    bed.sign_in.users["alice"] = "right"
    person = await bed.person()
    assert await person.ask("AUTH alice " + "x" * 3_000) == "ERR TOO_LARGE a line may have 2048 bytes"
    assert await person.ask("AUTH alice right") == "OK signed in as alice"


async def test_a_client_that_does_not_read_is_read_for_as_far_as_there_is_room(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b"x" * (2 << 20)  # more than the kernel takes
    bed.cluster.add_topic("orders", 6)
    for partition in range(6):
        bed.cluster.streams["orders", partition].add(value)
    room_bytes = answer_room.COPIES * 2 * (len(value) + 1_000)
    monkeypatch.setattr(answer_room, "CALL_BYTES_MAX", room_bytes)
    monkeypatch.setattr(delivery_module, "CALL_BYTES_MAX", room_bytes)
    person = await bed.person()
    (connection,) = bed.listener._connections
    memory = connection._speaker.memory
    person.type("SUBS orders -")
    while len(memory._lines.get("", ())) < 4:
        await asyncio.sleep(0)
    assert len(value) < memory.used_bytes <= room_bytes
    seen = 0
    while seen < 6:
        seen += (await person.read()).startswith("REC orders")
    while memory.used_bytes:
        await asyncio.sleep(0)


@pytest.mark.parametrize(("connections_max", "let_in"), [(1, 1), (4, 2)])
async def test_connections_over_the_limit_are_refused_and_one_address_has_half_of_them(
    bed: Any, connections_max: int, let_in: int
) -> None:
    await bed.listen(connections_max=connections_max)
    for _ in range(let_in):
        await bed.person()
    assert await bed.is_refused()


async def test_who_does_not_sign_in_in_time_or_is_idle_is_closed(bed: Any) -> None:
    bed.sign_in.users["alice"] = "right"
    waiting = await bed.person()
    bed.sign_in.users.clear()
    bed.cluster.add_topic("orders")
    idle, subscribed = await bed.person(), await bed.person()
    await subscribed.ask("SUBS orders -")
    assert bed.listener is not None
    for connection in tuple(bed.listener._connections):
        connection.sweep(connection._connected_ns + (connection_module.SIGN_IN_S_MAX + 1) * 10**9)
    assert await waiting.read() == "* sign in sooner"
    assert await waiting.read() == ""
    assert await idle.ask("HELP") == "OK"
    for connection in tuple(bed.listener._connections):
        connection.sweep(connection._last_line_ns + (connection_module.IDLE_S_MAX + 1) * 10**9)
    assert await idle.read() == "* idle for too long"
    assert await subscribed.ask("HELP") == "OK"


async def test_a_client_that_sends_byte_by_byte_and_never_a_line_is_idle(bed: Any) -> None:
    person = await bed.person()
    assert bed.listener is not None
    (connection,) = bed.listener._connections
    connected_ns = connection._last_line_ns
    for byte in b"PUBS orders":
        person.writer.write(bytes([byte]))
        await asyncio.sleep(0.005)
    assert connection._last_line_ns == connected_ns


async def test_a_client_that_does_not_read_is_not_read_for(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.streams["orders", 0]
    for _ in range(400):
        stream.add(b"x" * 100_000)
    person = await bed.person()
    person.reader._limit = 1000
    person.type("SUBS orders -")
    await asyncio.sleep(0.5)
    assert bed.listener is not None
    (connection,) = bed.listener._connections
    subscription = next(iter(connection._subscriptions))
    assert subscription.next_offsets[0] < 300
    assert connection._transport.get_write_buffer_size() < 2 * connection_module.WRITE_BUFFER_BYTES


async def test_lines_that_wait_stop_the_reading_of_the_socket(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.streams["orders", 0].auto_commit = False
    person = await bed.person()
    person.type(*(f'PUBS orders {{"Body":"{number}"}}' for number in range(2_000)))
    await asyncio.sleep(0.3)
    assert bed.listener is not None
    (connection,) = bed.listener._connections
    assert not connection._is_reading
    assert len(connection._publishes) == connection_module.PUBLISHES_MAX


async def test_a_publish_that_fails_does_not_hide_the_others(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    person = await bed.person()
    person.type('PUBS orders {"Body":"1"}', "PUBS orders {", 'PUBS orders {"Body":"2"}')
    answers = [await person.read() for _ in range(3)]
    assert [answer.split()[0] for answer in answers] == ["OK", "ERR", "OK"]


async def test_a_broken_connection_leaves_nothing_behind(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    person = await bed.person()
    await person.ask("SUBS orders billing 0-0")
    person.writer.transport.abort()
    assert bed.listener is not None
    async with asyncio.timeout(5):
        while bed.listener.connections:
            await asyncio.sleep(0.01)
        while bed.cluster.streams["orders", 0].waiter_count:
            await asyncio.sleep(0.01)


async def test_who_did_not_have_to_sign_in_is_cut_off_when_there_are_users(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_S", 0.02)
    bed.cluster.add_topic("orders")
    person = await bed.person()
    assert (await person.ask("SUBS orders -")).startswith("OK")
    bed.sign_in.users = {"ann": "pw"}
    assert await person.until("* the sign-in has ended")
    assert await person.read() == ""


async def test_a_user_that_is_disabled_is_cut_off_and_its_certificate_opens_nothing(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_S", 0.02)
    bed.sign_in.users = {"ann": "pw"}
    person = await bed.person()
    assert await person.ask("AUTH ann pw") == "OK signed in as ann"
    bed.sign_in.ended.add("User:ann")
    assert await person.until("* the sign-in has ended")
    monkeypatch.setattr(bed.listener, "_certificate_name", lambda _: "User:ann")
    again = await bed.person()
    assert (await again.ask("RESOLVE")).startswith("ERR UNAUTHENTICATED")
    bed.sign_in.ended.clear()
    right = await bed.person()
    assert (await right.ask("RESOLVE")).startswith("OK")


async def test_who_does_not_read_its_last_words_is_cut_off(bed: Any) -> None:
    person = await bed.person()
    (connection,) = bed.listener._connections
    connection._hang_up("bye")
    connection._transport = transport = _Lingering()
    connection.sweep(connection._hung_up_ns + int((connection_module.LAST_WORDS_S - 1) * 1e9))
    assert not transport.is_aborted
    connection.sweep(connection._hung_up_ns + int((connection_module.LAST_WORDS_S + 1) * 1e9))
    assert transport.is_aborted
    assert await person.until("bye")


class _Lingering:
    is_aborted = False

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        self.is_aborted = True


async def test_topics_that_are_made_by_text_stand_in_the_audit_log(bed: Any, tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit")
    bed.access = Access.open(changed=audit.administered)
    person = await bed.person()
    assert (await person.ask("CRTP orders 2")).startswith("OK")
    assert (await person.ask("CRTP orders 2")).startswith("ERR TOPIC_EXISTS")
    rows = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    wanted = {"event": "cluster.changed", "what": "topic.created", "principal": "User:ANONYMOUS", "topic": "orders"}
    assert [row["outcome"] for row in rows if wanted.items() <= row.items()] == ["done", "TOPIC_EXISTS"]
    audit.close()
