"""What nobody may have named: bounded, cut with the log, and forgotten when another broker leads."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.entry import Entry, EntryDraft, seal_entry
from region.topics import unnamed_core
from region.topics.unnamed_core import BROKER_RANGES_MAX, NOBODY, RANGES_MAX, RANGES_MIN, RangeBudget, UnnamedRanges

MS = 1_000
S = 1_000 * MS


def entry(index: int, base: int, count: int, append_us: int, *, epoch: int = 1) -> Entry:
    header = StreamHeader(
        type=EntryType.DATA if count else EntryType.NOOP, entry_region=1, record_count=count, epoch=Epoch(epoch),
        base_offset=Offset(base), append_us=append_us, received_ns=0, max_timestamp_ms=-1, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, payload_crc=0, digest=bytes(16),
    )  # fmt: skip
    return seal_entry(EntryDraft(header=header, payload=b""), term=Term(1), index=RaftIndex(index), previous_chain=0)


def recovered(*entries: Entry, budget: RangeBudget | None = None) -> UnnamedRanges:
    ranges = UnnamedRanges(budget or RangeBudget())
    for each in entries:
        ranges.recovered(each)
    return ranges


def rows(ranges: UnnamedRanges) -> list[tuple[Any, ...]]:
    return [(row.epoch, row.from_offset, row.to_offset, row.first_us, row.last_us) for row in ranges.take()]


def test_batches_of_a_second_are_one_range_with_the_times_of_its_ends() -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 0, 100 * MS), entry(3, 3, 2, 900 * MS))
    assert rows(ranges) == [(1, 0, 5, 100 * MS, 900 * MS)]


@pytest.mark.parametrize(
    "second",
    [entry(2, 3, 2, S), entry(2, 3, 2, 100 * MS, epoch=2), entry(2, 9, 2, 100 * MS)],
    ids=["another second", "another epoch", "a jump"],
)
def test_a_range_ends_at_the_turn_of_a_second_at_an_epoch_and_at_a_jump(second: Entry) -> None:
    assert len(rows(recovered(entry(1, 0, 3, 100 * MS), second))) == 2


def test_append_times_of_any_age_and_order_are_remembered() -> None:
    ranges = recovered(entry(1, 0, 1, 0), entry(2, 1, 1, 90_000 * S), entry(3, 2, 1, 100 * S))
    assert [row[1] for row in rows(ranges)] == [0, 1, 2]


def test_a_stream_remembers_its_newest_ranges_only() -> None:
    budget = RangeBudget()
    ranges = recovered(*(entry(1 + row, row, 1, row * S) for row in range(RANGES_MAX + 3)), budget=budget)
    assert (ranges.first_index, budget.held) == (4, RANGES_MAX)
    assert [row[1] for row in rows(ranges)] == list(range(3, RANGES_MAX + 3))
    assert (ranges.first_index, budget.held) == (None, 0)


def test_many_streams_together_remember_no_more_than_a_broker_has_room_for_but_each_a_few_ranges() -> None:
    assert BROKER_RANGES_MAX >= RANGES_MAX >= RANGES_MIN
    budget = RangeBudget(ranges_max=100)
    first, second = (
        recovered(*(entry(1 + row, row, 1, row * S) for row in range(90)), budget=budget) for _ in range(2)
    )  # fmt: skip
    assert budget.held == 90 + RANGES_MIN
    first.clear()
    assert budget.held == RANGES_MIN
    assert [row[1] for row in rows(second)] == list(range(90 - RANGES_MIN, 90))


def test_every_way_to_forget_gives_its_room_back() -> None:
    log = [entry(1 + row, row, 1, row * S) for row in range(6)]
    budget = RangeBudget()
    ranges = recovered(*log, budget=budget)
    ranges.truncated(6, log[4])
    assert budget.held == 5
    ranges.told(log[:2], leader=7, now_ns=0)
    ranges.told(log[2:3], leader=7, now_ns=3 * NS)
    assert budget.held == 3
    ranges.take()
    assert budget.held == 0


def test_what_is_committed_beyond_what_was_recovered_is_remembered_however_old() -> None:
    ranges = recovered(entry(1, 0, 1, 500 * S))
    ranges.committed(
        [entry(1, 0, 1, 500 * S), entry(2, 1, 1, 500 * S), entry(3, 2, 0, 500 * S), entry(4, 2, 1, 900 * S)]
    )
    assert [row[1:3] for row in rows(ranges)] == [(0, 2), (2, 3)]


def test_what_was_taken_is_not_given_again() -> None:
    ranges = recovered(entry(1, 0, 1, 0))
    assert len(ranges.take()) == 1
    assert (ranges.take(), ranges.first_index) == ([], None)


@pytest.mark.parametrize(
    ("from_index", "newest", "left"),
    [
        (5, entry(4, 6, 1, 5 * S), [(0, 5), (5, 7)]),
        (4, entry(3, 5, 1, 5 * S), [(0, 5), (5, 6)]),
        (3, entry(2, 3, 2, 900 * MS), [(0, 5)]),
        (2, entry(1, 0, 3, 100 * MS), [(0, 3)]),
        (1, None, []),
    ],
)
def test_what_is_truncated_is_not_named(from_index: int, newest: Entry | None, left: list[tuple[int, int]]) -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS), entry(3, 5, 1, 5 * S), entry(4, 6, 1, 5 * S))
    ranges.truncated(from_index, newest)
    assert [row[1:3] for row in rows(ranges)] == left


def test_what_takes_the_place_of_what_was_truncated_is_remembered() -> None:
    ranges = recovered(entry(1, 0, 3, 0), entry(2, 3, 2, 0))
    ranges.truncated(2, entry(1, 0, 3, 0))
    ranges.committed([entry(2, 3, 1, 0, epoch=2)])
    assert [row[:3] for row in rows(ranges)] == [(1, 0, 3), (2, 3, 4)]


def test_the_end_of_a_range_that_was_cut_has_the_time_of_what_remains() -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS))
    ranges.truncated(2, entry(1, 0, 3, 100 * MS))
    assert rows(ranges) == [(1, 0, 3, 100 * MS, 100 * MS)]


LOG = [entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS), entry(3, 5, 1, 5 * S), entry(4, 6, 1, 5 * S)]
NS = 1_000_000_000


def test_what_a_leader_told_is_remembered_until_it_was_heard_for_two_seconds_after() -> None:
    ranges = recovered(*LOG)
    ranges.told(LOG[:1], leader=7, now_ns=0)
    ranges.told(LOG[1:3], leader=7, now_ns=2 * NS)
    assert ranges.first_index == 1
    ranges.told(LOG[3:], leader=7, now_ns=2 * NS + 1)
    assert [row[1:4] for row in rows(ranges)] == [(3, 5, 100 * MS), (5, 7, 5 * S)]


def test_a_new_leader_has_to_be_heard_for_as_long_to_have_named_what_the_one_before_told() -> None:
    ranges = recovered(*LOG)
    ranges.told(LOG[:1], leader=7, now_ns=0)
    ranges.told(LOG[1:2], leader=8, now_ns=40 * NS)
    assert ranges.first_index == 1
    ranges.told(LOG[2:3], leader=8, now_ns=43 * NS)
    assert [row[1:3] for row in rows(ranges)] == [(5, 7)]


def test_a_leader_that_is_missed_a_minute_after_its_last_word_had_named_it() -> None:
    for missed_ns, left in ((60 * NS, [(0, 5), (5, 7)]), (60 * NS + 1, [(5, 7)])):
        ranges = recovered(*LOG)
        ranges.told(LOG[:2], leader=7, now_ns=0)
        ranges.leader_changed(NOBODY, now_ns=missed_ns)
        ranges.leader_changed(NOBODY, now_ns=900 * NS)
        ranges.leader_changed(9, now_ns=990 * NS)
        assert [row[1:3] for row in rows(ranges)] == left


def test_of_moments_that_are_close_together_one_is_remembered() -> None:
    ranges = recovered()
    for count in range(1_000):
        ranges.told([entry(1 + count, count, 1, count * S)], leader=7, now_ns=count * 10 * MS * 1_000)
    assert len(ranges._moments) <= unnamed_core.TOLD_FIRST_NS // unnamed_core.MOMENT_NS + 1
    assert [row[1] for row in rows(ranges)] == list(range(791, 1_000))


def test_what_is_applied_while_nobody_leads_was_told_by_who_led_before_and_waits_for_the_next_leader() -> None:
    ranges = recovered()
    ranges.told(LOG[:1], leader=7, now_ns=0)
    ranges.leader_changed(NOBODY, now_ns=NS)
    ranges.told(LOG[1:3], leader=NOBODY, now_ns=NS)
    ranges.told(LOG[3:], leader=NOBODY, now_ns=5 * NS)
    ranges.leader_changed(9, now_ns=990 * NS)
    assert [row[1:3] for row in rows(ranges)] == [(0, 5), (5, 7)]


def full(budget: RangeBudget, *, leader: int, now_ns: int) -> UnnamedRanges:
    """Return a stream whose ranges take all room, of which a leader has told last."""
    ranges = recovered(*(entry(1 + row, row, 1, row * S) for row in range(90)), budget=budget)
    ranges.told([entry(90, 89, 1, 89 * S)], leader=leader, now_ns=now_ns)
    return ranges


def test_a_stream_that_is_quiet_under_a_leader_that_lives_gives_its_room_to_one_that_needs_it() -> None:
    for heard_ns, left in ((60 * NS, RANGES_MIN), (60 * NS + 1, 80)):
        budget = RangeBudget(ranges_max=90)
        quiet = full(budget, leader=7, now_ns=0)
        busy = recovered(budget=budget)
        busy.told([entry(1 + row, row, 1, row * S) for row in range(80)], leader=8, now_ns=heard_ns)
        assert len(rows(busy)) == left
        assert (len(rows(quiet)), budget.held) == (90 if left == RANGES_MIN else 0, 0)


def test_no_stream_forgets_what_was_told_while_there_is_room() -> None:
    budget = RangeBudget(ranges_max=200)
    quiet = full(budget, leader=7, now_ns=0)
    recovered(budget=budget).told([entry(1, 0, 1, 0)], leader=8, now_ns=990 * NS)
    assert len(rows(quiet)) == 90


@pytest.mark.parametrize("then", ["is missed", "was followed", "told again"])
def test_a_quiet_stream_keeps_its_ranges_when_its_leader_may_not_have_named_them(then: str) -> None:
    budget = RangeBudget(ranges_max=90)
    quiet = full(budget, leader=7, now_ns=0)
    if then == "told again":
        quiet.told([entry(91, 90, 0, 89 * S)], leader=7, now_ns=NS)
        quiet.told([entry(92, 90, 1, 90 * S)], leader=7, now_ns=2 * NS)
    else:
        quiet.leader_changed(NOBODY if then == "is missed" else 9, now_ns=30 * NS)
    recovered(budget=budget).told([entry(1, 0, 1, 0)], leader=8, now_ns=61 * NS)
    assert len(rows(quiet)) == 90


def test_what_was_recovered_and_not_told_again_waits_for_the_next_leader_however_full_it_is() -> None:
    budget = RangeBudget(ranges_max=90)
    quiet = recovered(*(entry(1 + row, row, 1, row * S) for row in range(90)), budget=budget)
    quiet.told([entry(40, 39, 1, 39 * S)], leader=7, now_ns=0)
    recovered(budget=budget).told([entry(1, 0, 1, 0)], leader=8, now_ns=990 * NS)
    assert [row[1] for row in rows(quiet)] == list(range(40, 90))


def test_a_stream_that_is_closed_is_remembered_by_nobody() -> None:
    budget = RangeBudget(ranges_max=90)
    quiet = full(budget, leader=7, now_ns=0)
    quiet.close()
    assert (budget.held, len(budget.heard)) == (0, 0)
    quiet.told([entry(91, 90, 1, 90 * S)], leader=7, now_ns=0)
    assert (budget.held, len(budget.heard)) == (0, 0)
