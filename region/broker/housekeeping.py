"""What a broker does by itself, beside what it is asked: members, leaders, retention, scrubbing, free room.

Each duty runs until `stop`. A duty that meets a failure that passes says so and goes on; anything else ends the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.errors import GeorelayError, StorageFailed
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerState
from region.controller.service import ControllerService
from region.coordination.coordinators import INTERNAL_TOPIC
from region.coordination.limits import MIRROR_HOLD_BYTES, RETAINED_BYTES
from region.log.disk_space import DiskSpace
from region.log.errors import LogCorrupt
from region.log.scrubber import Scrubber
from region.multiraft.balancer import LeaderBalancer
from region.multiraft.host import Host
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import ReplicaKeeper
from region.topics.hosted_stream import HostedStream
from region.topics.retention import Retention
from region.topics.retention_core import RetentionLimits

log = structlog.get_logger()

DISK_CHECK_MS: Final = 1_000
HAND_OVER_AGAIN_MS: Final = 30_000
ORPHANS_AFTER_S: Final = 5.0  # what the controller's log still had to say at start is applied by then


class Housekeeping:
    """The background duties of one broker.

    Args:
        group_folders: the groups that have a folder in the data directory.
        remove_orphan: removes the folder of a group that nobody wants here any more.
        mirror_positions: how far each mirror region of a stream has committed, as far as is known.
        failed: told why the broker must end.
    """

    def __init__(
        self,
        *,
        host: Host,
        controller: ControllerService,
        streams: Mapping[GroupId, HostedStream],
        disk_space: DiskSpace,
        clock: Clock,
        executor: Executor,
        group_folders: Callable[[], Sequence[GroupId]],
        remove_orphan: Callable[[GroupId], None],
        mirror_positions: Callable[[StreamKey], Mapping[RegionNumber, Offset]],
        failed: Callable[[str], None],
    ) -> None:
        self._host = host
        self._controller = controller
        self._streams = streams
        self._disk_space = disk_space
        self._clock = clock
        self._executor = executor
        self._hand_over_again_ns: dict[GroupId, int] = {}
        self._mirror_positions = mirror_positions
        self._group_folders = group_folders
        self._remove_orphan = remove_orphan
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._generations: dict[BrokerId, int] = {}
        self._targets_of: dict[GroupId, tuple[Assignment, ReplicaTarget]] = {}
        self._targets_found: dict[GroupId, ReplicaTarget] = {}
        self._targets_at = -1  # applied index of the controller's state
        self._preferred_found: dict[GroupId, tuple[BrokerId, ...]] = {}
        self._preferred_at = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self.keeper = ReplicaKeeper(
            host, targets=self._targets, barrier=controller.barrier, report=controller.report_replicas
        )
        self.balancer = LeaderBalancer(host, clock=clock, preferred=self._preferred, draining=self._draining)
        self.retention = Retention(
            streams=streams.values,
            limits_of=self._limits_of,
            positions_of=self._positions_of,
            clock=clock,
        )
        self.scrubber = Scrubber(
            lambda: {group_id: group.disk for group_id, group in list(host.groups.items())},
            on_corrupt=self._damaged,
        )

    def start(self) -> None:
        """Begin, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.keeper.start()
        self.balancer.start()
        for duty, name in (
            (self.retention.run(), "retention"),
            (self._scrub(), "scrubber"),
            (self._watch_room(), "disk-space"),
            (self._remove_orphans(), "orphan-groups"),
        ):
            self._begin(duty, name)

    async def stop(self) -> None:
        """End every duty."""
        self.balancer.stop()
        await self.keeper.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, duty: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(duty, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("duty.failed", duty=task.get_name(), reason=repr(error))
            self._failed(f"{task.get_name()} failed: {error!r}")

    # --- members and leaders ----------------------------------------------------------------------

    def _targets(self) -> Mapping[GroupId, ReplicaTarget]:
        state = self._controller.state
        if state.applied_index != self._targets_at:  # thousands of groups are not looked at five times a second
            self._targets_found = self._find_targets()
            self._targets_at = state.applied_index
        return self._targets_found

    def _find_targets(self) -> dict[GroupId, ReplicaTarget]:
        state = self._controller.state
        if state.feature_level < 2:
            return {}  # older brokers of this region cannot read a change of members
        generations = {broker: record.generation for broker, record in state.records.items()}
        if generations != self._generations:
            self._generations = generations
            self._targets_of.clear()
        control = [] if state.control is None else [state.control]
        known = self._targets_of
        found: dict[GroupId, ReplicaTarget] = {}
        for assignment in (*control, *state.assignments()):
            row = known.get(assignment.group_id)
            if row is None or row[0] is not assignment:  # thousands of groups are looked at, few have changed
                row = known[assignment.group_id] = (assignment, self._target(assignment))
            found[assignment.group_id] = row[1]
        if len(known) > len(found):
            self._targets_of = {group_id: known[group_id] for group_id in found}
        return found

    def _target(self, assignment: Assignment) -> ReplicaTarget:
        generation_of = self._controller.state.generation_of
        return ReplicaTarget(
            voters=assignment.target,
            learners=assignment.target_learners,
            unsafe=assignment.unsafe,
            generation=assignment.generation,
            generations={broker: generation_of(broker) for broker in assignment.members | assignment.wanted},
            recorded=assignment.recorded,
        )

    def _preferred(self) -> Mapping[GroupId, tuple[BrokerId, ...]]:
        state = self._controller.state
        if state.applied_index != self._preferred_at:
            self._preferred_found = {row.group_id: row.target for row in state.assignments() if row.is_settled}
            self._preferred_at = state.applied_index
        return self._preferred_found

    def _draining(self) -> frozenset[BrokerId]:
        away = (BrokerState.DRAINING, BrokerState.DRAINED, BrokerState.REMOVED)
        return frozenset(b for b, record in self._controller.state.records.items() if record.state in away)

    # --- retention --------------------------------------------------------------------------------

    def _limits_of(self, stream: HostedStream) -> RetentionLimits:
        topic = self._controller.state.topic_by_id(stream.key.topic_id)
        if topic is None:
            return RetentionLimits()
        if topic.name == INTERNAL_TOPIC:  # manifests hold what matters; an operator's wish would be no reason
            return RetentionLimits(retention_bytes=RETAINED_BYTES, mirror_hold_bytes=MIRROR_HOLD_BYTES)
        if topic.keeps_everything:  # an old record may be the newest of its key
            return RetentionLimits()
        return RetentionLimits(retention_ms=topic.retention_ms, retention_bytes=topic.retention_bytes)

    def _positions_of(self, stream: HostedStream) -> Sequence[Offset]:
        topology = self._controller.state.topology
        topic = self._controller.state.topic_by_id(stream.key.topic_id)
        if topology is None or topic is None:
            return ()
        home = self._controller.catalog.home_of(stream.key)
        known = self._mirror_positions(stream.key)
        return [known.get(region.number, Offset(0)) for region in topology.data_regions if region.number != home]

    # --- the disk ---------------------------------------------------------------------------------

    def _damaged(self, group: GroupId, first_index: int, error: LogCorrupt) -> None:
        """Repair what the scrubber found, in its thread."""
        log.error("damage.found", group=group, first_index=first_index, reason=str(error))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._host.repair_segment, group, RaftIndex(first_index))

    async def _scrub(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = await loop.run_in_executor(self._executor, self.scrubber.step)
            await asyncio.sleep(pause_s)

    async def _watch_room(self) -> None:
        while True:
            await asyncio.sleep(pause_s(DISK_CHECK_MS / 1000))
            try:
                self._disk_space.check()
            except OSError as error:
                raise StorageFailed(f"the free room of the data directory cannot be read: {error}") from error
            if not self._disk_space.writable:
                self._leave_leading()

    def _leave_leading(self) -> None:
        """Hand over what this broker leads: it refuses publishes, and another broker may have room.

        Each group at most once in HAND_OVER_AGAIN_MS, or brokers that are all full would pass it round.
        """
        now_ns = self._clock.monotonic_ns()
        for group_id in list(self._streams):
            group = self._host.groups.get(group_id)
            if group is None or not group.serves_as_leader:
                continue
            if now_ns >= self._hand_over_again_ns.get(group_id, 0) and self._host.hand_over(group):
                self._hand_over_again_ns[group_id] = now_ns + HAND_OVER_AGAIN_MS * 1_000_000
                log.warning("leadership.handed_over", group=group_id, reason="this disk is down to its reserve")

    async def _remove_orphans(self) -> None:
        """Remove, once, the folders of groups that left this broker while it was away.

        A snapshot of the controller says which groups there are, not which ones were let go before it. Folders of
        groups that it never had are kept: then it is the controller that lost something.
        """
        while True:
            try:
                await self._controller.barrier()
                break
            except GeorelayError:  # no leader yet
                await asyncio.sleep(ORPHANS_AFTER_S)
        await asyncio.sleep(ORPHANS_AFTER_S)
        loop = asyncio.get_running_loop()
        for group_id in await loop.run_in_executor(self._executor, self._group_folders):
            assignment = self._controller.state.group(group_id)
            if group_id == CONTROLLER_GROUP or (assignment is not None and assignment.hosts(self._host.me)):
                continue
            if not self._controller.state.was_given_out(group_id):
                log.error("group.unknown_kept", group=group_id)
                continue
            log.info("group.orphan_removed", group=group_id)
            self._remove_orphan(group_id)
