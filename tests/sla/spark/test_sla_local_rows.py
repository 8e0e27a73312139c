"""Small tables that the driver makes go to the JVM as they are: nobody reads them back, plans know the empty ones."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from sla.local_rows import local_rows

DDL = "n BIGINT, share DOUBLE, name STRING, ranges ARRAY<STRUCT<f: BIGINT, t: BIGINT>>"


def test_rows_of_the_driver_are_in_the_plan_itself_and_an_empty_table_needs_no_job(spark: Any) -> None:
    rows = [(2**40, None, "a", [{"f": 0, "t": 5}]), (-1, 0.5, None, [])]
    table = local_rows(spark, rows, DDL)
    assert [tuple(row) for row in table.collect()] == [(2**40, None, "a", [(0, 5)]), (-1, 0.5, None, [])]
    empty = local_rows(spark, [], DDL)
    assert empty.schema == table.schema
    joined = table.join(empty.select("name"), "name").groupBy("name").count()
    for frame in (table, joined):
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert plan.startswith("LocalTableScan") and "ExistingRDD" not in plan, plan
