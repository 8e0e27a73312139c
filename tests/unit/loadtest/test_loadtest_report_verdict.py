"""The report's accounts against the clients' books, and corrected latencies against clocks as they were set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.campaign.clock_verdict_core import corrections, faults_of_corrections, must_be_open, wrong_verdicts
from loadtest.campaign.offset_ranges_core import OffsetRanges
from loadtest.campaign.report_verdict_core import StreamBook, compare, faults_of_integrity
from sla.report.jsonout import to_json
from tests.sla.sample_report import sample_report

ZERO = dict.fromkeys(("untraced", "pending", "lost", "aborted", "expired", "not_asked", "unnamed", "undecided"), 0)


def book(**changes: Any) -> StreamBook:
    values: dict[str, Any] = {
        "name": "one", "topic": "orders", "origin": "", "region": "us", "is_retrying": True, "sent": 100, "refused": 0,
        "redirected": 0, "unknown": 0, "acked": OffsetRanges([(0, 100)]),
    }  # fmt: skip
    return StreamBook(**values | changes)


def account(**changes: Any) -> dict[str, Any]:
    row = {"topic": "orders", "origin": "", "partition": 0, "dest": "eu", "published": 100, "delivered": 100}
    return row | ZERO | {"refused": 0, "adds_up": True} | changes


def faults(
    account_row: dict[str, Any], *, read: Any = ((0, 100),), untraced_max: int = 0, **changes: Any
) -> tuple[str, ...]:
    received = {"eu": {"one": OffsetRanges(read)}}
    (line,) = compare([book(**changes)], received, [account_row], untraced_max={"eu": untraced_max, "us": 99})
    return line.faults


def test_equal_books_have_no_fault() -> None:
    assert faults(account()) == ()


def test_an_untraced_delivery_is_no_fault_where_a_broker_was_killed_and_not_more_than_a_kill_explains() -> None:
    untraced = account(delivered=93, untraced=7)
    assert faults(untraced, untraced_max=7) == ()
    assert faults(untraced, untraced_max=6) == ("7 deliveries are untraced, a kill explains 6",)
    assert faults(untraced) != ()


def test_a_reader_that_got_a_record_twice_is_a_fault() -> None:
    assert faults(account(), read=((0, 100), (40, 42))) == ("the reader got 2 records again",)


def integrity_rows(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return that part of a real report.json with these readers, all of them like its first one otherwise."""
    integrity: dict[str, Any] = json.loads(to_json(sample_report()))["integrity"]
    row = integrity["readers"][0] | {"topic": "orders", "origin": "us", "dest": "eu"}
    return integrity | {"readers": [row | {"dup_unflagged": 0, "order_violations": 0} | change for change in changes]}


def test_repeats_and_reorderings_that_the_report_saw_are_faults() -> None:
    assert faults_of_integrity(integrity_rows({}, {"dest": "us"})) == []
    assert faults_of_integrity(integrity_rows({"dup_unflagged": 3})) == [
        "us.orders in eu: 3 repeated without saying so"
    ]
    assert faults_of_integrity(integrity_rows({"origin": "", "order_violations": 2})) == [
        "orders in eu: 2 out of order"
    ]
    assert faults_of_integrity(integrity_rows()) == ["the report judged the integrity of no reader"]


@pytest.mark.parametrize(
    "change",
    [
        {"published": 99}, {"published": 101}, {"delivered": 99}, {"delivered": 101}, {"pending": 1}, {"lost": 1},
        {"unnamed": 1}, {"adds_up": False}, {"adds_up": None}, {"dest": "ap"},
    ],
)  # fmt: skip
def test_whatever_differs_is_a_fault(change: dict[str, Any]) -> None:
    assert faults(account(**change)) != ()


def test_a_record_that_was_acknowledged_and_nobody_got_is_a_fault() -> None:
    said = faults(account(published=99, delivered=99), read=((0, 40), (41, 100)))
    assert "1 acknowledged records were read by nobody" in said


def test_a_reader_that_lacks_what_another_got_is_a_fault() -> None:
    received = {"eu": {"one": OffsetRanges([(0, 99)])}, "us": {"one": OffsetRanges([(0, 100)])}}
    lines = compare([book()], received, [account(delivered=99), account(dest="us")])
    assert [bool(line.faults) for line in lines] == [True, False]


def test_refusals_are_equal_for_who_sends_once_and_at_least_so_many_for_who_sends_again() -> None:
    once = {"is_retrying": False, "sent": 104, "refused": 4}
    assert faults(account(refused=4), **once) == ()
    assert faults(account(refused=5), **once) != ()
    assert faults(account(refused=3), **once) != ()
    assert faults(account(refused=9)) == ()


