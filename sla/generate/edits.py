"""Faults of delivery: what goes wrong between a region's log and one consumer, applied to one lane's chunk.

Each edit waits for the first chunk in which it has neighbours on both sides: a gap that nothing follows is none.
What was done is written down as it is done; a report must find exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sla.generate.batches import Batches
from sla.generate.request import Fault, FaultKind
from sla.generate.traffic import Lane, Session, Traffic
from sla.generate.world import NS_PER_S, NS_PER_US, World

_EDITS = (FaultKind.GAP, FaultKind.DUPLICATE, FaultKind.REORDER, FaultKind.EXPIRED, FaultKind.REBALANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """One fault as it was done to one stream in one region (region "" : in all).

    Args:
        first, end: offsets it hit. at_ns: true time.
    """

    kind: FaultKind
    topic: str
    origin: str
    partition: int
    region: str
    first: int
    end: int
    at_ns: int

    @property
    def records(self) -> int:
        """Return how many records it hit."""
        return self.end - self.first


@dataclass(slots=True)
class _Pending:
    """A fault that waits for its moment, or (`left_out`) what an earlier one owes its session."""

    fault: Fault
    at_ns: int
    left_out: Batches | None = None


class Edits:
    """All faults of delivery that are still to come.

    Attributes:
        injected: what was done so far.
        expired: ranges that retention took from one region: (stream, region, first, end, true time).
    """

    def __init__(self, world: World, traffic: Traffic) -> None:
        self._world = world
        self._traffic = traffic
        self._pending: dict[tuple[int, int], list[_Pending]] = {key: [] for key in traffic.deliveries}
        self._restarts: dict[int, list[int]] = {region: [] for region in range(len(world.regions))}
        self.injected: list[Injected] = []
        self.expired: list[tuple[int, int, int, int, int]] = []
        rng = np.random.default_rng([world.request.seed, 4])
        for fault in world.of_kind(*_EDITS):
            self._place(fault, rng)
        for fault in world.of_kind(FaultKind.REGION_OUTAGE):
            self._restarts[world.number(fault.region)].append(world.span_ns(fault)[1])

    def _place(self, fault: Fault, rng: np.random.Generator) -> None:
        world = self._world
        lanes = [
            key
            for key in self._pending
            if (not fault.region or world.regions[key[1]] == fault.region)
            and (fault.kind is not FaultKind.REBALANCE or world.streams[key[0]].group)
        ]
        fewest = min(len(self._pending[key]) for key in lanes)
        quiet = [key for key in lanes if len(self._pending[key]) == fewest]  # so that faults meet as late as they can
        key = quiet[int(rng.integers(len(quiet)))]
        self._wait(key, _Pending(fault, world.start_ns + fault.at_s * NS_PER_S))

    def _wait(self, key: tuple[int, int], pending: _Pending) -> None:
        self._pending[key].append(pending)
        self._pending[key].sort(key=lambda pending: pending.at_ns)

    def apply(self, key: tuple[int, int], due: Batches, before_ns: int) -> Batches:
        """Return what a lane's consumers were really handed until `before_ns`, in the order they were."""
        lane = self._traffic.deliveries[key]
        due.session = np.full(len(due), len(lane.sessions) - 1, dtype=np.int64)
        due = self._restart(lane, due)
        waiting = self._pending[key]
        without_place: list[_Pending] = []
        while waiting and waiting[0].at_ns < before_ns:
            pending = waiting.pop(0)
            earliest = max(2, int(np.searchsorted(due.at, pending.at_ns)))
            index = next((index for index in range(earliest, len(due) - 3) if _is_plain(due, index)), None)
            if index is None:
                without_place.append(pending)
            elif pending.left_out is None:
                due = self._edit(lane, due, index, pending.fault)
            else:
                due = _handed_late(due, index, pending.left_out)
        waiting[:0] = without_place
        return due

    def _restart(self, lane: Lane, due: Batches) -> Batches:
        """Open a new session behind every outage of the region: its consumers read from where they were."""
        for end_ns in list(self._restarts[lane.region]):
            index = int(np.searchsorted(due.at, end_ns))
            if index == len(due) or any(session.opened_ns == end_ns for session in lane.sessions):
                continue
            session = self._traffic.new_session(lane.region, lane.stream.partition)
            session.opened_ns = end_ns
            due = self._begin_session(lane, due, index, session)
            due.is_live[index:] &= due.received[index:] >= end_ns
        return due

    @staticmethod
    def _begin_session(lane: Lane, due: Batches, index: int, session: Session) -> Batches:
        lane.sessions.append(session)
        due.session[index:] = len(lane.sessions) - 1
        return due

    def _edit(self, lane: Lane, due: Batches, index: int, fault: Fault) -> Batches:
        first, end = int(due.first[index]), int(due.end[index])
        order = np.arange(len(due))
        at_ns = int(due.at[index])
        match fault.kind:
            case FaultKind.GAP:
                if fault.heal_s >= 0:
                    owed = _Pending(fault, at_ns + fault.heal_s * NS_PER_S, due.take(slice(index, index + 1)))
                    self._wait((lane.stream.index, lane.region), owed)
                due = due.take(np.delete(order, index))
            case FaultKind.EXPIRED:
                due = due.take(np.delete(order, index))
                self.expired.append((lane.stream.index, lane.region, first, end, at_ns))
            case FaultKind.DUPLICATE:
                due = due.take(np.insert(order, index + 1, index))
                due.attempt[index + 1] = 2 if fault.is_flagged else 1
                due.at[index + 1] = min(due.at[index] + 10 * NS_PER_US, due.at[index + 2])
            case FaultKind.REORDER:
                order[[index, index + 1]] = order[[index + 1, index]]
                due = due.take(order)
                due.at[index] = due.at[index + 1] = max(due.at[index], due.at[index + 1])
            case FaultKind.REBALANCE:
                again = min(fault.count, index)
                first = int(due.first[index - again])
                end = int(due.end[index - 1])
                due = due.take(np.insert(order, index, order[index - again : index]))
                due.at[index : index + again] = due.at[index + again]
                due.is_live[index : index + again] = False
                session = self._traffic.new_session(lane.region, lane.stream.partition + len(lane.sessions))
                due = self._begin_session(lane, due, index, session)
            case _:
                raise AssertionError(fault.kind)
        self.injected.append(self.done(fault.kind, lane.stream.index, lane.region, first, end, at_ns))
        return due

    def done(self, kind: FaultKind, stream: int, region: int, first: int, end: int, at_ns: int) -> Injected:
        """Return the note of a fault; region -1 is all regions."""
        owner = self._world.streams[stream]
        return Injected(
            kind=kind,
            topic=self._world.topics[owner.topic],
            origin=owner.origin,
            partition=owner.partition,
            region="" if region < 0 else self._world.regions[region],
            first=first,
            end=end,
            at_ns=at_ns,
        )

    def waiting(self) -> int:
        """Return how many faults found no place yet."""
        return sum(len(pending) for pending in self._pending.values())


def _handed_late(due: Batches, index: int, left_out: Batches) -> Batches:
    """Return the batches with one that was left out before them put in at an index."""
    left_out.at = due.at[index : index + 1].copy()
    left_out.session = due.session[index : index + 1].copy()
    return Batches.concat([due.take(slice(0, index)), left_out, due.take(slice(index, None))])


def _is_plain(due: Batches, index: int) -> bool:
    """Return whether no other fault touched the neighbourhood: a gap inside a duplicate would be neither."""
    near = slice(index - 2, index + 4)
    is_contiguous = (due.first[near][1:] == due.end[near][:-1]).all()
    return bool(is_contiguous and (due.attempt[near] == 1).all() and (due.session[near] == due.session[index]).all())
