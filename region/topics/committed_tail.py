"""The newest committed record batches of one stream, in memory: what live consumers and mirrors read.

Rule: only commits fill it. A reader of old records gets them from the disk and leaves this as it is, so that catching
up never costs the live readers their memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from georelay.ids import Offset
from georelay.limits import KIB, MIB, TAIL_BYTES_MAX
from region.log.entry import Entry
from region.topics.unnamed_core import RangeBudget

TAILS_BYTES_MAX: Final = 256 * MIB  # over all streams of a broker
TAIL_BYTES_MIN: Final = 64 * KIB  # kept per stream however many streams there are
_TRIM_ROWS: Final = 64


class TailBudget:
    """Counts the bytes that all tails of this broker hold together.

    Attributes:
        ranges: counts what else its streams remember of their newest records, see UnnamedRanges.
    """

    def __init__(self, bytes_max: int = TAILS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.ranges = RangeBudget()


class CommittedTail:
    """Consecutive committed DATA entries, the newest last.

    Invariants: 1 offsets are consecutive   2 the newest entry is never evicted (an epoch or a log start may drop it)
    3 bytes are counted in the budget.
    """

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._entries: list[Entry] = []
        self._bases: list[int] = []
        self._head = 0  # rows before it are evicted and await trimming
        self._bytes = 0

    @property
    def first(self) -> Entry | None:
        """Return the oldest entry in memory."""
        return self._entries[self._head] if self._head < len(self._entries) else None

    @property
    def newest(self) -> Entry | None:
        """Return the newest entry."""
        return self._entries[-1] if self._entries else None

    def append(self, entry: Entry) -> None:
        """Add the next committed DATA entry and evict old ones over the limits."""
        newest = self.newest
        if newest is not None and newest.next_offset != entry.base_offset:
            self.clear()  # entries between them are on disk only
        self._entries.append(entry)
        self._bases.append(entry.base_offset)
        self._bytes += entry.size
        budget = self._budget
        budget.bytes_held += entry.size
        while self._bytes > TAIL_BYTES_MAX or (budget.bytes_held > budget.bytes_max and self._bytes > TAIL_BYTES_MIN):
            if self._head + 1 >= len(self._entries):
                break
            gone = self._entries[self._head].size
            self._bytes -= gone
            budget.bytes_held -= gone
            self._head += 1
        if self._head >= _TRIM_ROWS and self._head * 2 > len(self._entries):
            del self._entries[: self._head]
            del self._bases[: self._head]
            self._head = 0

    def drop_below(self, offset: Offset) -> None:
        """Drop the entries that end at or below `offset`: the log starts there now."""
        while self._head < len(self._entries) and self._entries[self._head].next_offset <= offset:
            gone = self._entries[self._head].size
            self._bytes -= gone
            self._budget.bytes_held -= gone
            self._head += 1
        if self._head == len(self._entries):
            self.clear()

    def cut(self, offset: Offset) -> None:
        """Drop the entries that reach beyond `offset`: a new epoch begins there, they are an orphan branch."""
        entries = self._entries
        while self._head < len(entries) and entries[-1].next_offset > offset:
            gone = entries.pop().size
            self._bases.pop()
            self._bytes -= gone
            self._budget.bytes_held -= gone

    def read(self, offset: Offset, bytes_max: int) -> Sequence[Entry] | None:
        """Return entries from the one that holds `offset` on; None when it is not in memory.

        The first is always whole; the following fit in `bytes_max` together with it.
        """
        entries = self._entries
        row = bisect_right(self._bases, offset, self._head) - 1
        if row < self._head:
            return None
        if offset >= entries[-1].next_offset:
            return []
        size = entries[row].size
        end = row + 1
        while end < len(entries):
            size += entries[end].size
            if size > bytes_max:
                break
            end += 1
        return entries[row:end]

    def clear(self) -> None:
        """Drop everything, for example before the stream is removed."""
        self._budget.bytes_held -= self._bytes
        self._entries.clear()
        self._bases.clear()
        self._head = self._bytes = 0
