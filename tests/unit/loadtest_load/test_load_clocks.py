"""Corrected latencies against clocks as they were set, and verdicts as open as the bounds leave them."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.load.clock_verdict_core import (
    clock_faults,
    corrections,
    faults_of_corrections,
    must_be_open,
    wrong_verdicts,
)


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
    assert (line.true_us, line.outside, line.unknown, line.records) == (110_000, 1, 10, 30)


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


def test_pairs_with_a_limit_of_their_own_have_no_truth() -> None:
    rows = [hist("us", "eu", 110_300, 400)]
    subject = {"name": "us -> eu", "verdict": "BREACH", "measured": {"value": 0.1, "lo": 0.1, "hi": 0.2}}
    targets = [{"kind": "latency", "objective": 0.99, "subjects": [subject | {"is_own_limit": own}]} for own in (0, 1)]
    assert clock_faults(rows, SKEWS, targets[1:], {"us -> eu": 0.995}) == (10, [])
    assert clock_faults(rows, SKEWS, targets[:1], {"us -> eu": 0.995})[1] != []
