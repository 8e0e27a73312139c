"""The latency grid of georelay.trace.histogram as Spark column expressions. A test holds both equal."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

from georelay.trace.histogram import BUCKETS_PER_OCTAVE


def bucket_index(latency_us: Column) -> Column:
    """Return the bucket of a latency in microseconds."""
    return F.when(latency_us <= 1, F.lit(0)).otherwise(F.floor(F.log2(latency_us) * BUCKETS_PER_OCTAVE)).cast("int")


def bucket_lower(index: Column) -> Column:
    """Return the lowest latency of a bucket in microseconds."""
    return F.pow(F.lit(2.0), index / BUCKETS_PER_OCTAVE)


def bucket_upper(index: Column) -> Column:
    """Return the lowest latency above a bucket in microseconds."""
    return F.pow(F.lit(2.0), (index + 1) / BUCKETS_PER_OCTAVE)


def bucket_mid(index: Column) -> Column:
    """Return the middle of a bucket in microseconds."""
    return (bucket_lower(index) + bucket_upper(index)) / 2
