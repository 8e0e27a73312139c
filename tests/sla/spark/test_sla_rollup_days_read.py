"""Spark reads days, hours of their own and hours that were taken back, each once; many files are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.functions import lit

from sla.rollup_files_core import DAY_S
from sla.rollups import RollupStore
from sla.tables import DDL, HOUR_S, RollupTable
from sla.targets import LatencyTarget
from sla.transforms.minute_counts import latency_events
from tests.sla.rollup_days import DAY0_S, LATER_S, install, seen
from tests.sla.spark_rows import table_of

TABLE = RollupTable.STREAM_HOUR


def found(
    spark: Any, store: RollupStore, start_s: int | None = None, end_s: int | None = None
) -> list[tuple[int, str]]:
    rows = store.read(spark, TABLE, start_s, end_s).select("ts_s", "topic").collect()
    return sorted(((row.ts_s - DAY0_S) // HOUR_S, row.topic) for row in rows)


def test_spark_reads_what_the_manifests_name(spark: Any, tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    with store.writing(clock_s=lambda: LATER_S):
        for hour in range(4):
            install(store, hour, "a")
        store.merge(DAY0_S, now_s=LATER_S)
        install(store, 2, "b")  # revised behind the merge
        install(store, 24, "a")  # of a day that is open
    (tmp_path / "_runs/date=2023-11-14/hour=03/_run.json").unlink()  # an hour that does not count
    expected = [(0, "a"), (1, "a"), (2, "b"), (24, "a")]
    assert seen(store) == expected
    assert found(spark, store) == sorted(expected * 2)
    assert found(spark, store, DAY0_S + HOUR_S, DAY0_S + DAY_S) == [(1, "a")] * 2 + [(2, "b")] * 2
    assert found(spark, store, DAY0_S + HOUR_S, DAY0_S + 2 * HOUR_S) == [(1, "a")] * 2
    assert found(spark, store, DAY0_S + 3 * HOUR_S, DAY0_S + 4 * HOUR_S) == []
    assert found(spark, store, DAY0_S + 1, DAY0_S + HOUR_S) == [(0, "a")], "the second row begins a second later"


def test_histograms_of_minutes_are_read_only_when_a_pair_has_a_limit_of_its_own(spark: Any, tmp_path: Path) -> None:
    table_of(spark, [], DDL[RollupTable.MINUTE]).write.parquet(str(tmp_path / "minute"))
    minutes = spark.read.schema(DDL[RollupTable.MINUTE]).parquet(str(tmp_path / "minute"))
    minutes = minutes.withColumn("home", lit(""))

    def columns_read(first_bad: int | None) -> str:
        limits = {("us", "eu", ""): first_bad, ("eu", "us", ""): None}
        rows = latency_events(spark, minutes, LatencyTarget(name="t"), limits).select("bad")  # Spark cuts long schemas
        plan = rows._jdf.queryExecution().executedPlan().toString()
        return str(plan[plan.index("ReadSchema") :])

    assert "n_good" in columns_read(None)
    assert "hist" not in columns_read(None)
    assert "hist" in columns_read(500)
