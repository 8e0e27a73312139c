"""Groups that come and go on one broker: nothing that is asked for is forgotten, nothing is removed too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, DataDirectoryError, OffsetOutOfRange
from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey, Term
from mesh.replication.stream_header import EntryType, StreamHeader
from region.broker.hosted_groups import OPEN_TRIES_MAX, HostedGroups
from region.controller.assignment import Assignment
from region.controller.effects import BrokersChanged, GroupDropped, ReplicasWanted, TopicAltered
from region.controller.geo_settings import FailoverPolicy
from region.controller.topic import Homes
from region.coordination.coordinators import INTERNAL_TOPIC
from region.log.entry import Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt, LogUnreadable, OpenNotDurable
from region.multiraft.leader_book import LeaderBook
from region.topics.committed_tail import TailBudget

ME, OTHER = BrokerId(1001), BrokerId(1002)
GROUP = GroupId(7)
KEY = StreamKey(bytes(16), RegionNumber(0), 0)


class FollowedSettings:
    """Stands in for the part of a stream that follows its topic's settings."""

    def __init__(self) -> None:
        self.followed: list[tuple[FailoverPolicy, bool]] = []

    def follow_topic(self, topic: Any, *, has_served: bool = True) -> None:
        self.followed.append((topic.failover, has_served))


class Node:
    """Stands in for host, data directory and controller."""

    def __init__(self) -> None:
        self.open: set[GroupId] = set()
        self.removed: list[GroupId] = []
        self.kept: list[GroupId] = []
        self.forgotten: list[GroupId] = []
        self.failures: list[str] = []
        self.leaders = LeaderBook()
        self.assignment: Assignment | None = Assignment.founded(GROUP, KEY, (ME,), generation=1)
        self.registered = True
        self.opened: Callable[[], None] = lambda: None
        self.knows_barriers = True
        self.damaged: Exception | None = None  # why the folder of the group cannot be opened
        self.reports: list[int] = []
        self.report_fails = 0
        self.on_barrier: Callable[[], None] = lambda: None
        self.tries = 0
        self.later: list[tuple[float, Callable[[], None]]] = []  # what waits, and for how many seconds
        self.cancelled = 0
        self.failover = FailoverPolicy.MANUAL
        self.geo = FollowedSettings()
        self.budget = TailBudget()
        self.groups = HostedGroups(
            me=ME,
            region=RegionNumber(1),
            host=self,  # type: ignore[arg-type]
            directory=self,  # type: ignore[arg-type]
            clock=SimpleNamespace(),
            budget=self.budget,
            executor=None,  # type: ignore[arg-type]
            joined=lambda stream: setattr(stream, "geo", self.geo),
            left=lambda _: None,
            failed=self.failures.append,
            feature_level=lambda: 2,
            disk_writable=lambda: True,
            placement=self.placement,
            barrier=self.barrier,
            is_registered=lambda: self.registered,
            replica_lost=self.replica_lost,
            later=self.do_later,
        )
        self.groups.informed()

    def placement(self, group_id: GroupId) -> Any:
        topic = SimpleNamespace(
            name="t",
            home=1,
            homes=Homes.ONE,
            segment_bytes=1 << 20,
            failover=self.failover,
            topic_id=b"t" * 16,
            uses_append_time=False,
        )
        return None if self.assignment is None or not self.registered else (self.assignment, topic)

    async def barrier(self) -> None:
        if not self.knows_barriers:
            raise BadRequest("method 'controller.barrier' is unknown")
        self.on_barrier()

    async def replica_lost(self, group_id: GroupId, generation: int) -> None:
        """Do what the controller does: from here on this broker is unsafe in the group."""
        self.reports.append(generation)
        if self.report_fails:
            self.report_fails -= 1
            raise Busy("the other replicas are not there")
        assert self.assignment is not None and group_id == GROUP
        if generation != self.assignment.generation:
            raise Busy("it changed meanwhile")
        self.wants(self.assignment.without(ME, generation=generation + 10))

    def do_later(self, pause_s: float, action: Callable[[], None]) -> Any:
        self.later.append((pause_s, action))
        return self

    def cancel(self) -> None:
        self.cancelled += 1
        self.later.clear()

    async def time_passes(self) -> float:
        """Let the one thing happen that waits; return for how long it waited."""
        ((pause_s, action),) = self.later
        self.later.clear()
        action()
        await self.settled()
        return pause_s

    async def open_group_async(self, group_id: GroupId, *_: Any, **__: Any) -> Any:
        self.tries += 1
        if self.damaged is not None:
            raise self.damaged
        self.open.add(group_id)
        asyncio.get_running_loop().call_soon(self.opened)
        disk = SimpleNamespace(limit_segments=lambda _: None)
        return SimpleNamespace(disk=disk, distrust=lambda _: None)

    async def close_group(self, group_id: GroupId) -> None:
        self.open.discard(group_id)

    def remove_group(self, group_id: GroupId, *, keep: bool = False) -> None:
        self.removed.append(group_id)
        self.damaged = None
        self.kept += [group_id] * keep

    async def write(self, write: Any) -> None:
        self.forgotten.append(write.group_id)

    def wants(self, assignment: Assignment | None = None) -> None:
        self.assignment = assignment or self.assignment
        assert self.assignment is not None
        self.groups.note(ReplicasWanted(assignment=self.assignment, topic=None))
        self.groups.settle()

    def drops(self) -> None:
        self.assignment = None
        self.groups.note(GroupDropped(group_id=GROUP, key=KEY))
        self.groups.settle()

    async def settled(self) -> None:
        async with asyncio.timeout(5):
            while self.groups.busy:
                await asyncio.sleep(0.001)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)
        await self.settled()

    def shared(self) -> Assignment:
        """Return the group with another replica, at generation 5."""
        return Assignment.founded(GROUP, KEY, (ME, OTHER), generation=5)

    def comes_back(self) -> None:
        """The group reported that this broker left it, and it is wanted again."""
        assert self.assignment is not None
        now, _ = self.assignment.reported((OTHER,), (), membership_index=40, index=20)
        self.wants(now.moved((OTHER, ME), generation=21))


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_wish_that_comes_in_the_moment_in_which_the_work_ends_is_followed(node: Node) -> None:
    node.opened = node.drops  # called when the work is done, and before its end is noticed
    node.wants()
    await node.settled()
    assert node.removed == [GROUP] and node.forgotten == [GROUP] and not node.open


