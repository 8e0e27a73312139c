"""A way over a third region has a limit of its own only where no missing row may name another home."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sla.judging.facts import Facts, HourFacts, PeriodFacts
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.model import Subject
from sla.targets import LatencyTarget, Scope, Targets
from tests.sla import judging_facts as build

PASS, BREACH, DOUBT = Verdict.PASS, Verdict.BREACH, Verdict.INCONCLUSIVE
# One way, ms: us - eu 10, us - ap 80. Over ap `us -> us` takes 160 ms by light alone, and is judged at 180 ms.
CLOCKS = (
    build.clock(region="us", peer="eu", rtt_min_us=20_000),
    build.clock(region="us", peer="ap", rtt_min_us=160_000),
)
TARGET = LatencyTarget(name="latency", scope=Scope(word="named", names=frozenset({"us -> us"})))
CLOCK_ROWS = tuple(build.inputs(kind="clock", region=region) for region in ("us", "eu", "ap"))
WHOLE = {region: build.inputs(kind="latency_hist", region=region) for region in ("us", "eu", "ap")}
TORN = build.inputs(kind="latency_hist", region="eu", files=0, rows=0, quarantined_files=2, writers=())
DIRECT_SAYS_OTHERWISE = (
    "rows of eu are missing: ap may not be the only home, and the limit of the direct way (50 ms) says otherwise"
)


def over_ap(
    latency_ms: int,
    *inputs: Any,
    before: dict[str, Any] | None = None,
    hours: HourFacts = build.HOURS,
    **now: Any,
) -> Subject:
    """Judge 10,000 records of us -> us whose commits, as far as they can be read, are all in ap."""
    records = build.latency({latency_ms * 1_000: 10_000}, origin="us", dest="us", home="ap")
    facts = Facts(
        now=build.period(latency=(records,), clocks=CLOCKS, inputs=inputs or (*CLOCK_ROWS, *WHOLE.values()), **now),
        before=PeriodFacts(span=build.HOUR.previous, **(before or {})),
    )
    (result,) = judge(facts, Targets(targets=(TARGET,)), made=build.MADE, hours=hours).targets
    (subject,) = result.subjects
    assert subject.name == "us -> ap -> us"
    return subject


def with_eu(row: Any) -> tuple[Any, ...]:
    return (*CLOCK_ROWS, WHOLE["us"], row, WHOLE["ap"])


def test_where_every_region_is_read_whole_a_way_is_judged_by_its_own_limit() -> None:
    assert [over_ap(ms).verdict for ms in (20, 90, 300)] == [PASS, PASS, BREACH]


@pytest.mark.parametrize("row", [TORN, build.inputs(kind="latency_hist", region="eu", missing_rows=1)])
def test_a_pass_by_the_limit_of_a_way_is_a_doubt_where_a_region_that_may_be_a_home_lost_rows(row: Any) -> None:
    subject = over_ap(90, *with_eu(row))
    assert (subject.verdict, subject.reason) == (DOUBT, DIRECT_SAYS_OTHERWISE)
    assert (subject.threshold_ms, subject.is_own_limit, subject.bad) == (180, True, 0)


def test_a_verdict_that_the_direct_limit_shares_stands_whatever_the_homes_are() -> None:
    fast, slow = over_ap(20, *with_eu(TORN)), over_ap(300, *with_eu(TORN))
    assert (fast.verdict, fast.reason) == (PASS, "")
    assert (slow.verdict, slow.reason) == (BREACH, "0 % within 180 ms at best")


def test_a_region_that_took_part_in_probes_and_of_which_nothing_was_read_may_be_a_home() -> None:
    inputs = (CLOCK_ROWS[0], CLOCK_ROWS[2], WHOLE["us"], WHOLE["ap"])
    probes = (build.probes(origin="eu", dest="us"),)
    assert over_ap(90, *inputs).verdict is PASS
    assert over_ap(90, *inputs, probes=probes).reason == DIRECT_SAYS_OTHERWISE
    assert over_ap(90, *inputs, before={"probes": probes}).reason == DIRECT_SAYS_OTHERWISE


def test_rows_that_the_only_home_itself_lost_name_no_other() -> None:
    lost = build.inputs(kind="latency_hist", region="ap", missing_rows=1)
    assert over_ap(90, *CLOCK_ROWS, WHOLE["us"], WHOLE["eu"], lost).verdict is PASS


def test_an_origin_that_lost_rows_may_be_a_home_too() -> None:
    lost = build.inputs(kind="latency_hist", region="us", rows=10**6, missing_rows=1)
    subject = over_ap(90, *CLOCK_ROWS, lost, WHOLE["eu"], WHOLE["ap"])
    assert (subject.verdict, subject.reason.partition(":")[0]) == (DOUBT, "rows of us are missing")


def test_an_hour_that_nobody_saw_to_its_end_may_hide_another_home() -> None:
    hours = HourFacts(expected=1_000, rolled_up=1_000, revised=0, not_final=0, kept=1, unseen=1)
    subject = over_ap(90, hours=hours)
    assert (subject.verdict, subject.reason.partition(":")[0]) == (DOUBT, "rows of eu, us are missing")


def clock_rows(**columns: Any) -> tuple[Any, ...]:
    return (CLOCK_ROWS[0], build.inputs(kind="clock", region="eu", **columns), CLOCK_ROWS[2], *WHOLE.values())


def test_a_broker_that_is_new_and_so_counts_as_silent_in_the_hour_before_it_hides_no_home() -> None:
    writers = ("eu/2001", "eu/2002")
    assert over_ap(90, *clock_rows(writers=writers, writer_hours=960, silent_writer_hours=1)).verdict is PASS
    assert over_ap(90, *clock_rows(writers=writers, writer_hours=480, silent_writer_hours=2)).verdict is PASS


def test_a_region_that_is_new_and_read_whole_hides_no_home() -> None:
    new = build.inputs(kind="clock", region="sa", writers=("sa/4001",), writer_hours=240, silent_writer_hours=1)
    rows = build.inputs(kind="latency_hist", region="sa", writers=("sa/4001",))
    assert over_ap(90, *CLOCK_ROWS, *WHOLE.values(), new, rows).verdict is PASS
    assert over_ap(90, *CLOCK_ROWS, *WHOLE.values(), new, dataclasses.replace(rows, gone_rows=1)).verdict is DOUBT


def test_brokers_that_were_silent_for_longer_than_new_ones_are_may_hide_another_home() -> None:
    subject = over_ap(90, *clock_rows(writer_hours=700, silent_writer_hours=2))
    assert (subject.verdict, subject.reason) == (DOUBT, DIRECT_SAYS_OTHERWISE)


def test_rows_that_were_read_and_are_in_no_figure_may_name_another_home() -> None:
    left_out = build.inputs(kind="latency_hist", region="eu", left_out_rows=1)
    assert over_ap(90, *with_eu(left_out)).reason == DIRECT_SAYS_OTHERWISE
