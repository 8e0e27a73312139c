"""The roll-ups `minute` and `hour`: latency histograms merged by plain sums. DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sla.tables import LATENCY_KEYS
from sla.transforms.moments import hour_of, minute_of

_SUMS: Final = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "n_clock_revised", "lat_sum_us")
_LARGEST: Final = ("lat_max_us", "clock_err_max_us")


def latency_by_minute(revised: DataFrame) -> DataFrame:
    """Return `minute` from the rows that sla.transforms.clock.revised made."""
    rows = revised.withColumns({"ts_s": minute_of("second"), "clock_err_max_us": F.col("clock_err_us")})
    return _merged(rows)


def latency_by_hour(minutes: DataFrame) -> DataFrame:
    """Return `hour` from rows of `minute`."""
    return _merged(minutes.withColumn("ts_s", hour_of("ts_s")))


def _merged(rows: DataFrame) -> DataFrame:
    """Sum rows of equal keys.

    One shuffle: first by key and bucket, then by key. What is not in a bucket is summed at the first bucket only.
    """
    keys = list(LATENCY_KEYS)
    buckets = rows.select(*keys, *_SUMS, *_LARGEST, F.posexplode_outer("hist").alias("at", "bucket"))
    is_first = F.coalesce(F.col("at"), F.lit(0)) == 0
    by_bucket = (
        buckets.repartition(*keys)
        .groupBy(*keys, F.col("bucket.b").alias("b"))
        .agg(
            F.sum("bucket.n").alias("bucket_n"),
            *(F.sum(F.when(is_first, F.col(name)).otherwise(0)).alias(name) for name in _SUMS),
            *(F.max(name).alias(name) for name in _LARGEST),
        )
    )
    bucket = F.when(F.col("b").isNotNull(), F.struct("b", F.col("bucket_n").alias("n")))  # collect_list skips null
    return by_bucket.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in _SUMS),
        *(F.max(name).alias(name) for name in _LARGEST),
        F.array_sort(F.collect_list(bucket)).alias("hist"),
    )
