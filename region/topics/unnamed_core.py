"""Ranges of a stream's records of which nobody here knows whether a ledger names them: pure.

The leader of a group names what commits while it leads. Two kinds of records have no such leader: those that were in
flight when a leader was killed, and commit with the first entry of the next one; and those that a killed broker had on
disk and had not applied. The next leader names both when it begins to lead, and naming twice is no harm: a report takes
the union of all ranges.

Rule 1: a range never spans two seconds of append time or two epochs, and its offsets follow each other.
Rule 2: of what was recovered from disk only the newest RECOVERED_S_MAX are remembered: a broker names within a second
        what it applies, so all that is older was named.
Rule 3: what is truncated is forgotten, and so is what is applied while another broker leads: that one names it.
        Only its last word may be more than it named, so `followed` says up to where it was believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from mesh.tracing.offset_run_core import LateRange
from region.log.entry import Entry

RECOVERED_S_MAX: Final = 60
US_PER_S: Final = 1_000_000
_NOTHING: Final = 0  # no entry has this index


class UnnamedRanges:
    """The ranges of one stream, in the order of the log.

    Attributes:
        recovered_end: index of the newest entry that was recovered and is in the log still, 0 for none.
        followed: index of the newest entry that was applied while another broker led, 0 for none.
        oldest_us: append time before which what was recovered is not remembered, us since 1970.
    """

    __slots__ = ("_ranges", "followed", "oldest_us", "recovered_end")

    def __init__(self) -> None:
        self._ranges: deque[LateRange] = deque()
        self.recovered_end = _NOTHING
        self.followed = _NOTHING
        self.oldest_us = 0

    def recovered(self, entry: Entry) -> None:
        """Note an entry that was found on disk at start, in order."""
        self.recovered_end = entry.index
        if not entry.record_count:
            return
        second = entry.header().append_us // US_PER_S
        self.oldest_us = max(self.oldest_us, (second - RECOVERED_S_MAX + 1) * US_PER_S)
        self._extend(entry)
        while self._ranges and self._ranges[0].first_us < self.oldest_us:
            self._ranges.popleft()

    def committed(self, entries: Sequence[Entry]) -> None:
        """Note entries that are committed though no leader could name them; those that were recovered are known."""
        for entry in entries:
            if entry.record_count and entry.index > self.recovered_end:
                self._extend(entry)

    def _extend(self, entry: Entry) -> None:
        header = entry.header()
        append_us = header.append_us
        if self._ranges:
            newest = self._ranges[-1]
            if (
                newest.to_offset == entry.base_offset
                and newest.epoch == header.epoch
                and newest.first_us // US_PER_S == append_us // US_PER_S
            ):
                newest.to_offset = entry.next_offset
                newest.last_us = append_us
                newest.last_index = entry.index
                return
        self._ranges.append(
            LateRange(
                epoch=header.epoch,
                from_offset=entry.base_offset,
                to_offset=entry.next_offset,
                first_us=append_us,
                last_us=append_us,
                first_index=entry.index,
                last_index=entry.index,
            )
        )

    def truncated(self, from_index: int, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on; `newest` is the last that remains, None when none does."""
        self.recovered_end = min(self.recovered_end, from_index - 1)
        while self._ranges and self._ranges[-1].last_index >= from_index:
            last = self._ranges[-1]
            if last.first_index >= from_index or newest is None:
                self._ranges.pop()
                continue
            # An entry without records repeats end and append time of the log.
            last.to_offset = newest.next_offset
            last.last_us = newest.header().append_us
            last.last_index = newest.index

    def applied(self, newest: Entry) -> None:
        """Forget the entries up to `newest`: they were applied while another broker led."""
        self.followed = newest.index
        if newest.index >= self.recovered_end:
            self.recovered_end, self.oldest_us = _NOTHING, 0
        while self._ranges and self._ranges[0].first_index <= newest.index:
            first = self._ranges[0]
            if first.last_index <= newest.index:
                self._ranges.popleft()
                continue
            first.from_offset = newest.next_offset
            first.first_index = newest.index + 1

    def take(self) -> list[LateRange]:
        """Return the ranges and forget them."""
        ranges = list(self._ranges)
        self.clear()
        return ranges

    def clear(self) -> None:
        """Forget everything."""
        self._ranges.clear()
        self.recovered_end = self.followed = _NOTHING
        self.oldest_us = 0
