"""Which replicas move next: the leader of the controller asks this again and again, and proposes what it says.

Rule 1: needs come before balance: missing replicas first, then those on brokers that leave, then even load, and only
        when nothing is on its way, preferred leaders.
Rule 2: at most `in_flight_max` groups copy their log to somebody at a time. A group that cannot commit now neither
        moves nor keeps others from moving.
Rule 3: movement is minimal: who may stay stays. A group has min(wanted replicas, strength of the region) replicas; an
        absent broker counts, so absence alone never makes a group smaller.
Rule 4: to even the load a replica goes from a broker to one with at least two less: every step lowers the sum of
        squares, so planning ends, with replicas spread within one.
Pure and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from georelay.ids import BrokerId, GroupId
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerRecord, BrokerState
from region.controller.placement_core import ReplicaLoad
from region.controller.topic import TopicDefinition

_LEAVING = (BrokerState.DRAINING, BrokerState.DRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Want `target` for a group, if it is still at `generation`."""

    group_id: GroupId
    target: tuple[BrokerId, ...]
    generation: int
    pinned: int


class Placed(Protocol):
    """What planning reads; ControllerState is one."""

    @property
    def records(self) -> dict[BrokerId, BrokerRecord]:
        """Return every broker that was ever known."""

    @property
    def strength(self) -> int:
        """Return how many brokers the region counts on."""

    @property
    def load(self) -> ReplicaLoad:
        """Return wanted replicas and leaderships per broker."""

    def assignments(self) -> Iterable[Assignment]:
        """Return all data groups, in order of their ids."""

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""


def plan_moves(
    state: Placed, in_flight_max: int, *, is_alive: Callable[[BrokerId], bool] = lambda _: True
) -> list[Move]:
    """Return the moves to propose now, at most as many as may begin; empty when the region is as it shall be."""
    return _Plan(state, in_flight_max, is_alive).moves()


