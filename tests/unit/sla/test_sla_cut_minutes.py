"""Minutes that a period has only a part of count by that part; silence that is no edge stays unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.judging.facts import Facts, MinutesFacts, PeriodFacts, Span
from sla.judging.judge import judge
from sla.judging.probed import EDGE_S_MAX, with_probed
from sla.judging.verdict import Verdict
from sla.report.model import Report
from sla.targets import MinutesTarget, Targets
from tests.sla import judging_facts as build

T0 = build.HOUR.start_s
TWO_MINUTES = Span(start_s=T0, end_s=T0 + 120)
TARGETS = Targets(targets=(MinutesTarget(name="minutes", objective=0.9),))


def _probed(
    rows: tuple[int, int], probes: tuple[int, int] | None, *, is_start_open: bool = True, is_end_open: bool = True
) -> tuple[int, int]:
    moved = tuple((T0 + first, T0 + last) for first, last in (rows, probes or (0, 0)))
    span = with_probed(
        TWO_MINUTES,
        rows=moved[0],
        probes=moved[1] if probes else None,
        is_start_open=is_start_open,
        is_end_open=is_end_open,
    )
    return span.probed[0] - T0, span.probed[1] - T0


def _report(span: Span, *minutes: MinutesFacts) -> Report:
    probes = tuple(build.probes(origin=item.origin, dest=item.dest) for item in minutes)
    now = PeriodFacts(span=span, minutes=minutes, probes=probes)
    facts = Facts(now=now, before=PeriodFacts(span=span.previous))
    return judge(facts, TARGETS, made=build.MADE, hours=build.HOURS)


def _minutes(**columns: Any) -> MinutesFacts:
    return build.minutes(**({"dest": "us"} | columns))


def test_a_load_test_whose_probes_begin_in_its_second_minute_has_no_unknown_minute() -> None:
    """As measured on a mesh of nine brokers: requests from :25 on, probes from 1:01 on, until 1:41."""
    assert _probed((25, 100), (61, 101)) == (61, 101)
    cut = dataclasses.replace(TWO_MINUTES, probed_start_s=T0 + 61, probed_end_s=T0 + 101)
    report = _report(cut, _minutes(up=1, up_s=40, down_s=0))
    (target,), (row,) = report.targets, report.availability.pairs
    assert target.verdict is Verdict.PASS
    assert (row.minutes, row.minutes_up, row.minutes_unknown, row.coverage) == (1, 1, 0, 1.0)
    (note,) = (note for note in report.notes if note.code == "MINUTES_CUT")
    assert "2023-11-14T22:01:01Z to 2023-11-14T22:01:41Z" in note.text


def test_without_the_seconds_of_the_traces_every_minute_counts_whole() -> None:
    report = _report(TWO_MINUTES, _minutes(up=1))
    assert report.targets[0].verdict is Verdict.INCONCLUSIVE
    assert report.targets[0].reason == "0 of 2 minutes down, 1 unknown"
    assert not any(note.code == "MINUTES_CUT" for note in report.notes)


def test_a_part_of_a_minute_is_as_much_of_the_share_as_it_is_of_the_time() -> None:
    cut = dataclasses.replace(TWO_MINUTES, probed_end_s=T0 + 78)
    report = _report(cut, _minutes(up=1, up_s=60, down=1, down_s=18))
    (subject,) = report.targets[0].subjects
    assert subject.measured is not None
    assert subject.measured.value == pytest.approx(60 / 78)
    assert (subject.total, subject.bad, subject.verdict) == (2, 1, Verdict.BREACH)
    assert subject.reason == "0.3 of 1.3 minutes down"
    assert subject.budget is not None
    assert subject.budget.allowed == pytest.approx(0.13)


def test_a_silent_part_stays_unknown_by_its_length() -> None:
    cut = dataclasses.replace(TWO_MINUTES, probed_end_s=T0 + 90)
    report = _report(cut, _minutes(up=1, up_s=60, down_s=0))
    (row,) = report.availability.pairs
    assert row.minutes_unknown == 1
    assert row.coverage == pytest.approx(60 / 90)
    assert report.targets[0].reason == "0 of 1.5 minutes down, 0.5 unknown"


@pytest.mark.parametrize(
    ("rows", "probes", "expected"),
    [
        ((0, 119), (0, 119), (0, 119)),  # the probes of the last second may be on their way
        ((12, 89), (12, 89), (12, 89)),
        ((12, 89), (72, 89), (72, 89)),
        ((11, 89), (72, 89), (11, 89)),  # silent for longer than an edge may be
        ((0, 119), (0, 59), (0, 59)),
        ((0, 119), (0, 58), (0, 120)),
        ((12, 89), None, (12, 90)),
        ((30, 30), (30, 30), (0, 120)),  # one second: nothing is left of it
    ],
)
def test_an_open_period_begins_and_ends_with_its_probes_when_they_are_near(
    rows: tuple[int, int], probes: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    assert _probed(rows, probes) == expected


def test_a_period_that_somebody_asked_for_counts_to_its_ends() -> None:
    assert _probed((12, 89), (20, 80), is_start_open=False, is_end_open=False) == (0, 120)
    assert _probed((12, 89), (20, 80), is_start_open=False) == (0, 80)
    assert _probed((12, 89), (20, 80), is_end_open=False) == (20, 120)


@given(st.integers(0, 119), st.integers(0, 119), st.integers(-200, 320), st.integers(-200, 320))
def test_an_edge_hides_at_most_a_minute_of_silence(first: int, last: int, one: int, other: int) -> None:
    first, last, one, other = min(first, last), max(first, last), min(one, other), max(one, other)
    begin, end = _probed((first, last), (one, other))
    assert 0 <= begin < end <= 120
    assert begin - first <= EDGE_S_MAX
    assert last - end <= EDGE_S_MAX


@pytest.mark.parametrize(("start_s", "end_s"), [(T0 - 1, T0 + 60), (T0, T0 + 121), (T0 + 60, T0 + 60)])
def test_probes_are_expected_inside_the_period(start_s: int, end_s: int) -> None:
    with pytest.raises(ValueError, match="are not in"):
        dataclasses.replace(TWO_MINUTES, probed_start_s=start_s, probed_end_s=end_s)


def test_the_period_before_is_of_the_same_length_and_whole() -> None:
    cut = dataclasses.replace(TWO_MINUTES, probed_start_s=T0 + 61, probed_end_s=T0 + 101)
    assert cut.previous == Span(start_s=T0 - 120, end_s=T0)
    assert (cut.probed_s, cut.probed_minutes, cut.previous.probed_minutes) == (40, 1, 2)
