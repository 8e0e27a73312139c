"""A report says the same of hours and minutes as of the sums of their days."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from sla.jobs.collect import collect
from sla.judging.facts import Facts, Span
from sla.rollup_files_core import CLOSED_AFTER_S, DAY_S
from sla.rollups import RollupStore
from sla.sources.layout import hour_folder
from sla.tables import DDL, HOUR_S, RollupTable
from sla.targets_file import load_targets
from tests.sla.rollup_days import DAY0_S, run
from tests.sla.spark_rows import table_of

pytestmark = pytest.mark.slow

DAYS = 5
HOURS = (0, 3, 23)  # of each day
# Its first day has an hour before it: what is read of accounts holds that day as a whole, the period does not.
SPAN = Span(start_s=DAY0_S + 2 * DAY_S + HOUR_S + 120, end_s=DAY0_S + 5 * DAY_S - 60)


def rows_of(hour_s: int) -> dict[RollupTable, list[tuple[Any, ...]]]:
    tables: dict[RollupTable, list[tuple[Any, ...]]] = {table: [] for table in RollupTable}
    for number, (origin, dest) in enumerate((("us", "eu"), ("eu", "eu"), ("us", "us"))):
        odd = (hour_s // HOUR_S + number) % 7
        for at in (0, 2, 59):
            ts_s, bad = hour_s + 60 * at, (odd + at) % 3
            tables[RollupTable.AVAIL_MINUTE].append((ts_s, origin, dest, 60, 60 - bad, bad, 0, 0))
            for stage, topic in (("total", "far"), ("total", "near"), ("commit", "near")):
                n, hist = 10 + odd, [(100 + odd, 10), (400 + at, odd)] if odd else [(100, 10)]
                latency = (origin, dest, topic, "", stage, n, n - bad, n - bad, n, 0, odd, 900 * n, 5_000 + odd, 90)
                tables[RollupTable.MINUTE].append((ts_s, *latency, hist))
        for row in tables[RollupTable.MINUTE][-9:-6]:
            hour = (3 * row[6], 3 * row[7], 3 * row[8], 3 * row[9], 0, 3 * row[11], 3 * row[12], *row[13:15])
            tables[RollupTable.HOUR].append((hour_s, *row[1:6], *hour, [(b, 3 * n) for b, n in row[15]]))
    at = hour_s // HOUR_S % 24 * 100
    for number, kind in enumerate(("commit", "delivered", "refused")):
        # Hours of a day touch, overlap or leave a gap; one kind only counts.
        ranges = [] if kind == "refused" else [(at, at + 300 - number), (at + 5_000, at + 5_400)]
        records = 7 if kind == "refused" else 700 - number
        tables[RollupTable.ACCOUNT_HOUR].append((hour_s, kind, "far", "us", number, "eu", "", records, ranges))
    for at in (1, 2):
        requests = (hour_s + 60 * at, "eu", "broker", "publish", 1_000, 990, 3, 4, 3, 0, 1 + at)
        tables[RollupTable.REQUESTS_MINUTE].append(requests)
        tables[RollupTable.THROUGHPUT_MINUTE].append((hour_s + 60 * at, "eu", 600, 660, 20, 11.0, 12.0, 10.0, 50, 40))
    return tables


def install(spark: Any, store: RollupStore, hours: list[int]) -> None:
    tables = [rows_of(hour_s) for hour_s in hours]
    for table in RollupTable:
        every = table_of(spark, [row for rows in tables for row in rows[table]], DDL[table]).toArrow()
        at = 0
        for hour_s, rows in zip(hours, tables, strict=True):
            count = len(rows[table])
            if count:
                folder = store.root / "made" / table.value / hour_folder(hour_s)
                folder.mkdir(parents=True)
                pq.write_table(every.slice(at, count), folder / f"part-{hour_s}.parquet", write_page_checksum=True)
            at += count
    for hour_s in hours:
        store.install(store.root / "made", run((hour_s - DAY0_S) // HOUR_S))
    shutil.rmtree(store.root / "made")


def in_order(facts: Facts) -> dict[str, Any]:
    """Return the facts with the rows of each period in order: which comes first from Spark says nothing."""
    periods = {
        name: {key: sorted(map(repr, value)) if isinstance(value, tuple) else value for key, value in rows.items()}
        for name, rows in (("now", asdict(facts.now)), ("before", asdict(facts.before)))
    }
    return asdict(facts) | periods


def test_a_period_of_days_has_the_same_facts_with_their_sums_and_without(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sla.jobs.collect.SERIES_STEPS_MAX", 4)  # so few steps that each is a day
    store = RollupStore.open(tmp_path)
    hours = [DAY0_S + day * DAY_S + hour * HOUR_S for day in range(DAYS) for hour in HOURS]
    later_s = DAY0_S + DAYS * DAY_S + CLOSED_AFTER_S
    with store.writing(clock_s=lambda: later_s):
        install(spark, store, hours)
        for day in range(DAYS):
            store.merge(DAY0_S + day * DAY_S, now_s=later_s)
        again = store.run(DAY0_S + 4 * DAY_S)
        assert again is not None
        store.write_run(replace(again, parts={}))  # an hour of nothing takes back its part of a day that is read
    snapshot, read = store.snapshot(), []

    def read_rows(table: RollupTable, start_s: int, end_s: int) -> Any:
        return snapshot.read(spark, table, start_s, end_s)

    def read_sums(table: RollupTable, start_s: int, end_s: int) -> Any:
        rows = snapshot.read_sums(spark, table, start_s, end_s)
        read.extend(sorted({path.split("/")[-3] for path in rows.inputFiles()}))
        return rows

    plain = collect(spark, read_rows, load_targets(), SPAN)
    summed = collect(spark, read_rows, load_targets(), SPAN, read_sums=read_sums)
    assert in_order(summed) == in_order(plain)
    of_days = {"latency_day", "avail_day", "requests_day", "throughput_day", "account_day"}
    assert of_days | {"hour", "avail_minute", "account_hour"} <= set(read)
    assert plain.series_step_s == DAY_S
    assert len(plain.now.latency) > 3
    assert plain.now.probes
    assert {(fact.is_inside, fact.kind) for fact in plain.now.accounts} == {
        (is_inside, kind) for is_inside in (True, False) for kind in ("commit", "delivered", "refused")
    }
    assert plain.before.requests
    assert plain.worst
