"""Whose missing rows may hide what a region was offered: homes that no row names are any region's."""

from __future__ import annotations

import dataclasses
from typing import Any

from sla.judging.facts import AccountFacts, Facts, PeriodFacts
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.model import Subject
from sla.targets import Scope, Targets, ThroughputTarget
from tests.sla import judging_facts as build

PASS, DOUBT = Verdict.PASS, Verdict.INCONCLUSIVE
TARGET = ThroughputTarget(name="throughput", scope=Scope(word="named", names=frozenset({"us"})))
COMMIT = AccountFacts(
    kind="commit", topic="orders", origin="", partition=0, region="ap", group="", is_inside=True, records=9,
    is_whole=True, ranges=((10, 19),),
)  # fmt: skip
DELIVERED = dataclasses.replace(COMMIT, kind="delivered", region="us")
READ = tuple(build.inputs(region=region) for region in ("us", "ap"))
EU_TORN = build.inputs(region="eu", files=0, rows=0, quarantined_files=9, writers=())


def us(*accounts: AccountFacts, inputs: tuple[Any, ...] = (*READ, EU_TORN), **now: Any) -> Subject:
    facts = Facts(
        now=build.period(throughput=(build.throughput(dest="us"),), accounts=accounts, inputs=inputs, **now),
        before=PeriodFacts(span=build.HOUR.previous),
    )
    (result,) = judge(facts, Targets(targets=(TARGET,)), made=build.MADE, hours=build.HOURS).targets
    (subject,) = result.subjects
    return subject


def test_rows_missing_where_no_home_can_have_been_take_no_pass_away() -> None:
    assert us(COMMIT, DELIVERED).verdict is PASS


def test_a_home_that_moved_and_whose_rows_before_that_are_missing_is_a_doubt() -> None:
    older = dataclasses.replace(DELIVERED, ranges=((0, 19),))
    assert us(COMMIT, older).verdict is DOUBT
    assert us(COMMIT, older, inputs=READ).verdict is PASS
    mirrored = dataclasses.replace(DELIVERED, kind="replicated", region="ap", ranges=((19, 30),))
    assert us(COMMIT, DELIVERED, mirrored).verdict is DOUBT
    before = dataclasses.replace(COMMIT, is_inside=False, ranges=((0, 10),))
    assert us(COMMIT, before, older).verdict is PASS
    other = dataclasses.replace(mirrored, topic="other")
    assert us(COMMIT, DELIVERED, other).verdict is PASS, "nobody in us reads it"


def test_a_region_that_took_part_in_probes_and_of_which_nothing_was_read_may_be_the_home() -> None:
    probes = (build.probes(origin="eu", dest="us"),)
    assert us(DELIVERED, inputs=READ).verdict is PASS
    assert us(DELIVERED, inputs=READ, probes=probes).verdict is DOUBT


def test_what_was_committed_before_the_period_and_is_read_again_needs_no_home() -> None:
    before = dataclasses.replace(COMMIT, is_inside=False, ranges=((100, 200),))
    now = dataclasses.replace(COMMIT, ranges=((200, 300),))
    live = dataclasses.replace(DELIVERED, ranges=((200, 300),))
    replay = dataclasses.replace(DELIVERED, group="audit", ranges=((0, 300),))
    backlog = dataclasses.replace(DELIVERED, ranges=((50, 300),))
    assert us(before, now, live).verdict is PASS
    assert us(before, now, live, replay).verdict is PASS
    assert us(before, now, backlog).verdict is PASS
    assert us(now, live, replay).verdict is DOUBT, "nobody knows where the period begins"


def test_a_home_of_the_period_is_hidden_whatever_the_hours_around_it_name() -> None:
    # 200 to 299 were committed in the period, by a home that no row names; 400 to 499 in the hour behind it.
    around = dataclasses.replace(COMMIT, is_inside=False, ranges=((100, 200), (400, 500)))
    now = dataclasses.replace(COMMIT, ranges=((300, 400),))
    read = dataclasses.replace(DELIVERED, ranges=((150, 400),))
    assert us(around, now, read).verdict is DOUBT
    behind = dataclasses.replace(around, ranges=((400, 500),))
    assert us(behind, now, read).verdict is DOUBT
    hull = dataclasses.replace(around, ranges=((100, 500),), is_whole=False)
    assert us(hull, now, read).verdict is DOUBT, "what lies inside a hull, nobody knows"
