"""The first screen says what is missed, what is not proven, and what to do about either."""

from __future__ import annotations

from typing import Any

import pytest

from sla.judging.facts import Facts, LatencyFacts, PeriodFacts, WorstFacts
from sla.judging.judge import judge
from sla.report.html import to_html
from sla.report.markdown import to_markdown
from sla.report.model import Report
from sla.report.next_steps import STEPS_MAX, next_steps
from sla.report.wording import NAME_SHOWN_MAX, short
from sla.targets import IntegrityTarget, LatencyTarget, MinutesTarget, ProbesTarget, RequestsTarget, Target, Targets
from sla.targets import ThroughputTarget as Throughput
from sla.targets_file import load_targets
from tests.sla import judging_facts as build

LATENCY, PROBES, MINUTES = LatencyTarget(name="latency"), ProbesTarget(name="probes"), MinutesTarget(name="minutes")


def _report(*targets: Target, worst: tuple[WorstFacts, ...] = (), **now: Any) -> Report:
    facts = Facts(now=build.period(**now), before=PeriodFacts(span=build.HOUR.previous), worst=worst)
    return judge(facts, Targets(targets=targets), made=build.MADE, hours=build.HOURS)


@pytest.mark.parametrize(
    ("target", "now", "step"),
    [
        (
            LATENCY,
            {"latency": (build.latency(bad=5_000), build.latency({30_000: 9_000}, stage="replicate"))},
            "open its line for every pair; on us -> eu the longest stage is replicate "
            "(30.0 of 45.0 ms on average): see Latency",
        ),
        (LATENCY, {"latency": (build.latency(bad=5_000),)}, "open its line for every pair, the worst is us -> eu"),
        (
            LATENCY,
            {"latency": (build.latency({45_000: 9_000}, error_us=20_000),)},
            "clocks decide on us -> eu; have both hosts' clocks synchronised (chrony, PTP)",
        ),
        (
            LATENCY,
            {"latency": (build.latency(),), "inputs": (build.inputs(kind="latency_hist", missing_rows=300),)},
            "rows of traces are missing; find the files, What this rests on names them",
        ),
        (
            LATENCY,
            {
                "latency": (build.latency({45_000: 9_000}, error_us=1_000),),
                "inputs": (build.inputs(kind="latency_hist", missing_rows=300),),
            },
            "rows of traces are missing; find the files, What this rests on names them",
        ),
        (
            LATENCY,
            {"latency": (build.latency({10_000: 50}),)},
            "us -> eu has too little to judge (n too small: 50 records, 2,000 are needed); measure longer",
        ),
        (LATENCY, {}, "nothing was counted; check the period, and that brokers write traces of it"),
        (
            PROBES,
            {"probes": (build.probes(),)},
            "measure longer; 99.99 % takes 29,956 without a failure, one per second and pair: 8.3 h",
        ),
        (
            RequestsTarget(name="requests"),
            {"requests": (build.requests(attempts=6, ok=6),)},
            "measure longer; 99.99 % takes 29,956 without a failure",
        ),
        (
            PROBES,
            {"probes": (build.probes(probes=9_000, probes_ok=8_999),)},
            "too few probes to tell; measure longer",
        ),
        (
            MINUTES,
            {"minutes": (build.minutes(up=30),), "probes": (build.probes(),)},
            "minutes without probes decide; ask for a period in which the mesh ran, or find its files",
        ),
        (
            IntegrityTarget(name="integrity"),
            {"integrity": (build.reader(lost=3),)},
            "orders/0 in eu has 3 lost; what was jumped over, and why, is under Integrity",
        ),
        (
            IntegrityTarget(name="integrity"),
            {"integrity": (build.reader(),), "inputs": (build.inputs(missing_rows=9),)},
            "orders/0 in eu is not proven (rows of the ledger are missing); "
            "find the missing files, What this rests on says what is known of them",
        ),
        (
            Throughput(name="throughput"),
            {"throughput": (build.throughput(loaded_minutes_met=9),)},
            "in eu compare what was offered with what was delivered, under Throughput",
        ),
        (
            Throughput(name="throughput"),
            {"throughput": (build.throughput(loaded_minutes=0, loaded_minutes_met=0, max_10s_mean=9.0),)},
            "there was nothing to judge (at most 1,100/s were offered over 10 s); measure while there is such traffic",
        ),
    ],
)
def test_a_verdict_that_is_no_pass_has_a_next_step(target: Target, now: dict[str, Any], step: str) -> None:
    assert next_steps(_report(target, **now)) == (f"{target.name}: {step}",)


def test_the_worst_minute_is_where_to_look_when_probes_failed() -> None:
    rows = tuple(
        WorstFacts(
            target="probes", what="minute", name="us -> eu", at_s=build.HOUR.start_s + 60 * at, total=60, bad=bad
        )
        for at, bad in ((3, 20), (4, 40))
    )
    report = _report(PROBES, probes=(build.probes(probes_ok=3_540),), worst=rows)
    assert next_steps(report) == (
        "probes: look at what happened at 2023-11-14 22:04 UTC (us -> eu, 40 of 60 bad): see What cost most",
    )


