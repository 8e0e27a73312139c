"""How a broker begins a new generation of mesh control when a person says so; what it begins with is in recovery.py.

Rule 1: refused while a leader is heard, unless there are two: of two controls with one generation each leads itself,
        and only a higher generation ends that.
Rule 2: the replica of this region is best; without one that can be reached, what this region's controller pulled.
Rule 3: one at a time: two would be two controls of one generation. What was true before a question is looked at again
        after it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from georelay.clock import Clock
from georelay.errors import ControlUnavailable, HomeUnreachable, OutcomeUnknown, PolicyViolation
from georelay.fields import Fields, JsonObject
from georelay.ids import BrokerId, region_of
from region.control.calls import PREFIX
from region.control.recovery import recovered_snapshot, remembered_snapshot
from region.control.replica import ControlReplica, ReplicaName
from region.control.state_core import ControlState
from region.controller.mesh_rows import ControlRow, VoterRow
from region.controller.service import ControllerService

RECOVER_S: Final = 30.0
LOOK_FOR_LEADER_S: Final = 3.0


class RecoveredControl(Protocol):
    """What is needed of MeshControl."""

    me: BrokerId
    disk: str
    state: ControlState
    controller: ControllerService
    replica: ControlReplica | None

    @property
    def has_rival(self) -> bool:
        """Return whether another control of the same generation was met."""

    def row(self) -> ControlRow | None:
        """Return who control is."""

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Ask control's leader."""

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        """Ask one broker."""

    async def begin_anew(
        self, name: ReplicaName, own: VoterRow, snapshot: bytes, *, instead_of: ControlReplica | None
    ) -> None:
        """Make the first replica of a new generation."""


class Recovering:
    """One broker's part of a recovery."""

    def __init__(self, control: RecoveredControl, *, clock: Clock, rng: random.Random) -> None:
        self._control = control
        self._clock = clock
        self._rng = rng
        self._is_under_way = False

    async def recover(self) -> JsonObject:
        """Begin a new generation in this region. Raises PolicyViolation."""
        with self._alone():
            return await self._recover()

    async def recover_here(self) -> JsonObject:
        """Begin with the replica of this broker. Raises PolicyViolation."""
        with self._alone():
            return await self._with_replica()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._is_under_way:
            raise PolicyViolation("a recovery of mesh control is under way at this broker: wait for its end")
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False

    async def _recover(self) -> JsonObject:
        control, row = self._control, self._control.row()
        own = [] if row is None else [m for m in row.members if m.region == region_of(control.me) and not m.retired]
        if control.replica is not None:
            return await self._with_replica()
        if row is not None and own and own[0].broker != control.me:
            envelope: JsonObject = {"generation": row.generation, "control_id": row.control_id, "body": {}}
            try:
                answer = await control.ask(own[0].broker, f"{PREFIX}recover", envelope, timeout_s=RECOVER_S)
            except HomeUnreachable:
                return await self._from_cache()
            result = Fields(answer, "answer").value("ok")
            return dict(result) if isinstance(result, dict) else {}
        return await self._from_cache()

    async def _with_replica(self) -> JsonObject:
        control, replica = self._control, self._control.replica
        if replica is None:
            raise PolicyViolation("this broker holds no replica of mesh control: recover from another one")
        if not control.state.has_begun and replica.name.generation > 1 and replica.name.founder:
            raise PolicyViolation("a recovery ended half way here: start this broker again, then recover once more")
        self._refuse_while_heard(replica)
        if replica.is_leader or replica.leader is not None:
            await self._refuse_while_led()
            self._refuse_another(replica)
            self._refuse_while_heard(replica)
        row, number = control.row(), replica.name.replica
        own = control.state.members.row(number)
        if own is None and row is not None:  # after an outage of all, nothing of the log is known as committed yet
            own = row.member(number)
        if own is None:
            raise PolicyViolation("this replica of mesh control is none any more; recover from another one")
        own = replace(own, disk=control.disk)  # control may not have heard yet that it was made
        replica.give_up_log()
        name = self._name(replica.name.generation + 1, number)
        snapshot = recovered_snapshot(control.state, own, control_id=name.control_id)
        await control.begin_anew(name, own, snapshot, instead_of=replica)
        return _said(name)

    async def _from_cache(self) -> JsonObject:
        """Begin with what this region's controller pulled: no replica of this region can be reached."""
        control, lost, state = self._control, self._control.row(), self._control.controller.state
        if lost is None or not state.mesh.regions:
            raise PolicyViolation("this region never heard of mesh control: nothing can be recovered from here")
        await self._refuse_while_led()
        self._refuse_another(None)
        registered = state.brokers.get(control.me)
        own = VoterRow(
            replica=max((member.replica for member in lost.members), default=0) + 1,
            broker=control.me,
            disk=control.disk,
            address="" if registered is None else registered.link,
        )
        name = self._name(lost.generation + 1, own.replica)
        at_us = self._clock.wall_ns() // 1000
        snapshot = remembered_snapshot(state, lost, own, control_id=name.control_id, at_us=at_us)
        await control.begin_anew(name, own, snapshot, instead_of=None)
        return _said(name)

    def _refuse_another(self, replica: ControlReplica | None) -> None:
        if self._control.replica is not replica:
            raise PolicyViolation("this broker's replica of mesh control has changed meanwhile: recover once more")

    def _refuse_while_heard(self, replica: ControlReplica) -> None:
        """Believe a voter at once: it leaves a leader that falls silent. A slow answer is no reason to doubt it."""
        if replica.hears_leader and not self._control.has_rival:
            raise PolicyViolation("mesh control has a leader: nothing has to be recovered")

    async def _refuse_while_led(self) -> None:
        """Ask the leader, whoever it is: a learner has no election timeout, so it may believe in one that stepped down.

        Raises:
            PolicyViolation: it answers, and has no rival.
        """
        try:
            await self._control.call("status", {}, timeout_s=LOOK_FOR_LEADER_S)
        except (ControlUnavailable, OutcomeUnknown):
            return  # as it should be: nobody leads, or the last one that was asked has nothing to say
        if not self._control.has_rival:
            raise PolicyViolation("mesh control has a leader: nothing has to be recovered")

    def _name(self, generation: int, replica: int) -> ReplicaName:
        control_id = f"{self._rng.getrandbits(128):032x}"
        return ReplicaName(generation=generation, control_id=control_id, replica=replica, founder=True)


def _said(name: ReplicaName) -> JsonObject:
    return {"generation": name.generation, "control_id": name.control_id}
