"""What a region does for mesh control: its controller's leader hands the definitions over, says who could hold a
replica, and the founder founds.

Rule 1: only the leader of a region's controller speaks for the region, from committed state.
Rule 2: a founder that is gone for good, or silent for long, is replaced by another charter as long as that is allowed.
Rule 3: a report is repeated, because control's leader keeps it in memory only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.errors import ControlUnavailable, GeorelayError
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, RegionNumber, region_of
from mesh.replication.mesh_links import MeshLinks
from region.control.forgetting_core import APPLIED
from region.control.founding import founder_is_gone, founding_snapshot, is_founder, must_cede
from region.control.replica import ControlReplica, founder_name
from region.control.state_core import BEGIN, ControlState
from region.controller.brokers import BrokerState
from region.controller.command_kinds import MESH_LEVEL
from region.controller.commands import CedeDefinitions
from region.controller.mesh_rows import SEEDS_MAX, Charter, ControlRow, VoterRow
from region.controller.service import ControllerService
from region.controller.state_core import ControllerState

log = structlog.get_logger()

LOOK_S: Final = 0.25
SETTLED_LOOKS: Final = 4  # looks for one, once control is there
REPORT_S: Final = 5.0
FOUNDER_SILENT_S: Final = 10.0


class RegionControl(Protocol):
    """What the duties need of MeshControl."""

    me: BrokerId
    disk: str
    enabled: bool
    state: ControlState
    controller: ControllerService
    replica: ControlReplica | None
    alarms: dict[str, str]

    async def found(self, control_id: str, snapshot: Callable[[], bytes], *, disk: str) -> None:
        """Make the founder's replica and write the beginning into its log."""

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        """Commit a command of control."""

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Ask control's leader."""

    def row(self) -> ControlRow | None:
        """Return who control is."""


