"""The roll-up `throughput_minute`: records per second that a region was handed and was offered.

A ledger row never spans two seconds, so counting by `first_ns` is exact. Offered to a region are the records committed
in the streams that somebody in it read in that hour. Windows end at each second of the minute and look back into the
hour before; a minute in which nothing was delivered or offered has no row.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import LedgerKind
from sla.tables import HOUR_S, MINUTE_S, STREAM
from sla.transforms.moments import hour_of, minute_of, second_of
from sla.transforms.ranges import records

LOADED_PER_S: Final = 1_000
SHORT_WINDOW_S: Final = 10
LONG_WINDOW_S: Final = 60
_HOUR: Final = ["hour_s", "dest"]


def throughput_by_minute(ledger: DataFrame, hours: list[int]) -> DataFrame:
    """Return `throughput_minute` of some hours.

    Args:
        ledger: rows of the hours and of the minute before each.
        hours: starts of the hours, s.
    """
    rows = ledger.withColumn("second", second_of("first_ns"))
    delivered = rows.where(F.col("kind") == LedgerKind.DELIVERED.value).withColumn("dest", F.col("region"))
    committed = rows.where(F.col("kind") == LedgerKind.COMMIT.value)
    read = delivered.select(hour_of("second").alias("hour_s"), "dest", *STREAM).distinct()
    offered = _with_hours(committed, hours).join(read, ["hour_s", *STREAM], "inner")
    seconds = _per_second(_with_hours(delivered, hours), "delivered").unionByName(
        _per_second(offered, "offered"), allowMissingColumns=True
    )
    is_inside = hour_of("second") == F.col("hour_s")
    busy = seconds.where(is_inside).select(*_HOUR, minute_of("second").alias("ts_s")).distinct()
    grid = busy.select(*_HOUR, F.explode(F.sequence("ts_s", F.col("ts_s") + (MINUTE_S - 1))).alias("second"))
    whole = (
        seconds.unionByName(grid, allowMissingColumns=True)
        .groupBy(*_HOUR, "second")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("delivered", "offered")))
    )
    return _summary(whole)


def _with_hours(rows: DataFrame, hours: list[int]) -> DataFrame:
    """Add `hour_s`: the hour of the second, and the next one, whose windows look back at it."""
    own = hour_of("second")
    is_before = F.col("second") > own + (HOUR_S - LONG_WINDOW_S)
    both = F.when(is_before, F.array(own, own + HOUR_S)).otherwise(F.array(own))
    return rows.withColumn("hour_s", F.explode(both)).where(F.col("hour_s").isin(hours))


def _per_second(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy(*_HOUR, "second").agg(F.sum(records()).alias(name))


def _summary(seconds: DataFrame) -> DataFrame:
    ends = Window.partitionBy(*_HOUR).orderBy("second")

    def mean(name: str, length_s: int) -> Column:
        return F.sum(name).over(ends.rangeBetween(-(length_s - 1), 0)) / length_s

    is_loaded = F.col("offered") >= LOADED_PER_S
    return (
        seconds.withColumns(
            {
                "mean_10s": mean("delivered", SHORT_WINDOW_S),
                "offered_mean_10s": mean("offered", SHORT_WINDOW_S),
                "mean_60s": mean("delivered", LONG_WINDOW_S),
            }
        )
        .where(hour_of("second") == F.col("hour_s"))
        .groupBy(minute_of("second").alias("ts_s"), "dest")
        .agg(
            F.sum("delivered").alias("delivered"),
            F.sum("offered").alias("offered"),
            F.max("delivered").alias("max_1s"),
            F.max("mean_10s").alias("max_10s_mean"),
            F.max("offered_mean_10s").alias("offered_max_10s_mean"),
            F.max("mean_60s").alias("max_60s_mean"),
            F.count_if(is_loaded).alias("loaded_seconds"),
            F.count_if(is_loaded & (F.col("delivered") >= LOADED_PER_S)).alias("loaded_seconds_met"),
        )
    )
