"""Offsets that a client was told of, as disjoint ascending ranges [from, to): pure, cheap while they come in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class OffsetRanges:
    """Some offsets."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    @property
    def ranges(self) -> list[list[int]]:
        """Return the ranges."""
        return [list(pair) for pair in zip(self._firsts, self._ends, strict=True)]

    @property
    def size(self) -> int:
        """Return how many offsets there are."""
        return sum(self._ends) - sum(self._firsts)

    def add(self, first: int, end: int | None = None) -> None:
        """Add [first, end); without an end one offset."""
        end = first + 1 if end is None else end
        if self._ends and self._ends[-1] == first:
            self._ends[-1] = end
            return
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        low_first, high_end = first, end
        if low < high:
            low_first, high_end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [low_first], [high_end]
