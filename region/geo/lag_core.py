"""How far the regions of a topic may be behind its home: the bound on what a lost home can take with it. Pure.

Rule 1: a region is within the bounds when it lacks at most max.geo.lag.records, and the oldest record that it lacks is
        at most max.geo.lag.ms old. The home is always within them.
Rule 2: a region whose lag cannot be proven is not within them: one that this leader has not heard in this epoch, or
        one that lacks records of before this leader, whose age nobody measured.
Rule 3: from half of the bound on publishes are answered late, in proportion; at the bound they are refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from georelay.fields import INT64_MAX
from georelay.ids import Offset

SLOW_FROM: Final = 0.5  # of a bound
PAUSE_MS_MAX: Final = 200
MARKS_MAX: Final = 4_096
MARK_EVERY_US: Final = 5_000
UNPROVEN: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBounds:
    """What a topic allows; 0: not bounded. `regions` must be within it, the home included."""

    max_ms: int = 0
    max_records: int = 0
    regions: int = 2

    @property
    def are_off(self) -> bool:
        """Return whether nothing is bounded."""
        return not (self.max_ms or self.max_records)


class LagMeter:
    """Knows how old the records are that a mirror may lack: one mark per few milliseconds of commits.

    Invariants: 1 marks ascend in offset and time   2 a mark says: what lies at or above its offset was appended at or
    after its time, and what lies below it was not.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[Offset, int]] = []
        self._begun_at = Offset(0)

    def begin(self, committed: Offset) -> None:
        """Begin to lead: nothing is known of the age of what lies below `committed`."""
        self._marks.clear()
        self._begun_at = committed

    def committed(self, first: Offset, append_us: int) -> None:
        """Note that records from `first` on were appended at `append_us`, microseconds since 1970."""
        marks = self._marks
        if marks and append_us - marks[-1][1] < MARK_EVERY_US:
            return  # younger than it is: the mark's time stands for it, and that is the older one
        marks.append((first, append_us))
        if len(marks) > MARKS_MAX:  # every other one: ages are rounded up
            self._marks = marks[::2]

    def forget_below(self, offset: Offset) -> None:
        """Drop what every region has: the newest mark at or below `offset` still says something about it."""
        kept_from = self._row_of(offset)
        if kept_from > 0:
            del self._marks[:kept_from]

    def append_us(self, offset: Offset) -> int | None:
        """Return when the record at `offset` was appended, or earlier; None when that is not known."""
        if offset < self._begun_at:
            return None
        row = self._row_of(offset)
        return self._marks[row][1] if row >= 0 else None

    def _row_of(self, offset: Offset) -> int:
        """Return the row of the newest mark at or below `offset`, -1 without one."""
        return bisect_right(self._marks, (offset, INT64_MAX)) - 1

    def pressure(self, acked: Offset | None, *, committed: Offset, now_us: int, bounds: LagBounds) -> float:
        """Return how much of the bounds a region's lag takes: 0 nothing, 1 or more is over it."""
        if acked is None:
            return UNPROVEN
        if acked >= committed:
            return 0.0
        taken = (committed - acked) / bounds.max_records if bounds.max_records else 0.0
        if bounds.max_ms:
            append_us = self.append_us(acked)
            if append_us is None:
                return UNPROVEN
            taken = max(taken, (now_us - append_us) / (bounds.max_ms * 1000))
        return taken


def stream_pressure(pressures: Iterable[float], regions: int) -> float:
    """Return how near a stream is to fewer than `regions` within the bounds; `pressures` are of its mirrors."""
    ordered = sorted(pressures)
    if regions <= 1:
        return 0.0
    return ordered[regions - 2] if len(ordered) >= regions - 1 else UNPROVEN


def pause_ms(pressure: float) -> int:
    """Return how much later a publish is answered under such pressure, 0..PAUSE_MS_MAX."""
    over = (min(pressure, 1.0) - SLOW_FROM) / (1.0 - SLOW_FROM)
    return int(max(0.0, over) * PAUSE_MS_MAX)
