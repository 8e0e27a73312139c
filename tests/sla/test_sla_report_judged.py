"""The whole report from facts: targets in words, budgets, changes, notes, order; no Spark."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay.trace.kinds import Stage
from sla.judging.budgets import budget_of, burn_rate, iso
from sla.judging.comparison import changes_between
from sla.judging.facts import Facts, HourFacts, PeriodFacts, StreamFacts, WorstFacts
from sla.judging.judge import judge, judge_targets
from sla.judging.sentences import sentence_of
from sla.judging.verdict import Verdict
from sla.report.model import Budget, QuarantinedFile, Report, Unit
from sla.targets import (
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Scope,
    Targets,
    ThroughputTarget,
)
from sla.targets_file import load_targets
from tests.sla import judging_facts as build

TARGETS = load_targets()
NOTHING = PeriodFacts(span=build.HOUR.previous)
GOOD = {
    "latency": (build.latency(),),
    "throughput": (build.throughput(),),
    "integrity": (build.reader(),),
    "requests": (build.requests(),),
    "probes": (build.probes(probes=40_000, probes_ok=40_000),),
    "minutes": tuple(build.minutes(origin=origin, dest=dest) for origin in ("us", "eu") for dest in ("us", "eu")),
    "inputs": (build.inputs(), build.inputs(kind="latency_hist"), build.inputs(kind="clock", region="us")),
}


def _judge(now: dict[str, Any], *, targets: Targets = TARGETS, **others: Any) -> Report:
    facts = Facts(now=build.period(**now), before=others.pop("before", NOTHING), **others)
    return judge(facts, targets, made=build.MADE, hours=build.HOURS)


def test_a_good_hour_passes() -> None:
    report = _judge(GOOD)
    assert [(result.name, result.verdict.value) for result in report.targets] == [
        ("latency", "PASS"),
        ("throughput", "PASS"),
        ("integrity", "PASS"),
        ("requests", "PASS"),
        ("gateway-requests", "NO_DATA"),
        ("probes", "PASS"),
        ("minutes", "PASS"),
    ]
    assert (report.verdict, report.headline) == (Verdict.PASS, "PASS")
    assert report.notes == ()


@pytest.mark.parametrize(
    ("change", "headline"),
    [
        (
            {"latency": (build.latency(bad=101),)},
            "BREACH: latency us -> eu: 98.99 % within 50 ms at best",
        ),
        ({"latency": ()}, "NO_DATA: latency: nothing was counted"),
        ({"integrity": ()}, "NO_DATA: integrity: nothing was counted"),
        ({"throughput": (), "probes": (), "minutes": ()}, "PASS"),
        (
            {"integrity": (build.reader(), build.reader(partition=1, lost=1), build.reader(partition=2, lost=5))},
            "BREACH: integrity orders/2 in eu: 5 lost",
        ),
        (
            {"probes": (build.probes(probes_ok=3_600),), "latency": ()},
            "NO_DATA: latency: nothing was counted; probes us -> eu: "
            "too few to prove it: 3,600 probes without a failure prove 99.9168 %",
        ),
    ],
)
def test_one_bad_target_decides_the_whole_and_stands_in_the_headline(change: dict[str, Any], headline: str) -> None:
    assert _judge(GOOD | change).headline == headline


def test_the_worst_subject_speaks_for_its_target() -> None:
    report = _judge(
        GOOD | {"latency": (build.latency(bad=10), build.latency(dest="ap", bad=5_000), build.latency(dest="sa"))}
    )
    latency = report.targets[0]
    assert (latency.worst_subject, latency.measured, latency.budget) == (
        "us -> ap",
        latency.subjects[0].measured,
        latency.subjects[0].budget,
    )
    assert [subject.name for subject in latency.subjects] == ["us -> ap", "us -> eu", "us -> sa"]
    worst = [(row.what, row.name, row.bad, row.bad_share) for row in report.worst if row.target == "latency"]
    assert worst == [("subject", "us -> ap", 5_000, 0.5), ("subject", "us -> eu", 10, 0.001)]


def test_the_worst_subject_is_the_one_with_the_lowest_proven_share() -> None:
    small = build.latency({80_000: 3_000}, dest="ap")
    report = _judge(GOOD | {"latency": (build.latency(bad=5_000), small)})
    assert report.targets[0].worst_subject == "us -> ap"


def test_the_budget_of_thirty_days_at_four_nines_is_4_32_minutes() -> None:
    month = dataclasses.replace(build.HOUR, end_s=build.HOUR.start_s + 30 * 86_400)
    budget = budget_of(unit=Unit.MINUTES, total=month.minutes, bad=1, objective=0.9999, span=month)
    assert budget == Budget(
        unit=Unit.MINUTES,
        allowed=4.32,
        used=1,
        left_share=round(3.32 / 4.32, 6),
        full_outage_minutes_left=3.32,
        exhausted_at=None,
    )


def test_a_budget_says_when_it_will_be_spent_at_the_present_rate() -> None:
    burn = _judge(GOOD | {"latency": (build.latency(bad=40),)}, burn=(build.burn(long_bad=400, short_bad=40),))
    budget = burn.targets[0].subjects[0].budget
    assert budget is not None
    # 60 of 100 are left; 4 % bad is four times the allowed rate of 100 per hour: 60 / 400 h.
    assert (budget.allowed, budget.left_share, budget.exhausted_at) == (100.0, 0.6, iso(build.HOUR.end_s + 540))
    assert budget.full_outage_minutes_left == round(60 / (10_000 / 60), 3)
    spent = budget_of(unit=Unit.RECORDS, total=10_000, bad=200, objective=0.99, span=build.HOUR)
    assert (spent.left_share, spent.full_outage_minutes_left, spent.exhausted_at) == (-1.0, 0.0, None)


def test_an_alert_is_on_while_both_windows_burn_and_enough_happened() -> None:
    def state(**columns: Any) -> tuple[bool, float | None, float | None]:
        (window,) = _judge(GOOD, burn=(build.burn(**columns),)).targets[0].subjects[0].burn
        return window.is_firing, window.long_rate, window.short_rate

    assert state(long_bad=1_441, short_bad=145) == (True, 14.41, 14.5)
    assert state(long_bad=1_440, short_bad=145) == (False, 14.4, 14.5)
    assert state(long_bad=1_441, short_bad=144) == (False, 14.41, 14.4)
    assert state(long_bad=99, long_total=99, short_bad=9, short_total=9) == (False, 100.0, 100.0)
    assert state(long_bad=0, long_total=0, short_total=0) == (False, None, None)
    burning = _judge(GOOD, burn=(build.burn(long_bad=1_441, short_bad=145),))
    assert burning.targets[0].burning == ("us -> eu: 1h+5m page",)
    assert [note.text for note in burning.notes] == ["latency: us -> eu: 1h+5m page"]


@pytest.mark.parametrize(("bad", "total", "rate"), [(144, 100_000, 14.4), (0, 10, 0.0), (0, 0, None)])
def test_burn_rate(bad: int, total: int, rate: float | None) -> None:
    assert burn_rate(bad=bad, total=total, objective=0.9999) == (None if rate is None else pytest.approx(rate))


def test_changes_are_proven_only_when_intervals_part() -> None:
    before = PeriodFacts(
        span=build.HOUR.previous, latency=(build.latency(bad=10), build.latency(dest="ap"), build.latency({}, dest="x"))
    )
    noisy = judge_targets(build.period(latency=(build.latency(bad=11, error_us=45_000),)), TARGETS)
    changes = changes_between(judge_targets(before, TARGETS), noisy)
    assert [(item.subject, item.is_proven, item.now is None, item.verdict_now.value) for item in changes] == [
        ("us -> ap", False, True, "NO_DATA"),
        ("us -> eu", False, False, "INCONCLUSIVE"),
    ]
    exact = judge_targets(build.period(latency=(build.latency(bad=11),)), TARGETS)
    assert changes_between(judge_targets(before, TARGETS), exact)[1].is_proven


def test_the_same_facts_make_the_same_report_in_any_order() -> None:
    pairs = [build.latency(dest=dest, bad=bad) for dest, bad in (("eu", 5), ("ap", 7), ("sa", 0))]
    worst = [
        WorstFacts(target="latency", what="minute", name="us -> eu", at_s=60 * at, total=10, bad=bad)
        for at, bad in ((1, 5), (2, 7), (3, 5))
    ]
    one = _judge(GOOD | {"latency": tuple(pairs)}, worst=tuple(worst))
    other = _judge(GOOD | {"latency": tuple(pairs[::-1])}, worst=tuple(worst[::-1]))
    assert one == other
    assert [(row.at, row.bad) for row in one.worst if row.what == "minute"] == [
        (iso(120), 7),
        (iso(60), 5),
        (iso(180), 5),
    ]


def test_notes_say_what_is_missing_rounded_revised_and_out_of_reach() -> None:
    facts = Facts(
        now=build.period(
            latency=(
                build.latency({150_000: 3_000}, dest="ap", n_clock_unknown=7, n_clock_revised=9),
                build.latency(origin="ap", dest="ap"),
                build.latency({100_000: 9_000}, origin="ap", dest="us", stage="commit"),
                build.latency({100_000: 1_000}, origin="ap", dest="ap", stage="commit"),
            ),
            clocks=(build.clock(region="ap", rtt_min_us=200_000, steps=1, unsync=60),),
            inputs=(
                build.inputs(missing_rows=3, dropped_rows=4, quarantined_files=1),
                build.inputs(kind="clock", silent_writer_hours=2),
            ),
        ),
        before=NOTHING,
    )
    made = dataclasses.replace(
        build.MADE, asked_from="2023-11-14T22:00:01Z", asked_to=None, integrity_to="2023-11-15T00:00:00Z"
    )
    hours = HourFacts(expected=4, rolled_up=2, revised=1, not_final=1)
    report = judge(facts, TARGETS, made=made, hours=hours, quarantined=[QuarantinedFile(file="a", reason="torn")])
    assert [note.code for note in report.notes if note.is_warning] == [
        "HOURS_MISSING",
        "FILES_QUARANTINED",
        "ROWS_MISSING",
        "ROWS_DROPPED",
        "WRITERS_SILENT",
        "CLOCK_STEPPED",
        "CLOCK_UNSYNC",
        "CLOCK_UNKNOWN",
    ]
    assert [note.code for note in report.notes if not note.is_warning] == [
        "PERIOD_ROUNDED",
        "INTEGRITY_HOURS",
        "HOURS_NOT_FINAL",
        "HOURS_REVISED",
        "PAIR_INFEASIBLE",
        "CLOCK_REVISED",
        "HOME_FAR_AWAY",
    ]
    texts = {note.code: note.text for note in report.notes}
    assert texts["PAIR_INFEASIBLE"] == "us -> ap: light alone takes 100 ms: judged at 120 ms instead"
    way = "ap -> us -> ap: 90 % of what entered there takes 200 ms by light alone, to its home and on"
    assert texts["HOME_FAR_AWAY"] == way
    assert texts["ROWS_MISSING"] == "3 rows of traces are missing: ledger of eu"


def hours_judged(**columns: Any) -> tuple[dict[str, bool], set[Verdict]]:
    """Return the notes about hours, with whether they are warnings, and the verdicts of a good hour."""
    hours = HourFacts(**({"expected": 1, "rolled_up": 1, "revised": 0, "not_final": 0} | columns))
    facts = Facts(now=build.period(**GOOD), before=NOTHING)
    report = judge(facts, TARGETS, made=build.MADE, hours=hours)
    names = {"latency", "throughput", "integrity"}
    verdicts = {result.verdict for result in report.targets if result.name in names}
    return {note.code: note.is_warning for note in report.notes if note.code.startswith("HOURS")}, verdicts


def test_hours_from_roll_ups_are_a_hint_a_warning_without_any_traces_and_a_doubt_when_they_were_not_over() -> None:
    assert hours_judged() == ({}, {Verdict.PASS})
    assert hours_judged(kept=1) == ({"HOURS_KEPT": False}, {Verdict.PASS})
    assert hours_judged(kept=1, is_without_traces=True) == ({"HOURS_KEPT": True}, {Verdict.PASS})
    assert hours_judged(kept=1, unseen=1) == (
        {"HOURS_UNSEEN": True, "HOURS_KEPT": False}, {Verdict.INCONCLUSIVE},
    )  # fmt: skip


def test_tables_say_what_was_published_what_came_once_and_whose_clocks_are_unknown() -> None:
    stream = StreamFacts(topic="orders", origin="", partition=0, committed=100, aborted=7, expired=2, epochs=1)
    reader = build.reader(delivered=99, dup_flagged=4, dup_unflagged=2)
    unknown = build.latency({10_000: 5_000}, n_clock_unknown=1, clock_err_max_us=500)
    report = _judge(GOOD | {"streams": (stream,), "integrity": (reader,), "latency": (unknown,)})
    (row,) = report.integrity.readers
    assert (row.published, row.delivered, row.delivered_once, row.verdict) == (93, 99, 93, Verdict.BREACH)
    assert (report.integrity.totals.committed, report.integrity.totals.aborted) == (100, 7)
    assert report.latency[0].stages[0].clock_error_ms is None
    assert _judge(GOOD).latency[0].stages[0].clock_error_ms == 0


def test_a_region_of_the_previous_period_is_expected_in_this_one() -> None:
    before = PeriodFacts(span=build.HOUR.previous, probes=(build.probes(origin="ap", dest="us"),))
    minutes = _judge(GOOD, before=before).targets[-1]
    assert (minutes.worst_subject, minutes.reason) == ("ap -> ap", "none of 60 minutes is known")
    assert len(minutes.subjects) == 9


def test_scopes_leave_subjects_out() -> None:
    near = LatencyTarget(name="near", scope=Scope(word="intra"))
    eu = IntegrityTarget(name="eu", scope=Scope(word="named", names=frozenset({"eu"})))
    targets = Targets(targets=(near, eu))
    report = _judge(
        GOOD
        | {
            "latency": (build.latency(bad=9_000), build.latency(origin="eu")),
            "integrity": (build.reader(), build.reader(dest="us", lost=4)),
        },
        targets=targets,
    )
    assert [[subject.name for subject in result.subjects] for result in report.targets] == [
        ["eu -> eu"],
        ["orders/0 in eu"],
    ]
    assert report.verdict is Verdict.PASS
    assert len(report.latency) == 2  # shown all the same
    assert [row.verdict for row in report.integrity.readers] == [Verdict.PASS, Verdict.BREACH]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (LatencyTarget(name="x"), "99 % of records within 50 ms from publish to deliver, every pair of regions"),
        (
            LatencyTarget(name="x", objective=0.9999, threshold_ms=2.5, stage=Stage.COMMIT, scope=Scope(word="intra")),
            "99.99 % of records within 2.5 ms from publish to commit, within every region",
        ),
        (
            ThroughputTarget(name="x"),
            "1,000 records/s delivered while offered, in 99 % of loaded minutes, every region",
        ),
        (IntegrityTarget(name="x"), "no record lost, repeated without saying so, or out of order, every region"),
        (
            IntegrityTarget(name="x", lost_max=1, reordered_max=2),
            "at most 1, 0 and 2 records lost, repeated without saying so, or out of order, every region",
        ),
        (
            RequestsTarget(name="x", scope=Scope(word="named", names=frozenset({"eu"}))),
            "99.99 % of valid requests answered, per operation as brokers count, eu",
        ),
        (ProbesTarget(name="x", scope=Scope(word="inter")), "99.99 % of probes in time, between every two regions"),
        (
            MinutesTarget(name="x"),
            "99.99 % of minutes up (fewer than 5 % of their probes failed), every pair of regions",
        ),
    ],
)
def test_targets_have_sentences(target: Any, sentence: str) -> None:
    assert sentence_of(target) == sentence
