"""Answers that clients do not take: what they hold is bounded, and nobody's clients hold up those of others."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from georelay._pb import streams_pb2 as pb
from georelay.errors import Busy
from georelay.wire.batch import Compression, build_batch, iterate_records
from region.api import answer_room, broker_service, events_http, socket
from region.api.answer_room import AnswerMemory, AnswerRoom, needed_bytes
from region.api.broker_service import Source, Subscription
from region.api.reading import StreamReader
from region.api.record_answers import RecordTexts
from region.api.records_http import RecordsHttp
from region.api.streams.credit import Credit
from region.api.unfolding import FIELD_BYTES
from tests.unit.api.edge_in_memory import Edge
from tests.unit.api.test_api_consumers import coordinators
from tests.unit.api.test_api_sockets import Open, open_socket, orders
from tests.unit.api.test_api_unfolding import records_pump

__all__ = ["coordinators", "open_socket", "orders"]

VALUE = bytes(30_000)
TEXT_BYTES = 6 * len(VALUE)  # a zero is \u0000


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnswerMemory]:
    """Room for about three messages with VALUE, of which one principal takes the half."""
    memory = AnswerMemory(3 * 8 * len(VALUE))
    monkeypatch.setattr(AnswerRoom.__init__, "__defaults__", (memory,))
    yield memory
    assert memory.used_bytes == 0, "everything is given back"


async def test_one_principal_holds_half_and_another_one_half_of_the_rest() -> None:
    memory = AnswerMemory(100)
    ann, again, bob = (AnswerRoom(name, memory) for name in ("ann", "ann", "bob"))
    assert ann.has(50) and ann.has(50) and not again.has(1)
    assert bob.has(25) and not bob.has(26)
    ann.keep(10)
    assert again.has(20) and memory.used_bytes == 55


async def test_who_waits_is_served_in_its_turn_as_room_comes_free_and_holds_nothing_meanwhile() -> None:
    memory = AnswerMemory(100)
    first, second, third, bob = (AnswerRoom(name, memory) for name in ("ann", "ann", "ann", "bob"))
    assert first.has(50) and second.has(0) and not second.has(40) and not third.has(40)
    waiting = [asyncio.create_task(room.wait()) for room in (second, third)]
    await asyncio.sleep(0)
    assert memory.used_bytes == 50 and bob.has(20)
    bob.end()
    first.end()
    await waiting[0]
    assert (second.size_bytes, third.size_bytes) == (40, 0)
    second.end()
    await waiting[1]
    third.end()
    assert memory.used_bytes == 0


async def test_who_finds_no_room_in_time_is_told_and_who_leaves_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_room, "ROOM_S", 0.01)
    memory = AnswerMemory(100)
    first, second, third = (AnswerRoom("ann", memory) for _ in range(3))
    assert first.has(50) and not second.has(40) and not third.has(40)
    leaving = asyncio.create_task(third.wait())
    with pytest.raises(Busy, match="50 bytes of answers"):
        await second.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert not memory._lines, "nothing is kept of who waits no more"
    first.end()
    assert memory.used_bytes == 0


def test_a_compressed_batch_needs_what_the_largest_record_takes(entry_of: Callable[[bytes], Any]) -> None:
    plain, packed = (
        build_batch([(None, bytes(100), ())], timestamps_ms=[1], compression=codec)
        for codec in (Compression.NONE, Compression.ZSTD)
    )
    assert needed_bytes(entry_of(plain)) == 7 * (len(plain) + FIELD_BYTES)
    assert needed_bytes(entry_of(packed)) == 24 << 20


async def test_a_batch_that_there_is_room_for_can_be_added_however_small_its_records_are(
    entry_of: Callable[[bytes], Any],
) -> None:
    entry = entry_of(build_batch([(None, b"x", ())] * 1_000, timestamps_ms=[1] * 1_000))
    out = RecordTexts(records_max=1_000, room=AnswerRoom("ann", AnswerMemory(2 * needed_bytes(entry))))
    assert out.has_room_for(entry)
    assert await out.add(list(iterate_records(entry.payload))) == 1_000


@pytest.fixture
def entry_of(cluster: Any) -> Callable[[bytes], Any]:
    cluster.add_topic("any", 1)

    def stored(batch: bytes) -> Any:
        cluster.streams["any", 0].add_raw(batch)
        return cluster.streams["any", 0].entries[-1]

    return stored


@pytest.mark.parametrize("batches", [False, True])
async def test_a_socket_that_does_not_read_is_read_for_as_far_as_its_principals_room_goes(
    open_socket: Open, orders: Any, memory: AnswerMemory, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    held: list[int] = []
    let_go = asyncio.Event()

    async def not_taken(*_: Any) -> None:
        held.append(memory.used_bytes)
        await let_go.wait()

    orders((0, VALUE))
    client = await open_socket()
    subscriptions = range(1, 25)
    with monkeypatch.context() as unread:
        unread.setattr(web.WebSocketResponse, "send_bytes" if batches else "send_frame", not_taken)
        for number in subscriptions:
            assert (await client.subscribe(id=number, partitions=[0], batches=batches))["type"] == "subscribed"
        assert 0 < len(held) < len(subscriptions)
        assert max(held) <= 12 * len(VALUE), "half of the room"
    let_go.set()
    assert await client.ask(type="unsubscribe", id=99) is not None
    await client.ws.close()


async def test_a_read_waits_until_other_answers_of_its_principal_are_taken(
    edge: Edge, http: Any, orders: Any, memory: AnswerMemory
) -> None:
    orders((0, VALUE))
    other = AnswerRoom("ANONYMOUS", memory)
    found = await http.get("/v1/topics/orders/records")
    assert len(json.loads(await found.text())["records"]) == 1
    assert memory.used_bytes == 0
    assert other.has(300_000)
    reading = asyncio.create_task(http.get("/v1/topics/orders/records"))
    while not memory._lines:
        await asyncio.sleep(0)
    other.end()
    assert len(json.loads(await (await reading).text())["records"]) == 1


async def test_a_call_that_nobody_takes_from_reads_no_more_partitions_than_it_has_room_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders", 8)
    for partition in range(8):
        cluster.streams["orders", partition].add(VALUE)
    need = 2 * len(cluster.streams["orders", 0].entries[0].payload)
    monkeypatch.setattr(answer_room, "CALL_BYTES_MAX", 3 * need)
    memory = answer_room.CallMemory()
    waiting: list[int] = []
    is_taken, taken = asyncio.Event(), 0

    async def put(response: pb.SubscribeResponse) -> None:
        nonlocal taken
        waiting.append(response.delivery.partition)
        await is_taken.wait()
        taken += 1

    settings: Any = {"credit": Credit(64 << 20), "end": 1, "as_records": False, "memory": memory}
    pumps = [records_pump(cluster, put, partition=partition, **settings) for partition in range(8)]
    tasks = [asyncio.create_task(pump.run()) for pump in pumps]
    while len(waiting) < 3 or len(memory._lines[""]) < 5:
        await asyncio.sleep(0)
    assert (waiting, memory.used_bytes) == ([0, 1, 2], 3 * need)
    is_taken.set()
    while taken < 8:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert memory.used_bytes == 0


async def test_a_plain_subscription_that_nobody_takes_from_reads_no_more_partitions_than_it_has_room_for(
    cluster: Any, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders", 8)
    for partition in range(8):
        cluster.streams["orders", partition].add(VALUE)
    need = 2 * len(cluster.streams["orders", 0].entries[0].payload)
    monkeypatch.setattr(answer_room, "CALL_BYTES_MAX", 3 * need)
    subscription = Subscription(StreamReader(cluster), wall_ns=lambda: 1)
    subscription.start(
        [
            Source(topic="orders", name="orders", partition=at, since_us=0, plain="orders", origin=1, recorder=recorder)
            for at in range(8)
        ]
    )
    memory = subscription._memory
    while "" not in memory._lines or len(memory._lines[""]) < 4:  # the queue has taken one entry
        await asyncio.sleep(0)
    assert memory.used_bytes <= 3 * need
    seen: set[str] = set()
    messages: Any = subscription.messages()
    while len(seen) < 8:
        seen.add((await anext(messages)).id)
    await messages.aclose()
    await subscription.close()
    assert memory.used_bytes == 0


async def test_a_call_that_nobody_takes_from_is_ended_only_where_others_need_what_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_room, "CALLS_BYTES_MAX", 100)
    now_s, total = 0.0, answer_room.Total()
    stuck, taken, empty = (answer_room.CallMemory(total, monotonic_s=lambda: now_s) for _ in range(3))
    rooms = [AnswerRoom("", memory) for memory in (stuck, taken, taken)]
    assert all(room.has(30) for room in rooms)
    now_s = 11.0
    stuck.check()  # there is room for others
    rooms[1].keep(20)
    assert rooms[2].has(60)
    with pytest.raises(Busy, match="nothing of 30 bytes was taken for 10 s"):
        stuck.check()
    for memory in (taken, empty):
        memory.check()
    for room in rooms:
        room.end()
    assert total.used_bytes == 0


async def test_a_plain_subscription_that_holds_up_others_gives_what_it_holds_and_is_ended(
    cluster: Any, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_service, "RECHECK_S", 0.01)
    monkeypatch.setattr(answer_room, "CALLS_BYTES_MAX", 0)
    monkeypatch.setattr(answer_room, "STUCK_S", 0.01)
    cluster.add_topic("orders", 4)
    for partition in range(4):
        cluster.streams["orders", partition].add(VALUE)
    subscription = Subscription(StreamReader(cluster), wall_ns=lambda: 1)
    subscription.start(
        [
            Source(topic="orders", name="orders", partition=at, since_us=0, plain="orders", origin=1, recorder=recorder)
            for at in range(4)
        ]
    )
    subscription.watch(lambda: None)
    while not subscription._memory.used_bytes:
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        while subscription._memory.used_bytes:
            await asyncio.sleep(0.001)

    async def read() -> None:
        async for _ in subscription.messages():
            pass

    with pytest.raises(Busy):
        await read()
    await subscription.close()


async def test_an_event_stream_says_that_it_lives_until_there_is_room_for_what_comes_next(
    edge: Edge, orders: Any, memory: AnswerMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_room, "ROOM_S", 0.01)
    orders((0, VALUE))
    other = AnswerRoom("ANONYMOUS", memory)
    assert other.has(300_000)
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        stream = await client.get("/v1/topics/orders/events?offset=earliest")
        lines = [await stream.content.readline() for _ in range(4)]
        assert lines == [b": georelay\n", b"\n", b": nothing\n", b"\n"]
        other.end()
        while not (line := await stream.content.readline()).startswith(b"data: "):
            assert line.startswith((b": nothing", b"\n", b"id: "))
        assert len(line) > TEXT_BYTES
        stream.close()


@pytest.fixture
def second_read_is_busy(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second partition that is read be busy, once: what the first one had is in the answer by then."""
    read, calls = StreamReader.read, itertools.count(1)

    async def busy_once(reader: StreamReader, *args: Any, max_bytes: int, **more: Any) -> Any:
        if max_bytes > 1 and next(calls) == 2:
            raise Busy("the link is full")
        return await read(reader, *args, max_bytes=max_bytes, **more)

    monkeypatch.setattr(StreamReader, "read", busy_once)
    for module in (events_http, socket):
        monkeypatch.setattr(module, "RETRY_S", 0)


