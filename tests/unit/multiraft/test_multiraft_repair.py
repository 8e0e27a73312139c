"""Damage in a sealed segment is repaired from another replica; the group lives on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import StorageFailed
from georelay.ids import GroupId, RaftIndex, Term
from region.log.errors import LogCorrupt, LogUnreadable
from region.multiraft.bulk_client import BulkFailed
from region.multiraft.bulk_wire import SegmentRow
from region.multiraft.repair import _covering
from tests.conditions import until

GROUP = GroupId(1)


@pytest.fixture
async def sealed(memory_region: Any) -> Any:
    """Three brokers with one sealed segment each; the followers' ends elsewhere than the leader's."""
    brokers = await memory_region.add(3)
    for broker in brokers:
        await broker.open(GROUP, tuple(memory_region.brokers))
    leader = await until(lambda: memory_region.leader(GROUP))
    for row in range(20):
        leader.publish(GROUP, b"v%d" % row)
        if row == 9:
            await until(lambda: all(len(broker.machines[GROUP].committed) == 10 for broker in brokers))
            await seal(brokers[0])
    await until(lambda: all(len(broker.machines[GROUP].committed) == 20 for broker in brokers))
    for broker in brokers:
        await seal(broker)
    return brokers


async def seal(broker: Any) -> None:
    group = broker.host.groups[GROUP]
    end = group.disk.last_index
    group.seal()
    await until(lambda: group.disk.manifest_index == end)


def damage(broker: Any, first_index: int) -> bytes:
    """Flip one bit in the middle of a sealed segment; return what the file held."""
    (path,) = broker.directory.group_path(GROUP).glob(f"*{first_index:020d}.log")
    whole = path.read_bytes()
    spoiled = bytearray(whole)
    spoiled[len(spoiled) // 2] ^= 4
    path.write_bytes(spoiled)
    return bytes(whole)


def segment(broker: Any, info: Any) -> bytes:
    return bytes(broker.host.groups[GROUP].disk.read_segment_bytes(info.first_index, 0, info.size_bytes))


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_damaged_segment_is_fetched_again_and_nobody_stops(
    memory_region: Any, sealed: Any, leads: bool
) -> None:
    broker = next(one for one in sealed if (one is memory_region.leader(GROUP)) is leads)
    group = broker.host.groups[GROUP]
    info = group.disk.sealed_segments()[0]
    whole = damage(broker, info.first_index)
    with pytest.raises(LogCorrupt) as found:
        group.disk.verify_segment(info.first_index)
    group.corrupt_found(found.value)
    assert broker.host.bulk.repair.is_repairing(GROUP) or group.disk.corrupt_segments()
    await until(lambda: broker.host.bulk.repair.repaired == 1)
    assert segment(broker, info) == whole
    group.disk.verify_segment(info.first_index)
    assert group.disk.corrupt_segments() == []
    assert not any(one.stopped_groups for one in sealed)


async def test_a_leader_with_damage_hands_over(memory_region: Any, sealed: Any) -> None:
    leader = memory_region.leader(GROUP)
    memory_region.wires.cut.clear()
    leader.host.repair_segment(GROUP, RaftIndex(1))
    await until(lambda: memory_region.leader(GROUP) not in (None, leader))
    await until(lambda: leader.host.bulk.repair.repaired == 1)


def make_unreadable(broker: Any, first_index: int) -> None:
    """Let the disk give nothing of this file back; a file that takes its place is another one."""
    (path,) = broker.directory.group_path(GROUP).glob(f"*{first_index:020d}.log")
    fs, bad = broker.directory.fs, path.stat().st_ino
    read = fs.pread

    def pread(handle: int, size: int, position: int) -> bytes:
        if os.fstat(handle).st_ino == bad:
            raise OSError(errno.EIO, "unreadable sector")
        return bytes(read(handle, size, position))

    keep_open.append(path.open("rb"))  # or the new file could get its number
    fs.pread = pread


keep_open: list[Any] = []


@pytest.fixture(autouse=True)
def closed_again() -> Any:
    yield
    while keep_open:
        keep_open.pop().close()


async def follower_that_needs_the_disk(memory_region: Any, sealed: Any) -> tuple[Any, Any, int]:
    """Return the leader, a broker that is down, and the first index of a segment that it lacks."""
    leader = memory_region.leader(GROUP)
    absent = next(one for one in sealed if one is not leader)
    await absent.stop(clean=False)
    group = leader.host.groups[GROUP]
    first = group.disk.last_index + 1
    for number in range(20, 30):
        leader.publish(GROUP, b"v%d" % number)
    present = [one for one in sealed if one is not absent]
    await until(lambda: all(len(one.machines[GROUP].committed) == 30 for one in present))
    for one in present:
        await seal(one)
    leader.publish(GROUP, b"last")
    await until(lambda: len(leader.machines[GROUP].committed) == 31)
    group.node.log.evict(group.node.applied_index)  # only the disk has them now
    return leader, absent, first


@pytest.mark.parametrize("spoil", [damage, make_unreadable], ids=["flipped", "unreadable"])
async def test_a_cold_read_for_a_follower_that_meets_damage_begins_a_repair(
    memory_region: Any, sealed: Any, spoil: Callable[[Any, int], object]
) -> None:
    leader, absent, first = await follower_that_needs_the_disk(memory_region, sealed)
    spoil(leader, first)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    await until(lambda: len(absent.machines[GROUP].committed) == 31)
    await until(lambda: leader.host.bulk.repair.repaired == 1)
    assert not any(one.stopped_groups for one in sealed)
    leader.host.groups[GROUP].disk.verify_segment(first)


async def test_a_cold_read_without_file_handles_is_asked_again_and_repairs_nothing(
    memory_region: Any, sealed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, absent, _ = await follower_that_needs_the_disk(memory_region, sealed)
    disk = leader.host.groups[GROUP].disk
    read = disk.read_entries
    refused: list[object] = []

    def read_entries(*arguments: Any) -> Any:
        if len(refused) < 3:
            refused.append(arguments)
            raise StorageFailed("too many open files")
        return read(*arguments)

    monkeypatch.setattr(disk, "read_entries", read_entries)
    await absent.start()
    await absent.open(GROUP, tuple(memory_region.brokers))
    await until(lambda: len(absent.machines[GROUP].committed) == 31)
    assert len(refused) == 3 and leader.host.bulk.repair.repaired == 0
    assert not any(one.stopped_groups for one in sealed)


async def test_an_unreadable_sector_of_the_open_segment_is_repaired_as_well(memory_region: Any, sealed: Any) -> None:
    leader = memory_region.leader(GROUP)
    first = leader.host.groups[GROUP].disk.last_index + 1
    for number in range(20, 30):
        leader.publish(GROUP, b"v%d" % number)
    await until(lambda: all(len(broker.machines[GROUP].committed) == 30 for broker in sealed))
    group = leader.host.groups[GROUP]
    make_unreadable(leader, first)
    with pytest.raises(LogUnreadable) as found:
        group.disk.read_entries(RaftIndex(first), RaftIndex(first + 10), 1 << 20)
    group.corrupt_found(found.value)
    await until(lambda: leader.host.bulk.repair.repaired == 1)
    assert len(group.disk.read_entries(RaftIndex(first), RaftIndex(first + 10), 1 << 20)) == 10
    assert memory_region.leader(GROUP) not in (None, leader)  # it handed over
    assert not any(one.stopped_groups for one in sealed)


def row(first: int, last: int) -> SegmentRow:
    return SegmentRow(
        first_index=RaftIndex(first),
        last_index=RaftIndex(last),
        size_bytes=1,
        last_term=Term(1),
        previous_chain=0,
        last_chain=0,
    )


def test_a_source_serves_a_repair_only_when_its_segments_cover_the_range() -> None:
    rows = [row(1, 10), row(11, 20), row(21, 30)]
    assert _covering(rows, row(5, 15)) == rows[:2]  # type: ignore[arg-type]
    assert _covering(rows, row(11, 20)) == rows[1:2]  # type: ignore[arg-type]
    for missing in (row(25, 31), row(40, 50)):
        with pytest.raises(BulkFailed):
            _covering(rows, missing)  # type: ignore[arg-type]


async def test_damage_that_is_found_when_a_group_is_opened_is_repaired_without_being_read(
    memory_region: Any, sealed: Any
) -> None:
    broker = next(one for one in sealed if one is not memory_region.leader(GROUP))
    await broker.stop(clean=False)
    (path,) = broker.directory.group_path(GROUP).glob(f"*{1:020d}.log")
    path.write_bytes(path.read_bytes() + b"more")  # its index file does not fit
    await broker.start()
    await broker.open(GROUP, tuple(memory_region.brokers))
    await until(lambda: broker.host.bulk.repair.repaired == 1)
    assert broker.host.groups[GROUP].disk.corrupt_segments() == []


async def test_damage_in_the_open_segment_is_fetched_after_the_others_have_sealed_theirs(
    memory_region: Any, sealed: Any
) -> None:
    leader = memory_region.leader(GROUP)
    first = leader.host.groups[GROUP].disk.last_index + 1
    for number in range(20, 30):
        leader.publish(GROUP, b"v%d" % number)
    await until(lambda: all(len(broker.machines[GROUP].committed) == 30 for broker in sealed))
    broker = next(one for one in sealed if one is not leader)
    group = broker.host.groups[GROUP]
    damage(broker, first)
    with pytest.raises(LogCorrupt) as found:
        group.disk.read_entries(RaftIndex(first), RaftIndex(first + 10), 1 << 20)
    group.corrupt_found(found.value)
    await until(lambda: broker.host.bulk.repair.repaired == 1)
    assert len(group.disk.read_entries(RaftIndex(first), RaftIndex(first + 10), 1 << 20)) == 10


async def test_a_damaged_manifest_at_which_the_log_may_begin_is_fetched_again(memory_region: Any, sealed: Any) -> None:
    broker = sealed[1]
    group = broker.host.groups[GROUP]
    end = group.disk.sealed_segments()[-1].last_index
    (path,) = broker.directory.group_path(GROUP).glob(f"{end:020d}.manifest")
    raw = bytearray(path.read_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)
    assert group.disk.verify_manifests() == [end]
    broker.host.repair_segment(GROUP, RaftIndex(0))
    await until(lambda: group.disk.verify_manifests() == [])


async def test_damage_that_was_only_marked_by_whoever_met_it_is_repaired_all_the_same(
    memory_region: Any, sealed: Any
) -> None:
    broker = next(b for b in sealed if b is not memory_region.leader(GROUP))
    disk = broker.host.groups[GROUP].disk
    first = disk.sealed_segments()[0].first_index
    whole = damage(broker, first)
    disk.mark_corrupt(first)  # as serving the segment to another broker does
    await until(lambda: not disk.is_damaged)
    (path,) = broker.directory.group_path(GROUP).glob(f"*{first:020d}.log")
    assert path.read_bytes()[: len(whole)] == whole[: path.stat().st_size]
