"""Latency per region pair from merged histograms. DataFrame in, DataFrame out.

Shares within the target are sums of exact counts. Quantiles are bucket middles, capped by the exact maximum.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import Stage
from sla.hist_spark import bucket_mid
from sla.targets import QUANTILES

PAIR = ["origin", "dest"]


def quantile_column(q: float) -> str:
    """Return the column name of a quantile: 0.999 -> p99_9_us."""
    return f"p{q * 100:g}_us".replace(".", "_")


def latency_by_pair(latency_hist: DataFrame) -> DataFrame:
    """Return one row per (entry region, delivering region): counts, sums and quantiles in microseconds.

    Where the clock error is unknown, `n_good_lo` counts none and `n_good_hi` all of the records: nothing is known.
    """
    totals = latency_hist.where(F.col("stage") == Stage.TOTAL.value)
    return _sums(totals).join(_quantiles(totals), PAIR, "left").orderBy(*PAIR)


def _sums(totals: DataFrame) -> DataFrame:
    return totals.groupBy(*PAIR).agg(
        F.sum("n").alias("n"),
        F.sum("n_good").alias("n_good"),
        F.sum(F.coalesce("n_good_lo", F.lit(0))).alias("n_good_lo"),
        F.sum(F.coalesce("n_good_hi", "n")).alias("n_good_hi"),
        F.sum(F.when(F.col("clock_err_us").isNull(), F.col("n")).otherwise(0)).alias("n_clock_unknown"),
        F.max("clock_err_us").alias("clock_err_us_max"),
        F.sum("lat_sum_us").alias("lat_sum_us"),
        F.max("lat_max_us").alias("lat_max_us"),
    )


def _quantiles(totals: DataFrame) -> DataFrame:
    """Return the quantiles of each pair: the first bucket whose running count reaches ceil(q * n)."""
    buckets = (
        totals.select(*PAIR, "lat_max_us", F.explode("hist").alias("bucket"))
        .groupBy(*PAIR, F.col("bucket.b").alias("b"))
        .agg(F.sum("bucket.n").alias("count"), F.max("lat_max_us").alias("lat_max_us"))
    )
    pair = Window.partitionBy(*PAIR)
    running = pair.orderBy("b").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = buckets.select(
        *PAIR,
        "b",
        F.sum("count").over(running).alias("seen"),
        F.sum("count").over(pair).alias("total"),
        F.max("lat_max_us").over(pair).alias("longest_us"),
    )
    return ranked.groupBy(*PAIR).agg(
        *(
            F.least(
                bucket_mid(F.min(F.when(F.col("seen") >= F.ceil(F.lit(q) * F.col("total")), F.col("b")))),
                F.max("longest_us").cast("double"),
            ).alias(quantile_column(q))
            for q in QUANTILES
        )
    )