def test_a_far_home_is_named_before_the_longest_stage() -> None:
    latency = (
        build.latency({20_000: 8_600, 95_000: 1_400}, origin="eu", dest="ap"),
        build.latency({21_000: 9_000}, origin="eu", dest="ap", stage="replicate"),
        build.latency({18_000: 14}, origin="eu", dest="us", stage="commit"),
        build.latency({1_000: 86}, origin="eu", dest="eu", stage="commit"),
    )
    clocks = (build.clock(rtt_min_us=36_000), build.clock(region="us", peer="ap", rtt_min_us=150_000))
    near = build.clock(region="eu", peer="ap", rtt_min_us=36_000)
    assert next_steps(_report(LATENCY, latency=latency, clocks=(*clocks, near))) == (
        "latency: on eu -> ap light alone makes a part of the records late, see the notes: they go eu -> us -> ap; "
        "move those homes closer",
    )


def _late_within_ap(*others: LatencyFacts) -> str:
    """Return the step for ap -> ap: of 16.4 ms on average its stages are 2.5."""
    latency = (
        build.latency({5_000: 8_600, 86_400: 1_400}, origin="ap", dest="ap"),
        build.latency({2_000: 8_600}, origin="ap", dest="ap", stage="commit"),
        build.latency({500: 10_000}, origin="ap", dest="ap", stage="deliver"),
    )
    (step,) = next_steps(_report(LATENCY, latency=(*latency, *others)))
    return step


def test_a_stage_that_explains_little_of_a_pair_is_not_named() -> None:
    assert _late_within_ap() == "latency: open its line for every pair, the worst is ap -> ap"
    nearby = build.latency({2_000: 900}, origin="eu", dest="us", stage="commit")
    assert "home" not in _late_within_ap(nearby), "records of others"


def test_a_home_elsewhere_is_named_where_the_stages_of_a_pair_explain_little() -> None:
    at_home = build.latency({24_000: 1_400}, origin="ap", dest="us", stage="commit")
    assert _late_within_ap(at_home) == (
        "latency: open its line for every pair; on ap -> ap most of the time is spent on the way to a home elsewhere "
        "(us)"
    )


def test_the_way_over_the_only_home_is_named_for_its_own_line() -> None:
    way = build.latency(origin="eu", dest="ap", home="us", bad=5_000)
    assert next_steps(_report(LATENCY, latency=(way,))) == (
        "latency: open its line for every pair; on eu -> us -> ap most of the time is spent on the way to a home "
        "elsewhere (us)",
    )


def test_a_pass_needs_no_step_and_shows_no_heading() -> None:
    report = _report(LATENCY, latency=(build.latency(),))
    assert next_steps(report) == ()
    assert "What to do next" not in to_html(report)
    assert "What to do next" not in to_markdown(report)


def test_what_is_missed_comes_first_and_equal_steps_are_one() -> None:
    gateway = RequestsTarget(name="gateway-requests", source="gateway")
    requests = (build.requests(attempts=6, ok=6), build.requests(source="gateway", attempts=9, ok=9))
    late = (build.latency(bad=5_000),)
    report = _report(RequestsTarget(name="requests"), gateway, LATENCY, requests=requests, latency=late)
    late_step, longer = next_steps(report)
    assert late_step.startswith("latency: ")
    assert longer.startswith("requests, gateway-requests: measure longer")
    for output in (to_html(report), to_markdown(report)):
        assert output.index("What to do next") < output.index("measure longer") < output.index("every pair of regions")


def test_steps_are_few() -> None:
    facts = Facts(now=build.period(), before=PeriodFacts(span=build.HOUR.previous))
    nothing = judge(facts, load_targets(), made=build.MADE, hours=build.HOURS)
    (step,) = next_steps(nothing)
    assert step.startswith("latency, integrity, throughput, ")
    many = _report(*(LatencyTarget(name=f"l{at}", threshold_ms=at) for at in range(1, 9)), latency=(build.latency(),))
    assert len(next_steps(many)) <= STEPS_MAX


def test_the_headline_keeps_what_is_missed_apart_from_what_is_not_proven() -> None:
    report = _report(LATENCY, PROBES, latency=(build.latency(bad=5_000),), probes=(build.probes(),))
    assert report.headline == "BREACH: latency us -> eu: 50 % within 50 ms at best. Not proven: probes"


def test_a_line_says_for_how_many_pairs_its_verdict_holds() -> None:
    pairs = (build.latency(bad=5_000), build.latency(dest="ap", bad=5_000), build.latency(dest="us"))
    assert "2 of 3 pairs missed" in to_html(_report(LATENCY, latency=pairs))
    assert "pairs missed" not in to_html(_report(LATENCY, latency=pairs[:1]))


def test_a_name_as_long_as_a_topic_may_be_does_not_fill_the_first_screen() -> None:
    topic = "x" * 249
    report = _report(IntegrityTarget(name="integrity"), integrity=(build.reader(topic=topic, lost=1),))
    first = to_html(report).partition("<nav")[0]
    assert topic not in report.headline
    assert first.count(topic) == 1, "only in the table behind the line"
    assert report.targets[0].worst_subject == f"{topic}/0 in eu"
    assert short("x" * NAME_SHOWN_MAX) == "x" * NAME_SHOWN_MAX
    assert len(short(topic)) == NAME_SHOWN_MAX + 1


def test_missing_probe_rows_are_the_reason_before_their_number() -> None:
    inputs = (build.inputs(kind="probe", region="eu", rows=900, missing_rows=100),)
    report = _report(PROBES, probes=(build.probes(probes=40_000, probes_ok=40_000),), inputs=inputs)
    assert report.targets[0].reason.endswith(": 10 % of the traces are missing")