def test_a_producer_that_did_not_wait_may_have_been_refused_as_often_as_it_does_not_know() -> None:
    hasty = {"is_retrying": False, "sent": 109, "refused": 4, "unknown": 5}
    assert faults(account(refused=9), **hasty) == ()
    assert faults(account(refused=10), **hasty) != ()
    (line,) = compare([book(**hasty)], {"eu": {"one": OffsetRanges([(0, 100)])}}, [account(refused=6)])
    assert (line.unsent, line.faults) == (3, ())


def test_unknown_outcomes_are_decided_by_what_is_stored() -> None:
    sent = {"sent": 103, "unknown": 3, "is_retrying": False}
    assert faults(account(), **sent) == ()
    stored = faults(account(published=102, delivered=102), read=((0, 102),), **sent)
    assert stored == ()
    too_many = faults(account(published=104, delivered=104), read=((0, 104),), **sent)
    assert too_many != ()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=30))
def test_ranges_are_sets_that_count_what_came_again(pairs: list[tuple[int, int]]) -> None:
    ranges, again = OffsetRanges(), 0
    seen: set[int] = set()
    for first, size in pairs:
        offsets = set(range(first, first + size))
        again += len(offsets & seen)
        seen |= offsets
        ranges.add(first, first + size)
    assert (ranges.size, ranges.again) == (len(seen), again)
    assert {offset for first, end in ranges.ranges for offset in range(first, end)} == seen
    other = OffsetRanges([(10, 30)])
    assert ranges.missing_from(other) == len(seen - set(range(10, 30)))


def hist(origin: str, dest: str, offset_us: int | None, bound_us: int | None) -> dict[str, Any]:
    return {"origin": origin, "dest": dest, "n": 10, "clock_offset_us": offset_us, "clock_err_us": bound_us}


def test_a_correction_is_held_against_the_clocks_as_they_were_set() -> None:
    rows = [
        hist("us", "eu", 110_300, 400),
        hist("us", "eu", 110_500, 400),
        hist("us", "eu", None, None),
        hist("us", "us", 0, 0),
    ]
    (line,) = corrections(rows, {"us": 30, "eu": -80})
    assert (line.true_us, line.error_max_us, line.outside, line.unknown, line.records) == (110_000, 500, 1, 10, 30)


SKEWS = {"us": 30, "eu": -80}


def test_corrections_that_were_never_made_or_never_needed_are_faults() -> None:
    right = hist("us", "eu", 110_300, 400)
    assert faults_of_corrections(corrections([right, right], SKEWS)) == []
    assert faults_of_corrections(corrections([right, hist("us", "eu", 120_000, 400)], SKEWS)) == [
        "us -> eu: 1 beyond their bound"
    ]
    unknown = hist("us", "eu", None, None)
    assert faults_of_corrections(corrections([unknown], SKEWS)) == [
        "us -> eu: nobody knew the clocks of 10 of 10 records"
    ]
    assert faults_of_corrections(corrections([right, unknown], SKEWS)) == []
    assert faults_of_corrections(corrections([right, unknown, unknown], SKEWS)) != []
    assert faults_of_corrections(corrections([hist("us", "ap", 0, 400)], {"eu": 5})) == [
        "no clock of these pairs was wrong: nothing was tested"
    ]
    assert faults_of_corrections([]) == ["no latency between regions was counted"]


@pytest.mark.parametrize(
    ("low", "high", "verdict", "is_right"),
    [
        (0.9, 1.0, "INCONCLUSIVE", True), (0.9, 1.0, "PASS", False), (0.9, 1.0, "BREACH", False),
        (0.995, 1.0, "PASS", True), (0.995, 1.0, "INCONCLUSIVE", False), (0.1, 0.5, "BREACH", True),
    ],
)  # fmt: skip
def test_a_verdict_is_open_exactly_where_the_bounds_leave_it_open(
    low: float, high: float, verdict: str, is_right: bool
) -> None:
    subject = {"name": "us -> eu", "verdict": verdict, "measured": {"value": high, "lo": low, "hi": high}}
    assert (wrong_verdicts([subject], 0.99, {}) == []) is is_right
    assert must_be_open(share_lo=low, share_hi=high, objective=0.99) is (verdict == "INCONCLUSIVE") or not is_right


def test_a_decided_verdict_that_the_truth_contradicts_is_wrong() -> None:
    subject = {"name": "us -> eu", "verdict": "BREACH", "measured": {"value": 0.1, "lo": 0.1, "hi": 0.2}}
    assert wrong_verdicts([subject], 0.99, {"us -> eu": 0.995}) != []
    assert wrong_verdicts([subject], 0.99, {"us -> eu": 0.3}) == []
