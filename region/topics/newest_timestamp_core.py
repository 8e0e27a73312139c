"""The newest record timestamp of one stream: a function of its committed log, exact through truncations.

Rule 1: only what is committed counts. Appended batches wait as candidates: those whose timestamp is above that of
        the candidate before them, so that removing the end of the list never loses one that counts.
Rule 2: when the newest one leaves the log (a new log start, an orphan branch) nobody remembers the second newest:
        the offsets below `unseen_below` have to be read again by whoever asks. Every replica says so at equal index.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from georelay.ids import Offset, RaftIndex

NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = Offset(-1)
Row = tuple[RaftIndex, int, Offset]  # (index, largest timestamp in ms, base offset) of one batch


class NewestTimestamp(NamedTuple):
    """What is known about the committed log.

    Args:
        timestamp_ms, offset: of the batch with the newest timestamp, -1 and -1 when none is known.
        unseen_below: batches below this offset are not accounted for; 0 when all are.
    """

    timestamp_ms: int = NO_TIMESTAMP
    offset: Offset = NO_OFFSET
    unseen_below: Offset = Offset(0)


class TimestampTracker:
    """Follows the log of one stream."""

    def __init__(self) -> None:
        self.committed = NewestTimestamp()
        self._candidates: deque[Row] = deque()
        self._bends: deque[RaftIndex] = deque()  # uncommitted: what came before them may leave the log

    def restore(self, known: NewestTimestamp) -> None:
        """Begin again at a committed state."""
        self.committed = known
        self._candidates.clear()
        self._bends.clear()

    def appended(self, index: RaftIndex, timestamp_ms: int, base_offset: Offset) -> None:
        """Follow one appended batch."""
        newest = self._candidates[-1] if self._candidates else None
        if newest is None or timestamp_ms > newest[1] or (self._bends and newest[0] < self._bends[-1]):
            self._candidates.append((index, timestamp_ms, base_offset))

    def bend(self, index: RaftIndex) -> None:
        """An entry was appended that can take batches before it out of the log."""
        self._bends.append(index)

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget the batches and bends at or above `from_index`."""
        while self._candidates and self._candidates[-1][0] >= from_index:
            self._candidates.pop()
        while self._bends and self._bends[-1] >= from_index:
            self._bends.pop()

    def commit(self, index: RaftIndex) -> None:
        """Account for the batches up to `index`."""
        while self._bends and self._bends[0] <= index:
            self._bends.popleft()
        candidates = self._candidates
        while candidates and candidates[0][0] <= index:
            _, timestamp_ms, offset = candidates.popleft()
            known = self.committed
            if timestamp_ms > known.timestamp_ms:
                self.committed = NewestTimestamp(timestamp_ms, offset, known.unseen_below)

    def lose(self, *, first: Offset, following: Offset) -> None:
        """The log now holds the offsets first..following - 1 of what it held: forget a newest batch outside.

        What is committed has been accounted for. Candidates are above it and stay.
        """
        known = self.committed
        is_gone = known.offset != NO_OFFSET and not first <= known.offset < following
        if is_gone:
            self.committed = NewestTimestamp(unseen_below=following if following > first else Offset(0))
        elif known.unseen_below and known.unseen_below <= first:
            self.committed = NewestTimestamp(timestamp_ms=known.timestamp_ms, offset=known.offset)