async def test_settings_that_change_while_a_log_is_read_are_followed_before_it_serves(node: Node) -> None:
    open_group = node.open_group_async

    async def alters_meanwhile(group_id: GroupId, *_: Any, **__: Any) -> Any:
        node.failover = FailoverPolicy.AUTO
        node.groups.note(TopicAltered(topic=node.placement(group_id)[1]))
        return await open_group(group_id)

    node.open_group_async = alters_meanwhile  # type: ignore[method-assign]
    node.groups.lease = lambda: False
    node.wants()
    await node.settled()
    assert node.geo.followed == [(FailoverPolicy.AUTO, False)]
    assert not node.groups.streams[GROUP].lease()


async def test_a_group_that_was_assigned_before_this_broker_was_registered_is_opened_once_it_is(node: Node) -> None:
    node.registered = False
    node.wants()
    await node.settled()
    assert not node.open and not node.removed
    node.registered = True
    node.groups.note(BrokersChanged())
    node.groups.settle()
    await node.settled()
    assert node.open == {GROUP}


async def test_nothing_is_removed_while_this_disk_is_not_the_registered_one(node: Node) -> None:
    node.wants()
    await node.settled()
    node.registered = False
    node.wants()
    await node.settled()
    assert not node.open and not node.groups.streams and not node.removed


async def test_a_topic_that_is_gone_is_removed_although_the_leader_knows_no_barriers(node: Node) -> None:
    node.wants()
    await node.settled()
    node.knows_barriers = False
    node.drops()
    await node.settled()
    assert node.removed == [GROUP] and node.forgotten == [GROUP]


async def test_a_group_that_left_is_closed_and_removed_and_its_vote_stays(node: Node) -> None:
    node.wants()
    await node.settled()
    assert node.assignment is not None
    node.wants(replace(node.assignment, voters=(OTHER,), target=(OTHER,), seed=()))
    await node.settled()
    assert node.removed == [GROUP] and not node.forgotten and not node.open


DAMAGE = LogCorrupt(Path("00.log"), 7, "flipped")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.broker.lost_replicas.REPORT_AGAIN_S", 0.001)
    monkeypatch.setattr("region.broker.lost_replicas.LOST_AGAIN_S", 0.001)


async def test_a_replica_that_cannot_be_opened_is_reported_removed_and_begun_anew(node: Node) -> None:
    node.damaged = DAMAGE
    node.wants(node.shared())
    await node.until(lambda: node.removed)
    assert node.reports == [5] and node.kept == [GROUP] and not node.open
    assert not node.groups.refused  # it is no replica of this broker any more
    node.comes_back()
    await node.until(lambda: node.groups.streams)
    assert node.open == {GROUP} and not node.forgotten
    await asyncio.sleep(0.01)
    assert node.reports == [5] and node.removed == [GROUP]