class _Plan:
    """One look at a state; `_load` follows what was planned so far."""

    def __init__(self, state: Placed, in_flight_max: int, is_alive: Callable[[BrokerId], bool]) -> None:
        self._state = state
        self._records = state.records
        self._growing_count = 0  # groups that copy their log to somebody
        self._strength = state.strength
        self._load = state.load.copy()
        self._is_alive = is_alive
        self._active = sorted(broker for broker, record in state.records.items() if record.takes_replicas)
        self._active_set = frozenset(self._active)
        self._in_flight_max = in_flight_max
        self._wanted: dict[bytes, int] = {}  # replicas by topic id
        self._needy: list[Assignment] = []
        self._look()
        self._slots = in_flight_max - self._growing_count

    def _look(self) -> None:
        """Go over all groups once: most of them are as they shall be, and cost no more than finding that out."""
        for group in self._state.assignments():
            fine = len(group.target) == self._size(group) and self._active_set.issuperset(group.target)
            grows = group.voters != group.target and group.is_growing
            if (grows or not fine) and self._can_commit(group):
                self._growing_count += grows
                if not fine:
                    self._needy.append(group)

    def moves(self) -> list[Move]:
        needed = self._needed()
        if not self._active:
            return needed
        touched = {move.group_id for move in needed}
        evening = self._even_out(touched) if self._spread(self._load.held) >= 2 and self._slots > 0 else []
        if needed or evening or self._growing_count or self._spread(self._load.led) < 2:
            return [*needed, *evening]
        return self._lead_in_turn(self._free_groups(touched))

    def _spread(self, count: Callable[[BrokerId], int]) -> int:
        counts = [count(broker) for broker in self._active]
        return max(counts) - min(counts)

    def _free_groups(self, touched: set[GroupId]) -> list[Assignment]:
        """Return the groups that may be moved for balance."""
        return [
            group
            for group in self._state.assignments()
            if group.group_id not in touched
            and not group.pinned
            and group.is_settled
            and self._active_set.issuperset(group.target)
            and self._can_commit(group)
        ]

    # --- needs --------------------------------------------------------------------------------------------------------

    def _needed(self) -> list[Move]:
        wishes = []
        for group in self._needy:
            target = self._needed_target(group)
            if target is not None:
                missing = len(frozenset(target) - group.members)
                wishes.append((self._urgency(group), group.group_id, group, target, missing))
        planned = []
        for _, _, group, target, missing in sorted(wishes, key=lambda wish: wish[:2]):
            if missing and not group.is_growing:
                if self._slots <= 0:
                    continue
                self._slots -= 1
            planned.append(self._move(group, target))
        return planned

    def _urgency(self, group: Assignment) -> int:
        """Return how many replicas are there now: the fewest come first."""
        return sum(self._records[broker].state is not BrokerState.ABSENT for broker in group.voters)

    def _needed_target(self, group: Assignment) -> tuple[BrokerId, ...] | None:
        """Return other voters than the present wish, None when there are none that are better."""
        size = self._size(group)
        usable = [broker for broker in self._active if broker not in group.unsafe]
        kept = [broker for broker in group.target if broker in self._active_set]
        while len(kept) > size:
            kept.remove(max(kept[1:] or kept, key=self._load.rank))
        others = sorted((broker for broker in usable if broker not in kept), key=self._load.rank)
        # A broker that has the log already is worth more than one that is less loaded.
        others.sort(key=lambda broker: broker not in group.members)
        chosen = [*kept, *others[: size - len(kept)]]
        chosen += self._stay(group, _LEAVING)[: size - len(chosen)]
        chosen += self._stay(group, (BrokerState.ABSENT,))[: size - len(chosen)]
        if not chosen or frozenset(chosen) == frozenset(group.target):
            return None
        if 2 * sum(self._records[broker].state is BrokerState.ABSENT for broker in chosen) >= len(chosen):
            return None
        return self._ordered(group, chosen)

    def _size(self, group: Assignment) -> int:
        wanted = group.pinned or self._wanted.get(group.key.topic_id, 0)
        if wanted == 0:
            topic = self._state.topic_by_id(group.key.topic_id)
            wanted = len(group.target) if topic is None else topic.replication_factor
            self._wanted[group.key.topic_id] = wanted
        return min(wanted, self._strength)

    def _stay(self, group: Assignment, states: tuple[BrokerState, ...]) -> list[BrokerId]:
        return [
            broker
            for broker in dict.fromkeys((*group.target, *group.voters))
            if broker not in group.unsafe and self._records[broker].state in states
        ]

    def _ordered(self, group: Assignment, chosen: list[BrokerId]) -> tuple[BrokerId, ...]:
        first = group.target[0] if group.target else chosen[0]
        if first in chosen and first in self._active_set:
            return (first, *sorted(broker for broker in chosen if broker != first))
        leaders = [broker for broker in chosen if broker in self._active_set] or chosen
        first = self._load.ordered(leaders)[0]
        return (first, *sorted(broker for broker in chosen if broker != first))

    # --- balance ------------------------------------------------------------------------------------------------------

    def _even_out(self, touched: set[GroupId]) -> list[Move]:
        planned: list[Move] = []
        groups = {group.group_id: group for group in self._free_groups(touched)}
        while self._slots > 0:
            step = self._next_step(groups)
            if step is None:
                break
            group, giver, taker = step
            chosen = [taker if broker == giver else broker for broker in group.target]
            del groups[group.group_id]
            planned.append(self._move(group, self._ordered(group, chosen)))
            self._slots -= 1
        return planned

    def _next_step(self, groups: dict[GroupId, Assignment]) -> tuple[Assignment, BrokerId, BrokerId] | None:
        by_load = sorted(self._active, key=self._load.rank)
        for giver in reversed(by_load):
            for taker in by_load:
                if self._load.held(giver) - self._load.held(taker) < 2:
                    break
                # Rather a replica that does not lead: then nobody's clients have to turn elsewhere.
                fitting = [g for g in groups.values() if giver in g.target and taker not in g.members]
                if fitting:
                    return min(fitting, key=lambda g: (g.target[0] == giver, g.group_id)), giver, taker
        return None

    def _lead_in_turn(self, groups: list[Assignment]) -> list[Move]:
        planned: list[Move] = []
        for group in groups:
            first = group.target[0]
            heir = min(group.target, key=lambda broker: (self._load.led(broker), broker))
            if self._load.led(first) - self._load.led(heir) >= 2:
                target = (heir, *sorted(broker for broker in group.target if broker != heir))
                planned.append(self._move(group, target))
                if len(planned) >= self._in_flight_max:
                    break
        return planned

    # --- parts --------------------------------------------------------------------------------------------------------

    def _can_commit(self, group: Assignment) -> bool:
        live = sum(
            broker not in group.unsafe
            and self._records[broker].state not in (BrokerState.ABSENT, BrokerState.REMOVED)
            and self._is_alive(broker)
            for broker in group.voters
        )
        return 2 * live > len(group.voters)

    def _move(self, group: Assignment, target: tuple[BrokerId, ...]) -> Move:
        self._load.release(group.target)
        self._load.take(target)
        return Move(group_id=group.group_id, target=target, generation=group.generation, pinned=group.pinned)
