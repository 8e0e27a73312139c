"""A minute whose probes were read in part is up only where those that are missing could not make it down."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sla.judging.availability import availability_section
from sla.judging.completeness import Completeness
from sla.judging.facts import Facts, HourFacts, PeriodFacts, ProbeFacts
from sla.judging.intervals import minutes_up
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.model import Interval, Subject
from sla.targets import MinutesTarget, Scope, Targets
from tests.sla import judging_facts as build

TARGET = MinutesTarget(name="minutes", objective=0.99, scope=Scope(word="named", names=frozenset({"us -> eu"})))


def of_an_hour(
    probes: int,
    *inputs: Any,
    up: int = 60,
    down: int = 0,
    probes_ok: int | None = None,
    others: tuple[ProbeFacts, ...] = (),
    objective: float = 0.99,
    hours: HourFacts = build.HOURS,
) -> Subject:
    """Judge an hour of us -> eu, all of whose minutes have probes."""
    ok = probes if probes_ok is None else probes_ok
    now = build.period(
        probes=(build.probes(probes=probes, probes_ok=ok), *others),
        minutes=(build.minutes(up=up, down=down),),
        inputs=(build.inputs(kind="probe", region="us"), *inputs),
    )
    facts = Facts(now=now, before=PeriodFacts(span=build.HOUR.previous))
    target = dataclasses.replace(TARGET, objective=objective)
    (result,) = judge(facts, Targets(targets=(target,)), made=build.MADE, hours=hours).targets
    (subject,) = result.subjects
    return subject


def missing(gone: int, read: int) -> Any:
    return build.inputs(kind="probe", region="eu", rows=read, missing_rows=gone)


def of_a_cut_period(first_s: int, end_s: int, *, gone: int) -> Interval:
    """Return the share of up minutes where probes are due from one second of an hour to another."""
    period = build.period(
        probes=(build.probes(probes=end_s - first_s + 1 - gone, probes_ok=end_s - first_s + 1 - gone),),
        minutes=(build.minutes(up=-(-end_s // 60) - first_s // 60, up_s=end_s - first_s, down_s=0),),
        inputs=(missing(gone, end_s - first_s + 1 - gone),),
    )
    start_s = build.HOUR.start_s
    span = dataclasses.replace(build.HOUR, probed_start_s=start_s + first_s, probed_end_s=start_s + end_s)
    (row,) = availability_section(
        dataclasses.replace(period, span=span),
        target=TARGET,
        pairs=[("us", "eu")],
        confidence=0.95,
        completeness=Completeness(period.inputs),
    ).pairs
    return row.up_share


def test_minutes_half_of_whose_probes_are_missing_are_not_known_to_be_up() -> None:
    subject = of_an_hour(1_800, missing(1_800, 1_800))
    assert (subject.verdict, subject.measured) == (Verdict.INCONCLUSIVE, Interval(value=1, lo=0, hi=1))
    assert subject.reason == "0 of 60 minutes down, 60 more may be: 50 % of the traces are missing"
    whole = of_an_hour(3_600, build.inputs(kind="probe", region="eu"))
    assert (whole.verdict, whole.measured) == (Verdict.PASS, Interval(value=1, lo=1, hi=1))


@pytest.mark.parametrize(("gone", "expected"), [(2, Verdict.PASS), (3, Verdict.INCONCLUSIVE)])
def test_so_few_rows_that_they_could_make_no_minute_down_take_no_pass_away(gone: int, expected: Verdict) -> None:
    # 60 probes of a minute are due, and 3 of 60 are 5 %.
    assert of_an_hour(3_600 - gone, missing(gone, 3_600 - gone)).verdict is expected


def test_all_rows_that_a_region_lost_may_be_of_one_pair_and_in_the_minutes_where_they_do_most() -> None:
    read = tuple(build.probes(origin=origin, probes=3_600, probes_ok=3_600) for origin in ("ap", "eu"))
    subject = of_an_hour(3_594, missing(6, 3 * 3_600 - 6), others=read)
    assert (subject.verdict, subject.measured) == (Verdict.INCONCLUSIVE, Interval(value=1, lo=58 / 60, hi=1))
    assert subject.reason == "0 of 60 minutes down, 2 more may be: 0.0556 % of the traces are missing"


def test_a_pair_all_of_whose_probes_are_there_lacks_none_whatever_else_the_region_lost() -> None:
    lost = (
        missing(1_000, 9_000),
        build.inputs(kind="probe", region="eu", files=9, quarantined_files=9),
        build.inputs(kind="probe", region="eu", left_out_rows=50),
    )
    for row in lost:
        assert of_an_hour(3_600, row).verdict is Verdict.PASS
        assert of_an_hour(3_597, row).reason.startswith("0 of 60 minutes down, 1 more may be"), row


def test_a_broker_that_was_silent_makes_no_minute_unsure_whose_probes_are_all_there() -> None:
    rows = (
        build.inputs(kind="clock", region="eu", writer_hours=99, silent_writer_hours=1),
        build.inputs(kind="probe", region="eu"),
    )
    assert of_an_hour(3_600, *rows).verdict is Verdict.PASS
    assert of_an_hour(3_540, *rows).reason == "0 of 60 minutes down, 20 more may be: 1 % of the traces are missing"


def test_an_hour_that_nobody_saw_to_its_end_may_have_had_all_that_a_pair_lacks() -> None:
    hours = HourFacts(expected=10, rolled_up=10, revised=0, not_final=0, kept=1, unseen=1)
    row = build.inputs(kind="probe", region="eu")
    assert of_an_hour(3_600, row, hours=hours).verdict is Verdict.PASS
    assert of_an_hour(3_590, row, hours=hours).reason.startswith("0 of 60 minutes down, 3 more may be")


def test_probes_that_failed_in_minutes_that_were_up_leave_fewer_to_make_them_down() -> None:
    # Two failed in each of two minutes: one more in each makes both down.
    subject = of_an_hour(3_598, missing(2, 3_598), probes_ok=3_594)
    assert subject.reason.startswith("0 of 60 minutes down, 2 more may be")


def test_each_minute_that_missing_rows_make_down_needs_one_of_them_however_many_failed() -> None:
    subject = of_an_hour(3_599, missing(1, 3_599), probes_ok=3_539)
    assert subject.reason.startswith("0 of 60 minutes down, 1 more may be")


def test_failures_that_the_minutes_down_have_had_make_no_other_minute_unsure() -> None:
    subject = of_an_hour(3_598, missing(2, 3_598), up=59, down=1, probes_ok=3_595, objective=0.98)
    assert subject.verdict is Verdict.PASS


def test_minutes_that_lack_rows_nobody_wrote_are_made_down_by_fewer() -> None:
    # 40 probes of one minute had no row (its reader was down), and 1 of the 20 others is missing: 5 %.
    assert of_an_hour(3_600 - 41, missing(1, 3_559)).reason.startswith("0 of 60 minutes down, 1 more may be")


def test_a_minute_that_is_there_with_a_part_is_made_down_by_fewer_rows_and_counts_by_that_part() -> None:
    # Due from second 40 of the first minute to second 30 of the last; the row of second 30 itself counts in no part.
    assert of_a_cut_period(40, 3_570, gone=0) == Interval(value=1, lo=1, hi=1)
    one, two, three = (of_a_cut_period(40, 3_570, gone=gone).lo for gone in (1, 2, 3))
    assert (one, two) == pytest.approx((1 - 20 / 3_530, 1 - 30 / 3_530))
    assert three == pytest.approx(1 - 60 / 3_530)


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
