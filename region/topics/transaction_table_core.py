"""Transactions of one stream: which are open, which were aborted, and which producers may no longer write.

Rule 1: a transaction is open from its producer's first transactional batch to the marker that ends it. Readers that
        want decided records only stop at the first record of the oldest open one: the last stable offset. Readers that
        are shown less than what is committed stop at one that is open THERE (region.topics.closed_transactions_core).
Rule 2: everything is a function of the log, kept twice: as committed, which readers and snapshots see, and at the log
        END, which decides what a producer's next batch is. Entries between the two are remembered, so that a
        truncation makes the END anew from what is committed and what remains.
Rule 3: every marker carries the number of its transaction, which rises for one producer id whatever its epoch. A
        marker whose number is not above the newest one's is a late copy: it ends nothing. A batch whose transaction's
        number is not above it came after its marker and opens nothing.
Rule 4: a marker of a newer epoch fences its producer's older epochs here.
Rule 5: bounded: PRODUCERS_PER_STREAM_MAX producers with a marker (they expire as producer states do) and
        ABORTED_MAX aborted transactions; a home that has so many opens no new one until retention or delete-records
        have moved the log start over them.

A SKIP entry forgets all of it: nothing below it can be read, and a transaction that goes on above it is opened by its
first batch there. A mirror that skipped may know less than its home about records that it does not have; about those
it has it says the same, and it never shows a record that is not decided.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from georelay.ids import Offset, RaftIndex
from georelay.limits import PRODUCERS_PER_STREAM_MAX
from region.topics.closed_transactions_core import ClosedTransactions
from region.topics.producer_table_core import PRODUCER_EXPIRY_MS

ABORTED_MAX: Final = 262_144
_last_offset = attrgetter("last_offset")
_NO_RECORD: Final = Offset(-1)
_NOTHING_UNKNOWN: Final = Offset(0)


class Ongoing(NamedTuple):
    """An open transaction. `append_us`: append time of its first batch here."""

    producer_epoch: int
    first_offset: Offset
    append_us: int


class Ended(NamedTuple):
    """The newest marker of one producer id.

    `entry_index` is of its entry, or 0 when a snapshot told of it: then it is committed.
    """

    producer_epoch: int
    number: int
    append_us: int
    entry_index: RaftIndex = RaftIndex(0)


class AbortedTransaction(NamedTuple):
    """Records first..last of a producer that nobody may see who reads committed records.

    Args:
        last_offset: of its marker.
        stable_offset: last stable offset after the marker: what ends later begins there or above.
    """

    producer_id: int
    producer_epoch: int
    first_offset: Offset
    last_offset: Offset
    stable_offset: Offset


class Kind(enum.Enum):
    """What one entry does to the transactions of its stream."""

    OPEN = "open"
    COMMIT = "commit"
    ABORT = "abort"
    CUT = "cut"  # a new home epoch begins at `offset`: what lies beyond it is an orphan branch
    FORGET = "forget"  # SKIP


class Change(NamedTuple):
    """One entry that matters. Fields that its kind does not need are -1."""

    entry_index: RaftIndex
    kind: Kind
    offset: Offset
    append_us: int
    producer_id: int = -1
    producer_epoch: int = -1
    number: int = -1
    below: TransactionRows | None = None  # CUT: open and ended ones right before `offset`, where the entry says them


class Transactions:
    """Open transactions, oldest first record first, and the newest marker of each producer, oldest first."""

    __slots__ = ("aborted", "ended", "ongoing")

    def __init__(
        self,
        ongoing: Iterable[tuple[int, Ongoing]] = (),
        ended: Iterable[tuple[int, Ended]] = (),
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        self.ongoing: dict[int, Ongoing] = dict(ongoing)
        self.ended: OrderedDict[int, Ended] = OrderedDict(ended)
        self.aborted: list[AbortedTransaction] = list(aborted)

    @property
    def first_unstable(self) -> Offset | None:
        """Return the first offset of the oldest open transaction, None without one."""
        return next(iter(self.ongoing.values())).first_offset if self.ongoing else None

    def is_late(self, producer_id: int, number: int) -> bool:
        """Return whether transaction `number` of a producer has been ended: nothing of it may be stored any more."""
        newest = self.ended.get(producer_id)
        return newest is not None and number <= newest.number

    def fencing_epoch(self, producer_id: int) -> int:
        """Return the newest epoch that a marker or an open transaction of the producer has; -1 without any."""
        rows = (self.ended.get(producer_id), self.ongoing.get(producer_id))
        return max(-1 if row is None else row.producer_epoch for row in rows)

    def follow(self, change: Change, *, older: Sequence[AbortedTransaction] = ()) -> None:
        """Follow one change. `older`: aborted transactions that are not in `aborted`, for a CUT."""
        match change.kind:
            case Kind.OPEN:
                opened = Ongoing(change.producer_epoch, change.offset, change.append_us)
                self.ongoing.setdefault(change.producer_id, opened)
            case Kind.COMMIT | Kind.ABORT:
                self._end(change)
            case Kind.CUT:
                self._cut(change, older)
            case Kind.FORGET:
                self.ongoing.clear()
                self.ended.clear()
                self.aborted.clear()

    def _end(self, change: Change) -> None:
        self.ended[change.producer_id] = Ended(
            change.producer_epoch, change.number, change.append_us, change.entry_index
        )
        self.ended.move_to_end(change.producer_id)
        if len(self.ended) > PRODUCERS_PER_STREAM_MAX:
            self.ended.popitem(last=False)
        open_one = self.ongoing.pop(change.producer_id, None)
        if open_one is None or change.kind is Kind.COMMIT:
            return
        following = Offset(change.offset + 1)
        unstable = self.first_unstable
        self.aborted.append(
            AbortedTransaction(
                producer_id=change.producer_id,
                producer_epoch=open_one.producer_epoch,
                first_offset=open_one.first_offset,
                last_offset=change.offset,
                stable_offset=following if unstable is None else unstable,
            )
        )

    def _cut(self, change: Change, older: Sequence[AbortedTransaction]) -> None:
        """Take back what happened at or beyond `change.offset`: the new home decides about it again."""
        start = change.offset
        lost = [row for row in itertools.chain(older, self.aborted) if row.last_offset >= start > row.first_offset]
        while self.aborted and self.aborted[-1].last_offset >= start:
            self.aborted.pop()
        if change.below is not None:
            self.ongoing = dict(change.below.ongoing)
            self.ended = OrderedDict(change.below.ended)
            return
        kept = {producer: row for producer, row in self.ongoing.items() if row.first_offset < start}
        for row in lost:
            kept.setdefault(row.producer_id, Ongoing(row.producer_epoch, row.first_offset, change.append_us))
            self.ended.pop(row.producer_id, None)  # or the marker that ends it in this epoch would be a late one
        self.ongoing = dict(sorted(kept.items(), key=lambda item: item[1].first_offset))

    def expire(self, oldest_us: int) -> None:
        """Forget producers whose newest marker is older than `oldest_us`: they stand at the front."""
        while self.ended:
            producer_id, row = next(iter(self.ended.items()))
            if row.append_us >= oldest_us:
                return
            del self.ended[producer_id]


class TransactionRows(NamedTuple):
    """The committed transactions of a stream as a snapshot holds them."""

    ongoing: tuple[tuple[int, Ongoing], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    ended: tuple[tuple[int, Ended], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing transactional is known."""
        return not (self.ongoing or self.aborted or self.ended)


