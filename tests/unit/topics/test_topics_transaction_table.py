"""Corners of the transaction table: epochs that begin below the end, what is bounded, bytes that cannot be."""

from __future__ import annotations

import pytest

from georelay.ids import Offset, RaftIndex
from region.topics import transaction_table_core
from region.topics.transaction_rows import decode_transactions, encode_transactions
from region.topics.transaction_table_core import (
    AbortedTransaction,
    Change,
    Ended,
    Kind,
    Ongoing,
    TransactionRows,
    TransactionTable,
)


def change(index: int, kind: Kind, *, producer: int = 7, offset: int | None = None, number: int = 1) -> Change:
    return Change(
        RaftIndex(index), kind, Offset(index if offset is None else offset), index * 1_000, producer, 0, number
    )


def follow(table: TransactionTable, *changes: Change, commits: bool = True) -> TransactionTable:
    for row in changes:
        table.appended(row)
    if commits:
        table.commit(changes[-1].entry_index, changes[-1].append_us)
    return table


@pytest.mark.parametrize("commits_first", [True, False])
def test_an_epoch_that_begins_below_an_abort_has_its_transaction_open_again(commits_first: bool) -> None:
    table = follow(TransactionTable(), change(1, Kind.OPEN), change(5, Kind.ABORT), commits=commits_first)
    follow(table, change(6, Kind.CUT, offset=3, producer=-1))
    for view in (table.committed, table.end):
        assert {producer: row.first_offset for producer, row in view.ongoing.items()} == {7: 1}
        assert not view.is_late(7, 1)
    assert table.committed.aborted == []
    assert table.committed.first_unstable == 1


def test_an_epoch_forgets_transactions_that_begin_on_the_orphan_branch() -> None:
    table = follow(
        TransactionTable(),
        change(1, Kind.OPEN),
        change(2, Kind.OPEN, producer=8),
        change(4, Kind.OPEN, producer=9),
        change(5, Kind.ABORT, producer=9),
        change(6, Kind.CUT, offset=2, producer=-1),
    )
    assert list(table.committed.ongoing) == list(table.end.ongoing) == [7]
    assert table.committed.aborted == []


def test_transactions_that_are_open_again_stand_in_the_order_of_their_records() -> None:
    table = follow(
        TransactionTable(),
        change(1, Kind.OPEN),
        change(2, Kind.OPEN, producer=8),
        change(3, Kind.ABORT),
        change(4, Kind.CUT, offset=3, producer=-1),
    )
    assert list(table.committed.ongoing) == [7, 8]


def test_the_producer_whose_marker_is_oldest_is_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_table_core, "PRODUCERS_PER_STREAM_MAX", 2)
    table = follow(
        TransactionTable(),
        change(1, Kind.COMMIT, producer=1),
        change(2, Kind.COMMIT, producer=2),
        change(3, Kind.COMMIT, producer=1, number=2),
        change(4, Kind.COMMIT, producer=3),
    )
    assert list(table.committed.ended) == list(table.end.ended) == [1, 3]


def test_a_marker_is_forgotten_a_day_later_on_the_clock_of_the_log() -> None:
    table = TransactionTable(expiry_ms=10)
    follow(table, change(1, Kind.COMMIT, producer=1), change(2, Kind.COMMIT, producer=2))
    table.commit(RaftIndex(3), 11_500)
    assert list(table.committed.ended) == list(table.end.ended) == [2]
    assert [row[0] for row in table.rows(log_start=Offset(0), append_us=12_500).ended] == []


def test_an_epoch_and_number_fence_what_is_not_above_them() -> None:
    end = follow(TransactionTable(), change(1, Kind.COMMIT, number=4)).end
    assert [end.is_late(7, number) for number in (3, 4, 5)] == [True, True, False]
    assert not end.is_late(8, 1)
    assert (end.fencing_epoch(7), end.fencing_epoch(8)) == (0, -1)


ROWS = TransactionRows(
    ongoing=((1, Ongoing(0, Offset(5), 0)), (2, Ongoing(0, Offset(6), 0))),
    aborted=(AbortedTransaction(3, 0, Offset(1), Offset(2), Offset(3)),),
    ended=((3, Ended(0, 1, 0)),),
)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS._replace(ongoing=ROWS.ongoing[::-1]),
        ROWS._replace(ongoing=(ROWS.ongoing[0], (1, Ongoing(0, Offset(9), 0)))),
        ROWS._replace(aborted=ROWS.aborted * 2),
        ROWS._replace(ended=ROWS.ended * 2),
    ],
    ids=["open out of order", "a producer twice", "aborted twice", "ended twice"],
)
def test_rows_that_cannot_be_are_refused(rows: TransactionRows) -> None:
    assert decode_transactions(encode_transactions(ROWS), 0)[0] == ROWS
    with pytest.raises(ValueError, match=r"order|twice"):
        decode_transactions(encode_transactions(rows), 0)