async def test_a_replica_that_met_a_broken_invariant_is_reported_removed_and_begun_anew(node: Node) -> None:
    node.wants(node.shared())
    await node.settled()
    node.groups.group_stopped(GROUP, "the chain does not fit")
    assert node.groups.refused == {GROUP: "the chain does not fit"}
    await node.until(lambda: node.removed)
    assert node.reports == [5] and node.kept == [GROUP] and not node.open and not node.groups.streams
    node.comes_back()
    await node.until(lambda: node.groups.streams)
    assert node.open == {GROUP} and not node.groups.refused


async def test_a_reader_that_breaks_a_group_again_while_it_is_closed_hinders_no_new_replica(node: Node) -> None:
    node.wants(node.shared())
    await node.settled()

    def broken() -> None:
        raise OffsetOutOfRange("offset 0 is below the log start 905")

    node.groups.streams[GROUP].add_waiter(broken)
    node.groups.group_stopped(GROUP, "a reader broke it")
    await node.until(lambda: node.removed)
    node.comes_back()
    await node.until(lambda: node.groups.streams)
    assert node.open == {GROUP} and not node.groups.refused


async def test_nothing_is_removed_before_the_controller_gave_the_replica_up(node: Node, quick: None) -> None:
    node.damaged = DAMAGE
    node.report_fails = 3
    node.wants(node.shared())
    await node.until(lambda: len(node.reports) == 3)
    assert not node.removed and node.groups.refused
    await node.until(lambda: node.removed)
    assert node.reports == [5] * 4


