"""Delivered records per second and region, beside what was offered. DataFrame in, DataFrame out.

A ledger row never spans two seconds, so counting by `first_ns` is exact. Offered to a region are the records committed
in the streams that somebody in that region read.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import LedgerKind
from sla.targets import THROUGHPUT_WINDOW_S

STREAM = ["topic", "origin", "partition"]


def records() -> Column:
    """Return the records of a ledger row."""
    return F.col("to_offset") - F.col("from_offset")


def throughput_by_region(ledger: DataFrame, *, per_s: int) -> DataFrame:
    """Return one row per delivering region: totals, best second, best window, and how loaded seconds were met."""
    delivered = ledger.where(F.col("kind") == LedgerKind.DELIVERED.value)
    commits = ledger.where(F.col("kind") == LedgerKind.COMMIT.value)
    subscribed = delivered.select("region", *STREAM).distinct()
    offered = commits.drop("region").join(subscribed, STREAM, "inner")
    seconds = _per_second(delivered, "delivered").join(_per_second(offered, "offered"), ["region", "second"], "full")
    return _summary(seconds.fillna(0, ["delivered", "offered"]), per_s=per_s)


def _per_second(rows: DataFrame, name: str) -> DataFrame:
    second = F.floor(F.col("first_ns") / 1_000_000_000).alias("second")
    return rows.groupBy("region", second).agg(F.sum(records()).alias(name))


def _summary(seconds: DataFrame, *, per_s: int) -> DataFrame:
    window = Window.partitionBy("region").orderBy("second").rangeBetween(-(THROUGHPUT_WINDOW_S - 1), 0)
    is_loaded = F.col("offered") >= per_s
    windowed = seconds.withColumns(
        {
            "window_delivered": F.sum("delivered").over(window) / THROUGHPUT_WINDOW_S,
            "window_offered": F.sum("offered").over(window) / THROUGHPUT_WINDOW_S,
        }
    )
    return (
        windowed.groupBy("region")
        .agg(
            F.sum("delivered").alias("delivered"),
            F.min(F.when(F.col("delivered") > 0, F.col("second"))).alias("first_second"),
            F.max(F.when(F.col("delivered") > 0, F.col("second"))).alias("last_second"),
            F.max("delivered").alias("max_1s"),
            F.max("window_delivered").alias("max_window"),
            F.max("window_offered").alias("offered_max_window"),
            F.count_if(is_loaded).alias("loaded_seconds"),
            F.count_if(is_loaded & (F.col("delivered") >= per_s)).alias("loaded_seconds_met"),
        )
        .orderBy("region")
    )
