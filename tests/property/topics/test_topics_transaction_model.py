"""The transaction table against a model that reads the whole log anew each time."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from georelay.ids import Offset, RaftIndex
from region.topics.transaction_rows import decode_transactions, encode_transactions
from region.topics.transaction_table_core import Change, Kind, TransactionTable

PRODUCERS = st.integers(1, 4)


class Told(NamedTuple):
    """What a reader and a publisher may know of a log."""

    open: dict[int, int]  # producer -> first offset
    aborted: list[tuple[int, int, int]]
    newest: dict[int, int]  # producer -> number of its newest marker


def read(log: list[Change], log_start: int) -> Told:
    """Return what a log says, from its first entry."""
    told = Told({}, [], {})
    for change in log:
        if change.kind is Kind.OPEN:
            told.open.setdefault(change.producer_id, change.offset)
        elif change.kind is Kind.FORGET:
            told.open.clear()
            told.aborted.clear()
            told.newest.clear()
        else:
            first = told.open.pop(change.producer_id, None)
            told.newest[change.producer_id] = change.number
            if first is not None and change.kind is Kind.ABORT:
                told.aborted.append((change.producer_id, first, change.offset))
    kept = [row for row in told.aborted if row[2] >= log_start]
    return Told(told.open, kept, told.newest)


def undecided_at(log: list[Change], end: int) -> int:
    """Return the first offset of the earliest transaction that is open at `end`, or `end`: read anew each time."""
    return min([end, *read([change for change in log if change.offset < end], 0).open.values()])


class TransactionTableMachine(RuleBasedStateMachine):
    """Entries are appended, truncated and committed; the table is restored from what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TransactionTable()
        self.log: list[Change] = []
        self.committed = 0
        self.log_start = 0
        self.number = 0
        self.known_from = 0  # for lower ends readers may have to wait

    def append(self, kind: Kind, producer: int = -1, number: int = -1) -> None:
        index = RaftIndex(len(self.log) + 1)
        change = Change(index, kind, Offset(index), int(index), producer, 0, number)
        self.log.append(change)
        self.table.appended(change)

    @rule(producer=PRODUCERS)
    def batch(self, producer: int) -> None:
        self.append(Kind.OPEN, producer)

    @rule(producer=PRODUCERS, is_commit=st.booleans())
    def marker(self, producer: int, is_commit: bool) -> None:
        self.number += 1
        self.append(Kind.COMMIT if is_commit else Kind.ABORT, producer, self.number)

    @rule()
    def skip(self) -> None:
        self.append(Kind.FORGET)

    @rule(entries=st.integers(1, 6))
    def truncate(self, entries: int) -> None:
        kept = max(len(self.log) - entries, self.committed)
        del self.log[kept:]
        self.table.truncated(RaftIndex(kept + 1))

    @rule(entries=st.integers(1, 6))
    def commit(self, entries: int) -> None:
        self.committed = min(self.committed + entries, len(self.log))
        self.table.commit(RaftIndex(self.committed), self.committed)

    @rule(entries=st.integers(1, 6))
    def move_log_start(self, entries: int) -> None:
        self.log_start = min(self.log_start + entries, self.committed)
        self.table.drop_below(Offset(self.log_start))

    @rule(part=st.floats(0, 1))
    def look_at_what_is_shown(self, part: float) -> None:
        """Readers are shown less than what is committed. Offsets are indexes here: the end is one beyond the last."""
        log = self.log[: self.committed]
        forgotten = max((change.offset for change in log if change.kind is Kind.FORGET), default=0)
        end = forgotten + round((self.committed + 1 - forgotten) * part)
        told, truth = self.table.stable_before(Offset(end)), undecided_at(log[forgotten:], end)
        assert told <= truth, (end, told, truth)
        if end >= self.known_from:
            assert told == truth, (end, told, truth)
            self.known_from = end

    @rule()
    def restart(self) -> None:
        rows = self.table.rows(log_start=Offset(self.log_start), append_us=self.committed)
        raw = encode_transactions(rows)
        decoded, end = decode_transactions(raw, 0)
        assert (decoded, end) == (rows, len(raw))
        self.table = TransactionTable()
        self.table.restore(decoded, end=Offset(self.committed + 1))
        if rows.ended or rows.aborted:
            self.known_from = self.committed + 1
        for change in self.log[self.committed :]:
            self.table.appended(change)

    @invariant()
    def readers_are_told_what_the_committed_log_says(self) -> None:
        told, committed = read(self.log[: self.committed], self.log_start), self.table.committed
        assert {producer: row.first_offset for producer, row in committed.ongoing.items()} == told.open
        assert [tuple(row)[0:1] + tuple(row)[2:4] for row in committed.aborted] == told.aborted
        assert {producer: row.number for producer, row in committed.ended.items()} == told.newest
        assert committed.first_unstable == min(told.open.values(), default=None)

    @invariant()
    def publishers_are_told_what_the_log_end_says(self) -> None:
        told, end = read(self.log, 0), self.table.end
        assert {producer: row.first_offset for producer, row in end.ongoing.items()} == told.open
        assert {producer: row.number for producer, row in end.ended.items()} == told.newest

    @invariant()
    def a_part_of_the_log_names_every_transaction_that_was_aborted_in_it(self) -> None:
        told = read(self.log[: self.committed], self.log_start)
        for first in range(self.log_start, self.committed + 1, 3):
            for following in range(first + 1, self.committed + 2, 4):
                found = self.table.aborted_between(Offset(first), Offset(following))
                wanted = [row for row in told.aborted if row[2] >= first and row[1] < following]
                assert [(row.producer_id, row.first_offset, row.last_offset) for row in found] == wanted


TestTransactionTable = TransactionTableMachine.TestCase
TestTransactionTable.settings = settings(stateful_step_count=40)