class TransactionTable:
    """The transactions of one stream, committed and at the log END."""

    def __init__(self, *, expiry_ms: int = PRODUCER_EXPIRY_MS, aborted_max: int = ABORTED_MAX) -> None:
        self.committed = Transactions()
        self.end = Transactions()
        self._closed = ClosedTransactions()
        self._pending: deque[Change] = deque()
        self._expiry_us = expiry_ms * 1000
        self._aborted_max = aborted_max

    @property
    def is_full(self) -> bool:
        """Return whether no transaction may be opened: as many as may be stored were aborted, or may yet be."""
        known = len(self.committed.aborted) + len(self.end.aborted) + len(self.end.ongoing)
        return known >= self._aborted_max

    # --- following the log ------------------------------------------------------------------------

    def appended(self, change: Change) -> None:
        """Follow one appended entry."""
        if change.kind is Kind.OPEN and change.producer_id in self.end.ongoing:
            return
        self._pending.append(change)
        self.end.follow(change, older=self.committed.aborted)

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget the entries at or above `from_index`."""
        if not self._pending or self._pending[-1].entry_index < from_index:
            return
        while self._pending and self._pending[-1].entry_index >= from_index:
            self._pending.pop()
        self._make_end()

    def _make_end(self) -> None:
        self.end = Transactions(self.committed.ongoing.items(), self.committed.ended.items())
        for change in self._pending:
            self.end.follow(change, older=self.committed.aborted)

    def commit(self, index: RaftIndex, append_us: int) -> None:
        """Let the entries up to `index` take effect for readers.

        Args:
            append_us: append time of the entry at `index`.
        """
        moved = False
        while self._pending and self._pending[0].entry_index <= index:
            change = self._pending.popleft()
            self._close(change)
            self.committed.follow(change)
            moved = True
        if moved:
            newest = self.committed.aborted[-1].last_offset if self.committed.aborted else _NO_RECORD
            self.end.aborted = [row for row in self.end.aborted if row.last_offset > newest]
        oldest_us = append_us - self._expiry_us
        self.committed.expire(oldest_us)
        self.end.expire(oldest_us)

    def _close(self, change: Change) -> None:
        """Remember when a transaction began that `change`, committed now, ends."""
        match change.kind:
            case Kind.COMMIT | Kind.ABORT:
                open_one = self.committed.ongoing.get(change.producer_id)
                if open_one is not None:
                    self._closed.closed(open_one.first_offset, change.offset)
            case Kind.CUT:
                self._closed.cut(change.offset)
            case Kind.FORGET:
                self._closed.restore(_NOTHING_UNKNOWN)
            case Kind.OPEN:
                pass

    def drop_below(self, log_start: Offset) -> None:
        """Forget aborted transactions whose records and marker are all below the log start."""
        aborted = self.committed.aborted
        gone = bisect_left(aborted, log_start, key=_last_offset)
        if gone:
            del aborted[:gone]

    # --- reading ----------------------------------------------------------------------------------

    def stable_before(self, end: Offset) -> Offset:
        """Return up to where everything is decided for readers that are shown what lies below `end`: 0..end.

        A transaction counts as open while its marker is not below `end`, which is not above what is committed.
        """
        return self._closed.stable_before(end, unstable=self.committed.first_unstable)

    def knows_stable_before(self, end: Offset) -> bool:
        """Return whether `stable_before(end)` is an end that readers may be told; see ClosedTransactions.knows."""
        return self._closed.knows(end)

    def aborted_between(self, first: Offset, following: Offset) -> list[AbortedTransaction]:
        """Return the committed aborted transactions that have records or their marker in first..following - 1."""
        aborted = self.committed.aborted
        found: list[AbortedTransaction] = []
        for row in itertools.islice(aborted, bisect_left(aborted, first, key=_last_offset), None):
            if row.first_offset < following:
                found.append(row)
            if row.stable_offset >= following:
                break
        return found

    # --- the whole table --------------------------------------------------------------------------

    def rows(self, *, log_start: Offset, append_us: int) -> TransactionRows:
        """Return what is committed, without what is expired or below the log start: the same on every replica."""
        oldest_us = append_us - self._expiry_us
        return TransactionRows(
            ongoing=tuple(self.committed.ongoing.items()),
            aborted=tuple(row for row in self.committed.aborted if row.last_offset >= log_start),
            ended=tuple(
                (producer_id, row._replace(entry_index=RaftIndex(0)))
                for producer_id, row in self.committed.ended.items()
                if row.append_us >= oldest_us
            ),
        )

    def restore(self, rows: TransactionRows, *, end: Offset = _NOTHING_UNKNOWN) -> None:
        """Replace everything with what was committed at a snapshot; `end`: first offset that was not committed there.

        Where transactions ended before it, nobody knows any more when they began.
        """
        self.committed = Transactions(rows.ongoing, rows.ended, rows.aborted)
        self._closed.restore(end if rows.ended or rows.aborted else _NOTHING_UNKNOWN)
        self._pending.clear()
        self._make_end()
