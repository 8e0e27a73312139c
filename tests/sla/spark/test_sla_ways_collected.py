"""Rows become facts: the only home of a topic makes a way of its own; cut minutes count by their seconds."""

from __future__ import annotations

import dataclasses
from typing import Any

from sla.judging.facts import HomeFacts, Span
from sla.tables import DDL, RollupTable
from sla.targets import LatencyTarget, MinutesTarget
from sla.targets_file import load_targets
from tests.sla.spark.test_sla_collect import _latency
from tests.sla.spark_rows import table_of

T0 = 1_700_002_800
SPAN = Span(start_s=T0, end_s=T0 + 180, probed_start_s=T0 + 50, probed_end_s=T0 + 130)


def test_ways_homes_and_cut_minutes_are_collected(spark: Any) -> None:
    from sla.jobs.collect import collect

    rows: dict[RollupTable, list[tuple[Any, ...]]] = {table: [] for table in RollupTable}
    rows[RollupTable.MINUTE] = [
        _latency(T0, "ap", "us", {40_000: 100}, stage="commit", topic="far"),
        _latency(T0, "ap", "us", {40_000: 30}, stage="commit", topic="both"),
        _latency(T0, "ap", "eu", {20_000: 20}, stage="commit", topic="both"),
        _latency(T0, "ap", "eu", {66_000: 100}, topic="far"),
        _latency(T0, "ap", "us", {41_000: 100}, topic="far"),
        _latency(T0, "ap", "us", {40_000: 7}, stage="commit", topic=""),  # of topics that nobody wrote down
        _latency(T0, "ap", "eu", {66_000: 7}, topic=""),
        _latency(T0, "ap", "eu", {30_000: 50}, topic="both"),
        _latency(T0, "ap", "eu", {3_000: 100}, stage="deliver", topic="far"),
    ]
    rows[RollupTable.CLOCK_HOUR] = [
        (T0, "us", "ap", 60, 0, 0, 0.0, 900, 70_000, 0, 0),
        (T0, "us", "eu", 60, 0, 0, 0.0, 900, 60_000, 0, 0),
        (T0, "ap", "eu", 60, 0, 0, 0.0, 900, 40_000, 0, 0),
    ]
    rows[RollupTable.AVAIL_MINUTE] = [
        (T0, "us", "eu", 10, 10, 0, 0, 0),
        (T0 + 60, "us", "eu", 60, 30, 0, 30, 0),
        (T0 + 120, "us", "eu", 10, 10, 0, 0, 0),
    ]
    tables = {table: table_of(spark, found, DDL[table]) for table, found in rows.items()}
    every = load_targets()
    asked = tuple(target for target in every.targets if isinstance(target, LatencyTarget | MinutesTarget))
    facts = collect(
        spark,
        lambda table, start_s, end_s: tables[table].where(f"ts_s >= {start_s} AND ts_s < {end_s}"),
        dataclasses.replace(every, targets=asked),
        SPAN,
    )
    ways = {(item.origin, item.home, item.dest, item.stage): item.n for item in facts.now.latency}
    assert ways == {
        ("ap", "", "us", "commit"): 137,
        ("ap", "", "eu", "commit"): 20,
        ("ap", "us", "eu", "total"): 100,
        ("ap", "", "us", "total"): 100,
        ("ap", "", "eu", "total"): 57,
        ("ap", "", "eu", "deliver"): 100,
    }
    assert set(facts.now.homes) == {
        HomeFacts(origin="ap", home="us", is_only=True, n=100),
        HomeFacts(origin="ap", home="us", is_only=False, n=37),
        HomeFacts(origin="ap", home="eu", is_only=False, n=20),
    }
    late = {item.subject: item.long_bad for item in facts.burn if item.target == "latency" and item.rule == "1h+5m"}
    assert late == {("ap", "eu"): 7, ("ap", "us"): 0, ("ap", "us -> eu"): 0}  # 66 ms are within 65 + 20, not within 50
    (minutes,) = facts.now.minutes
    assert (minutes.up, minutes.down, minutes.up_s, minutes.down_s) == (2, 1, 20, 60)
