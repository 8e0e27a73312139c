"""The roll-up `account_hour`: which offsets the ledgers name, and how many records were refused. DataFrames only.

Per hour, kind, stream, region and group the union of the ranges, which is one range when nothing is missing: so the
account of a month is added up from few rows. Kinds that name no offsets have `records` and no range.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import LedgerKind
from sla.tables import HOUR_S, STREAM
from sla.transforms.moments import hour_of_ns
from sla.transforms.ranges import merged_ranges

ACCOUNT: Final = ["kind", *STREAM, "region", "group"]
RANGES_MAX: Final = 10_000  # per account of a period; of more only their hull is told
_RANGES: Final = "array<struct<f: bigint, t: bigint>>"
_COUNTED: Final = (LedgerKind.REFUSED.value, LedgerKind.UNDECIDED.value)


def accounts_by_hour(ledger: DataFrame, hours: list[int]) -> DataFrame:
    """Return `account_hour` of some hours.

    Args:
        ledger: with the rows of these hours; others are passed over.
    """
    rows = ledger.withColumns({"ts_s": hour_of_ns("first_ns"), "group": F.coalesce("group", F.lit(""))})
    rows = rows.where(F.col("ts_s").isin(hours))
    keys = ["ts_s", *ACCOUNT]
    is_counted = F.col("kind").isin(*_COUNTED)
    ranges = _collected(merged_ranges(rows.where(~is_counted), keys), keys)
    counts = rows.where(is_counted).groupBy(*keys).agg(F.coalesce(F.sum("records"), F.lit(0)).alias("records"))
    return ranges.unionByName(counts.withColumn("ranges", F.array().cast(_RANGES)))


def account_sums(rows: DataFrame, *, start_s: int, end_s: int) -> DataFrame:
    """Return the facts of accounts: one row per (is_inside, ACCOUNT).

    Args:
        rows: of account_hour, from an hour before the period to an hour behind it.
        start_s, end_s: of the period; `is_inside` tells its hours from the others.
    """
    is_inside = (F.col("ts_s") >= start_s) & (F.col("ts_s") < end_s)
    keys = ["is_inside", *ACCOUNT]
    inside = rows.where((F.col("ts_s") >= start_s - HOUR_S) & (F.col("ts_s") < end_s + HOUR_S))
    inside = inside.withColumn("is_inside", is_inside)
    single = inside.select(*keys, F.explode("ranges").alias("range")).select(
        *keys, F.col("range.f").alias("from_offset"), F.col("range.t").alias("to_offset")
    )
    ranges = _collected(merged_ranges(single, keys), keys).drop("records")
    sums = inside.groupBy(*keys).agg(F.sum("records").alias("records"))
    nothing = F.array().cast(_RANGES)
    hull = F.array(F.struct(F.col("ranges")[0]["f"].alias("f"), F.element_at("ranges", -1)["t"].alias("t")))
    is_whole = F.coalesce(F.size("ranges") <= RANGES_MAX, F.lit(True))
    return sums.join(ranges, keys, "left").select(
        *keys,
        "records",
        is_whole.alias("is_whole"),
        F.when(is_whole, F.coalesce("ranges", nothing)).otherwise(hull.cast(_RANGES)).alias("ranges"),
    )


def _collected(ranges: DataFrame, keys: list[str]) -> DataFrame:
    pair = F.struct(F.col("from_offset").alias("f"), F.col("to_offset").alias("t"))
    return ranges.groupBy(*keys).agg(
        F.sum(F.col("to_offset") - F.col("from_offset")).alias("records"),
        F.array_sort(F.collect_list(pair)).alias("ranges"),
    )
