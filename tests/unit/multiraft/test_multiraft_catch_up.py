"""A replica that lacks what its leader does not hold any more gets a manifest; one far behind gets whole segments."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import GroupId, RaftIndex
from region.log.manifest import Manifest
from region.multiraft import catch_up
from region.multiraft.machine import InvariantBroken
from region.multiraft.transport import FrameKind
from region.raft.core import RaftConfig
from tests.conditions import until

GROUP = GroupId(1)


async def founded(region: Any, **settings: Any) -> list[Any]:
    brokers: list[Any] = await region.add(3, **settings)
    voters = tuple(broker.me for broker in brokers)
    for broker in brokers:
        await broker.open(GROUP, voters)
    await until(lambda: region.leader(GROUP))
    return brokers


async def publish(region: Any, count: int, *, start: int = 0) -> list[bytes]:
    leader = await until(lambda: region.leader(GROUP))
    values = [b"v%d" % (start + row) for row in range(count)]
    for value in values:
        index = leader.publish(GROUP, value)
    await until(lambda: leader.machines[GROUP].applied_index >= index)
    return values


async def seal(broker: Any) -> None:
    group = broker.host.groups[GROUP]
    end = group.disk.last_index
    group.seal()
    await until(lambda: group.disk.sealed_segments() and group.disk.sealed_segments()[-1].last_index == end)
    await until(lambda: group.disk.manifest_index == end)


def agree(brokers: list[Any], values: list[bytes]) -> bool:
    return all(broker.machines[GROUP].committed == values for broker in brokers)


async def test_a_segment_end_gets_a_manifest_and_a_restart_follows_only_what_is_above_it(memory_region: Any) -> None:
    brokers = await founded(memory_region)
    values = await publish(memory_region, 5)
    broker = brokers[1]
    await until(lambda: agree([broker], values))
    await seal(broker)
    boundary = broker.host.groups[GROUP].disk.manifest_index
    values += await publish(memory_region, 3, start=5)
    await until(lambda: agree(brokers, values))
    await broker.stop(clean=False)
    await broker.start()
    await broker.open(GROUP, ())
    machine = broker.machines[GROUP]
    assert (machine.restored, min(machine.recovered_indexes)) == ([boundary], boundary + 1)
    await until(lambda: agree(brokers, values))


async def test_a_clean_stop_leaves_nothing_to_follow(memory_region: Any) -> None:
    brokers = await founded(memory_region)
    values = await publish(memory_region, 5)
    await until(lambda: agree(brokers, values))
    for broker in brokers:
        await broker.stop()
        await broker.start()
        await broker.open(GROUP, tuple(memory_region.brokers))
    assert [broker.machines[GROUP].recovered_indexes for broker in brokers] == [[], [], []]
    assert agree(brokers, values)
    values += await publish(memory_region, 1, start=5)
    await until(lambda: agree(brokers, values))


async def forget_sealed(group: Any) -> None:
    group.advance_start(RaftIndex(group.disk.last_index + 1))
    await until(lambda: group.disk.first_index > 1)


async def test_a_replica_below_the_log_start_installs_the_manifest_and_goes_on(memory_region: Any) -> None:
    brokers = await founded(memory_region)
    leader = memory_region.leader(GROUP)
    absent = next(broker for broker in brokers if broker is not leader)
    values = await publish(memory_region, 4)
    await until(lambda: agree(brokers, values))
    await absent.stop(clean=False)
    values += await publish(memory_region, 4, start=4)
    for broker in brokers:
        if broker is not absent:
            await seal_when_agreed([broker], values)
            await forget_sealed(broker.host.groups[GROUP])
    values += await publish(memory_region, 2, start=8)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    await until(lambda: agree([absent], values))
    assert absent.machines[GROUP].restored
    assert absent.host.groups[GROUP].disk.first_index > 1
    values += await publish(memory_region, 1, start=10)
    await until(lambda: agree(brokers, values))
    assert not any(broker.stopped_groups for broker in brokers)


async def seal_when_agreed(brokers: list[Any], values: list[bytes]) -> None:
    await until(lambda: agree(brokers, values))
    for broker in brokers:
        await seal(broker)


async def absent_while_segments_grow(region: Any, brokers: list[Any]) -> tuple[Any, list[bytes]]:
    """Stop one follower, write three sealed segments and an open one without it, start it again."""
    leader = region.leader(GROUP)
    absent = next(broker for broker in brokers if broker is not leader)
    values = await publish(region, 4)
    await until(lambda: agree(brokers, values))
    await absent.stop(clean=False)
    present = [broker for broker in brokers if broker is not absent]
    for _ in range(3):
        values += await publish(region, 20, start=len(values))
        await seal_when_agreed(present, values)
    values += await publish(region, 2, start=len(values))
    led = leader.host.groups[GROUP]
    await until(lambda: not led.catch_up_of(absent.me).active)  # else it may be offered segments before it has a group
    return absent, values


def take_two_appends(broker: Any, *, then: Callable[[], Any]) -> None:
    """Let two entries through, so that the leader knows where the logs agree, and no more before `then`.

    Entries are counted, not Appends: on a busy machine the same entry may be sent twice.
    """
    node = broker.host.groups[GROUP].node
    enough = node.last_index + 2
    broker.host._admits_entries = lambda: bool(then()) or node.last_index < enough


@pytest.fixture
def short_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    config = functools.partial(RaftConfig, append_message_bytes_max=1, inflight_messages_max=1)
    monkeypatch.setattr("region.multiraft.group.RaftConfig", config)


async def test_a_replica_far_behind_fetches_segments_and_then_follows_appends(
    memory_region: Any, short_appends: None
) -> None:
    brokers = await founded(memory_region, bulk_behind_bytes=1_000)
    absent, values = await absent_while_segments_grow(memory_region, brokers)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    take_two_appends(absent, then=lambda: absent.machines[GROUP].restored)
    await until(lambda: agree([absent], values))
    assert len(absent.machines[GROUP].restored) == 3
    assert FrameKind.BULK in absent.transport.kinds
    ends = {info.last_index for info in absent.host.groups[GROUP].disk.sealed_segments()}
    assert ends & {info.last_index for info in memory_region.leader(GROUP).host.groups[GROUP].disk.sealed_segments()}
    values += await publish(memory_region, 3, start=len(values))
    await until(lambda: agree(brokers, values))
    assert not any(broker.stopped_groups for broker in brokers)


async def test_a_follower_that_says_nothing_about_its_fetch_is_sent_appends_again(
    memory_region: Any, short_appends: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "OFFER_NEWS_MS", 50)
    brokers = await founded(memory_region, bulk_behind_bytes=1_000)
    absent, values = await absent_while_segments_grow(memory_region, brokers)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    offered = asyncio.Event()
    monkeypatch.setattr(absent.host.bulk, "received", lambda peer, body: offered.set())
    take_two_appends(absent, then=offered.is_set)
    await until(lambda: agree(brokers, values))


async def test_a_fetched_segment_that_does_not_continue_the_log_is_not_linked_in(
    memory_region: Any, short_appends: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await founded(memory_region, bulk_behind_bytes=1_000)
    absent, values = await absent_while_segments_grow(memory_region, brokers)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    for broker in brokers:
        disk = broker.host.groups[GROUP].disk
        read = disk.read_segment_bytes

        def spoiled(first: int, position: int, size: int, read: Any = read) -> bytes:
            raw = bytearray(read(first, position, size))
            raw[-1] ^= 1
            return bytes(raw)

        monkeypatch.setattr(disk, "read_segment_bytes", spoiled)
    failed = asyncio.Event()
    tell = absent.host.bulk._catch_up._tell

    def told(*arguments: Any, more: bool) -> None:
        failed.set()
        tell(*arguments, more=more)

    monkeypatch.setattr(absent.host.bulk._catch_up, "_tell", told)
    take_two_appends(absent, then=failed.is_set)
    await until(lambda: agree(brokers, values))  # by Appends, after the fetch was given up
    assert absent.machines[GROUP].restored == []
    assert not any(broker.stopped_groups for broker in brokers)


async def test_a_replica_stops_when_its_machine_cannot_take_the_state_behind_a_fetched_segment(
    memory_region: Any, short_appends: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await founded(memory_region, bulk_behind_bytes=1_000)
    absent, _ = await absent_while_segments_grow(memory_region, brokers)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))

    def refuse(manifest: Manifest) -> None:
        raise InvariantBroken(f"the state at {manifest.index} is of a newer version")

    monkeypatch.setattr(absent.machines[GROUP], "restore", refuse)
    take_two_appends(absent, then=lambda: absent.stopped_groups)
    await until(lambda: absent.stopped_groups)
    assert "newer version" in absent.stopped_groups[0][1]


async def test_opening_in_slices_gives_the_same_state_as_opening_at_once(memory_region: Any) -> None:
    (broker,) = await memory_region.add(1)
    await broker.open(GROUP, (broker.me,))
    values = await publish(memory_region, 200)
    await broker.stop(clean=False)
    await broker.start()
    await broker.open(GROUP, (broker.me,))
    sliced = broker.machines[GROUP]
    await until(lambda: sliced.committed == values)
    assert sliced.recovered_indexes == list(range(1, 202))
