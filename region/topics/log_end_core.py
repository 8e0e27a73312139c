"""What the newest entry of a stream's log says: everything that the next entry has to continue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from georelay.ids import Epoch, Offset, StreamKey
from mesh.home.promise_core import visible_rows
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest


class LogEnd(NamedTuple):  # made twice for every entry: a tuple costs a third of a frozen class
    """The end of one stream's log, uncommitted entries included.

    Args:
        next_offset: first offset that no entry owns yet.
        digest: digest chain over all data entries so far (16 bytes).
        append_us: append time of the newest entry, microseconds since 1970; never goes back.
        epoch: newest home epoch opened by an EPOCH entry, 0 before the first.
    """

    next_offset: Offset
    digest: bytes
    append_us: int
    epoch: Epoch

    @classmethod
    def empty(cls, key: StreamKey) -> LogEnd:
        """Return the end of a log without entries."""
        return cls(next_offset=Offset(0), digest=first_digest(key), append_us=0, epoch=Epoch(0))

    @classmethod
    def after(cls, header: StreamHeader) -> LogEnd:
        """Return the end of a log whose newest entry has this stream part.

        Every entry carries the whole of it (control entries repeat digest, epoch and next offset), so a
        truncated log needs only its newest remaining entry.
        """
        return cls(header.next_offset, header.digest, header.append_us, header.epoch)


IndexedEpoch = tuple[int, Epoch, Offset]  # (index of the EPOCH or SKIP entry that says so, epoch, start)


class EpochTable:
    """Home epochs of one stream as its log says: (epoch, start offset), ascending.

    An epoch that begins below the start of the one before it hides that one: its records are an orphan branch. Only
    `indexed` tells of hidden epochs.
    """

    def __init__(self) -> None:
        self._rows: list[IndexedEpoch] = []
        self._visible: tuple[int, list[tuple[Epoch, Offset]]] = (0, [])  # of so many rows

    def restore(self, rows: Iterable[IndexedEpoch]) -> None:
        """Replace everything with rows that are committed."""
        self._rows = list(rows)
        self._visible = (0, [])

    def indexed(self, up_to_index: int) -> list[IndexedEpoch]:
        """Return the rows up to `up_to_index` with their indexes."""
        return [row for row in self._rows if row[0] <= up_to_index]

    def appended(self, index: int, header: StreamHeader) -> None:
        """Follow one appended entry (only EPOCH entries change the table)."""
        if header.type is EntryType.EPOCH:
            self._rows.append((index, header.epoch, header.base_offset))

    def skipped(self, index: int, rows: Iterable[tuple[Epoch, Offset]]) -> None:
        """Follow one appended SKIP entry: the epochs that began in what it skips."""
        newest = self.newest()
        self._rows += [(index, epoch, start) for epoch, start in rows if epoch > newest]

    def truncated(self, from_index: int) -> None:
        """Forget EPOCH and SKIP entries at or above `from_index`."""
        while self._rows and self._rows[-1][0] >= from_index:
            self._rows.pop()
            self._visible = (0, [])

    def committed(self, commit_index: int) -> list[tuple[Epoch, Offset]]:
        """Return the rows whose EPOCH entry is committed."""
        count = len(self._rows)
        while count and self._rows[count - 1][0] > commit_index:
            count -= 1
        return self._first(count)

    def rows(self) -> list[tuple[Epoch, Offset]]:
        """Return all rows, uncommitted ones included."""
        return self._first(len(self._rows))

    def _first(self, count: int) -> list[tuple[Epoch, Offset]]:
        """Return what the first `count` rows say; asked for with every entry, so it is remembered."""
        if self._visible[0] != count:
            self._visible = (count, visible_rows((epoch, start) for _, epoch, start in self._rows[:count]))
        return list(self._visible[1])

    def newest(self) -> Epoch:
        """Return the newest epoch, 0 before the first EPOCH entry."""
        return self._rows[-1][1] if self._rows else Epoch(0)

    def current(self, commit_index: int) -> Epoch:
        """Return the newest epoch whose EPOCH entry is committed, 0 before the first."""
        for index, epoch, _ in reversed(self._rows):
            if index <= commit_index:
                return epoch
        return Epoch(0)

    def index_of(self, epoch: Epoch) -> int:
        """Return the index of the EPOCH entry that opens `epoch`, 0 when there is none."""
        return next((index for index, known, _ in self._rows if known == epoch), 0)

    def end_of(self, epoch: Epoch, *, commit_index: int, hwm: Offset) -> tuple[Epoch, Offset]:
        """Return (largest committed epoch <= `epoch`, first offset after it); (-1, -1) when there is none."""
        answer: tuple[Epoch, Offset] = (Epoch(-1), Offset(-1))
        rows = self.committed(commit_index)
        for row, (known, _) in enumerate(rows):
            if known <= epoch:
                answer = (known, rows[row + 1][1] if row + 1 < len(rows) else hwm)
        return answer
