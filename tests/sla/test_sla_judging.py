"""Rules of the verdicts, kind by kind; no Spark."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.kinds import Stage, TraceKind
from sla.judging import availability, integrity, throughput
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts, Span
from sla.judging.latency import (
    Detour,
    PairLimit,
    detours,
    homes_of,
    judge_pair,
    pair_limits,
    pair_rows,
    shown_limits,
)
from sla.judging.verdict import Verdict, worst
from sla.report.model import Interval
from sla.targets import IntegrityTarget, LatencyTarget, MinutesTarget, Scope, ThroughputTarget
from tests.sla import judging_facts as build

PASS, BREACH, DOUBT, NO_DATA = Verdict.PASS, Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA
LATENCY = LatencyTarget(name="latency")
IN_TIME = PairLimit(floor_us=0, is_feasible=True, limit_us=50_000, is_own=False)


@pytest.mark.parametrize(
    ("n", "lo", "hi", "unknown", "missing", "expected", "words"),
    [
        (0, 0, 0, 0, 0, NO_DATA, "no record"),
        (2_000, 1_980, 1_980, 0, 0, PASS, ""),
        (2_000, 1_979, 1_979, 0, 0, BREACH, "98.95 % within 50 ms at best"),
        (1_999, 1_999, 1_999, 0, 0, DOUBT, "n too small: 1,999 records, 2,000 are needed"),
        (100, 81, 81, 0, 0, DOUBT, "n too small"),
        (100, 80, 80, 0, 0, BREACH, "80 %"),
        (2_000, 1_900, 2_000, 0, 0, DOUBT, "the clock error (up to 7 ms)"),
        (2_000, 0, 2_000, 2_000, 0, DOUBT, "the clock error of 2,000 records is unknown"),
        (2_000, 1_990, 1_990, 0, 0.01, DOUBT, "1 % of the traces are missing"),
        (2_000, 1_999, 1_999, 0, 0.001, PASS, ""),
        (2_000, 1_979, 1_979, 0, 0.5, DOUBT, "50 % of the traces are missing"),
        (2_000, 1_000, 1_000, 0, 0.3, BREACH, "50 %"),
    ],
)
def test_latency_is_judged_by_what_cannot_be_otherwise(
    n: int, lo: int, hi: int, unknown: int, missing: float, expected: Verdict, words: str
) -> None:
    facts = build.latency(
        {10_000: n}, n_good=(lo + hi) // 2, n_good_lo=lo, n_good_hi=hi, n_clock_unknown=unknown, clock_err_max_us=7_000
    )
    judgement = judge_pair(facts, limit=IN_TIME, target=LATENCY, missing_share=missing)
    assert judgement.verdict is expected
    assert words in judgement.reason
    assert bool(judgement.reason) is (expected is not PASS)


@given(
    st.lists(st.tuples(st.sampled_from([5_000, 30_000, 45_000, 55_000, 90_000]), st.integers(1, 9_000)), max_size=6),
    st.lists(st.integers(-8_000, 8_000), min_size=6, max_size=6),
    st.integers(0, 4_000),
    st.integers(0, 4_000),
    st.sampled_from([50_000, 47_000, 60_000]),
)
def test_no_latency_verdict_is_ever_wrong(
    truths: list[tuple[int, int]], errors: list[int], gone_fast: int, gone_slow: int, limit_us: int
) -> None:
    """Records have a true latency; clocks err by at most the bound; some rows are missing, all fast or all slow."""
    measured: dict[int, int] = {}
    for (latency_us, n), error_us in zip(truths, errors, strict=False):
        measured[max(0, latency_us + error_us)] = measured.get(max(0, latency_us + error_us), 0) + n
    seen = sum(measured.values())
    every = seen + gone_fast + gone_slow
    facts = build.latency(measured, error_us=8_000)
    limit = PairLimit(floor_us=0, is_feasible=True, limit_us=limit_us, is_own=False)
    missing = (gone_fast + gone_slow) / every if every else 0
    judgement = judge_pair(facts, limit=limit, target=LATENCY, missing_share=missing)
    if judgement.verdict in (PASS, BREACH):
        good = sum(n for latency_us, n in truths if latency_us <= limit_us) + gone_fast
        assert (judgement.verdict is PASS) is (good / every >= LATENCY.objective)


def test_a_pair_that_light_cannot_cross_in_time_gets_a_limit_of_its_own() -> None:
    facts = [
        build.latency(),
        build.latency(origin="us", dest="ap"),
        build.latency(origin="ap", dest="us"),
        build.latency(origin="eu", dest="eu"),
        build.latency(origin="eu", dest="sa"),
        build.latency({4_000: 100}, origin="us", dest="us", stage="commit"),
        build.latency({2_000: 100}, origin="us", dest="eu", stage="deliver"),
        build.latency({500_000: 100}, origin="us", dest="ap", stage="deliver"),
    ]
    clocks = [
        build.clock(rtt_min_us=72_000),
        build.clock(region="us", peer="eu", rtt_min_us=70_000),  # the other way round, and the shorter one
        build.clock(region="eu", peer="sa", rtt_min_us=None),
        build.clock(region="us", peer="ap", rtt_min_us=90_000),
    ]
    limits = pair_limits(facts, clocks, LATENCY)
    assert limits["us", "eu"] == PairLimit(floor_us=35_000, is_feasible=True, limit_us=50_000, is_own=False)
    # 45 + 504 would not fit either way, but of what a region itself needs only 10 ms count.
    assert limits["us", "ap"] == PairLimit(floor_us=45_000, is_feasible=False, limit_us=65_000, is_own=True)
    assert limits["ap", "us"] == PairLimit(floor_us=45_000, is_feasible=True, limit_us=50_000, is_own=False)
    assert limits["eu", "eu"].is_feasible
    assert limits["eu", "sa"] == PairLimit(floor_us=None, is_feasible=None, limit_us=50_000, is_own=False)
    of_deliver = pair_limits(facts, clocks, LatencyTarget(name="d", stage=Stage.DELIVER))
    assert of_deliver["us", "ap"] == PairLimit(floor_us=0, is_feasible=True, limit_us=50_000, is_own=False)


def test_records_with_a_far_home_are_named_with_their_share() -> None:
    facts = [
        build.latency(origin="ap", dest="ap"),
        build.latency(origin="ap", dest="us"),
        build.latency(origin="eu", dest="eu"),
        build.latency({60_000: 25}, origin="ap", dest="us", stage="commit"),
        build.latency({1_000: 75}, origin="ap", dest="ap", stage="commit"),
        build.latency({20_000: 10}, origin="eu", dest="us", stage="commit"),
        build.latency({20_000: 10}, origin="eu", dest="sa", stage="commit"),  # nobody knows how far that is
    ]
    clocks = [build.clock(region="us", peer="ap", rtt_min_us=52_000), build.clock(rtt_min_us=40_000)]
    homes = homes_of(build.period(latency=tuple(facts)))
    found = detours(homes, clocks, pair_limits(facts, clocks, LATENCY))
    assert found == (Detour(pair=("ap", "ap"), home="us", share=0.25, floor_us=52_000),)


def test_a_slow_broker_does_not_excuse_itself() -> None:
    slow = [build.latency({200_000: 5_000}), build.latency({160_000: 5_000}, stage="deliver")]
    limits = pair_limits(slow, [build.clock(rtt_min_us=70_000)], LATENCY)
    assert limits["us", "eu"].is_feasible
    judgement = judge_pair(slow[0], limit=limits["us", "eu"], target=LATENCY, missing_share=0)
    assert judgement.verdict is BREACH


def test_a_pair_with_a_limit_of_its_own_and_unknown_clocks_is_in_doubt() -> None:
    facts = build.latency({88_000: 5_000}, n_clock_unknown=1, clock_err_max_us=500)
    own = PairLimit(floor_us=85_000, is_feasible=False, limit_us=105_000, is_own=True)
    judgement = judge_pair(facts, limit=own, target=LATENCY, missing_share=0)
    assert (judgement.verdict, judgement.reason) == (DOUBT, "the clock error of 1 record is unknown")


def test_the_sum_of_both_ways_needs_no_clock() -> None:
    there = build.latency({90_000: 10_000})  # the clock of eu is 50 ms ahead
    back = build.latency({10_000: 10_000}, origin="eu", dest="us")
    rows = pair_rows(build.period(latency=(there, back)), {})
    assert [row.there_and_back_mean_ms for row in rows] == [100.0, 100.0]


def test_quantiles_are_shown_only_with_20_records_beyond_them() -> None:
    (row,) = pair_rows(build.period(latency=(build.latency({10_000: 1_999}),)), {})
    quantiles = row.stages[0].quantiles
    assert (quantiles.p50_ms, quantiles.p95_ms, quantiles.p99_ms) == (10.0, 10.0, None)  # capped by the maximum


THROUGHPUT = ThroughputTarget(name="throughput")


@pytest.mark.parametrize(
    ("columns", "missing", "expected", "words"),
    [
        ({}, 0, PASS, ""),
        ({"loaded_minutes_met": 59}, 0, BREACH, "59 of 60 loaded minutes delivered 1,000/s"),
        ({"loaded_minutes": 200, "loaded_minutes_met": 198}, 0, PASS, ""),
        ({"loaded_minutes": 200, "loaded_minutes_met": 197}, 0, BREACH, "197 of 200"),
        ({"loaded_minutes": 0, "loaded_minutes_met": 0}, 0, PASS, ""),
        (
            {"loaded_minutes": 0, "loaded_minutes_met": 0, "max_10s_mean": 999.9, "offered_max_10s_mean": 1_040.0},
            0,
            NO_DATA,
            "at most 1,040/s were offered over 10 s",
        ),
        ({}, 0.02, DOUBT, "60 of 60 loaded minutes delivered 1,000/s, but rows of the ledger are missing"),
        ({"loaded_minutes_met": 58}, 0.02, BREACH, "58 of 60"),
        ({"loaded_minutes_met": 0, "loaded_minutes_perhaps_met": 60}, 0.05, DOUBT, "but rows"),
        ({"loaded_minutes": 0, "loaded_minutes_met": 0}, 0.01, DOUBT, "but rows of the ledger are missing"),
        (
            {"loaded_minutes": 0, "loaded_minutes_met": 0, "max_10s_mean": 700.0, "offered_max_10s_mean": 700.0},
            0.5,
            DOUBT,
            "at most 700/s were offered over 10 s, but rows of the ledger are missing",
        ),
        (
            {"loaded_minutes": 0, "loaded_minutes_met": 0, "max_10s_mean": 9.0, "offered_max_10s_mean": 9.0},
            0.5,
            NO_DATA,
            "at most 9/s were offered over 10 s",
        ),
    ],
)
def test_throughput_is_judged_only_while_enough_is_offered(
    columns: dict[str, Any], missing: float, expected: Verdict, words: str
) -> None:
    judgement = throughput.judge_region(build.throughput(**columns), target=THROUGHPUT, missing_share=missing)
    assert judgement.verdict is expected
    assert words in judgement.reason


@pytest.mark.parametrize(
    ("columns", "is_complete", "expected", "words"),
    [
        ({}, True, PASS, ""),
        ({"delivered": 0}, True, NO_DATA, "nothing was delivered"),
        ({"lost": 1}, True, BREACH, "1 lost"),
        ({"dup_unflagged": 2}, True, BREACH, "2 repeated without saying so"),
        ({"order_violations": 3, "lost": 1}, True, BREACH, "1 lost, 3 out of order"),
        ({"dup_flagged": 50, "healed_records": 5, "aborted": 9, "expired": 9, "pending": 99}, True, PASS, ""),
        ({"unexplained": 4}, True, DOUBT, "4 offsets were skipped that no ledger knows as committed"),
        ({}, False, DOUBT, "rows of the ledger are missing"),
        ({"lost": 1}, False, DOUBT, "1 record was not delivered, but rows of the ledger are missing"),
        ({"lost": 1, "dup_unflagged": 1}, False, BREACH, "1 repeated"),
        ({"order_violations": 1}, False, BREACH, "1 out of order"),
    ],
)
def test_integrity_breaches_on_what_was_seen_and_doubts_what_is_missing(
    columns: dict[str, int], *, is_complete: bool, expected: Verdict, words: str
) -> None:
    facts = build.reader(**columns)
    judgement = integrity.judge_reader(facts, target=IntegrityTarget(name="i"), is_ledger_complete=is_complete)
    assert judgement.verdict is expected
    assert words in judgement.reason


def test_integrity_targets_may_allow_some() -> None:
    target = IntegrityTarget(name="i", lost_max=1, duplicates_max=2, reordered_max=3)
    at_limit = build.reader(lost=1, dup_unflagged=2, order_violations=3)
    assert integrity.judge_reader(at_limit, target=target, is_ledger_complete=True).verdict is PASS
    unexplained = build.reader(lost=1, unexplained=1)
    assert integrity.judge_reader(unexplained, target=target, is_ledger_complete=True).verdict is DOUBT


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (None, NO_DATA),
        (Interval(value=1.0, lo=0.9999, hi=1.0), PASS),
        (Interval(value=1.0, lo=0.9998, hi=1.0), DOUBT),
        (Interval(value=0.9, lo=0.8, hi=0.99989), BREACH),
        (Interval(value=0.9, lo=0.8, hi=0.9999), DOUBT),
    ],
)
def test_a_sampled_share_is_judged_by_its_interval(share: Interval | None, expected: Verdict) -> None:
    assert availability.judge_share(share, objective=0.9999, total=10, what="probes").verdict is expected


def test_a_short_load_test_proves_no_four_nines() -> None:
    period = build.period(probes=(build.probes(probes=60, probes_ok=60),))
    (row,) = availability.availability_section(
        period,
        target=MinutesTarget(name="minutes"),
        pairs=[("us", "eu")],
        confidence=0.95,
        completeness=Completeness(()),
    ).pairs
    judgement = availability.judge_share(row.success, objective=0.9999, total=60, what="probes")
    assert judgement.verdict is DOUBT
    assert judgement.reason == "too few to prove it: 60 probes without a failure prove 95.1297 %"


@pytest.mark.parametrize(
    ("up", "down", "unknown", "expected"),
    [
        (43_196, 4, 0, PASS),
        (43_195, 5, 0, BREACH),
        (43_157, 0, 43, DOUBT),
        (43_196, 0, 4, PASS),
        (0, 0, 60, DOUBT),
        (40_000, 5, 3_195, BREACH),
        (40_000, 4, 3_196, DOUBT),
    ],
)
def test_minutes_pass_only_when_nearly_all_are_known(up: int, down: int, unknown: int, expected: Verdict) -> None:
    target = MinutesTarget(name="minutes")
    assert availability.judge_minutes(up=up, down=down, unknown=unknown, target=target).verdict is expected


def test_coverage_below_the_targets_takes_a_pass_away() -> None:
    target = MinutesTarget(name="minutes", objective=0.9, coverage_min=0.99)
    assert availability.judge_minutes(up=95, down=0, unknown=5, target=target).verdict is DOUBT
    assert availability.judge_minutes(up=99, down=0, unknown=1, target=target).verdict is PASS


def test_client_errors_are_no_attempts_and_racing_counters_no_negative_failures() -> None:
    facts = build.requests(attempts=110, client_error=10, ok=97, server_error=2, timeout=1)
    assert (availability.valid_requests(facts), availability.bad_requests(facts)) == (100, 3)
    ahead = build.requests(attempts=10, ok=11)
    assert availability.bad_requests(ahead) == 0


def test_a_region_that_fell_silent_stays_in_every_pair() -> None:
    before = build.period(probes=(build.probes(origin="ap", dest="eu"),))
    now = build.period(probes=(build.probes(origin="eu", dest="eu"),))
    assert availability.expected_pairs(now, before) == [("ap", "ap"), ("ap", "eu"), ("eu", "ap"), ("eu", "eu")]
    subjects = availability.minute_subjects(
        MinutesTarget(name="minutes"), now, pairs=[("ap", "eu")], completeness=Completeness(())
    )
    assert [(subject.name, subject.verdict) for subject in subjects] == [("ap -> eu", DOUBT)]


@pytest.mark.parametrize(
    ("columns", "clock", "share"),
    [
        ({}, {}, 0),
        ({"missing_rows": 100}, {}, 0.1),
        ({"missing_rows": 100, "dropped_rows": 100}, {}, 0.1),  # dropped ones are numbered: missing
        ({"dropped_rows": 100}, {}, 0.1),
        ({"quarantined_files": 10}, {}, 0.5),
        ({"missing_rows": 100, "quarantined_files": 10}, {}, 0.5),
        ({}, {"silent_writer_hours": 10}, 0.5),
        ({"missing_rows": 900}, {"silent_writer_hours": 10}, 0.75),
    ],
)
def test_the_share_that_is_missing_is_the_worst_of_rows_and_files_and_of_silent_brokers(
    columns: dict[str, int], clock: dict[str, int], share: float
) -> None:
    completeness = Completeness([build.inputs(**columns), build.inputs(kind="clock", **clock)])
    assert completeness.missing_share(TraceKind.LEDGER, "eu") == pytest.approx(share)
    assert completeness.missing_share(TraceKind.LEDGER, "us", "eu") == pytest.approx(share)
    assert completeness.missing_share(TraceKind.LEDGER, "us") == 0
    by_kind = {row.kind: row.completeness for row in completeness.rows()}
    assert by_kind["ledger"] == pytest.approx(1 - share)


def test_an_hour_whose_whole_input_is_missing_is_known_to_miss_everything() -> None:
    gone = Completeness([build.inputs(files=0, rows=0, quarantined_files=3)])
    assert gone.missing_share(TraceKind.LEDGER, "eu") == 1


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [([], NO_DATA), ([NO_DATA, PASS], PASS), ([PASS, DOUBT], DOUBT), ([DOUBT, BREACH, NO_DATA], BREACH)],
)
def test_a_breach_decides_then_doubt(verdicts: list[Verdict], expected: Verdict) -> None:
    assert worst(verdicts) is expected


@pytest.mark.parametrize(("start_s", "end_s"), [(30, 120), (60, 100), (120, 120), (180, 120)])
def test_a_span_is_whole_minutes(start_s: int, end_s: int) -> None:
    with pytest.raises(ValueError, match="no period of whole minutes"):
        Span(start_s=start_s, end_s=end_s)


def test_a_span_knows_its_hours_and_the_period_before() -> None:
    span = Span(start_s=7_260, end_s=10_920)
    assert (span.minutes, span.first_hour_s, span.end_hour_s) == (61, 7_200, 14_400)
    assert span.previous == Span(start_s=3_600, end_s=7_260)


def commits_and_deliveries(home: str, dest: str) -> tuple[AccountFacts, AccountFacts]:
    stream: dict[str, Any] = {
        "topic": "orders", "origin": "", "partition": 0, "is_inside": True, "records": 9, "is_whole": True,
        "ranges": ((0, 9),),
    }  # fmt: skip
    return (
        AccountFacts(kind="commit", region=home, group="", **stream),
        AccountFacts(kind="delivered", region=dest, group="", **stream),
    )


@pytest.mark.parametrize(("home", "expected"), [("us", DOUBT), ("ap", PASS)])
def test_rows_missing_at_the_home_may_hide_loaded_minutes_that_were_missed(home: str, expected: Verdict) -> None:
    period = build.period(
        throughput=(build.throughput(loaded_minutes=60, loaded_minutes_met=60),),
        accounts=commits_and_deliveries("us", "eu"),
        inputs=(build.inputs(region="eu"), build.inputs(region=home, rows=900, missing_rows=100)),
    )
    target = ThroughputTarget(name="throughput")
    (subject,) = throughput.subjects_of(target, period, completeness=Completeness(period.inputs))
    assert subject.verdict is expected


def test_of_a_stream_whose_home_no_row_names_any_region_may_be_the_home() -> None:
    commit, delivered = commits_and_deliveries("us", "eu")
    target = ThroughputTarget(name="throughput")

    def verdict(*accounts: AccountFacts) -> Verdict:
        unread = build.inputs(region="us", files=0, rows=0, quarantined_files=12)
        period = build.period(
            throughput=(build.throughput(),), accounts=accounts, inputs=(build.inputs(region="eu"), unread)
        )
        (subject,) = throughput.subjects_of(target, period, completeness=Completeness(period.inputs))
        return subject.verdict

    assert verdict(delivered) is DOUBT
    of_ap = [dataclasses.replace(item, topic="other", region="ap") for item in (commit,)]
    assert verdict(delivered, *of_ap) is DOUBT
    assert verdict(dataclasses.replace(commit, region="ap"), delivered) is PASS


def test_hours_that_nobody_saw_to_their_end_make_everything_of_the_period_a_doubt() -> None:
    whole, cut = Completeness([build.inputs()]), Completeness([build.inputs()], unseen_share=0.25)
    for kind, region in ((TraceKind.LEDGER, "eu"), (TraceKind.LATENCY_HIST, "us")):
        assert (whole.missing_share(kind, region), cut.missing_share(kind, region)) == (0, 0.25)
    half = Completeness([build.inputs(rows=900, missing_rows=900)], unseen_share=0.25)
    assert half.missing_share(TraceKind.LEDGER, "eu") == 1 - 0.5 * 0.75


def test_a_pair_is_shown_with_the_limit_of_the_first_target_that_means_it() -> None:
    facts = [build.latency(), build.latency(origin="us", dest="us"), build.latency({900: 9}, stage="deliver")]
    clocks = [build.clock(rtt_min_us=60_000)]
    near = LatencyTarget(name="near", threshold_ms=20, scope=Scope(word="intra"))
    deliver = LatencyTarget(name="deliver", threshold_ms=1, stage=Stage.DELIVER)
    limits = shown_limits(facts, clocks, [deliver, near, LATENCY])
    assert limits["us", "us", ""] == PairLimit(floor_us=0, is_feasible=True, limit_us=20_000, is_own=False)
    assert limits["us", "eu", ""] == PairLimit(floor_us=30_000, is_feasible=True, limit_us=50_000, is_own=False)
    alone = shown_limits(facts, clocks, [near])
    assert alone["us", "eu", ""] == PairLimit(floor_us=30_000, is_feasible=False, limit_us=50_000, is_own=True)
    assert shown_limits(facts, clocks, [deliver])["us", "eu", ""].limit_us == 1_000
