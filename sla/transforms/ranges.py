"""Arithmetic of offset ranges [from_offset, to_offset): unions and their sizes. DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

BEFORE: Final = (Window.unboundedPreceding, -1)
THROUGH: Final = (Window.unboundedPreceding, Window.currentRow)


def records() -> Column:
    """Return the records of a range."""
    return F.col("to_offset") - F.col("from_offset")


def merged_ranges(ranges: DataFrame, keys: Sequence[str], largest: Sequence[str] = ()) -> DataFrame:
    """Return disjoint ranges per key that cover the same offsets; ranges that touch are one.

    Args:
        largest: columns of which each range keeps the largest value.
    """
    by_offset = Window.partitionBy(*keys).orderBy("from_offset", "to_offset")
    end_before = F.max("to_offset").over(by_offset.rowsBetween(*BEFORE))
    is_apart = F.coalesce(F.col("from_offset") > end_before, F.lit(False))
    return (
        ranges.select(*keys, *largest, "from_offset", "to_offset", is_apart.cast("int").alias("is_apart"))
        .withColumn("island", F.sum("is_apart").over(by_offset.rowsBetween(*THROUGH)))
        .groupBy(*keys, "island")
        .agg(
            F.min("from_offset").alias("from_offset"),
            F.max("to_offset").alias("to_offset"),
            *(F.max(name).alias(name) for name in largest),
        )
        .drop("island")
    )


def union_sizes(ranges: DataFrame, keys: Sequence[str], sizes: Mapping[str, tuple[Column, Column | None]]) -> DataFrame:
    """Return one row per key with the sizes of unions of some of its ranges.

    Args:
        sizes: name -> (which ranges, where the union ends: offsets from there on do not count; None: nowhere).
    """
    before = Window.partitionBy(*keys).orderBy("from_offset", "to_offset").rowsBetween(*BEFORE)
    added = {}
    for name, (is_in, end) in sizes.items():
        reach = F.max(F.when(is_in, F.col("to_offset"))).over(before)
        to_offset = F.col("to_offset") if end is None else F.least(F.col("to_offset"), end)
        fresh = F.greatest(F.lit(0), to_offset - F.greatest(F.col("from_offset"), reach))  # greatest skips null
        added[name] = F.when(is_in, fresh).otherwise(0)
    return ranges.withColumns(added).groupBy(*keys).agg(*(F.sum(name).alias(name) for name in added))
