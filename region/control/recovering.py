"""How a broker begins a new generation of mesh control when a person says so; what it begins with is in recovery.py.

Rule 1: refused while a leader is heard, unless there are two: of two controls with one generation each leads itself,
        and only a higher generation ends that.
Rule 2: the replica of this region is best; without one that can be reached and holds a whole state, what this region's
        controller pulled. The broker that control knows as holder begins also without its replica: it may have lost it.
Rule 3: one at a time: two would be two controls of one generation. What was true before a question is looked at again
        after it.
Rule 4: a log is given up last: a refused recovery leaves a replica that goes on. Only a log of which nothing is known
        as committed, and that turns out not to hold a state, may be refused where nothing was pulled either.
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
    enabled: bool  # whether it may hold a replica
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
        """Begin with the replica that this broker is known to hold. Raises PolicyViolation."""
        with self._alone():
            if self._control.replica is None:
                return await self._from_cache()
            return await self._with_replica(self._control.replica)

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
        if self._control.replica is None:
            return await self._elsewhere()
        return await self._with_replica(self._control.replica)

    async def _elsewhere(self) -> JsonObject:
        """Leave it to the broker of this region that control knows as holder, if that is another one."""
        control, row, holder = self._control, self._control.row(), self._holder()
        if row is None or holder is None or holder.broker == control.me:
            return await self._from_cache()
        envelope: JsonObject = {"generation": row.generation, "control_id": row.control_id, "body": {}}
        try:
            answer = await control.ask(holder.broker, f"{PREFIX}recover", envelope, timeout_s=RECOVER_S)
        except HomeUnreachable:
            return await self._from_cache()
        result = Fields(answer, "answer").value("ok")
        return dict(result) if isinstance(result, dict) else {}

    def _holder(self) -> VoterRow | None:
        """Return the replica of this region as control is known here."""
        row, region = self._control.row(), region_of(self._control.me)
        own = [] if row is None else [m for m in row.members if m.region == region and not m.retired]
        return own[0] if own else None

    def _is_replaced(self, name: ReplicaName) -> bool:
        """Return whether control made a newer replica in this region."""
        row, holder = self._control.row(), self._holder()
        if row is None or holder is None or row.generation < name.generation:
            return False
        return holder.replica > name.replica

    async def _with_replica(self, replica: ControlReplica) -> JsonObject:
        control, state, number = self._control, self._control.state, replica.name.replica
        if not state.has_begun and replica.name.generation > 1 and replica.name.founder:
            raise PolicyViolation("a recovery ended half way here: start this broker again, then recover once more")
        self._refuse_while_heard(replica)
        if not state.has_begun and self._is_replaced(replica.name):
            return await self._elsewhere()
        if replica.is_leader or replica.leader is not None or not state.has_begun:
            await self._refuse_while_led()
            self._refuse_another(replica)
            self._refuse_while_heard(replica)
        row = control.row()
        own = state.members.row(number)
        if own is None and row is not None:  # after an outage of all, nothing of the log is known as committed yet
            own = row.member(number)
        if own is None and state.has_begun:
            if self._is_replaced(replica.name):
                return await self._elsewhere()
            raise PolicyViolation("this replica of mesh control is none any more; recover from another one")
        if own is None:
            self._remembered(replica)
        replica.give_up_log()
        own = own or state.members.row(number)
        is_whole = state.has_begun and state.is_open
        if own is None or (not is_whole and control.controller.state.mesh.regions):
            return await self._begin_remembered(replica)
        own = replace(own, disk=control.disk)  # control may not have heard yet that it was made
        name = self._name(replica.name.generation + 1, number)
        snapshot = recovered_snapshot(state, own, control_id=name.control_id)
        await control.begin_anew(name, own, snapshot, instead_of=replica)
        return _said(name)

    async def _from_cache(self) -> JsonObject:
        """Begin with what this region's controller pulled: no replica of this region can be reached."""
        control, replica = self._control, self._control.replica
        if not control.enabled:
            raise PolicyViolation("this broker holds no replica of mesh control, and may hold none: recover at another")
        self._remembered(replica)
        await self._refuse_while_led()
        self._refuse_another(replica)
        return await self._begin_remembered(replica)

    def _remembered(self, replica: ControlReplica | None) -> ControlRow:
        """Return who control was as known here.

        Raises:
            PolicyViolation: nothing was ever pulled, or nothing of the replica's generation: what that one ordered has
                indexes that a beginning from an older one would give out again.
        """
        lost = self._control.row()
        if lost is None or not self._control.controller.state.mesh.regions:
            raise PolicyViolation("this region never heard of mesh control: nothing can be recovered from here")
        if replica is not None and lost.generation < replica.name.generation:
            text = f"this region has nothing of generation {replica.name.generation} of mesh control"
            raise PolicyViolation(f"{text}: recover from another one")
        return lost

    async def _begin_remembered(self, replica: ControlReplica | None) -> JsonObject:
        control, lost, state = self._control, self._remembered(replica), self._control.controller.state
        registered = state.brokers.get(control.me)
        numbers = [member.replica for member in lost.members] + ([] if replica is None else [replica.name.replica])
        own = VoterRow(
            replica=max(numbers, default=0) + 1,
            broker=control.me,
            disk=control.disk,
            address="" if registered is None else registered.link,
        )
        name = self._name(lost.generation + 1, own.replica)
        at_us = self._clock.wall_ns() // 1000
        snapshot = remembered_snapshot(state, lost, own, control_id=name.control_id, at_us=at_us)
        await control.begin_anew(name, own, snapshot, instead_of=replica)
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
