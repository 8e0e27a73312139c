"""From roll-up rows to facts to the report: sums, splits between periods, limits, ways, lines of plots."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from georelay.trace.histogram import bucket_index
from sla.judging.budgets import iso
from sla.judging.facts import Facts, HomeFacts, HourFacts, MinutesFacts, Span, WorstFacts
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.model import Report, Subject
from sla.tables import DDL, RollupTable
from sla.targets import Targets
from sla.targets_file import load_targets
from tests.sla import judging_facts as build
from tests.sla.spark_rows import table_of

T0 = 1_700_002_800  # a whole hour
# Half an hour, an hour, half an hour; probes of all but the first fifty seconds and the last ones.
SPAN = Span(start_s=T0 + 1_800, end_s=T0 + 9_000, probed_start_s=T0 + 1_850, probed_end_s=T0 + 8_350)
PAST = SPAN.start_s - 600
Table = dict[RollupTable, list[tuple[Any, ...]]]


def _latency(
    ts_s: int, origin: str, dest: str, latencies: dict[int, int], *, stage: str = "total", topic: str = "orders"
) -> tuple[Any, ...]:
    hist: dict[int, int] = {}
    for latency_us, n in latencies.items():
        hist[bucket_index(latency_us)] = hist.get(bucket_index(latency_us), 0) + n
    n = sum(latencies.values())
    good = sum(count for latency_us, count in latencies.items() if latency_us <= 50_000)
    total_us = sum(latency_us * count for latency_us, count in latencies.items())
    return (
        ts_s, origin, dest, topic, "", stage, n, good, good, good, 0, 0, total_us, max(latencies), 500,
        sorted(hist.items()),
    )  # fmt: skip


def _of_ways(ts_s: int) -> list[tuple[Any, ...]]:
    """Return rows of `ap`, which has no stream at home: what goes to `eu` may go by way of `us`."""
    return [
        _latency(ts_s, "ap", "us", {40_000: 100}, stage="commit", topic="away"),
        _latency(ts_s, "ap", "us", {40_000: 30}, stage="commit", topic="both"),
        _latency(ts_s, "ap", "eu", {20_000: 20}, stage="commit", topic="both"),
        _latency(ts_s, "ap", "eu", {130_000: 100}, topic="away"),
        _latency(ts_s, "ap", "us", {41_000: 100}, topic="away"),
        _latency(ts_s, "ap", "us", {40_000: 7}, stage="commit", topic=""),  # of topics that nobody wrote down
        _latency(ts_s, "ap", "eu", {130_000: 7}, topic=""),
        _latency(ts_s, "ap", "eu", {30_000: 50}, topic="both"),
        _latency(ts_s, "ap", "eu", {3_000: 100}, stage="deliver", topic="away"),
    ]


def _tables() -> Table:
    tables: Table = {table: [] for table in RollupTable}
    minute, hour = tables[RollupTable.MINUTE], tables[RollupTable.HOUR]
    for ts_s in range(SPAN.start_s, SPAN.end_s, 60):
        is_bad = ts_s == T0 + 5_400  # one minute in the whole hour
        rows = [
            _latency(ts_s, "us", "eu", {20_000: 90, 80_000: 60 if is_bad else 0, 20_001: 10}),
            _latency(ts_s, "us", "ap", {88_000: 50, 130_000: 1}, topic="far"),
            _latency(ts_s, "us", "eu", {1_000: 100}, stage="deliver"),
        ]
        minute += rows
        if T0 + 3_600 <= ts_s < T0 + 7_200:
            hour += [(T0 + 3_600, *row[1:]) for row in rows]  # an hour of sixty minutes: sums come out the same
    minute += [_latency(PAST, "us", "eu", {20_000: 3_000, 90_000: 2_000})]
    minute += _of_ways(T0 + 7_800)
    tables[RollupTable.CLOCK_HOUR] = [
        (T0 + 3_600 * at, region, peer, 3_600, 100 * at, 20 + at, 1.0 + at, bound, rtt, 0, 0)
        for at in range(3)
        for region, peer, bound, rtt in (("eu", "us", 900, 70_000 + at), ("ap", "us", None if at else 800, 170_000))
    ]
    throughput = tables[RollupTable.THROUGHPUT_MINUTE]
    delivered = [500.0, 1_200.0, 1_200.0, 900.0, 1_200.0]  # the first loaded minute is met by the one after it
    for at, best in enumerate(delivered):
        ts_s = T0 + 3_600 + 60 * at
        throughput.append((ts_s, "eu", int(best * 60), 66_000, 1_300, best, 1_100.0, best - 100, 50, 40))
    throughput.append((T0 + 7_200, "eu", 60, 60, 1, 1.0, 1.0, 1.0, 0, 0))
    tables[RollupTable.INTEGRITY_HOUR] = [
        (T0 + 3_600 * at, "", "eu", "orders", 0, "", 1, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, pending)
        for at, pending in ((-1, 7), (0, 50), (1, 20), (2, 5))
    ]
    tables[RollupTable.STREAM_HOUR] = [(T0 + 3_600 * at, "orders", "", 0, 100, 10, 1, at + 1) for at in range(3)]
    tables[RollupTable.MIRROR_HOUR] = [(T0 + 3_600 * at, "orders", "", 0, "eu", 90, at) for at in range(3)]
    avail = tables[RollupTable.AVAIL_MINUTE]
    down = {T0 + 3_600, T0 + 4_200, T0 + 4_260, T0 + 4_320, T0 + 5_000 // 60 * 60}
    for ts_s in range(SPAN.start_s, SPAN.end_s - 600, 60):
        ok = 57 if ts_s in down else 60 if ts_s % 600 else 58  # 3 of 60 are 5 %
        avail.append((ts_s, "us", "eu", 60, ok, 1 if ok < 60 else 0, 59 - ok if ok < 60 else 0, 0))
    avail.append((SPAN.start_s - 60, "ap", "ap", 60, 60, 0, 0, 0))  # took part before the period only
    tables[RollupTable.REQUESTS_MINUTE] = [
        (SPAN.start_s, "eu", "broker", "publish", 1_000, 900, 50, 40, 10, 5_000, 2),
        (SPAN.start_s + 60, "eu", "broker", "publish", 1_000, 950, 50, 0, 0, 5_000, 3),
        (SPAN.start_s, "eu", "gateway", "publish", 10, 10, 0, 0, 0, 10, 1),
    ]
    tables[RollupTable.INPUTS_HOUR] = [
        (T0, "latency_hist", "eu", 2, 10, 100, 0, 0, 0, ["eu/2", "eu/1"], [], None, None, None),  # of earlier versions
        (T0 + 3_600, "latency_hist", "eu", 2, 10, 100, 1, 5, 6, ["eu/1"], ["eu/2"], 7, 9, 30),
        (T0 + 3_600, "latency_hist", "ap", 1, 10, 100, 0, 0, 0, ["ap/1"], [], 0, 0, 0),
    ]
    return tables


@pytest.fixture(scope="module")
def read(spark: Any) -> Callable[..., Any]:
    tables = {table: table_of(spark, rows, DDL[table]) for table, rows in _tables().items()}
    return lambda table, start_s, end_s: tables[table].where(f"ts_s >= {start_s} AND ts_s < {end_s}")


@pytest.fixture(scope="module")
def facts(spark: Any, read: Callable[..., Any]) -> Facts:
    from sla.jobs.collect import collect

    return collect(spark, read, load_targets(), SPAN)


@pytest.fixture(scope="module")
def report(facts: Facts) -> Report:
    hours = HourFacts(expected=3, rolled_up=3, revised=0, not_final=0)
    return judge(facts, load_targets(), made=build.MADE, hours=hours)


def _subject(report: Report, target: str, name: str) -> Subject:
    (result,) = (result for result in report.targets if result.name == target)
    (subject,) = (subject for subject in result.subjects if subject.name == name)
    return subject


def test_whole_hours_and_ragged_ends_add_up_to_every_minute(facts: Facts) -> None:
    latency = {(item.origin, item.dest, item.stage): item for item in facts.now.latency}
    near = latency["us", "eu", "total"]
    assert (near.n, near.n_good, near.lat_max_us, near.clock_err_max_us) == (12_060, 12_000, 80_000, 500)
    assert dict(near.hist) == {bucket_index(20_000): 12_000, bucket_index(80_000): 60}
    assert near.lat_sum_us == 120 * (90 * 20_000 + 10 * 20_001) + 60 * 80_000
    (before,) = facts.before.latency
    assert (before.n, before.n_good) == (5_000, 3_000)


def test_an_infeasible_pair_is_judged_against_its_floor(report: Report) -> None:
    far = _subject(report, "latency", "us -> ap")
    assert (far.threshold_ms, far.is_own_limit, far.total, far.bad) == (105.0, True, 120 * 51, 120)
    assert far.verdict is Verdict.BREACH
    near = _subject(report, "latency", "us -> eu")
    assert (near.threshold_ms, near.bad, near.verdict) == (50.0, 60, Verdict.INCONCLUSIVE)
    assert near.reason == "20 % of the traces are missing"
    (row,) = (row for row in report.latency if row.dest == "ap")
    assert (row.floor_ms, row.is_feasible, row.own_limit_ms) == (85.0, False, 105.0)


def test_budgets_burn_by_each_pairs_own_limit(report: Report) -> None:
    far = _subject(report, "latency", "us -> ap")
    assert far.budget is not None
    assert (far.budget.allowed, far.budget.used) == (61.2, 120)
    (page, *_) = far.burn
    assert page.name == "1h+5m"
    assert page.long_rate == pytest.approx(1 / 51 / 0.01, abs=1e-3)
    assert not page.is_firing
    assert far.burn[2].is_partial
    near = _subject(report, "latency", "us -> eu")
    # Ten minutes before the period, with the first records there are, 2000 of 5000 were late.
    assert [window.covered_minutes for window in near.burn] == [60, 130, 130]
    assert [window.firing_minutes for window in near.burn] == [0, 0, 0]
    assert near.burn[0].worst_rate == pytest.approx(100 * 2_000 / 10_000, abs=1e-3)
    assert near.burn[0].worst_at == iso(SPAN.start_s + 3_000)
    assert [window.worst_rate for window in near.burn[1:]] == [None, None]


def test_throughput_trails_by_one_minute_at_the_start_of_a_load(facts: Facts) -> None:
    (eu,) = facts.now.throughput
    assert (eu.loaded_minutes, eu.loaded_minutes_met) == (5, 4)
    assert (eu.max_10s_mean, eu.offered_max_10s_mean, eu.max_60s_mean) == (1_200.0, 1_100.0, 1_100.0)
    assert (eu.delivered, eu.active_minutes, eu.loaded_seconds_met) == (5_000 * 60 + 60, 6, 200)


def test_integrity_belongs_to_the_hours_that_the_period_touches(facts: Facts) -> None:
    (reader,) = facts.now.integrity
    assert (reader.delivered, reader.lost, reader.order_violations, reader.pending) == (300, 18, 30, 5)
    (before,) = facts.before.integrity
    assert (before.delivered, before.pending) == (100, 7)
    (stream,) = facts.now.streams
    assert (stream.committed, stream.epochs) == (300, 3)
    (mirror,) = facts.now.mirrors
    assert (mirror.replicated, mirror.missing) == (270, 3)


def test_clocks_without_a_bound_in_one_hour_have_none(facts: Facts) -> None:
    clocks = {item.region: item for item in facts.now.clocks}
    eu = clocks["eu"]
    assert (eu.exchanges, eu.offset_us, eu.offset_spread_us, eu.drift_ppm) == (10_800, 100, 22, 2.0)
    assert (eu.bound_max_us, eu.rtt_min_us) == (900, 70_000)
    assert clocks["ap"].bound_max_us is None


def test_minutes_are_down_at_five_percent_and_runs_are_found(facts: Facts) -> None:
    assert facts.now.minutes == (
        MinutesFacts(
            target="minutes",
            origin="us",
            dest="eu",
            up=105,
            down=5,
            longest_down_minutes=3,
            longest_down_s=T0 + 4_200,
            up_s=105 * 60 - 50 - 50,  # minutes that are cut off count by their seconds
            down_s=5 * 60,
        ),
    )


def test_the_only_home_of_a_topic_makes_a_way_of_its_own(facts: Facts) -> None:
    ways = {(item.home, item.dest, item.stage): item.n for item in facts.now.latency if item.origin == "ap"}
    assert ways == {
        ("", "us", "commit"): 137,
        ("", "eu", "commit"): 20,
        ("us", "eu", "total"): 100,
        ("", "us", "total"): 100,
        ("", "eu", "total"): 57,
        ("", "eu", "deliver"): 100,
    }
    assert set(facts.now.homes) == {
        HomeFacts(origin="ap", home="us", is_only=True, n=100),
        HomeFacts(origin="ap", home="us", is_only=False, n=37),
        HomeFacts(origin="ap", home="eu", is_only=False, n=20),
    }
    burnt = [item for item in facts.burn if item.target == "latency" and item.rule == "1h+5m"]
    late = {item.subject: item.long_bad for item in burnt if item.subject[0] == "ap"}
    # 130 ms are within 85 + 35 + 20, the way by us, and not within 50
    assert late == {("ap", "eu"): 7, ("ap", "us"): 0, ("ap", "us -> eu"): 0}


def test_requests_are_judged_by_region_and_operation(report: Report) -> None:
    publish = _subject(report, "requests", "publish in eu")
    assert (publish.total, publish.bad, publish.verdict) == (1_900, 50, Verdict.BREACH)
    assert publish.budget is not None
    assert publish.budget.used == 50
    assert _subject(report, "gateway-requests", "publish in eu").verdict is Verdict.INCONCLUSIVE


def test_inputs_name_their_writers_once(facts: Facts) -> None:
    (item,) = (item for item in facts.now.inputs if item.region == "eu")
    assert (item.writers, item.writer_hours, item.silent_writer_hours) == (("eu/1", "eu/2"), 3, 1)
    assert (item.files, item.missing_rows, item.dropped_rows, item.quarantined_files) == (4, 5, 6, 1)
    assert (item.gone_rows, item.left_out_rows) == (9, 37)


def test_the_worst_minutes_and_topics_are_named(facts: Facts) -> None:
    worst = [item for item in facts.worst if item.target == "latency"]
    minutes = [item for item in worst if item.what == "minute"]
    assert minutes[0] == WorstFacts(
        target="latency", what="minute", name="us -> eu", at_s=T0 + 5_400, total=160, bad=60
    )
    assert len(minutes) == 10
    assert [(item.name, item.bad) for item in worst if item.what == "topic"] == [
        ("far: us -> ap", 120),
        ("orders: us -> eu", 60),
        (": ap -> eu", 7),
    ]


def test_lines_of_plots_leave_out_minutes_without_data(facts: Facts) -> None:
    lines = {(line.plot, line.name): dict(line.points) for line in facts.series}
    assert facts.series_step_s == 60
    within = lines["within_share", "us -> eu"]
    assert (len(within), within[T0 + 5_400]) == (120, 100 / 160)
    assert lines["latency_p50_ms", "us -> ap"][T0 + 5_400] == pytest.approx(88, rel=0.011)
    assert lines["latency_p99_ms", "us -> ap"][T0 + 5_400] is None
    assert lines["delivered_per_s", "eu"] == {
        T0 + 3_600 + 60 * at: value for at, value in enumerate([500, 1_200, 1_200, 900, 1_200])
    } | {T0 + 7_200: 1.0}
    assert lines["probe_bad_share", "us -> eu"][T0 + 4_200] == 0.05


def test_a_silent_region_and_the_change_since_before_are_in_the_report(report: Report) -> None:
    assert _subject(report, "minutes", "ap -> eu").reason == "none of 108.3 minutes is known"
    (change,) = (item for item in report.changes if item.target == "latency")
    assert (change.subject, change.verdict_before, change.is_proven) == ("us -> eu", Verdict.BREACH, True)
    assert report.verdict is Verdict.BREACH
    assert {note.code for note in report.notes} >= {"PAIR_INFEASIBLE", "ROWS_MISSING", "MIRROR_BEHIND"}


@pytest.mark.slow
def test_of_a_long_period_only_the_newest_minutes_are_read_one_by_one(spark: Any) -> None:
    from sla.jobs.collect import collect

    span = Span(start_s=T0, end_s=T0 + 40 * 86_400)
    old_s, new_s = T0 + 5 * 86_400, T0 + 30 * 86_400  # 35 and 10 days before its end
    tables: Table = {table: [] for table in RollupTable}
    for ts_s in (old_s, new_s):
        tables[RollupTable.MINUTE].append(_latency(ts_s, "us", "eu", {20_000: 100, 90_000: 100}))
        tables[RollupTable.HOUR].append(_latency(ts_s, "us", "eu", {20_000: 100, 90_000: 100}))
    asked: dict[RollupTable, int] = {}

    def read(table: RollupTable, start_s: int, end_s: int) -> Any:
        asked[table] = min(start_s, asked.get(table, start_s))
        rows = [row for row in tables[table] if start_s <= row[0] < end_s]
        return table_of(spark, rows, DDL[table])

    facts = collect(spark, read, load_targets(), span)
    three_days = 3 * 86_400  # the longest window of an alert
    assert span.newest_start_s == span.end_s - 31 * 86_400
    assert asked[RollupTable.MINUTE] == span.newest_start_s - three_days
    assert {(item.what, item.name, item.at_s, item.bad) for item in facts.worst} == {
        ("minute", "us -> eu", new_s, 100),
        ("topic", "orders: us -> eu", None, 200),
    }
    (budget,) = {(item.n, item.n_good) for item in facts.now.latency}
    assert budget == (400, 200)
    report = judge(
        facts, load_targets(), made=build.MADE, hours=HourFacts(expected=960, rolled_up=2, revised=0, not_final=0)
    )
    (note,) = (note for note in report.notes if note.code == "ALERTS_OF_NEWEST_DAYS")
    assert note.text == (
        f"alerts and worst minutes are of the last 31 days, from {iso(span.newest_start_s)}; "
        "everything else is of the whole period"
    )


def _reading(spark: Any, tables: Table) -> Callable[..., Any]:
    def read(table: RollupTable, start_s: int, end_s: int) -> Any:
        return table_of(spark, [row for row in tables[table] if start_s <= row[0] < end_s], DDL[table])

    return read


@pytest.mark.parametrize(("days_before", "is_on"), [(9, True), (40, False)])
@pytest.mark.slow
def test_a_pair_that_was_idle_at_the_weekend_burns_on_monday_as_any_other(
    spark: Any, days_before: int, is_on: bool
) -> None:
    from sla.jobs.collect import collect

    span = Span(start_s=T0 - T0 % 86_400, end_s=T0 - T0 % 86_400 + 3_600)
    tables: Table = {table: [] for table in RollupTable}
    for name in (RollupTable.HOUR, RollupTable.MINUTE):  # its last records before; a month is looked back
        tables[name].append(_latency(span.start_s - days_before * 86_400, "us", "eu", {20_000: 100}))
    for ts_s in range(span.start_s, span.end_s, 60):
        tables[RollupTable.MINUTE].append(_latency(ts_s, "us", "eu", {20_000: 50, 90_000: 50}))
    tables[RollupTable.HOUR].append(_latency(span.start_s, "us", "eu", {20_000: 3_000, 90_000: 3_000}))
    facts = collect(spark, _reading(spark, tables), load_targets(), span)
    (slowest,) = (alert for alert in facts.burn if alert.target == "latency" and alert.rule == "3d+6h")
    assert (slowest.long_bad, slowest.long_total) == (3_000, 6_000)
    assert (slowest.covered_minutes, slowest.firing_minutes > 0) == ((4_320, True) if is_on else (60, False))


@pytest.mark.slow
def test_a_load_that_begins_in_the_last_minute_of_a_period_may_be_met_by_the_one_behind_it(spark: Any) -> None:
    from sla.jobs.collect import collect

    tables: Table = {table: [] for table in RollupTable}
    tables[RollupTable.THROUGHPUT_MINUTE] = [
        (SPAN.end_s - 60, "eu", 6_000, 12_000, 500, 500.0, 1_200.0, 100.0, 10, 0),
        (SPAN.end_s, "eu", 66_000, 66_000, 1_300, 1_200.0, 1_200.0, 1_100.0, 60, 60),
    ]
    (eu,) = collect(spark, _reading(spark, tables), load_targets(), SPAN).now.throughput
    assert (eu.loaded_minutes, eu.loaded_minutes_met, eu.active_minutes, eu.delivered) == (1, 1, 1, 6_000)


@pytest.mark.slow
def test_no_data_at_all_is_no_data(spark: Any) -> None:
    from sla.jobs.collect import collect

    facts = collect(spark, lambda table, *_: table_of(spark, [], DDL[table]), load_targets(), SPAN)
    hours = HourFacts(expected=3, rolled_up=0, revised=0, not_final=0)
    report = judge(facts, load_targets(), made=build.MADE, hours=hours)
    assert report.verdict is Verdict.NO_DATA
    assert report.headline == "NO_DATA: latency: nothing was counted; integrity: nothing was counted"
    targets = Targets(targets=())
    assert collect(spark, lambda table, *_: table_of(spark, [], DDL[table]), targets, SPAN).burn == ()


@pytest.mark.parametrize(
    ("minutes", "step_s"), [(1, 60), (720, 60), (721, 300), (1_440, 300), (43_200, 3_600), (525_600, 86_400)]
)
def test_lines_have_at_most_720_steps(minutes: int, step_s: int) -> None:
    from sla.jobs.collect import series_step_s

    assert series_step_s(minutes) == step_s


def test_a_line_of_records_per_second_counts_idle_minutes_and_no_second_outside_the_period(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sla.jobs import collect

    monkeypatch.setattr(collect, "_STEPS_S", (3_600,))
    rows = [(T0 + 1_800, 1_800), (T0 + 3_600, 60_000), (T0 + 7_200, 12_000), (T0 + 7_260, 6_000)]
    empty = {table: table_of(spark, [], DDL[table]) for table in RollupTable}
    throughput = table_of(
        spark, [(ts_s, "eu", n, n, 0, 0.0, 0.0, 0.0, 0, 0) for ts_s, n in rows], DDL[RollupTable.THROUGHPUT_MINUTE]
    )
    tables = empty | {RollupTable.THROUGHPUT_MINUTE: throughput}
    with ThreadPoolExecutor(1) as pool:
        collecting = collect._Collecting(spark, lambda table, *_: tables[table], load_targets(), SPAN, pool)
        collecting.take_series(*collecting.begin_series())
    lines = {line.plot: dict(line.points) for line in collecting._series}
    assert lines["delivered_per_s"] == lines["offered_per_s"] == {
        T0: 1.0,  # half an hour of it is in the period
        T0 + 3_600: 60_000 / 3_600,
        T0 + 7_200: 10.0,
    }  # fmt: skip