async def test_a_wish_that_changes_meanwhile_neither_opens_nor_removes_what_is_unusable(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.broker.lost_replicas.REPORT_AGAIN_S", 0.05)
    node.damaged = DAMAGE
    node.report_fails = 1
    node.wants(node.shared())
    await node.until(lambda: node.reports)
    node.damaged = None  # what is wrong with it must not be hidden by what comes later
    node.wants(node.shared().moved((OTHER, ME), generation=6))
    await node.settled()
    assert not node.open and not node.removed
    await node.until(lambda: node.removed)
    assert node.reports == [5, 6]


async def test_files_are_removed_although_the_replica_was_wanted_again_before_this_broker_looked(node: Node) -> None:
    node.wants(node.shared())
    await node.settled()

    async def gives_up_and_wants_again(group_id: GroupId, generation: int) -> None:
        node.reports.append(generation)
        lost = node.shared().without(ME, generation=15)
        now, _ = lost.reported((OTHER,), (), membership_index=40, index=20)
        node.wants(now.moved((OTHER, ME), generation=21))  # all in one batch of commands

    node.groups._lost._report = gives_up_and_wants_again
    node.groups.group_stopped(GROUP, "broken")
    await node.until(lambda: node.removed and node.groups.streams)
    assert node.open == {GROUP} and node.removed == [GROUP] and node.reports == [5]


async def test_what_the_operating_system_refused_is_tried_again_for_ever_and_never_given_up(node: Node) -> None:
    node.damaged = DataDirectoryError("too many open files")
    node.wants(node.shared())
    await node.settled()
    pauses = [await node.time_passes() for _ in range(10)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] and node.tries == 11
    assert node.groups.refused and not node.reports and not node.removed
    node.damaged = None
    await node.time_passes()
    assert node.open == {GROUP} and not node.groups.refused and not node.later


UNREADABLE = LogUnreadable(Path("00.log"), 7, "input/output error")


async def test_a_log_that_the_disk_gives_back_later_is_opened_and_not_reported(node: Node) -> None:
    node.damaged = UNREADABLE
    node.wants(node.shared())
    await node.settled()
    for _ in range(OPEN_TRIES_MAX - 2):
        await node.time_passes()
    assert node.groups.refused and not node.open and not node.reports
    node.damaged = None
    await node.time_passes()
    assert node.open == {GROUP} and not node.groups.refused
    assert not node.reports and not node.removed and not node.later


async def test_a_log_that_the_disk_never_gives_back_is_reported_and_begun_anew(node: Node) -> None:
    node.damaged = UNREADABLE
    node.wants(node.shared())
    await node.settled()
    pauses = [await node.time_passes() for _ in range(OPEN_TRIES_MAX - 1)]
    assert pauses == [1, 2, 4, 8, 16] and node.tries == OPEN_TRIES_MAX and not node.later
    await node.until(lambda: node.removed)
    assert node.reports == [5] and node.kept == [GROUP]
    node.comes_back()
    await node.until(lambda: node.groups.streams)
    assert node.open == {GROUP} and not node.groups.refused


async def test_an_unreadable_log_is_not_removed_before_the_controller_gave_the_replica_up(
    node: Node, quick: None
) -> None:
    node.damaged = UNREADABLE
    node.report_fails = 3
    node.wants(node.shared())
    await node.settled()
    for _ in range(OPEN_TRIES_MAX - 1):
        assert not node.reports and not node.removed
        await node.time_passes()
    await node.until(lambda: len(node.reports) == 3)
    assert not node.removed and node.groups.refused
    await node.until(lambda: node.removed)
    assert node.reports == [5] * 4


async def test_wishes_that_come_while_an_unreadable_log_waits_do_not_shorten_the_wait(node: Node) -> None:
    node.damaged = UNREADABLE
    node.wants(node.shared())
    await node.settled()
    for _ in range(3 * OPEN_TRIES_MAX):
        node.wants()
        await node.settled()
    assert node.tries == 1 and len(node.later) == 1 and not node.reports


async def test_a_group_that_leaves_while_its_log_cannot_be_read_is_removed_and_not_opened_again(node: Node) -> None:
    node.damaged = UNREADABLE
    node.wants(node.shared())
    await node.settled()
    node.drops()
    await node.settled()
    assert node.removed == [GROUP] and node.cancelled == 1 and not node.later and not node.groups.refused


async def test_a_broker_whose_disk_refused_a_write_while_a_group_was_opened_ends(node: Node) -> None:
    node.damaged = OpenNotDurable("a write or sync failed")
    node.wants(node.shared())
    await node.settled()
    assert node.failures == ["a write or sync failed"]
    assert not node.open and not node.later and not node.reports and not node.removed


def entry(index: int) -> Entry:
    header = StreamHeader(
        type=EntryType.DATA, entry_region=1, record_count=1, epoch=Epoch(1), base_offset=Offset(index - 1),
        append_us=index * 1_000_000, received_ns=0, max_timestamp_ms=-1, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, payload_crc=0, digest=bytes(16),
    )  # fmt: skip
    return seal_entry(EntryDraft(header=header, payload=b""), term=Term(1), index=RaftIndex(index), previous_chain=0)


@pytest.mark.parametrize("end", ["unreadable", "not durable", "left meanwhile", "goes on for a moment"])
async def test_a_replica_that_is_not_served_after_its_log_was_read_gives_back_what_it_remembers(
    node: Node, end: str
) -> None:
    node.damaged = {"unreadable": UNREADABLE, "not durable": OpenNotDurable("a sync failed")}.get(end)
    open_group, close_group, read = node.open_group_async, node.close_group, []

    async def reads(group_id: GroupId, _base: int, stream: Any, **_: Any) -> Any:
        read.append(stream)
        for index in range(1, 6):
            stream.unnamed.recovered(entry(index))
        if node.damaged is None:
            node.assignment = None
        return await open_group(group_id)

    async def applies_one_more(group_id: GroupId) -> None:
        if end == "goes on for a moment":
            read[-1].unnamed.committed([entry(6)])
        await close_group(group_id)

    node.open_group_async, node.close_group = reads, applies_one_more  # type: ignore[method-assign]
    node.wants(node.shared())
    await node.settled()
    assert len(read) == 1 and not node.groups.streams
    assert node.budget.ranges.held == 0


async def test_nothing_is_opened_again_once_the_broker_stops(node: Node) -> None:
    node.damaged = UNREADABLE
    node.wants(node.shared())
    await node.settled()
    await node.groups.cancel()
    assert node.cancelled == 1 and not node.later


async def test_a_replica_that_is_lost_again_is_reported_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    for _ in range(10):
        node.groups._lost.note(GROUP)
        await sleep(0)
    await node.groups._lost.stop()
    assert pauses == [0.0, 30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]


async def test_a_topic_that_is_deleted_takes_its_lost_replica_along(node: Node, quick: None) -> None:
    node.damaged = DAMAGE
    node.report_fails = 1 << 30
    node.wants(node.shared())
    await node.until(lambda: node.reports)
    node.drops()
    await node.until(lambda: node.forgotten)
    told = len(node.reports)
    await asyncio.sleep(0.02)
    assert node.removed == [GROUP] and not node.kept and len(node.reports) == told and not node.groups.refused


async def test_the_controllers_own_group_is_never_reported(node: Node) -> None:
    node.groups.group_stopped(GroupId(0), "broken")
    await asyncio.sleep(0.01)
    assert not node.reports and not node.groups.refused


@pytest.mark.parametrize(("name", "homes", "refuses"), [("t", Homes.EVERY, True), (INTERNAL_TOPIC, Homes.EVERY, False)])
async def test_a_region_that_leaves_takes_no_records_of_topics_but_its_coordinators_work_on(
    node: Node, name: str, homes: Homes, refuses: bool
) -> None:
    """Groups and queues commit there until they are moved."""
    stream: Any = SimpleNamespace(is_leaving=lambda: False)
    topic: Any = SimpleNamespace(name=name, homes=homes, failover=FailoverPolicy.MANUAL)
    node.groups.leaving = lambda: True
    node.groups._gate(stream, topic)
    assert stream.is_leaving() is refuses
