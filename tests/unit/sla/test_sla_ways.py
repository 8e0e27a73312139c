"""Records whose only home is a third region are judged by their way over it."""

from __future__ import annotations

from sla.judging.facts import Facts, HomeFacts, LatencyFacts, PeriodFacts
from sla.judging.judge import judge
from sla.judging.latency import PairLimit, detours, homes_of, pair_limits, way_limits
from sla.judging.verdict import Verdict
from sla.report.html import to_html
from sla.report.markdown import to_markdown
from sla.report.model import Report
from sla.targets import BurnRule, LatencyTarget, Scope, Targets
from tests.sla import judging_facts as build

# One way, ms: ap - us 35, us - eu 30, ap - eu 20.
CLOCKS = (
    build.clock(region="ap", peer="us", rtt_min_us=70_000),
    build.clock(region="us", peer="eu", rtt_min_us=60_000),
    build.clock(region="ap", peer="eu", rtt_min_us=40_000),
)
LATENCY = LatencyTarget(name="latency")
DIRECT = build.latency({21_000: 10_000}, origin="ap", dest="eu")
BY_US = build.latency({66_000: 10_000}, origin="ap", dest="eu", home="us")
HOME_AGAIN = build.latency({72_000: 10_000}, origin="ap", dest="ap", home="us")


def _report(*latency: LatencyFacts, targets: tuple[LatencyTarget, ...] = (LATENCY,), **others: object) -> Report:
    rules = (BurnRule(long_minutes=60, short_minutes=5, rate=14.4, severity="page"),)
    facts = Facts(
        now=build.period(latency=latency, clocks=CLOCKS, homes=others.pop("homes", ())),
        before=PeriodFacts(span=build.HOUR.previous),
        **others,  # type: ignore[arg-type]
    )
    return judge(facts, Targets(targets=targets, burn_rules=rules), made=build.MADE, hours=build.HOURS)


def test_the_floor_of_a_way_is_that_of_both_its_parts() -> None:
    limits = way_limits([DIRECT, BY_US, HOME_AGAIN], CLOCKS, LATENCY)
    assert limits == {
        ("ap", "eu", ""): PairLimit(floor_us=20_000, is_feasible=True, limit_us=50_000, is_own=False),
        ("ap", "eu", "us"): PairLimit(floor_us=65_000, is_feasible=False, limit_us=85_000, is_own=True),
        ("ap", "ap", "us"): PairLimit(floor_us=70_000, is_feasible=False, limit_us=90_000, is_own=True),
    }
    assert pair_limits([DIRECT, BY_US], CLOCKS, LATENCY) == {("ap", "eu"): limits["ap", "eu", ""]}


def test_a_way_that_light_can_go_in_time_is_judged_by_the_targets_limit() -> None:
    near = build.latency(origin="ap", dest="us", home="eu")
    assert way_limits([near], CLOCKS, LATENCY)["ap", "us", "eu"] == PairLimit(
        floor_us=50_000, is_feasible=True, limit_us=50_000, is_own=False
    )
    slow_home = build.latency({3_000: 100}, origin="eu", dest="eu", stage="commit")
    assert way_limits([near, slow_home], CLOCKS, LATENCY)["ap", "us", "eu"].limit_us == 70_000


def test_a_way_with_a_part_that_nobody_measured_has_no_floor() -> None:
    unknown = build.latency(origin="ap", dest="eu", home="sa")
    limit = way_limits([unknown], CLOCKS, LATENCY)["ap", "eu", "sa"]
    assert (limit.floor_us, limit.is_feasible, limit.limit_us) == (None, None, 50_000)


def test_ways_of_one_pair_are_judged_apart_and_never_averaged() -> None:
    report = _report(DIRECT, BY_US, HOME_AGAIN)
    (target,) = report.targets
    found = {subject.name: (subject.verdict, subject.threshold_ms, subject.is_own_limit) for subject in target.subjects}
    assert found == {
        "ap -> eu": (Verdict.PASS, 50.0, False),
        "ap -> us -> eu": (Verdict.PASS, 85.0, True),
        "ap -> us -> ap": (Verdict.PASS, 90.0, True),
    }
    assert [(row.origin, row.home, row.dest, row.floor_ms) for row in report.latency] == [
        ("ap", "us", "ap", 70.0),
        ("ap", None, "eu", 20.0),
        ("ap", "us", "eu", 65.0),
    ]
    texts = [note.text for note in report.notes if note.code == "PAIR_INFEASIBLE"]
    assert texts[1] == "ap -> us -> eu: light alone takes 65 ms by way of the home: judged at 85 ms instead"
    for output in (to_html(report), to_markdown(report).replace("\\", "")):
        assert "ap -> us -> eu" in output.replace("&gt;", ">")


def test_a_slow_way_breaches_beside_a_good_direct_one() -> None:
    slow = build.latency({100_000: 10_000}, origin="ap", dest="eu", home="us")
    (target,) = _report(DIRECT, slow).targets
    assert (target.verdict, target.worst_subject) == (Verdict.BREACH, "ap -> us -> eu")


def test_burn_rates_of_a_way_are_those_of_its_own_records() -> None:
    burn = build.burn(subject=("ap", "us -> eu"), long_bad=9_000, short_bad=900)
    (target,) = _report(DIRECT, BY_US, burn=(burn,)).targets
    assert target.burning == ("ap -> us -> eu: 1h+5m page",)


def test_a_scope_names_pairs_whatever_way_they_go() -> None:
    named = LatencyTarget(name="named", scope=Scope(word="named", names=frozenset({"ap -> eu"})))
    intra = LatencyTarget(name="intra", scope=Scope(word="intra"))
    report = _report(DIRECT, BY_US, HOME_AGAIN, targets=(named, intra))
    assert [[subject.name for subject in target.subjects] for target in report.targets] == [
        ["ap -> eu", "ap -> us -> eu"],
        ["ap -> us -> ap"],
    ]


def test_only_topics_with_several_homes_keep_the_note() -> None:
    homes = (
        HomeFacts(origin="ap", home="us", is_only=True, n=60),
        HomeFacts(origin="ap", home="us", is_only=False, n=30),
        HomeFacts(origin="ap", home="eu", is_only=False, n=10),
    )
    (note,) = (note for note in _report(DIRECT, BY_US, homes=homes).notes if note.code == "HOME_FAR_AWAY")
    assert note.text == "ap -> us -> eu: 30 % of what entered there takes 65 ms by light alone, to its home and on"
    assert not detours(homes[:1], CLOCKS, pair_limits([DIRECT], CLOCKS, LATENCY))


def test_when_nobody_counted_topics_apart_no_only_home_is_known() -> None:
    commit = build.latency({40_000: 100}, origin="ap", dest="us", stage="commit")
    assert homes_of(build.period(latency=(DIRECT, commit))) == (
        HomeFacts(origin="ap", home="us", is_only=False, n=100),
    )


def test_there_and_back_is_of_the_same_way_only() -> None:
    back = build.latency({66_000: 10_000}, origin="eu", dest="ap", home="us")
    sums = {(row.origin, row.home): row.there_and_back_mean_ms for row in _report(DIRECT, BY_US, back).latency}
    assert sums == {("ap", None): None, ("ap", "us"): 132.0, ("eu", "us"): 132.0}
