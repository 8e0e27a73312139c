"""A set of whole numbers as disjoint ranges [first, end): small and plain, to be right before it is fast."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]


class IntervalSet:
    """Disjoint ranges that do not touch, sorted."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges."""
        return zip(self._firsts, self._ends, strict=True)

    @property
    def size(self) -> int:
        """Return how many numbers are in it."""
        return sum(self._ends) - sum(self._firsts)

    def add(self, first: int, end: int) -> None:
        """Add [first, end)."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)  # the first range that ends at or behind `first`
        high = bisect_right(self._firsts, end)  # the first range that begins behind `end`
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def within(self, first: int, end: int) -> list[Range]:
        """Return the parts of [first, end) that are in the set."""
        parts: list[Range] = []
        if first >= end:
            return parts
        index = bisect_right(self._ends, first)
        while index < len(self._firsts) and self._firsts[index] < end:
            parts.append((max(first, self._firsts[index]), min(end, self._ends[index])))
            index += 1
        return parts

    def without(self, first: int, end: int) -> list[Range]:
        """Return the parts of [first, end) that are not in the set."""
        parts = []
        for there, gone in self.within(first, end):
            if first < there:
                parts.append((first, there))
            first = gone
        if first < end:
            parts.append((first, end))
        return parts


def size(parts: Iterable[Range]) -> int:
    """Return the numbers in disjoint ranges."""
    return sum(end - first for first, end in parts)
