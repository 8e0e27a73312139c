"""A minute whose probes were read in part is up only where those that are missing could not make it down."""

from __future__ import annotations

from typing import Any

import pytest

from sla.judging.availability import availability_section
from sla.judging.completeness import Completeness
from sla.judging.facts import Facts, PeriodFacts
from sla.judging.intervals import minutes_up
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.model import Interval, Subject
from sla.targets import MinutesTarget, Scope, Targets
from tests.sla import judging_facts as build

TARGET = MinutesTarget(name="minutes", objective=0.99, scope=Scope(word="named", names=frozenset({"us -> eu"})))


def of_an_hour(probes: int, *inputs: Any, up: int = 60, down: int = 0) -> Subject:
    """Judge an hour of us -> eu, all of whose minutes have probes."""
    now = build.period(
        probes=(build.probes(probes=probes, probes_ok=probes),),
        minutes=(build.minutes(up=up, down=down),),
        inputs=(build.inputs(kind="probe", region="us"), *inputs),
    )
    facts = Facts(now=now, before=PeriodFacts(span=build.HOUR.previous))
    (result,) = judge(facts, Targets(targets=(TARGET,)), made=build.MADE, hours=build.HOURS).targets
    (subject,) = result.subjects
    return subject


def missing(gone: int, read: int) -> Any:
    return build.inputs(kind="probe", region="eu", rows=read, missing_rows=gone)


def test_minutes_half_of_whose_probes_are_missing_are_not_known_to_be_up() -> None:
    subject = of_an_hour(1_800, missing(1_800, 1_800))
    assert (subject.verdict, subject.measured) == (Verdict.INCONCLUSIVE, Interval(value=1, lo=0, hi=1))
    assert subject.reason == "0 of 60 minutes down, 60 more may be: 50 % of the traces are missing"
    whole = of_an_hour(3_600, build.inputs(kind="probe", region="eu"))
    assert (whole.verdict, whole.measured) == (Verdict.PASS, Interval(value=1, lo=1, hi=1))


@pytest.mark.parametrize(("gone", "expected"), [(3, Verdict.PASS), (4, Verdict.INCONCLUSIVE)])
def test_so_few_rows_that_they_could_make_no_minute_down_take_no_pass_away(gone: int, expected: Verdict) -> None:
    # 60 probes are up until 4 more failed: 4 of 64 are more than 5 %.
    assert of_an_hour(3_600, missing(gone, 3_600)).verdict is expected


def test_what_was_seen_down_stays_down_whatever_is_missing() -> None:
    subject = of_an_hour(3_600, missing(100, 3_500), up=50, down=10)
    assert (subject.verdict, subject.reason) == (Verdict.BREACH, "10 of 60 minutes down")


def test_the_table_of_pairs_shows_the_same_doubt() -> None:
    period = build.period(
        probes=(build.probes(probes=1_800, probes_ok=1_800),),
        minutes=(build.minutes(),),
        inputs=(missing(1_800, 1_800),),
    )
    (row,) = availability_section(
        period, target=TARGET, pairs=[("us", "eu")], confidence=0.95, completeness=Completeness(period.inputs)
    ).pairs
    assert row.up_share == Interval(value=1, lo=0, hi=1)


def test_minutes_that_may_be_down_widen_the_share_and_never_move_it() -> None:
    assert minutes_up(up=90, down=5, unknown=5, unsure=10) == Interval(value=90 / 95, lo=0.80, hi=0.95)
