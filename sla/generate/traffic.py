"""Publishing and what follows from it: every stream's batches committed, replicated and delivered, chunk by chunk.

Rule 1: a lane (one stream at one place) never overtakes itself: its times do not decrease.
Rule 2: what a chunk begins and does not end is carried to the next one; memory is that of one chunk.
Rule 3: nothing here knows rows or clocks: times are true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from sla.generate.batches import Batches
from sla.generate.request import Fault, FaultKind
from sla.generate.world import FIRST_OFFSET, NS_PER_MS, NS_PER_S, NS_PER_US, Int64, Stream, World

COMMIT_US: Final = 1_500  # medians of log-normal times
DELIVER_US: Final = 800
SPREAD: Final = 0.4
SLOW_SHARE: Final = 0.003  # of deliveries that a pause holds up
SLOW_US: Final = 15_000
CATCH_UP: Final = 50  # what piled up is handed on so many times faster than it came


@dataclass(slots=True, kw_only=True)
class Span:
    """A true time [start, end) in which something does not work."""

    start_ns: int
    end_ns: int

    def push(self, at: Int64) -> Int64:
        """Move what falls into the span behind it, in order."""
        return np.where((at >= self.start_ns) & (at < self.end_ns), self.end_ns + (at - self.start_ns) // CATCH_UP, at)


@dataclass(slots=True)
class Session:
    """One consumer session of a delivery lane.

    Args:
        number: as in the ledger. next_sequence: numbers what it is handed.
        opened_ns: the outage behind which it began, 0 for another reason.
    """

    broker: int
    number: int
    next_sequence: int = 0
    opened_ns: int = 0


@dataclass(slots=True, kw_only=True)
class Lane:
    """One stream at one place: its commits at home, or its copies or deliveries in a region.

    Args:
        is_delivery: whether it is a consumer's.
        sessions: oldest first, the last one is the current; of a log one, number 0, that names its leader.
    """

    stream: Stream
    region: int
    is_delivery: bool
    sessions: list[Session] = field(default_factory=list)
    carried: Batches = field(default_factory=Batches.none)
    last_at: int = 0

    def add(self, batches: Batches, pushes: list[Span]) -> Batches:
        """Take batches whose `at` is wished for; return them with the times they got."""
        at = batches.at
        for span in pushes:
            at = span.push(at)
        if len(at):
            at = np.maximum.accumulate(np.maximum(at, self.last_at))
            self.last_at = int(at[-1])
        batches.at = at
        self.carried = Batches.concat([self.carried, batches])
        return batches

    def due(self, before_ns: int) -> Batches:
        """Take out what happened before a moment."""
        split = int(np.searchsorted(self.carried.at, before_ns, side="left"))
        due = self.carried.take(slice(0, split))
        self.carried = self.carried.take(slice(split, None))
        return due


class Traffic:
    """All streams of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = np.random.default_rng([world.request.seed, 3])
        self._next_offset = {stream.index: FIRST_OFFSET for stream in world.streams}
        regions = range(len(world.regions))
        self.commits = [self._log(stream, stream.home) for stream in world.streams]
        self.replicas = {
            (stream.index, region): self._log(stream, region)
            for stream in world.streams
            for region in regions
            if region != stream.home
        }
        self._sessions = world.start_ns
        self.deliveries = {
            (stream.index, region): Lane(
                stream=stream,
                region=region,
                is_delivery=True,
                sessions=[self.new_session(region, stream.partition)],
            )
            for stream in world.streams
            for region in regions
        }
        self._outages = {
            region: [
                Span(start_ns=span[0], end_ns=span[1])
                for fault in world.of_kind(FaultKind.REGION_OUTAGE)
                if world.number(fault.region) == region
                for span in [world.span_ns(fault)]
            ]
            for region in regions
        }
        self._aborts: dict[int, list[Fault]] = {stream.index: [] for stream in world.streams}
        for fault in world.of_kind(FaultKind.ABORTED):
            self._aborts[int(self._rng.integers(len(world.streams)))].append(fault)

    def _log(self, stream: Stream, region: int) -> Lane:
        writer = Session(broker=self._world.leader(region, stream.partition), number=0)
        return Lane(stream=stream, region=region, is_delivery=False, sessions=[writer])

    def new_session(self, region: int, place: int) -> Session:
        """Return a new session at one of a region's brokers; its number is larger than every earlier one."""
        self._sessions += 1
        return Session(broker=self._world.leader(region, place), number=self._sessions)

    def aborts_waiting(self) -> int:
        """Return how many transactions are still to be aborted."""
        return sum(len(faults) for faults in self._aborts.values())

    def publish(self, from_ns: int, to_ns: int) -> dict[int, list[tuple[int, int, Int64]]]:
        """Publish what a chunk brings and put it into all lanes.

        Returns:
            the batches of aborted transactions: stream -> [(first, end, when each region knew)].
        """
        return {stream.index: self._publish(stream, from_ns, to_ns) for stream in self._world.streams}

    def _publish(self, stream: Stream, from_ns: int, to_ns: int) -> list[tuple[int, int, Int64]]:
        world, rng = self._world, self._rng
        batches = self._received(stream, from_ns, to_ns)
        home = stream.home
        lane = self.commits[stream.index]
        appended = batches.appended
        batches.ready = appended
        batches.at = appended + self._took(COMMIT_US, len(batches))
        committed = lane.add(batches, self._outages[home]).at
        ready = {home: committed}
        for region in range(len(world.regions)):
            if region == home:
                continue
            copies = batches.take(slice(None))
            copies.at = committed + world.delay_ns[home, region] + self._took(COMMIT_US, len(batches))
            pushes = self._outages[region] + self._cuts(home, region)
            ready[region] = self.replicas[stream.index, region].add(copies, pushes).at
        aborted, is_kept = self._abort(stream, batches, ready, to_ns)
        for region in range(len(world.regions)):
            handed = batches.take(slice(None))
            handed.ready = ready[region]
            took = self._took(DELIVER_US, len(batches))
            pauses = rng.exponential(SLOW_US * NS_PER_US, len(batches)).astype(np.int64)
            handed.at = handed.ready + took + np.where(rng.random(len(batches)) < SLOW_SHARE, pauses, 0)
            self.deliveries[stream.index, region].add(handed.take(is_kept), self._outages[region])
        return aborted

    def _received(self, stream: Stream, from_ns: int, to_ns: int) -> Batches:
        """Return a chunk's batches as they reach the home, with their offsets."""
        world, rng = self._world, self._rng
        number = int(rng.poisson(world.batches_per_s * (to_ns - from_ns) / NS_PER_S))
        received = np.sort(rng.integers(from_ns, to_ns, number))
        if stream.has_every_home:
            entry = np.full(number, stream.home, dtype=np.int64)
        else:
            entry = rng.integers(0, len(world.regions), number)
        is_sent = np.full(number, True)
        for region, spans in self._outages.items():
            for span in spans:
                is_down = (received >= span.start_ns) & (received < span.end_ns)
                is_sent &= ~(is_down & ((entry == region) | (stream.home == region)))
        for fault in world.of_kind(FaultKind.PUBLISH_REFUSED):
            start_ns, end_ns = world.span_ns(fault)
            is_sent &= ~((received >= start_ns) & (received < end_ns) & (entry == world.number(fault.region)))
        received, entry = received[is_sent], entry[is_sent]
        arrived = received + world.delay_ns[entry, stream.home]
        order = np.argsort(arrived, kind="stable")
        received, entry, arrived = received[order], entry[order], arrived[order]
        count = 1 + rng.poisson(world.request.batch_records - 1, len(received)).astype(np.int64)
        end = self._next_offset[stream.index] + np.cumsum(count)
        if len(end):
            self._next_offset[stream.index] = int(end[-1])
        ones = np.ones(len(received), dtype=np.int64)
        return Batches(
            first=end - count,
            end=end,
            entry=entry,
            received=received,
            appended=arrived + 100 * NS_PER_US,
            ready=arrived,
            at=arrived,
            attempt=ones,
            session=ones * 0,
            is_live=np.full(len(received), True),
        )

    def _took(self, median_us: int, number: int) -> Int64:
        return (self._rng.lognormal(np.log(median_us), SPREAD, number) * NS_PER_US).astype(np.int64)

    def _cuts(self, one: int, other: int) -> list[Span]:
        spans = []
        for fault in self._world.of_kind(FaultKind.LINK_CUT):
            if {self._world.number(fault.region), self._world.number(fault.peer)} == {one, other}:
                start, end = self._world.span_ns(fault)
                spans.append(Span(start_ns=start, end_ns=end))
        return spans

    def _abort(
        self, stream: Stream, batches: Batches, ready: dict[int, Int64], to_ns: int
    ) -> tuple[list[tuple[int, int, Int64]], npt.NDArray[np.bool_]]:
        """Choose the batches of aborted transactions: they are delivered to nobody."""
        is_kept = np.full(len(batches), True)
        aborted = []
        for fault in list(self._aborts[stream.index]):
            at_ns = self._world.start_ns + fault.at_s * NS_PER_S
            # Neither the first nor the last: somebody must be handed what lies on both sides.
            index = max(1, int(np.searchsorted(batches.appended, at_ns)))
            if at_ns < to_ns and index < len(batches) - 1 and is_kept[index - 1 : index + 2].all():
                self._aborts[stream.index].remove(fault)
                is_kept[index] = False
                known = np.array([ready[region][index] for region in sorted(ready)], dtype=np.int64) + 5 * NS_PER_MS
                aborted.append((int(batches.first[index]), int(batches.end[index]), known))
        return aborted, is_kept