class RegionDuties:
    """Runs on every broker."""

    def __init__(self, control: RegionControl, *, links: MeshLinks, clock: Clock, rng: random.Random) -> None:
        self._control = control
        self._links = links
        self._clock = clock
        self._rng = rng
        self._silent_since_s: float | None = None
        self._report_again_s = 0.0
        self._reported: JsonObject | None = None
        self._failure = ""  # of the last look: what fails again and again is said once

    async def run(self) -> None:
        """Do what is due, for ever."""
        while True:
            try:
                await self._look()
                self._failure = ""
            except (GeorelayError, FieldError) as error:
                if str(error) != self._failure:
                    log.warning("control.region_step_failed", reason=str(error))
                self._failure = str(error)
            settled = self._control.row() is not None
            await asyncio.sleep(pause_s(LOOK_S * (SETTLED_LOOKS if settled else 1)))

    async def _look(self) -> None:
        control = self._control
        state = control.controller.state
        row = state.mesh.control
        if control.replica is not None and row is not None and row.generation == control.replica.name.generation:
            control.replica.know(row.members, index=row.index)
        charter = is_founder(state, control.me, control.disk)
        if control.enabled and charter is not None and state.mesh.control is None:
            await self._found(charter)
        await self._say_lost()
        if not control.controller.is_leader:
            self._silent_since_s = None
            return
        if control.enabled:
            await self._charter()
        await self._report()

    # --- founding -----------------------------------------------------------------------------------------------------

    async def _charter(self) -> None:
        """Name a founder, or another one in place of one that is gone."""
        control, state = self._control, self._control.controller.state
        charter = state.mesh.charter
        if must_cede(state) and state.disk_of(control.me) == control.disk:
            await self._cede()
            return
        if charter is None or charter.opened or state.mesh.control is not None:
            return
        if founder_is_gone(state, charter) or self._is_silent(charter.founder):
            log.warning("control.founder_replaced", founder=charter.founder)
            await self._cede()

    async def _cede(self) -> None:
        control_id = f"{self._rng.getrandbits(128):032x}"
        charter = Charter(control_id=control_id, founder=self._control.me, disk=self._control.disk)
        await self._control.controller.commit(CedeDefinitions(charter=charter))
        self._silent_since_s = None
        log.info("control.definitions_ceded", control_id=control_id, founder=charter.founder)

    def _is_silent(self, founder: BrokerId) -> bool:
        if self._control.controller.hears(founder):
            self._silent_since_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        return now_s - self._silent_since_s > FOUNDER_SILENT_S

    async def _found(self, charter: Charter) -> None:
        """Take the founder's next step, as far as the ones before it are committed."""
        control = self._control
        founds = control.replica is not None and control.replica.name == founder_name(charter.control_id)
        if charter.opened and not founds:  # what it founded lives elsewhere, and is never founded a second time
            if control.replica is None:
                control.alarms["founder"] = (
                    "the founder's replica of mesh control is gone after it was opened: 'georelay control recover' at "
                    "a broker that holds another one"
                )
            return
        if control.replica is not None and control.state.is_open:
            return
        await control.found(charter.control_id, lambda: self._snapshot(charter), disk=control.disk)
        await control.controller.open_control(charter.control_id)
        await control.propose(BEGIN, {"open": charter.control_id})
        control.controller.wake()
        log.info("control.founded", control_id=charter.control_id, broker=control.me, index=control.state.index)

    def _snapshot(self, charter: Charter) -> bytes:
        control = self._control
        own = [(row.broker, row.link) for row in control.controller.state.brokers.values() if row.link]
        links: dict[RegionNumber, list[tuple[BrokerId, str]]] = {}
        for broker, address in {**self._links.addresses(), **dict(own)}.items():
            links.setdefault(region_of(broker), []).append((broker, address))
        at_us = self._clock.wall_ns() // 1000
        return founding_snapshot(control.controller.state, charter=charter, links=links, at_us=at_us)

    # --- what the region says -----------------------------------------------------------------------------------------

    async def _say_lost(self) -> None:
        """Have another replica made when the folder of the one that control knows is gone, or its log stopped."""
        control, row = self._control, self._control.row()
        if row is None or not control.enabled:
            return
        own = next((m for m in row.members if (m.broker, m.disk) == (control.me, control.disk) and not m.retired), None)
        replica = control.replica
        if own is None or (replica is not None and replica.runs and replica.name.replica == own.replica):
            return
        if replica is not None and replica.runs and replica.name.generation > row.generation:
            return
        await control.call("replica.lost", {"replica": own.replica})

    async def _report(self) -> None:
        control = self._control
        row = control.row()
        state = control.controller.state
        if row is None or state.topology is None or state.feature_level < MESH_LEVEL:
            return
        brokers = sorted(broker for broker, record in state.records.items() if record.counts and record.registration)
        registered = state.brokers
        seeds = [f"{broker}@{registered[broker].link}" for broker in brokers if registered[broker].link]
        body: JsonObject = {
            "number": state.topology.region,
            "brokers": [int(broker) for broker in brokers],
            "level": state.feature_level,
            "seeds": seeds[:SEEDS_MAX],
            "candidate": self._candidate(row, brokers),
            APPLIED: {"topics": state.definitions_index, "security": state.security.index},
        }
        now_s = asyncio.get_running_loop().time()
        if body == self._reported and now_s < self._report_again_s:
            return
        try:
            await control.call("region.report", body)
        except ControlUnavailable as error:
            log.debug("control.report_not_taken", reason=str(error))
            return
        self._reported, self._report_again_s = body, now_s + REPORT_S

    def _candidate(self, row: ControlRow, brokers: list[BrokerId]) -> JsonObject:
        state = self._control.controller.state
        assert state.topology is not None
        own = [member for member in row.members if member.region == state.topology.region]
        gone = [member.replica for member in own if _is_gone(state, member)]
        alive = [broker for broker in brokers if self._control.controller.hears(broker)]
        holding = [member.broker for member in own if member.broker in alive]  # where it is now says its own region
        chosen = next(iter([*holding, *alive]), BrokerId(0))
        address = state.brokers[chosen].link if chosen in state.brokers else ""
        return {"broker": int(chosen), "address": address, "gone": gone}


def _is_gone(state: ControllerState, member: VoterRow) -> bool:
    """Return whether a replica is gone for good: its broker left or is absent, or has another disk."""
    record = state.records.get(member.broker)
    if record is None or record.state in (BrokerState.REMOVED, BrokerState.ABSENT):
        return True
    return bool(member.disk) and state.disk_of(member.broker) != member.disk
