"""What must hold of mesh control in a mesh of brokers, whatever fails.

- At most one control of a generation ever orders, and the next one begins only when a person says so.
- A definition index is given once: brokers that have it have the same definition under it.
- In the end there is a leader, every region has a replica, and all regions hold the same definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, region_of
from tests.sim.violation import Violation

LOOK_AT_MAX = 10_000
RECOVER_AGAIN_LOOKS = 50


class ControlRules:
    """Looks at the brokers of one world again and again; `seed`: of the world."""

    def __init__(self, *, seed: int) -> None:
        self.orderers: set[tuple[int, str]] = set()
        self._given: dict[int, tuple[str, bytes]] = {}
        self._looks_since_recovery = RECOVER_AGAIN_LOOKS
        self._seed = seed

    def look(self, lives: Mapping[BrokerId, Any]) -> None:
        """Check what the brokers hold now. Raises Violation."""
        for broker, life in lives.items():
            core = getattr(life, "core", None)
            if core is None or not life.serving:
                continue
            state = core.control.state
            if core.control.replica is not None and state.is_open:
                self.orderers.add((state.generation, state.control_id))
            for row in core.controller.state.definitions_since(0, limit=LOOK_AT_MAX):
                given = (type(row).__name__, row.topic_id)
                if self._given.setdefault(row.index, given) != given:
                    raise Violation("definition-given-twice", f"broker {broker}: {row.index} is {given}")
        if len({generation for generation, _ in self.orderers}) != len(self.orderers):
            raise Violation("two-controls", f"both order: {sorted(self.orderers)}")

    def unsettled(self, lives: Mapping[BrokerId, Any], regions: int) -> Iterator[str]:
        """Say what is left to do once everything works again."""
        self.look(lives)
        cores = [life.core for life in lives.values()]
        leader = next((core for core in cores if core.control.is_leader), None)
        if leader is None:
            self._looks_since_recovery += 1
            if self._looks_since_recovery > RECOVER_AGAIN_LOOKS and _majority_is_lost(lives):
                self._looks_since_recovery = 0
                _recover(lives, choice=self._seed)
            yield "mesh control has no leader"
            return
        members = leader.control.state.members
        if len(members.voters) != regions or members.targets()[0] != members.voters:
            yield f"mesh control has voters {members.voters}, wants {members.targets()}"
        ends = {core.controller.state.definitions_index for core in cores}
        if len(ends) != 1:
            yield f"definitions end at {sorted(ends)}"


def _majority_is_lost(lives: Mapping[BrokerId, Any]) -> bool:
    """Return whether so many disks with votes were replaced that nobody can be elected any more.

    Whose votes count follows from what control told last and, where it had no time to tell of a change, from the logs
    of the replicas that are left.
    """
    controls = [life.core.control for life in lives.values()]
    row = max(
        (row for control in controls if (row := control.row()) is not None),
        key=lambda row: (row.generation, row.index),
        default=None,
    )
    if row is None:
        return False
    lost = {
        member.replica
        for member in row.members
        if member.broker not in lives or lives[member.broker].core.control.disk != member.disk
    }
    votes = [row.voters]
    for replica in (control.replica for control in controls):
        if replica is not None and replica.name.generation == row.generation:
            votes += [group.membership.voters for group in replica.host.groups.values()]
    return any(2 * len(lost.intersection(voters)) >= len(voters) for voters in votes)


def _recover(lives: Mapping[BrokerId, Any], *, choice: int) -> None:
    """Do what an operator does: begin a new generation in a region where a replica is left, else anywhere.

    It is the region that is asked, through whichever of its brokers a gateway chooses, and always that one: each has to
    know what to do.
    """
    ranked = sorted(lives, key=lambda broker: (lives[broker].core.control.replica is None, broker))
    asked = sorted((broker for broker in lives if region_of(broker) == region_of(ranked[0])), reverse=True)
    life = lives[asked[choice % len(asked)]]

    async def recover() -> None:
        try:
            await life.core.control.recover()
        except GeorelayError:
            return  # it is tried again

    life.loop.run_now(lambda: life.loop.create_task(recover()))
