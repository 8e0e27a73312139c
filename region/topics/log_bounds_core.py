"""What retention, SKIP and home epochs do to one stream: log start, newest timestamp, records skipped.

Entries are noted when they are appended, forgotten when they are truncated, and take effect when they are committed,
one after the other however many are committed at once: every replica holds the same bounds at equal index.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from georelay.ids import Offset, RaftIndex, StreamKey
from mesh.replication.stream_header import EntryType, StreamHeader
from region.topics.log_start_core import LogStart, decode_start
from region.topics.newest_timestamp_core import NewestTimestamp, TimestampTracker


@dataclass(frozen=True, slots=True)
class _Bend:
    """An appended entry that changes the bounds. `following`: the log end after it."""

    index: RaftIndex
    start: LogStart | None  # None: an EPOCH entry
    following: Offset
    skipped: int
    digest: bytes = b""  # EPOCH: digest chain before `following`


class LogBounds:
    """The committed bounds of one log and what will change them.

    Invariants: 1 pending bends rise in index   2 the log start goes back only with the log end (an EPOCH below it).
    """

    def __init__(self, key: StreamKey) -> None:
        self.start = LogStart.whole(key)
        self.skipped_records = 0
        self._timestamps = TimestampTracker()
        self._pending: deque[_Bend] = deque()

    @property
    def newest(self) -> NewestTimestamp:
        """Return what is known about the newest committed timestamp."""
        return self._timestamps.committed

    def restore(self, *, start: LogStart, newest: NewestTimestamp, skipped_records: int) -> None:
        """Begin again at a committed state."""
        self.start = start
        self.skipped_records = skipped_records
        self._timestamps.restore(newest)
        self._pending.clear()

    def batch_appended(self, index: RaftIndex, header: StreamHeader) -> None:
        """Follow one appended record batch."""
        self._timestamps.appended(index, header.max_timestamp_ms, header.base_offset)

    def control_appended(
        self,
        index: RaftIndex,
        header: StreamHeader,
        payload: bytes | memoryview,
        *,
        previous_next: Offset,
        keeps_entries: bool = False,
    ) -> None:
        """Follow one appended entry that owns no offsets.

        Args:
            previous_next: the log end before it.
            keeps_entries: a SKIP leaves the entries before it on disk, because of orphan branches among them.

        Raises:
            ValueError: a START entry that makes no sense.
        """
        kind = header.type
        bend: _Bend | None = None
        following = header.base_offset
        if kind is EntryType.EPOCH:
            bend = _Bend(index, None, following, 0, header.digest)
        elif kind is EntryType.START:
            wanted = decode_start(payload)
            if wanted.offset <= following:
                bend = _Bend(index, wanted, following, 0)
        elif kind is EntryType.SKIP:
            first_index = RaftIndex(1) if keeps_entries else index  # it never goes back
            start = LogStart(first_index=first_index, offset=following, boundary=following, digest=header.digest)
            bend = _Bend(index, start, following, following - previous_next)
        if bend is not None:
            self._pending.append(bend)
            self._timestamps.bend(index)

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget the entries at or above `from_index`."""
        self._timestamps.truncated(from_index)
        while self._pending and self._pending[-1].index >= from_index:
            self._pending.pop()

    def commit(self, index: RaftIndex) -> bool:
        """Let everything up to `index` take effect; return whether the log start moved."""
        before = self.start
        while self._pending and self._pending[0].index <= index:
            bend = self._pending.popleft()
            self._timestamps.commit(bend.index)
            if bend.start is not None:
                self.start = self.start.moved_to(bend.start)
            else:
                self.start = self.start.cut(bend.following, bend.digest)
            self.skipped_records += bend.skipped
            self._timestamps.lose(first=self.start.boundary, following=bend.following)
        self._timestamps.commit(index)
        return self.start is not before and self.start != before
