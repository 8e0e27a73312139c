"""Commit times, aborted transactions and outcomes: the small pure parts of the recorder."""

from __future__ import annotations

import pytest

from georelay.trace.kinds import Operation
from georelay.wire.batch import RecordDraft, build_batch
from georelay.wire.control_batch import build_marker
from mesh.tracing import aborted_core
from mesh.tracing.aborted_core import OpenTransactions
from mesh.tracing.offset_run_core import COMMITS_REMEMBERED, CommitTimes
from mesh.tracing.outcome_core import OutcomeCore, Totals


class Entry:
    """A committed entry of one producer."""

    def __init__(self, base: int, count: int, producer: int, payload: bytes) -> None:
        self.base_offset, self.record_count, self.producer_id = base, count, producer
        self.payload = memoryview(payload)
        self.append_us = self.received_ns = self.entry_region = 0

    def header(self) -> Entry:
        return self


def data(base: int, count: int, *, producer: int = 7, transactional: bool = True) -> Entry:
    drafts = [RecordDraft(value=b"v", key=None)] * count
    batch = build_batch(
        drafts, timestamps_ms=0, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=transactional
    )
    return Entry(base, count, producer, batch)


def end(base: int, *, producer: int = 7, commits: bool = False) -> Entry:
    marker = build_marker(
        producer_id=producer, producer_epoch=0, is_commit=commits, coordinator_epoch=1, timestamp_ms=0
    )
    return Entry(base, 1, producer, marker)


def test_the_ranges_of_an_aborted_transaction_are_told_at_its_end_and_nobody_elses() -> None:
    open_ones = OpenTransactions()
    entries = [data(0, 5), data(5, 5), data(10, 5, producer=8), data(15, 5), data(20, 5, transactional=False)]
    assert open_ones.committed(entries) == []
    assert open_ones.are_open
    assert open_ones.committed([end(25)]) == [(0, 10), (15, 20)]
    assert open_ones.committed([end(26, producer=8)]) == [(10, 15)]
    assert not open_ones.are_open


def test_a_committed_transaction_leaves_nothing() -> None:
    open_ones = OpenTransactions()
    assert open_ones.committed([data(0, 5), end(5, commits=True), end(6)]) == []


def test_what_an_epoch_cuts_off_is_no_part_of_a_transaction_that_ends_behind_the_cut() -> None:
    for first in (data(5, 4, transactional=False), data(5, 4, producer=8), end(5, producer=8, commits=True)):
        open_ones = OpenTransactions()
        open_ones.committed([data(0, 2), data(2, 1, transactional=False), data(3, 7), data(10, 5)])
        open_ones.committed([first])
        assert open_ones.committed([end(9)]) == [(0, 2), (3, 5)]


def test_a_transaction_that_an_epoch_cuts_off_whole_is_open_no_more() -> None:
    open_ones = OpenTransactions()
    open_ones.committed([data(0, 5, transactional=False), data(5, 5)])
    open_ones.committed([data(5, 1, transactional=False)])
    assert not open_ones.are_open
    assert open_ones.committed([end(6)]) == []


def test_a_transaction_that_goes_on_behind_a_cut_is_told_from_its_first_record_that_is_left() -> None:
    open_ones = OpenTransactions()
    open_ones.committed([data(0, 10)])
    open_ones.committed([data(5, 5, transactional=False), data(10, 2)])
    assert open_ones.committed([end(12)]) == [(0, 5), (10, 12)]


def test_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_core, "PRODUCERS_MAX", 1)
    monkeypatch.setattr(aborted_core, "RANGES_MAX", 1)
    open_ones = OpenTransactions()
    open_ones.committed([data(0, 5), data(10, 5), data(20, 5, producer=8)])
    assert open_ones.committed([end(25), end(26, producer=8)]) == [(0, 5)]


def test_the_time_of_a_commit_is_that_of_the_range_an_offset_lies_in() -> None:
    times = CommitTimes()
    times.note(100, 110, 1)
    times.note(110, 120, 2)
    assert [times.at(offset) for offset in (99, 100, 109, 110, 119, 120)] == [None, 1, 1, 2, 2, None]


def test_only_the_newest_commits_are_remembered() -> None:
    times = CommitTimes()
    for number in range(10 * COMMITS_REMEMBERED):
        times.note(number, number + 1, number)
    newest = 10 * COMMITS_REMEMBERED - 1
    assert (times.at(newest), times.at(newest - COMMITS_REMEMBERED + 1), times.at(0)) == (
        newest,
        newest - COMMITS_REMEMBERED + 1,
        None,
    )


def test_commits_that_begin_anew_below_forget_what_was() -> None:
    times = CommitTimes()
    times.note(100, 110, 1)
    times.note(50, 60, 2)  # another epoch began lower
    assert (times.at(105), times.at(55)) == (None, 2)


def test_outcomes_are_what_came_since_the_last_second() -> None:
    core = OutcomeCore(region="eu")
    core.take(10, {Operation.PUBLISH: Totals(ok=5, offered=50)})
    rows = core.take(11, {Operation.PUBLISH: Totals(ok=7, client_error=1, server_error=2, timeout=3, offered=90)})
    assert rows == [(11, "eu", "", "publish", 8, 2, 1, 2, 3, 40)]
    assert (core.is_due(11), core.is_due(12)) == (False, True)


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    core = OutcomeCore(region="eu", gateway="g1")
    core.take(10, {Operation.CONNECT: Totals(ok=5)})
    assert core.take(11, {Operation.CONNECT: Totals(ok=2)}) == [(11, "eu", "g1", "connect", 2, 2, 0, 0, 0, 0)]
