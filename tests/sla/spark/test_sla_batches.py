"""How hours are batched changes nothing: throughput and what is handed on, across the turn of an hour and a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sla.sources.location import Location
from sla.sources.manifest import TraceFiles
from sla.tables import DDL, HOUR_S, RollupTable
from tests.sla.spark.conftest import Rows
from tests.sla.spark.test_sla_throughput import H0, S, row
from tests.sla.spark_rows import table_of

pytestmark = pytest.mark.slow

Found = dict[int, dict[str, Any]]  # minute (from H0) -> row


def built(spark: Any, ledger: Any, carry: Any, hours: range, work: Path) -> tuple[Found, list[dict[str, Any]]]:
    """Return throughput of some hours (from H0) as one batch, and the units that it hands on at the end of each."""
    from sla.jobs.rollup_tables import HourTables
    from sla.transforms.moments import hour_of_ns

    class OfRows(HourTables):
        """The tables of rows that no file holds."""

        def _has(self, _: Any) -> bool:
            return True

    files = TraceFiles(location=Location.open("/nowhere"), good=())
    starts = [H0 + hour * HOUR_S for hour in hours]
    tables = OfRows(spark, files, [], starts, settle_s=0, work=work)
    at_s = hour_of_ns("first_ns")
    tables.__dict__["_ledger"] = ledger.where((at_s >= starts[0] - HOUR_S) & (at_s <= starts[-1]))
    frames = tables._ledger_tables(carry)
    minutes = {found["ts_s"] - H0: found.asDict() for found in frames[RollupTable.THROUGHPUT_MINUTE].collect()}
    names = ["ts_s", "scope", "origin", "dest", "topic", "partition", "group", "broker", "session_epoch", "reach",
             "ranges", "last_ns"]  # fmt: skip
    units = [found.asDict(recursive=True) for found in frames[RollupTable.SESSIONS_HOUR].select(names).collect()]
    return minutes, sorted(units, key=str)


def of_hour(spark: Any, units: list[dict[str, Any]], hour: int) -> Any:
    """Return what an hour hands on."""
    mine = [unit for unit in units if unit["ts_s"] == H0 + hour * HOUR_S]
    return table_of(spark, mine, DDL[RollupTable.SESSIONS_HOUR])


def test_a_unit_that_comes_back_after_a_day_was_offered_what_it_missed_until_then(
    spark: Any, ledger: Rows, tmp_path: Path
) -> None:
    unit = {
        "ts_s": H0 - HOUR_S, "scope": "unit", "origin": "", "dest": "eu", "topic": "orders", "partition": 0,
        "group": "g", "broker": "", "session_epoch": -1, "reach": 500, "ranges": [(0, 500)],
        "last_ns": (H0 - 13 * HOUR_S - 1) * S,
    }  # fmt: skip
    rows = [row("commit", 5 * HOUR_S + second, 500 + 9 * second, 509 + 9 * second) for second in range(3)]
    back = {"group": "g", "session_epoch": 9}
    rows += [
        row("delivered", 11 * HOUR_S + second, 500 + 9 * second, 509 + 9 * second, deliver_seq=second, **back)
        for second in range(3)
    ]
    table = ledger(extra=rows)
    carry = table_of(spark, [unit], DDL[RollupTable.SESSIONS_HOUR])
    whole, units = built(spark, table, carry, range(12), tmp_path / "whole")
    assert (whole[5 * HOUR_S]["offered"], whole[5 * HOUR_S]["delivered"]) == (27, 0)
    reaches = {(found["ts_s"] - H0) // HOUR_S: found["reach"] for found in units if found["scope"] == "unit"}
    assert reaches == {**dict.fromkeys(range(10), 500), 11: 527}  # after a day it is forgotten
    first, of_first = built(spark, table, carry, range(6), tmp_path / "first")
    second, of_second = built(spark, table, of_hour(spark, of_first, 5), range(6, 12), tmp_path / "second")
    assert (first | second, sorted([*of_first, *of_second], key=str)) == (whole, units)


def test_a_replay_in_the_last_seconds_of_an_hour_counts_the_same_in_every_batch(
    spark: Any, ledger: Rows, tmp_path: Path
) -> None:
    rows = [
        row(kind, second, 10 * second, 10 * second + 10) for second in range(10) for kind in ("commit", "delivered")
    ]
    again = {"session_epoch": 7}
    rows += [
        row("delivered", 2 * HOUR_S - 9 + index, 10 * index, 10 * index + 10, deliver_seq=index, **again)
        for index in range(9)
    ]
    rows += [row("commit", 2 * HOUR_S, 100, 101), row("delivered", 2 * HOUR_S, 100, 101, deliver_seq=9, **again)]
    table = ledger(extra=rows)
    whole, units = built(spark, table, None, range(3), tmp_path / "whole")
    first, of_first = built(spark, table, None, range(2), tmp_path / "first")
    second, of_second = built(spark, table, of_hour(spark, of_first, 1), range(2, 3), tmp_path / "second")
    assert (first | second, sorted([*of_first, *of_second], key=str)) == (whole, units)
