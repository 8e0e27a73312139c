"""Sets of offsets as disjoint ascending ranges [from, to): pure arithmetic, linear in the number of ranges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class OffsetSet:
    """Some offsets. `ranges` are disjoint, ascending, and do not touch; `union` makes them so."""

    ranges: Ranges

    @classmethod
    def union(cls, several: Iterable[Ranges]) -> OffsetSet:
        """Return every offset of some ranges, which may overlap; empty ones are passed over."""
        merged: list[tuple[int, int]] = []
        for first, end in sorted(pair for pair in chain.from_iterable(several) if pair[0] < pair[1]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((first, end))
        return cls(tuple(merged))

    @property
    def size(self) -> int:
        """Return how many there are."""
        return sum(end - first for first, end in self.ranges)

    @property
    def first(self) -> int | None:
        """Return the lowest, None without any."""
        return self.ranges[0][0] if self.ranges else None

    @property
    def end(self) -> int | None:
        """Return the one behind the highest, None without any."""
        return self.ranges[-1][1] if self.ranges else None

    def above(self, first: int) -> OffsetSet:
        """Return those from `first` on."""
        return OffsetSet(tuple((max(low, first), end) for low, end in self.ranges if end > first))

    def between(self, first: int, end: int) -> OffsetSet:
        """Return those in [first, end)."""
        return OffsetSet(tuple((low, min(high, end)) for low, high in self.above(first).ranges if low < end))

    def without(self, others: OffsetSet) -> OffsetSet:
        """Return those that are not in `others`."""
        left: list[tuple[int, int]] = []
        at = 0
        for low, end in self.ranges:
            while at < len(others.ranges) and others.ranges[at][1] <= low:
                at += 1
            position = at
            while low < end and position < len(others.ranges) and others.ranges[position][0] < end:
                hole_first, hole_end = others.ranges[position]
                if low < hole_first:
                    left.append((low, hole_first))
                low = max(low, hole_end)
                position += 1
            if low < end:
                left.append((low, end))
        return OffsetSet(tuple(left))
