"""Two regions over real gRPC on loopback, logs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, cast

import pytest

from georelay.errors import DataDirectoryError, HomeUnreachable, NotLeader, OutcomeUnknown, UnknownTopic
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.listening.addresses_core import Source
from mesh.replication.link_state import LinkState
from mesh.replication.publish import Publish
from mesh.replication.settings import BrokerAddress


def payload(number: int) -> bytes:
    return f"batch {number:06d} ".encode() * 4


async def test_a_thousand_batches_arrive_in_order_and_the_lag_returns_to_zero(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    for number in range(1000):
        home.sequence(payload(number))
        if number % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: mirror.high_watermark == 1000)
    assert mirror.entries == home.entries
    (row,) = two_regions.home.links.snapshot()
    await until(lambda: two_regions.home.links.snapshot()[0].lag_records == 0)
    row = two_regions.home.links.snapshot()[0]
    assert (row.state, row.lag_ms, row.lag_bytes) == (LinkState.IDLE, 0.0, 0)


async def test_a_cut_link_heals_without_loss_or_duplicates(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    for number in range(300):
        home.sequence(payload(number))
    await until(lambda: mirror.high_watermark > 0)
    await two_regions.wire.cut()
    for number in range(300, 600):
        home.sequence(payload(number))
    await until(lambda: two_regions.mirror.links.snapshot()[0].state is LinkState.CONNECTING)
    assert mirror.high_watermark < 600
    cut_off = two_regions.home.links.snapshot()[0]
    assert cut_off.lag_records > 0
    assert cut_off.lag_ms > 0
    await two_regions.wire.heal()
    await until(lambda: mirror.high_watermark == 600)
    assert mirror.entries == home.entries
    await until(lambda: two_regions.home.links.snapshot()[0].lag_records == 0)


async def test_what_a_former_home_measured_is_dropped_once_its_session_ended(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: two_regions.home.links.snapshot())
    two_regions.mirror.links.mirror_stopped(key)
    await two_regions.wire.cut()
    await until(lambda: two_regions.home.links.snapshot()[0].state is LinkState.CONNECTING)
    two_regions.home.links.tick()
    assert two_regions.home.links.snapshot()  # at a home it says how far a mirror is behind that is cut off
    home.is_home = False
    two_regions.home.links.tick()
    assert two_regions.home.links.snapshot() == []


async def test_a_region_that_left_is_neither_served_nor_asked_nor_dialled_again(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[key] = home
    links = two_regions.mirror.links
    addresses = links.addresses()
    links.mirror_started(mirror)
    await until(lambda: two_regions.home.links.snapshot())
    two_regions.home.links.forget_region(RegionNumber(2))
    assert two_regions.home.links.snapshot() == []
    assert two_regions.home.links.mirror_positions(key) == {}
    links.forget_region(RegionNumber(1))
    links.mirror_started(mirror)  # this broker was elected again
    rows = [BrokerAddress(broker_id=broker, address=address) for broker, address in addresses.items()]
    links.know_brokers(RegionNumber(1), rows, Source.CONTROL)
    assert (links.snapshot(), links.addresses()) == ([], {})


async def test_batches_that_only_the_disk_has_are_shipped(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(only_cold=True), memory_log()
    for number in range(50):
        home.sequence(payload(number))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 50)
    assert home.cold_reads >= 1
    assert mirror.entries == home.entries


async def test_a_log_that_cannot_be_read_ends_its_own_session_and_not_the_link(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(only_cold=True), memory_log()
    home.sequence(payload(1))
    home.read_failure = DataDirectoryError("segment 0 is damaged at byte 7")
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: home.cold_reads >= 1)
    accepted = set(two_regions.home.links._incoming)
    await until(lambda: home.cold_reads >= 3)  # asked again at the next ticks
    assert two_regions.home.links._incoming == accepted != set()
    home.read_failure = None
    await until(lambda: mirror.high_watermark == 1)


async def test_a_busy_mirror_asks_again_and_holds_every_batch_once(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log(refuses=3)
    two_regions.home.logs[key] = home
    for number in range(20):
        home.sequence(payload(number))
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 20)
    assert mirror.entries == home.entries


async def test_only_committed_batches_are_acknowledged(two_regions: Any, until: Any, memory_log: Any, key: Any) -> None:
    home, mirror = memory_log(), memory_log(commits_at_once=False)
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    for number in range(10):
        home.sequence(payload(number))
    await until(lambda: mirror.next_offset == 10)
    assert two_regions.home.links.snapshot()[0].acked == 0
    mirror.commit(4)
    await until(lambda: two_regions.home.links.snapshot()[0].acked == 4)
    mirror.commit()
    await until(lambda: two_regions.home.links.snapshot()[0].acked == 10)


async def test_a_mirror_that_holds_other_records_diverges_and_takes_nothing(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    mirror.sequence(b"x" * 40)
    for number in range(3):
        home.sequence(payload(number))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: two_regions.mirror.links.snapshot()[0].state is LinkState.DIVERGED)
    assert mirror.payloads() == [b"x" * 40]


async def test_a_new_epoch_at_the_home_resets_the_session_and_the_mirror_follows(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    for number in range(10):
        home.sequence(payload(number))
    await until(lambda: mirror.high_watermark == 10)
    home.begin_epoch(Epoch(2), Offset(10))
    for number in range(10, 20):
        home.sequence(payload(number))
    await until(lambda: mirror.high_watermark == 20)
    assert mirror.table == home.table
    assert mirror.entries == home.entries


async def test_a_returning_region_keeps_its_branch_apart_and_continues_in_the_new_epoch(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    for number in range(10):
        home.sequence(payload(number))
        mirror.append_batch(_header(home.entries[number]), home.entries[number].payload)
    home.begin_epoch(Epoch(2), Offset(6))  # the mirror holds 6..9 of epoch 1 too: an orphan branch
    for number in range(10, 15):
        home.sequence(payload(number))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 11)
    assert mirror.entries == home.entries


async def test_a_mirror_in_a_newer_epoch_is_not_served_by_an_older_home(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    mirror.begin_epoch(Epoch(2), Offset(0))
    home.sequence(payload(0))
    two_regions.home.logs[key] = home
    two_regions.mirror.links.mirror_started(mirror)
    session = two_regions.mirror.links._mirrors[key]
    await until(lambda: session._refusal_logged == "FENCED")
    assert mirror.payloads() == []


async def test_a_redirect_leads_to_the_leader_and_a_lost_leadership_is_followed(
    start_broker: Any, until: Any, memory_log: Any, key: Any
) -> None:
    first, second = await start_broker(1001), await start_broker(1002)
    mirroring = await start_broker(2001)
    home, mirror = memory_log(), memory_log()
    for broker in (first, second):
        broker.leaders[key] = 1002
    second.logs[key] = home
    mirroring.links.mirror_started(mirror)
    home.sequence(payload(0))
    await until(lambda: mirror.high_watermark == 1)
    home.is_serving = False  # the leadership moves to the other broker, which holds the same log
    successor = memory_log(entries=list(home.entries), committed=home.committed)
    for broker in (first, second):
        broker.leaders[key] = 1001
    first.logs[key] = successor
    home.wake()
    successor.sequence(payload(1))
    await until(lambda: mirror.high_watermark == 2)
    assert mirror.entries == successor.entries


async def test_a_broker_of_another_mesh_is_refused_with_the_reason(
    start_broker: Any, until: Any, memory_log: Any
) -> None:
    await start_broker(1001, "first-mesh")
    stranger = await start_broker(2001, "second-mesh")
    stranger.links.mirror_started(memory_log())
    link = stranger.links._outgoing.to_broker(1001)
    await until(lambda: "second-mesh" in link.last_failure)
    assert "first-mesh" not in link.last_failure  # a stranger does not learn the name of this mesh


async def test_a_broker_that_gives_its_region_another_name_is_refused_with_one_clear_line(
    start_broker: Any, until: Any, memory_log: Any
) -> None:
    home = await start_broker(1001)
    home.links.region_name = {1: "us", 2: "eu"}.get
    stranger = await start_broker(2001)
    stranger.links.mirror_started(memory_log())
    link = stranger.links._outgoing.to_broker(1001)
    name = stranger.identity.region
    wanted = f"refused: REGION: broker 2001 says that region 2 is '{name}', here it is 'eu'"
    await until(lambda: link.last_failure == wanted)
    assert home.links.counters.peers_refused["REGION"] >= 1


async def test_what_a_link_carried_and_its_sessions_are_counted(two_regions: Any, until: Any, memory_log: Any) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[home.key] = home
    two_regions.mirror.links.mirror_started(mirror)
    home.sequence(payload(0))
    await until(lambda: mirror.high_watermark == 1)
    await two_regions.wire.cut()
    await until(lambda: two_regions.mirror.links.snapshot()[0].state.value == "connecting")
    await two_regions.wire.heal()
    home.sequence(payload(1))
    await until(lambda: mirror.high_watermark == 2)
    ours, theirs = two_regions.mirror.links.counters, two_regions.home.links.counters
    assert (ours.sessions["mirror", 1], ours.resumes["mirror", 1]) == (2, 1)
    assert (theirs.sessions["home", 2], theirs.resumes["home", 2]) == (2, 1)
    assert (ours.opened["dialled", 1], theirs.opened["accepted", 2]) == (2, 2)
    assert ours.lost["dialled", 1] == 1
    assert 0 < ours.received_bytes[1] <= theirs.sent_bytes[2]  # who it is from is known after the first frame
    assert [row.resumes for row in two_regions.mirror.links.snapshot()] == [1]


async def test_forwarded_batches_keep_their_order_per_lane(two_regions: Any, memory_log: Any, key: Any) -> None:
    two_regions.home.logs[key] = memory_log()
    futures = [forward(two_regions.mirror, key, payload(number)) for number in range(200)]
    answers = await asyncio.gather(*futures)
    assert [answer.base_offset for answer in answers] == list(range(200))
    assert two_regions.home.published == [payload(number) for number in range(200)]


async def test_a_broken_link_leaves_forwarded_batches_unknown_and_sends_none_again(
    two_regions: Any, until: Any, memory_log: Any, key: Any
) -> None:
    two_regions.home.logs[key] = memory_log()
    two_regions.home.hold_publishes = True
    futures = [forward(two_regions.mirror, key, payload(number)) for number in range(3)]
    await until(lambda: len(two_regions.home.held) == 3)
    await two_regions.wire.cut()
    async with asyncio.timeout(1):  # at once, not when the patience for a dead region ends
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown] * 3
    two_regions.home.hold_publishes = False
    await two_regions.wire.heal()
    answer = await retry_until_stored(two_regions.mirror, key, payload(3))
    assert answer.base_offset == 0
    assert two_regions.home.published == [payload(number) for number in range(4)]


async def retry_until_stored(broker: Any, key: Any, batch: bytes) -> Any:
    async with asyncio.timeout(10):
        while True:
            try:
                return await forward(broker, key, batch)
            except HomeUnreachable:
                await asyncio.sleep(0.05)


async def test_batches_behind_a_moved_leader_are_retried_in_order(start_broker: Any, memory_log: Any, key: Any) -> None:
    first, second = await start_broker(1001), await start_broker(1002)
    publishing = await start_broker(2001)
    for broker in (first, second):
        broker.leaders[key] = 1002
    second.logs[key] = memory_log()
    # The lane starts at 1001 (nothing is known), and 20 batches are on their way before it says who leads.
    answers = await asyncio.gather(*[forward(publishing, key, payload(number)) for number in range(20)])
    assert [answer.base_offset for answer in answers] == list(range(20))
    assert (first.published, second.published) == ([], [payload(number) for number in range(20)])


async def test_nothing_overtakes_a_batch_that_was_refused(two_regions: Any, memory_log: Any, key: Any) -> None:
    two_regions.home.logs[key] = memory_log()
    await forward(two_regions.mirror, key, payload(0))
    two_regions.home.publish_errors.append(HomeUnreachable("once"))
    results = await asyncio.gather(
        *[forward(two_regions.mirror, key, payload(number)) for number in range(1, 5)], return_exceptions=True
    )
    assert all(isinstance(result, Exception) for result in results)
    assert two_regions.home.published == [payload(0)]
    assert (await forward(two_regions.mirror, key, payload(5))).base_offset == 1


async def test_a_home_that_cannot_be_reached_is_said_so_and_nothing_was_sent(two_regions: Any, key: Any) -> None:
    await two_regions.wire.cut()
    with pytest.raises(HomeUnreachable):
        await forward(two_regions.mirror, key, payload(0))


def forward(broker: Any, key: Any, batch: bytes, lane: Hashable = "one client") -> Any:
    return broker.links.forward(key, Publish(cast("Any", None), batch, 1, 2, lane), region=1)


async def test_a_request_is_answered_with_body_and_attachment(two_regions: Any) -> None:
    answer = await two_regions.mirror.links.request(1, "echo", {"a": [1]}, timeout_s=5)
    assert (answer.body, answer.attachment) == ({"from": 2001, "at": 1001, "a": [1]}, b"attached")


async def test_an_error_travels_with_its_class_and_text(two_regions: Any) -> None:
    with pytest.raises(UnknownTopic, match="no such method other"):
        await two_regions.mirror.links.request(1, "other", {}, timeout_s=5)


async def test_a_request_follows_the_hint_to_the_leader(start_broker: Any, key: Any) -> None:
    brokers = [await start_broker(1001), await start_broker(1002), await start_broker(1003)]
    asking = await start_broker(2001)
    for broker in brokers:
        broker.leaders[key] = 1003
    assert (await asking.links.request(1, "follow", {}, timeout_s=5)).body == {"at": 1003}
    with pytest.raises(NotLeader):
        await asking.links.request(1, "follow", {}, timeout_s=5, broker=1001)


async def test_a_request_without_an_answer_in_time_has_an_unknown_outcome(two_regions: Any) -> None:
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
        await two_regions.mirror.links.request(1, "never", {}, timeout_s=0.2)


def _header(entry: Any) -> Any:
    from mesh.replication.stream_header import StreamHeader

    return StreamHeader.decode(entry.stream_part)