@pytest.mark.usefixtures("second_read_is_busy")
async def test_an_event_stream_skips_nothing_where_another_partition_was_busy(edge: Edge, orders: Any) -> None:
    orders((0, b"a"), (1, b"b"))
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        stream = await client.get("/v1/topics/orders/events?offset=earliest")
        values: list[str] = []
        async with asyncio.timeout(5):
            while len(values) < 2:
                if (line := await stream.content.readline()).startswith(b"data: "):
                    values.append(json.loads(line[6:])["value"])
        assert sorted(values) == ["a", "b"]
        stream.close()


@pytest.mark.usefixtures("second_read_is_busy")
async def test_a_socket_skips_nothing_where_another_partition_was_busy(open_socket: Open, orders: Any) -> None:
    orders((0, b"a"), (1, b"b"))
    client = await open_socket()
    await client.subscribe()
    assert sorted(row["value"] for row in (await client.next())["records"]) == ["a", "b"]


async def test_what_retention_removed_is_said_once_where_what_follows_waits_for_room(
    edge: Edge, cluster: Any, orders: Any, memory: AnswerMemory
) -> None:
    orders((0, b"a"), (0, VALUE))
    cluster.streams["orders", 0].log_start = 1
    other = AnswerRoom("ANONYMOUS", memory)
    assert other.has(300_000)
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        headers = {"Last-Event-ID": "0:0"}
        stream = await client.get("/v1/topics/orders/events?partitions=0", headers=headers)
        while not memory._lines:
            await asyncio.sleep(0)
        other.end()
        lines: list[bytes] = []
        while not lines or not lines[-1].startswith(b"id: "):
            lines.append(await stream.content.readline())
        lines += [await stream.content.readline() for _ in range(2)]
        assert lines.count(b"event: skipped\n") == 1
        stream.close()


@pytest.mark.parametrize("path", ["records", "consumers/bills/records"])
async def test_an_answer_that_waits_for_a_quota_holds_what_was_made_and_no_more(
    edge: Edge, orders: Any, memory: AnswerMemory, coordinators: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    held: list[int] = []

    async def paused(*_: Any) -> None:
        held.append(memory.used_bytes)

    monkeypatch.setattr(RecordsHttp, "pause_for", paused)
    orders((0, VALUE))
    async with TestClient(TestServer(edge.whole_admin(coordinators=coordinators).app())) as client:
        answer = await client.get(f"/v1/topics/orders/{path}")
        assert answer.status == 200
    assert TEXT_BYTES < held[0] < TEXT_BYTES + 1_000
