"""Who waits for a record to be in k regions: futures per level, answered when the level is reached or the time is over.

Rule 1: a publish that is stored is never answered with an error here: what did not reach its level is pending, with the
        regions that have it.
Rule 2: a deadline counts on the injected clock, from when the publish was taken. One that passes before the record is
        committed at its home leaves the outcome unknown.
Rule 3: one timer per stream, whatever waits; it is set for the earliest deadline.
Rule 4: a batch whose commit is heard when its home, or its epoch, is another one already waits for nothing: the offset
        may be that of another record by now.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final, TypeAlias

from georelay.clock import Clock
from georelay.errors import OutcomeUnknown
from georelay.ids import Offset, RegionNumber
from mesh.replication.ports import Published
from region.geo.counters import GeoCounters, LevelOutcome

WAITERS_MAX: Final = 100_000  # of one stream
_NS_PER_S: Final = 1e9
_TIMER_S_MIN: Final = 0.001
_SLACK: Final = 1_024  # answered publishes whose deadline is kept until it is cheap to drop them
RegionsAt: TypeAlias = Callable[[Offset], tuple[RegionNumber, ...]]
IsCurrent: TypeAlias = Callable[[Published, Offset], bool]


@dataclass(slots=True, eq=False, kw_only=True)
class GeoWaiter:
    """One publish.

    Args:
        level: regions it waits for, the home included. records: of its batch.
        pause_ms: how much later it is answered than it could be.
    """

    level: int
    records: int
    deadline_ns: int
    pause_ms: int
    is_counted: bool = True  # as a publish
    answer: asyncio.Future[Published] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    published: Published | None = None  # once it is committed at its home

    @property
    def following(self) -> Offset:
        """Return the first offset after the batch."""
        assert self.published is not None
        return Offset(self.published.base_offset + self.records)


class GeoWaiters:
    """Publishes of one stream that wait for regions."""

    def __init__(self, clock: Clock, counters: GeoCounters, *, regions_at: RegionsAt, is_current: IsCurrent) -> None:
        """`regions_at` names the regions that have everything below an offset.

        `is_current` tells whether a stored batch that ends at an offset is what has that offset, and is counted here.
        """
        self._clock = clock
        self._counters = counters
        self._regions_at = regions_at
        self._is_current = is_current
        self._numbers = count()
        self._levels: dict[int, list[tuple[Offset, int, GeoWaiter]]] = {}
        self._deadlines: list[tuple[int, int, GeoWaiter]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timed_ns = 0  # for which deadline
        self._open = 0

    @property
    def open_count(self) -> int:
        """Return how many are not answered yet."""
        return self._open

    def levels(self) -> Iterator[int]:
        """Return the levels that somebody waits for."""
        return iter(tuple(self._levels))

    def add(self, waiter: GeoWaiter, stored: asyncio.Future[Published], reached: Callable[[int], Offset]) -> None:
        """Let `waiter` wait for its batch to be stored and then for its level; `reached` tells a level's watermark."""
        self._open += 1
        waiter.answer.add_done_callback(self._answered)
        if len(self._deadlines) > 2 * self._open + _SLACK:
            self._deadlines = [row for row in self._deadlines if not row[2].answer.done()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (waiter.deadline_ns, next(self._numbers), waiter))
        self._arm()
        stored.add_done_callback(partial(self._stored, waiter, reached))

    def _stored(self, waiter: GeoWaiter, reached: Callable[[int], Offset], stored: asyncio.Future[Published]) -> None:
        if stored.cancelled():
            waiter.answer.cancel()
            return
        error = stored.exception()
        if waiter.answer.done():
            return  # given up, or its deadline has answered it
        if error is not None:
            self._count(waiter, LevelOutcome.FAILED)
            waiter.answer.set_exception(error)
            return
        waiter.published = stored.result()
        if not self._is_current(waiter.published, waiter.following):
            self._answer(waiter, LevelOutcome.PENDING)
            return
        if waiter.following <= reached(waiter.level):
            self._answer(waiter, LevelOutcome.REACHED)
            return
        level = self._levels.setdefault(waiter.level, [])
        heapq.heappush(level, (waiter.following, next(self._numbers), waiter))

    def reached(self, level: int, watermark: Offset) -> None:
        """Answer those whose batch lies below the watermark of their level."""
        waiting = self._levels.get(level, [])
        while waiting and waiting[0][0] <= watermark:
            self._answer(heapq.heappop(waiting)[2], LevelOutcome.REACHED)
        if not waiting:
            self._levels.pop(level, None)

    def give_up_above(self, offset: Offset) -> None:
        """Answer as pending whose batch ends above `offset`: who leads or sequences the stream may be another now."""
        for level, waiting in list(self._levels.items()):
            for following, _, waiter in waiting:
                if following > offset:
                    self._answer(waiter, LevelOutcome.PENDING)
            kept = [row for row in waiting if row[0] <= offset]
            heapq.heapify(kept)
            if kept:
                self._levels[level] = kept
            else:
                del self._levels[level]

    def close(self) -> None:
        """Answer everybody that is stored as pending; nothing is timed any more."""
        self.give_up_above(Offset(-1))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answered(self, _answer: asyncio.Future[Published]) -> None:
        self._open -= 1

    # --- answers ----------------------------------------------------------------------------------

    def _answer(self, waiter: GeoWaiter, outcome: LevelOutcome) -> None:
        published = waiter.published
        if waiter.answer.done() or published is None:
            return
        regions = self._regions_at(waiter.following)
        answer = replace(
            published,
            regions=regions,
            level=max(len(regions), 1 if outcome is LevelOutcome.PENDING else waiter.level),
            is_pending=outcome is LevelOutcome.PENDING,
        )
        self._count(waiter, outcome)
        if not waiter.pause_ms:
            waiter.answer.set_result(answer)
            return
        asyncio.get_running_loop().call_later(waiter.pause_ms / 1000, _set, waiter.answer, answer)

    def _count(self, waiter: GeoWaiter, outcome: LevelOutcome) -> None:
        if waiter.is_counted and waiter.level > 1:
            self._counters.publishes[waiter.level, outcome] += 1

    # --- deadlines --------------------------------------------------------------------------------

    def _arm(self) -> None:
        if not self._deadlines:
            return
        due_ns = self._deadlines[0][0]
        if self._timer is not None:
            if self._timed_ns <= due_ns:
                return
            self._timer.cancel()  # who came later is less patient
        left_s = (due_ns - self._clock.monotonic_ns()) / _NS_PER_S
        self._timed_ns = due_ns
        self._timer = asyncio.get_running_loop().call_later(max(left_s, _TIMER_S_MIN), self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ns or deadlines[0][2].answer.done()):
            self._expire(heapq.heappop(deadlines)[2])
        for level, waiting in list(self._levels.items()):
            kept = [row for row in waiting if not row[2].answer.done()]
            if len(kept) < len(waiting):
                heapq.heapify(kept)
                self._levels[level] = kept
            if not kept:
                del self._levels[level]
        self._arm()

    def _expire(self, waiter: GeoWaiter) -> None:
        if waiter.answer.done():
            return
        if waiter.published is not None:
            waiter.pause_ms = 0
            self._answer(waiter, LevelOutcome.PENDING)
            return
        self._count(waiter, LevelOutcome.FAILED)
        late = OutcomeUnknown("not committed at its home within its deadline; it may be stored later")
        waiter.answer.set_exception(late)
        waiter.answer.exception()  # that nobody waits for it any more is no error


def _set(future: asyncio.Future[Published], answer: Published) -> None:
    if not future.done():
        future.set_result(answer)
