"""What the leader of the controller does by itself: form the region, raise its level, follow absences, move replicas.

Rule 1: everything here is proposed and decided again when it is applied; a leader that is none any more harms nothing.
Rule 2: the feature level is raised only when every broker that is known or configured has told this leader that it can
read it, or has been silent for so long that it counts as absent.
Rule 3: the configuration adds brokers to the region, it never takes one away; two leaders whose files differ therefore
do not undo each other's work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from georelay.errors import BadRequest, Busy, PolicyViolation, UnknownTopic
from georelay.ids import BrokerId
from region.controller.absence_core import AbsenceWatch
from region.controller.brokers import BrokerState
from region.controller.commands import (
    FEATURE_LEVEL_MAX,
    Command,
    FormRegion,
    MarkAbsent,
    MarkPresent,
    RaiseFeatureLevel,
    Reassign,
)
from region.controller.effects import Done
from region.controller.planning_core import plan_moves
from region.controller.state_core import ControllerState
from region.controller.topology import RegionInfo, Topology

log = structlog.get_logger()


class LeaderDuties:
    """One look after the other, while this broker leads.

    Args:
        levels: highest feature level by broker, as brokers told this leader.
        disks: of the founders, when this region was founded with a record.
        absent_after_s: see AbsenceWatch. moves_in_flight_max: see plan_moves.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        state: ControllerState,
        topology: Topology,
        disks: Callable[[], tuple[tuple[BrokerId, str], ...]],
        commit: Callable[[Command], Awaitable[Done]],
        is_alive: Callable[[BrokerId], bool],
        levels: dict[BrokerId, int],
        absent_after_s: float,
        moves_in_flight_max: int,
    ) -> None:
        self._me = me
        self._state = state
        self._topology = topology
        self._disks = disks
        self._commit = commit
        self._is_alive = is_alive
        self._levels = levels
        self._moves_in_flight_max = moves_in_flight_max
        self._watch = AbsenceWatch(absent_after_s)
        self._nothing_to_move: tuple[int, tuple[BrokerId, ...]] = (-1, ())  # as it was when there was nothing to plan

    def rest(self) -> None:
        """Forget what only a leader knows."""
        self._watch.forget()
        self._levels.clear()

    async def form(self) -> None:
        """Have the region's shape recorded as this broker's configuration has it."""
        recorded = self._state.topology
        wanted = self._topology if recorded is None else _united(self._topology, recorded, self._state)
        if wanted != recorded:
            await self._commit(FormRegion(topology=wanted, disks=self._disks() if recorded is None else ()))

    async def look(self, now_s: float) -> None:
        """Do what is due at `now_s` (monotonic seconds). Raises what a commit raises."""
        self._watch.look(now_s, {broker: self._hears(broker) for broker in self._everybody()})
        if self._state.feature_level < FEATURE_LEVEL_MAX:
            level = self._level_of_all(now_s)
            if level > self._state.feature_level:
                await self._commit(RaiseFeatureLevel(level=level))
                log.info("region.feature_level_raised", level=level)
                return
        if not self._state.has_life_cycle:
            return
        await self._follow_absences(now_s)
        await self._move()

    def _hears(self, broker: BrokerId) -> bool:
        return broker == self._me or self._is_alive(broker)

    def _everybody(self) -> list[BrokerId]:
        removed = {b for b, record in self._state.records.items() if record.state is BrokerState.REMOVED}
        return sorted({*self._topology.own.brokers, *self._state.records} - removed)

    def _level_of_all(self, now_s: float) -> int:
        """Return the highest level that every broker reads that is not absent; one that says nothing reads the first.

        A broker of version 2 in a region of level 2 says nothing any more: its level is not needed then.
        """
        levels = [
            self._levels.get(broker, 1) if broker in self._state.brokers else 1
            for broker in self._everybody()
            if not self._watch.is_absent(broker, now_s)
        ]
        return min([FEATURE_LEVEL_MAX, *levels])

    async def _follow_absences(self, now_s: float) -> None:
        for broker, record in list(self._state.records.items()):
            if record.state is BrokerState.ACTIVE and record.registration and self._watch.is_absent(broker, now_s):
                await self._try(MarkAbsent(broker=broker))
                log.warning("broker.marked_absent", broker=broker)
            elif record.state is BrokerState.ABSENT and self._hears(broker):
                await self._try(MarkPresent(broker=broker))
                log.info("broker.came_back", broker=broker)

    async def _move(self) -> None:
        seen = (self._state.applied_index, tuple(broker for broker in self._everybody() if self._hears(broker)))
        if seen == self._nothing_to_move:
            return
        moves = plan_moves(self._state, self._moves_in_flight_max, is_alive=self._hears)
        if not moves:
            self._nothing_to_move = seen
        for move in moves:
            await self._try(
                Reassign(group_id=move.group_id, target=move.target, generation=move.generation, pinned=move.pinned)
            )
            log.info("replicas.reassigned", group=move.group_id, target=list(move.target))

    async def _try(self, command: Command) -> None:
        """Commit what may have become pointless meanwhile."""
        try:
            await self._commit(command)
        except (BadRequest, Busy, PolicyViolation, UnknownTopic) as error:
            log.info("controller.step_refused", command=type(command).__name__, reason=str(error))


def _united(configured: Topology, recorded: Topology, state: ControllerState) -> Topology:
    """Return the configured shape; the own region's brokers only ever become more once there is a life cycle."""
    if not state.has_life_cycle:
        return configured
    if not state.mesh.is_empty:  # the mesh grows by control's word, not by files
        configured = replace(recorded, regions=_with_own(recorded, configured.own))
    else:  # a region that a file, or gossip, does not name any more is still one of the mesh
        silent = tuple(region for region in recorded.regions if configured.by_number(region.number) is None)
        home = configured.definitions_home or recorded.definitions_home
        configured = replace(configured, definitions_home=home, regions=(*configured.regions, *silent))
    everybody = tuple(sorted({*configured.own.brokers, *recorded.own.brokers}))
    own = replace(configured.own, brokers=everybody)
    return replace(configured, regions=_with_own(configured, own))


def _with_own(topology: Topology, own: RegionInfo) -> tuple[RegionInfo, ...]:
    return tuple(own if region.number == own.number else region for region in topology.regions)
