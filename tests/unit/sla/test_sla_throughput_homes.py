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
