"""The Raft groups that the controller places on this broker: opened, handed to their streams, closed and removed.

Rule 1: effects only say which groups to look at; what is done follows from the controller's state at that moment. The
        work of one group is done in one task, which looks again when it is done.
Rule 5: nothing is opened or removed on a state that may be old. At start the first barrier is awaited: a log that is
        applied again says of every group that it came, went and came back. Before files are removed the group is
        closed, so that it acknowledges nothing more, and another barrier has to confirm that nobody wants it here.
Rule 6: a broker whose disk is not the registered one opens nothing: its groups have to let it go first. It removes
        nothing either; what it was assigned before it registered is opened once it has.
Rule 2: the files of a group that left are removed only when no write is on its way to them. Its term and vote stay,
        unless its topic is gone for ever: a broker that comes back must not vote twice in one term.
Rule 3: a group whose log is damaged, or that met a broken invariant, is out of use alone: the other replicas serve it,
        and this broker serves the rest. The controller is told, so that the replica is made anew (region.broker.
        lost_replicas). Its files are removed before it is opened again, and not before the controller said that this
        replica does not count any more.
Rule 7: a log that the disk does not give back when it is opened is damaged too, but the bytes may be whole and the disk
        away: it is opened again, more and more rarely, and reported after OPEN_TRIES_MAX. Until then nothing is
        promised, removed or cut. What the operating system refuses for another reason (no file handles, no room) says
        nothing about the bytes: it is tried again for ever, and never reported. Where a write or sync failed, nothing
        is tried: the broker ends, and what is on disk decides at the next start.
Rule 4: logs are read off the event loop, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from georelay.clock import Clock
from georelay.errors import DataDirectoryError, GeorelayError, StorageFailed
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow
from region.broker.lost_replicas import LostReplicas
from region.controller.assignment import Assignment
from region.controller.effects import (
    BrokersChanged,
    Effect,
    GroupAssigned,
    GroupDropped,
    GroupReleased,
    HomeChanged,
    ReplicasWanted,
    TopicAltered,
)
from region.controller.geo_settings import FailoverPolicy
from region.controller.topic import Homes, TopicDefinition
from region.homes.levels import is_coordination
from region.log.data_directory import DataDirectory
from region.log.errors import LogCorrupt, LogUnreadable, OpenNotDurable
from region.log.flusher import GroupWrite
from region.multiraft.host import Host
from region.multiraft.machine import InvariantBroken
from region.raft.core import InvariantViolated
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream

log = structlog.get_logger()

OPENED_AT_ONCE_MAX: Final = 4
BARRIER_AGAIN_S: Final = 0.5
OPEN_AGAIN_S: Final = 1.0  # doubled with each refusal
OPEN_AGAIN_S_MAX: Final = 60.0
OPEN_TRIES_MAX: Final = 6  # of a log that the disk does not give back: half a minute
Placed: TypeAlias = tuple[Assignment, TopicDefinition]


class Timer(Protocol):
    """What will be done later, unless it is cancelled."""

    def cancel(self) -> object: ...


def _never_moved(_key: StreamKey) -> HomeRow | None:
    return None


def _always() -> bool:
    return True


class HostedGroups:
    """Streams of this broker by group.

    Args:
        joined: called with each stream before its group runs: to follow its commits and its leadership.
        left: called with each stream that is not served here any more.
        failed: called with the reason when files could not be removed: the broker must end.
        feature_level, disk_writable: see Stream.
        placement: assignment and topic of a group as known now; None without one, and while this broker's disk is not
            the registered one.
        barrier: returns once what the controller had committed is applied here; raises GeorelayError.
        is_registered: whether this broker's disk is the registered one.
        replica_lost: tells the controller that the replica of a group, at that generation, cannot be used here; raises
            GeorelayError.
        later: does something after so many seconds; None: the event loop's.
        make_coordinator: makes the machine of a stream of the internal topic whose home is this region.
        home_row: control's newest word about the home of a stream, None where it never moved.

    Attributes:
        lease: whether this broker may acknowledge what is stored in this region only, for streams with failover=auto.
        isolated: whether this region is cut off from the majority of mesh control.
        leaving: whether mesh control said that this region is on its way out.
        epochs_begun: goes up whenever the epoch or the home of a stream that is hosted here has changed.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        region: RegionNumber,
        host: Host,
        directory: DataDirectory,
        clock: Clock,
        budget: TailBudget,
        executor: Executor,
        joined: Callable[[HostedStream], None],
        left: Callable[[HostedStream], None],
        failed: Callable[[str], None],
        feature_level: Callable[[], int],
        disk_writable: Callable[[], bool],
        placement: Callable[[GroupId], Placed | None],
        barrier: Callable[[], Awaitable[object]],
        is_registered: Callable[[], bool],
        replica_lost: Callable[[GroupId, int], Awaitable[object]],
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
        make_coordinator: Callable[..., HostedStream] = HostedStream,
        home_row: Callable[[StreamKey], HomeRow | None] = _never_moved,
    ) -> None:
        self.streams: dict[GroupId, HostedStream] = {}
        self.refused: dict[GroupId, str] = {}  # groups whose replica cannot be used, and why
        self._me = me
        self._region = region
        self._host = host
        self._directory = directory
        self._clock = clock
        self._budget = budget
        self._executor = executor
        self._joined = joined
        self._left = left
        self._failed = failed
        self._feature_level = feature_level
        self._disk_writable = disk_writable
        self._placement = placement
        self._barrier = barrier
        self._is_registered = is_registered
        self._informed = False
        self._changed: dict[GroupId, bool] = {}  # whether the group is gone with its topic
        self._dropped: set[GroupId] = set()
        self._due: set[GroupId] = set()
        self._unregistered: set[GroupId] = set()  # looked at while this disk was not the registered one
        self._work: dict[GroupId, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(OPENED_AT_ONCE_MAX)
        self._unusable: set[GroupId] = set()  # found so and not removed yet: they are not opened
        self._given_up: set[GroupId] = set()  # those of them whose replica does not count any more
        self._later = later
        self._make_coordinator = make_coordinator
        self._home_row = home_row
        self._homes_changed: set[StreamKey] = set()
        self.lease: Callable[[], bool] = lambda: True
        self.isolated: Callable[[], bool] = lambda: False
        self.leaving: Callable[[], bool] = lambda: False
        self.coordinators_need_lease: Callable[[], bool] = lambda: False
        self.epochs_begun = 0
        self._tries: dict[GroupId, int] = {}  # of opening, since it was last open
        self._again: dict[GroupId, Timer] = {}  # groups that are opened again later, and not before
        self._lost = LostReplicas(
            generation_of=self._generation_of, barrier=self._confirm, report=replica_lost, given_up=self._give_up
        )

    @property
    def is_informed(self) -> bool:
        """Return whether the controller's state is that of a moment after this broker started."""
        return self._informed

    @property
    def busy(self) -> bool:
        """Return whether groups are being opened, closed or removed."""
        return bool(self._work)

    def note(self, effect: Effect) -> None:
        """Remember which groups an applied command is about; `settle` looks at them."""
        match effect:
            case GroupAssigned() | ReplicasWanted() | GroupReleased():
                self._changed.setdefault(effect.group_id, False)
            case GroupDropped():
                self._changed[effect.group_id] = True
            case BrokersChanged():
                for group_id in self._unregistered:
                    self._changed.setdefault(group_id, False)
            case TopicAltered():
                self._follow_topic(effect.topic)
            case HomeChanged():
                self._homes_changed.add(effect.key)
            case _:
                pass  # not about a group

    def remove_orphan(self, group_id: GroupId) -> None:
        """Remove what is left of a group that is not placed here; its term and vote stay."""
        self._changed.setdefault(group_id, False)
        self.settle()

    def settle(self) -> None:
        """Look at the groups that the commands applied since the last call are about, once the state is known."""
        self._follow_homes()
        if not self._informed:
            return
        changed, self._changed = self._changed, {}
        for group_id, dropped in changed.items():
            if group_id == CONTROLLER_GROUP:
                continue
            if dropped:
                self._dropped.add(group_id)
                self._close_stream(group_id)  # nothing more is served, whatever is under way
            self._due.add(group_id)
            if group_id not in self._work:
                self._begin(group_id)

    def _begin(self, group_id: GroupId) -> None:
        task = asyncio.get_running_loop().create_task(self._follow(group_id), name=f"group-{group_id}")
        self._work[group_id] = task
        task.add_done_callback(partial(self._worked, group_id))

    def informed(self) -> None:
        """Begin: the controller's state is that of a moment after this broker started."""
        self._informed = True
        self.settle()

    def _worked(self, group_id: GroupId, task: asyncio.Task[None]) -> None:
        del self._work[group_id]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._failed(f"group {group_id}: {error!r}")
        elif group_id in self._due:  # it came after the task's last look
            self._begin(group_id)

    async def _follow(self, group_id: GroupId) -> None:
        """Bring one group where it should be, until nothing about it has changed."""
        while group_id in self._due:
            self._due.discard(group_id)
            self._unregistered.discard(group_id)
            placed = self._placed(group_id)
            if placed is None and group_id not in self._dropped and not self._is_registered():
                self._unregistered.add(group_id)
                self._found_usable(group_id)  # or not: that is found out when it is opened
                self._close_stream(group_id)
                await self._host.close_group(group_id)
            elif placed is None or group_id in self._given_up:
                await self._remove(group_id)
            elif not (group_id in self.streams or group_id in self._unusable or group_id in self._again):
                async with self._slots:
                    await self._open(group_id, *placed)
            elif group_id in self.streams:
                self._follow_home(self.streams[group_id])

    # --- homes ------------------------------------------------------------------------------------

    def _follow_homes(self) -> None:
        changed, self._homes_changed = self._homes_changed, set()
        if changed:
            for stream in list(self.streams.values()):
                if stream.key in changed:
                    self._follow_home(stream)

    def _follow_home(self, stream: HostedStream) -> None:
        row = self._home_row(stream.key)
        if row is not None:
            stream.follow_home(row)

    def _follow_topic(self, topic: TopicDefinition) -> None:
        for stream in self.streams.values():
            if stream.key.topic_id == topic.topic_id:
                self._follow_settings(stream, topic, has_served=True)

    def _follow_settings(self, stream: HostedStream, topic: TopicDefinition, *, has_served: bool) -> None:
        stream.disk.limit_segments(topic.segment_bytes)
        stream.uses_append_time = topic.uses_append_time
        if stream.geo is not None:
            stream.geo.follow_topic(topic, has_served=has_served)
        self._gate(stream, topic)

    def _gate(self, stream: HostedStream, topic: TopicDefinition) -> None:
        """Let acknowledgements of one region depend on the lease where the home may be moved without asking it.

        A region that drains takes no new records of `homes=every` topics; its coordinators work until they are moved.
        """
        if is_coordination(topic):
            stream.lease = lambda: self.lease() or not self.coordinators_need_lease()
        else:
            stream.lease = (lambda: self.lease()) if topic.failover is FailoverPolicy.AUTO else _always
            stream.is_leaving = lambda: self.leaving()
        stream.isolated = lambda: self.isolated()

    def _epoch_began(self, _stream: object) -> None:
        self.epochs_begun += 1

    # --- opening ----------------------------------------------------------------------------------

    def _placed(self, group_id: GroupId) -> Placed | None:
        """Return assignment and topic of a group that is to be open here now."""
        placed = self._placement(group_id)
        return None if placed is None or not placed[0].hosts(self._me) else placed

    def _generation_of(self, group_id: GroupId) -> int | None:
        """Return the generation of a group that is to be open here now."""
        placed = self._placed(group_id)
        return None if placed is None else placed[0].generation

    def _give_up(self, group_id: GroupId) -> None:
        """Remove what is on disk, and begin anew if a replica is wanted here again."""
        self._given_up.add(group_id)
        self._changed.setdefault(group_id, False)
        self.settle()

    async def _open(self, group_id: GroupId, assignment: Assignment, topic: TopicDefinition) -> None:
        home = topic.home if topic.homes is Homes.ONE else assignment.key.origin
        is_coordinator = is_coordination(topic)  # mirrors too: they may become the home
        make = self._make_coordinator if is_coordinator else HostedStream
        stream = make(
            key=assignment.key,
            topic=topic.name,
            group_id=group_id,
            home=home,
            region=self._region,
            clock=self._clock,
            budget=self._budget,
            executor=self._executor,
            feature_level=self._feature_level,
            disk_writable=self._disk_writable,
        )
        self._gate(stream, topic)
        stream.on_epoch = self._epoch_began
        self._follow_home(stream)
        self._joined(stream)
        try:
            group = await self._host.open_group_async(
                group_id, assignment.base_for(self._me), stream, joins_after=assignment.joins_after(self._me)
            )
        except OpenNotDurable as error:
            stream.close()
            self._failed(str(error))
            return
        except (DataDirectoryError, InvariantBroken, InvariantViolated, StorageFailed) as error:
            stream.close()
            self.refused[group_id] = str(error)
            log.critical("group.refused", group=group_id, stream=str(assignment.key), reason=str(error))
            self._refused(group_id, error)
            return
        self._found_usable(group_id)
        stream.attach(group, group.disk)
        group.distrust(assignment.unsafe)
        now = self._placed(group_id)
        if now is None or now[0].joins_after(self._me) != assignment.joins_after(self._me):
            stream.close()
            await self._host.close_group(group_id)  # it left, or left and came back, while it was read
            self._due.add(group_id)
            return
        self.streams[group_id] = stream
        self._follow_home(stream)  # it may have moved while the log was read, and the settings may have changed
        self._follow_settings(stream, now[1], has_served=False)

    def _refused(self, group_id: GroupId, error: Exception) -> None:
        """Open the group again later, or have its replica made anew: rules 3 and 7."""
        tries = self._tries[group_id] = self._tries.get(group_id, 0) + 1
        is_damaged = isinstance(error, InvariantBroken | InvariantViolated | LogCorrupt)
        is_damaged = is_damaged and not isinstance(error, LogUnreadable)
        if is_damaged or (isinstance(error, LogUnreadable) and tries >= OPEN_TRIES_MAX):
            self._found_unusable(group_id)
            return
        pause_s = min(OPEN_AGAIN_S * 2 ** min(tries - 1, OPEN_TRIES_MAX), OPEN_AGAIN_S_MAX)
        later = self._later or asyncio.get_running_loop().call_later
        self._again[group_id] = later(pause_s, partial(self._open_again, group_id))

    def _open_again(self, group_id: GroupId) -> None:
        del self._again[group_id]
        self._changed.setdefault(group_id, False)
        self.settle()

    def _close_stream(self, group_id: GroupId) -> None:
        stream = self.streams.pop(group_id, None)
        if stream is not None:
            self._left(stream)
            stream.close()

    def _found_unusable(self, group_id: GroupId) -> None:
        self._forget_tries(group_id)
        self._unusable.add(group_id)
        self._lost.note(group_id)

    def _found_usable(self, group_id: GroupId) -> None:
        self.refused.pop(group_id, None)
        self._unusable.discard(group_id)
        self._given_up.discard(group_id)
        self._lost.forget(group_id)
        self._forget_tries(group_id)

    def _forget_tries(self, group_id: GroupId) -> None:
        self._tries.pop(group_id, None)
        if (timer := self._again.pop(group_id, None)) is not None:
            timer.cancel()

    async def _remove(self, group_id: GroupId) -> None:
        self._close_stream(group_id)
        await self._host.close_group(group_id)  # a write on its way into a folder that is gone looks like a bad disk
        unusable = group_id in self._unusable  # it left, or was given up: no wish of later can be for these files
        if group_id not in self._dropped:  # a topic that is gone never comes back
            if not unusable:
                await self._confirm()
            if not self._is_registered() or (not unusable and self._placed(group_id) is not None):
                self._due.add(group_id)  # it is wanted again: its files are worth something
                return
        keep = unusable and group_id not in self._dropped
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, partial(self._directory.remove_group, group_id, keep=keep)
            )
        except DataDirectoryError as error:
            self._failed(str(error))
            return
        self._found_usable(group_id)
        if keep:
            log.warning("replica.given_up", group=group_id)
            if self._placed(group_id) is not None:
                self._due.add(group_id)  # it was wanted here again before this broker looked
        if group_id in self._dropped:
            self._dropped.discard(group_id)
            self._host.leaders.forget(group_id)
            await self._host.write(GroupWrite(group_id=group_id, log=None, token=None, forget=True))

    async def _confirm(self) -> None:
        """Return once this broker has applied what the controller had committed when this was called."""
        while True:
            try:
                await self._barrier()
                return
            except GeorelayError as error:  # no leader at the moment: nothing is removed meanwhile
                log.debug("groups.barrier_failed", reason=str(error))
                await asyncio.sleep(BARRIER_AGAIN_S)

    def group_stopped(self, group_id: GroupId, reason: str) -> None:
        """Serve a stream no longer whose group met a broken invariant, and have its replica made anew."""
        if group_id == CONTROLLER_GROUP:
            return
        stream = self.streams.get(group_id)
        if stream is not None:
            self._left(stream)
            stream.close()
        self.refused[group_id] = reason
        self._found_unusable(group_id)

    def close(self) -> None:
        """Stop serving every stream; the groups stay the host's."""
        for stream in self.streams.values():
            stream.close()

    async def cancel(self) -> None:
        """Give up what is under way; the next start finishes it."""
        for group_id in list(self._again):
            self._forget_tries(group_id)
        await self._lost.stop()
        tasks = list(self._work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
