"""Lost, duplicated and out-of-order records from the offset ledger. DataFrame in, DataFrame out.

Every session (one consumer position on one connection) is judged alone: two sessions may read the same records.
Inside a session, by the order of its deliveries (`deliver_seq`, never a clock):

duplicated     offsets handed over again. Decided first: a late duplicate is not also out of order.
out_of_order   offsets handed over for the first time after a higher one.
gap            offsets between the session's first and last that were never handed over. Those known to be committed
               (from the home's or any mirror's ledger) are lost; the others are unexplained.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import LedgerKind
from sla.transforms.throughput import STREAM, records

SESSION = ["region", "broker", "session_epoch", *STREAM]
FACTS = ["sessions", "delivered", "duplicated", "gap", "lost", "out_of_order"]
_BEFORE = (Window.unboundedPreceding, -1)


def integrity_by_stream(ledger: DataFrame) -> DataFrame:
    """Return one row per (topic, origin, partition, delivering region) with the sums of FACTS over its sessions."""
    delivered = _of_kind(ledger, LedgerKind.DELIVERED)
    known = merged_ranges(_of_kind(ledger, LedgerKind.COMMIT, LedgerKind.REPLICATED), STREAM)
    spans = _with_reach(delivered)
    facts = [_counts(spans), _lost(spans, known), _out_of_order(delivered)]
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), facts)
    keys = [*STREAM, "region"]
    return rows.groupBy(*keys).agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in FACTS)).orderBy(*keys)


def merged_ranges(ranges: DataFrame, keys: list[str]) -> DataFrame:
    """Return disjoint [from_offset, to_offset) per key that cover the same offsets."""
    before = Window.partitionBy(*keys).orderBy("from_offset", "to_offset").rowsBetween(*_BEFORE)
    through = Window.partitionBy(*keys).orderBy("from_offset", "to_offset").rowsBetween(_BEFORE[0], 0)
    is_apart = F.coalesce(F.col("from_offset") > F.max("to_offset").over(before), F.lit(False))
    return (
        ranges.select(*keys, "from_offset", "to_offset", is_apart.cast("int").alias("is_apart"))
        .withColumn("island", F.sum("is_apart").over(through))
        .groupBy(*keys, "island")
        .agg(F.min("from_offset").alias("from_offset"), F.max("to_offset").alias("to_offset"))
        .drop("island")
    )


def coverage_by_region(ledger: DataFrame) -> DataFrame:
    """Return committed, replicated and missing offsets per (topic, origin, mirror region)."""
    home = merged_ranges(_of_kind(ledger, LedgerKind.COMMIT), STREAM)
    mirrors = merged_ranges(_of_kind(ledger, LedgerKind.REPLICATED), [*STREAM, "region"])
    wanted = home.join(mirrors.select(*STREAM, "region").distinct(), STREAM, "inner")
    committed = wanted.groupBy(*STREAM, "region").agg(F.sum(records()).alias("committed"))
    replicated = mirrors.groupBy(*STREAM, "region").agg(F.sum(records()).alias("replicated"))
    shared = (
        _overlap(wanted, mirrors, [*STREAM, "region"]).groupBy(*STREAM, "region").agg(F.sum("shared").alias("shared"))
    )
    joined = committed.join(replicated, [*STREAM, "region"], "full").join(shared, [*STREAM, "region"], "left")
    keys = ["topic", "origin", "region"]
    return (
        joined.fillna(0, ["committed", "replicated", "shared"])
        .groupBy(*keys)
        .agg(
            F.sum("committed").alias("committed"),
            F.sum("replicated").alias("replicated"),
            F.sum(F.col("committed") - F.col("shared")).alias("missing"),
        )
        .orderBy(*keys)
    )


def _of_kind(ledger: DataFrame, *kinds: LedgerKind) -> DataFrame:
    return ledger.where(F.col("kind").isin([kind.value for kind in kinds]))


def _with_reach(delivered: DataFrame) -> DataFrame:
    """Add `reach`: how far the ranges of the session that start at or below this one go (null for the lowest)."""
    by_offset = Window.partitionBy(*SESSION).orderBy("from_offset", "deliver_seq").rowsBetween(*_BEFORE)
    return delivered.withColumn("reach", F.max("to_offset").over(by_offset))


def _counts(spans: DataFrame) -> DataFrame:
    fresh = F.greatest(F.lit(0), F.col("to_offset") - F.greatest("from_offset", "reach"))  # greatest skips null
    return spans.groupBy(*STREAM, "region").agg(
        F.count_if(F.col("reach").isNull()).alias("sessions"),
        F.sum(records()).alias("delivered"),
        F.sum(records() - fresh).alias("duplicated"),
    )


def _lost(spans: DataFrame, known: DataFrame) -> DataFrame:
    gaps = spans.where(F.col("from_offset") > F.col("reach")).select(
        *SESSION, F.col("reach").alias("from_offset"), F.col("from_offset").alias("to_offset")
    )
    keys = [*STREAM, "region"]
    lost = _overlap(gaps, known, STREAM).groupBy(*keys).agg(F.sum("shared").alias("lost"))
    return gaps.groupBy(*keys).agg(F.sum(records()).alias("gap")).join(lost, keys, "left")


def _overlap(ranges: DataFrame, disjoint: DataFrame, keys: list[str]) -> DataFrame:
    """Return `ranges` with `shared`, the offsets shared with each overlapping range of `disjoint`."""
    others = disjoint.select(*keys, F.col("from_offset").alias("other_from"), F.col("to_offset").alias("other_to"))
    pairs = ranges.join(others, keys, "inner")
    shared = F.least("to_offset", "other_to") - F.greatest("from_offset", "other_from")
    return pairs.withColumn("shared", shared).where(F.col("shared") > 0)


def _out_of_order(delivered: DataFrame) -> DataFrame:
    """Count first-time offsets below the running end. Only deliveries that start below it are looked at closely."""
    by_delivery = Window.partitionBy(*SESSION).orderBy("deliver_seq").rowsBetween(*_BEFORE)
    late = (
        delivered.withColumn("end_before", F.max("to_offset").over(by_delivery))
        .where(F.col("from_offset") < F.col("end_before"))
        .select(*SESSION, "deliver_seq", "from_offset", F.least("to_offset", "end_before").alias("to_offset"))
    )
    earlier = delivered.select(
        *SESSION,
        F.col("deliver_seq").alias("other_seq"),
        F.col("from_offset").alias("other_from"),
        F.col("to_offset").alias("other_to"),
    )
    seen_before = (
        late.join(earlier, SESSION, "inner")
        .where("other_seq < deliver_seq AND other_from < to_offset AND other_to > from_offset")
        .select(
            *SESSION,
            "deliver_seq",
            F.greatest("from_offset", "other_from").alias("from_offset"),
            F.least("to_offset", "other_to").alias("to_offset"),
        )
    )
    repeated = merged_ranges(seen_before, [*SESSION, "deliver_seq"])
    keys = [*STREAM, "region"]
    counted = late.groupBy(*keys).agg(F.sum(records()).alias("late"))
    again = repeated.groupBy(*keys).agg(F.sum(records()).alias("again"))
    first_time = F.col("late") - F.coalesce("again", F.lit(0))
    return counted.join(again, keys, "left").select(*keys, first_time.alias("out_of_order"))
