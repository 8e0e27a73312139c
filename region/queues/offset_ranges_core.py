"""A set of offsets as sorted ranges: what is done above a cursor. Pure.

Invariant: ranges (first, following) are sorted, not empty, disjoint and not adjacent, so equal sets have equal ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetRanges:
    """Offsets that were added; `first` is inclusive, `following` is not."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, following in ranges:
            self.add(first, following)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, first: int, following: int) -> None:
        """Add first..following-1."""
        if first >= following:
            return
        low = bisect_left(self._ends, first)  # the first range that touches or lies behind
        high = bisect_right(self._starts, following)  # the first that lies beyond
        if low < high:
            first = min(first, self._starts[low])
            following = max(following, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [following]

    def cut(self, end: int) -> int:
        """Take out whatever is at or above `end`; return how many offsets that were."""
        cut = self.count_between(end, max(self._ends[-1], end)) if self._ends else 0
        while self._starts and self._starts[-1] >= end:
            del self._starts[-1], self._ends[-1]
        if self._ends and self._ends[-1] > end:
            self._ends[-1] = end
        return cut

    def count_between(self, first: int, following: int) -> int:
        """Return how many offsets of first..following-1 are in the set."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, following)
        touched = zip(self._starts[low:high], self._ends[low:high], strict=True)
        return sum(min(end, following) - max(start, first) for start, end in touched)

    def advanced(self, cursor: int) -> int:
        """Drop what is below `cursor`, and the range at it; return the first offset from there that is missing."""
        while self._starts and self._starts[0] <= cursor:
            cursor = max(cursor, self._ends[0])
            del self._starts[0], self._ends[0]
        return cursor
