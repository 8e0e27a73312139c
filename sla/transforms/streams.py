"""The roll-ups `stream_hour` and `mirror_hour`: what was committed, and which region has it.

Sizes are those of unions: a range that two brokers name counts once. `missing` is what was committed in the hour and
that the region had not replicated when the settle time was over; a region counts as a mirror of a stream for 24 h
after it last replicated some of it, so that one that is cut off is missed.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import LedgerKind
from sla.tables import HOUR_S, STREAM
from sla.transforms.moments import NS_PER_S, hour_of_ns
from sla.transforms.ranges import merged_ranges, records, union_sizes


def streams_by_hour(ledger: DataFrame, hours: list[int]) -> DataFrame:
    """Return `stream_hour` of some hours."""
    keys = ["ts_s", *STREAM]
    rows = ledger.withColumn("ts_s", hour_of_ns("first_ns")).where(F.col("ts_s").isin(hours))
    rows = rows.where(F.col("kind").isin(LedgerKind.COMMIT.value, LedgerKind.ABORTED.value, LedgerKind.EXPIRED.value))
    columns = {
        "committed": LedgerKind.COMMIT,
        "aborted": LedgerKind.ABORTED,
        "expired": LedgerKind.EXPIRED,
    }
    sizes = union_sizes(rows, keys, {name: (_is(kind), None) for name, kind in columns.items()})
    epochs = rows.where(_is(LedgerKind.COMMIT)).groupBy(*keys).agg(F.countDistinct("epoch").alias("epochs"))
    return sizes.join(epochs, keys, "left").fillna(0, ["epochs"])


def _is(kind: LedgerKind) -> Column:
    return F.col("kind") == kind.value


def in_hour_contexts(ledger: DataFrame, hours: list[int], *, settle_s: int) -> DataFrame:
    """Add `hour_s`: every one of the hours that looks at the row, from an hour before it to `settle_s` behind it."""
    contexts = F.filter(
        F.array(*(F.lit(hour).cast("bigint") for hour in hours)),
        lambda hour: (
            (F.col("first_ns") >= (hour - HOUR_S) * NS_PER_S)
            & (F.col("first_ns") < (hour + HOUR_S + settle_s) * NS_PER_S)
        ),
    )
    return ledger.withColumn("hour_s", F.explode(contexts))


def mirrors_by_hour(ledger: DataFrame, known: DataFrame | None, hours: list[int], *, settle_s: int) -> DataFrame:
    """Return `mirror_hour` of some hours.

    Args:
        ledger: rows from an hour before the first hour to `settle_s` after the last.
        known: carried mirrors: STREAM, `dest`, `last_ns`; None: none.
    """
    pair = ["hour_s", *STREAM, "region"]
    rows = in_hour_contexts(ledger, hours, settle_s=settle_s)
    is_inside = hour_of_ns("first_ns") == F.col("hour_s")
    committed = merged_ranges(rows.where(_is(LedgerKind.COMMIT) & is_inside), ["hour_s", *STREAM])
    replicated = rows.where(_is(LedgerKind.REPLICATED))
    mirrors = mirrors_of(ledger, known, hours).unionByName(replicated.select(*pair)).distinct()
    wanted = committed.join(mirrors, ["hour_s", *STREAM], "inner")
    there = merged_ranges(replicated, pair)
    facts = [
        wanted.groupBy(*pair).agg(F.sum(records()).alias("committed")),
        shared_sizes(wanted, there, pair).withColumnRenamed("shared", "there"),
        merged_ranges(replicated.where(is_inside), pair).groupBy(*pair).agg(F.sum(records()).alias("replicated")),
    ]
    names = ("committed", "there", "replicated")
    sums = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), facts)
    return (
        sums.groupBy(*pair)
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names))
        .select(
            F.col("hour_s").alias("ts_s"),
            *STREAM,
            "region",
            "replicated",
            (F.col("committed") - F.col("there")).alias("missing"),
        )
    )


def mirrors_of(ledger: DataFrame, known: DataFrame | None, hours: list[int]) -> DataFrame:
    """Return (hour_s, STREAM, region) of every mirror that an hour takes over from those before it."""
    seen = ledger.where(_is(LedgerKind.REPLICATED)).select(*STREAM, "region", F.col("first_ns").alias("last_ns"))
    if known is not None:
        seen = seen.unionByName(known.select(*STREAM, F.col("dest").alias("region"), "last_ns"))
    starts = F.array(*(F.lit(hour).cast("bigint") for hour in hours))
    taken = F.filter(
        starts,
        lambda hour: (F.col("last_ns") < hour * NS_PER_S) & (F.col("last_ns") >= (hour - 24 * HOUR_S) * NS_PER_S),
    )
    last = seen.groupBy(*STREAM, "region", hour_of_ns("last_ns").alias("at_s")).agg(F.max("last_ns").alias("last_ns"))
    return last.select(F.explode(taken).alias("hour_s"), *STREAM, "region").distinct()


def shared_sizes(ranges: DataFrame, disjoint: DataFrame, keys: list[str]) -> DataFrame:
    """Return per key `shared`: the offsets of `ranges` (disjoint too) that are in `disjoint`."""
    others = disjoint.select(*keys, F.col("from_offset").alias("other_from"), F.col("to_offset").alias("other_to"))
    shared = F.least("to_offset", "other_to") - F.greatest("from_offset", "other_from")
    return (
        ranges.join(others, keys, "inner")
        .withColumn("shared", shared)
        .where(F.col("shared") > 0)
        .groupBy(*keys)
        .agg(F.sum("shared").alias("shared"))
    )
