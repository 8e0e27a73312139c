"""Which transactions were open at an offset below the end of the log. Pure.

Readers of a topic with min.insync.regions = k are shown what k regions have: the visible end, which may lie below what
is committed here. A transaction whose marker lies at or above that end is open for them, whatever this region knows: a
forced move of the home may cut its marker off, and then it may be aborted.

Rule 1: what is decided once stays decided. Readers stop at the first record of the earliest transaction that begins
        below the end and is not ended below it; what they were given before they are given for every later end.
Rule 2: of two transactions the one that began earlier and ended later hides the other, so that first and last offsets
        of those that are kept rise together. One look is a binary search; what ended below the end is forgotten.
Rule 3: bounded: of CLOSED_MAX transactions at most it is known when they began. About others, and about those that
        ended before the snapshot of a restart, the answer is the lowest offset: readers wait for the end to pass them.
        It is no end that anybody may be told: `knows` says whether it is one.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Final

from georelay.ids import Offset

CLOSED_MAX: Final = 16_384
_ZERO: Final = Offset(0)
_last = itemgetter(1)


class ClosedTransactions:
    """Committed transactions with their first offset and that of their marker, committed or aborted alike."""

    __slots__ = ("_closed_max", "_rows", "_seen_end", "_seen_stable", "_unknown_below")

    def __init__(self, *, closed_max: int = CLOSED_MAX) -> None:
        self._closed_max = closed_max
        self._rows: list[tuple[Offset, Offset]] = []  # (first offset, offset of the marker), both rising
        self._unknown_below = _ZERO  # markers below it are not in the rows
        self._seen_end = self._seen_stable = _ZERO  # newest answer: everything below the second is decided at the first

    def __len__(self) -> int:
        return len(self._rows)

    def closed(self, first: Offset, marker: Offset) -> None:
        """Follow a committed marker: it ended the transaction whose first record is at `first`."""
        rows = self._rows
        while rows and rows[-1][0] >= first:
            rows.pop()
        rows.append((first, marker))
        if len(rows) > self._closed_max:
            self._forget(1)

    def stable_before(self, end: Offset, *, unstable: Offset | None) -> Offset:
        """Return up to where everything is decided for readers that are shown what lies below `end`: 0..end.

        Args:
            end: not above what is committed here.
            unstable: first offset of the oldest transaction that has no committed marker, None without one.
        """
        stable = end if unstable is None else min(end, unstable)
        if end < self._unknown_below:
            stable = _ZERO
        elif self._rows:
            at = bisect_left(self._rows, end, key=_last)
            if at < len(self._rows):
                stable = min(stable, self._rows[at][0])
        if end >= self._seen_end:
            stable = max(stable, self._seen_stable)
            self._seen_end, self._seen_stable = end, stable
            self._forget_below(end)
        return stable

    def knows(self, end: Offset) -> bool:
        """Return whether `stable_before(end)` is an end that readers may be told, and not only "nothing is known"."""
        return end >= self._unknown_below or (end >= self._seen_end and self._seen_stable > 0)

    def cut(self, start: Offset) -> None:
        """A new epoch begins at `start`: markers at or beyond it are gone, and so is what was decided by them."""
        self._forget(len(self._rows))
        self._unknown_below = min(self._unknown_below, start)
        self._seen_end = self._seen_stable = _ZERO

    def restore(self, unknown_below: Offset) -> None:
        """Begin anew after a snapshot, of which it is not known which transactions ended below an offset; 0: none."""
        self._rows.clear()
        self._unknown_below = unknown_below
        self._seen_end = self._seen_stable = _ZERO

    def _forget_below(self, end: Offset) -> None:
        rows = self._rows
        if rows and rows[0][1] < end:
            self._forget(bisect_left(rows, end, key=_last))

    def _forget(self, count: int) -> None:
        if not count:
            return
        self._unknown_below = max(self._unknown_below, Offset(self._rows[count - 1][1] + 1))
        del self._rows[:count]
