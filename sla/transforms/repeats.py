"""Repeated and late deliveries, and what became of gaps: the rows of a unit laid over each other.

Only rows that touch others are looked at closely. They are cut into slots of offsets, so that a queue with a million
rows is compared slot by slot and not each row with each other one. A slot is as wide as the unit's mean range, or as a
thousandth of its widest: no range is cut into more than PIECES_MAX.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import LedgerKind
from sla.tables import HOUR_S, STREAM
from sla.transforms.moments import NS_PER_S
from sla.transforms.positions import (
    CONSUMER,
    SCOPE_SESSION,
    SCOPE_UNIT,
    SESSION,
    UNIT,
    carried,
)
from sla.transforms.ranges import merged_ranges, records, union_sizes
from sla.transforms.streams import in_hour_contexts

SLOT_MIN: Final = 64
PIECES_MAX: Final = 1_000
_AT: Final = ["slot", *UNIT]


def slot_widths(marked_rows: DataFrame, later: DataFrame) -> DataFrame:
    """Return `width` per unit that has something to look at: a row that does not begin at its unit's reach.

    Args:
        marked_rows: from sla.transforms.positions.marked.
        later: deliveries behind its last hour.
    """
    gap = F.greatest(F.lit(0), F.col("from_offset") - F.coalesce("reach", "from_offset"))
    rows = marked_rows.select(
        *UNIT, records().alias("size"), gap.alias("gap"), (F.col("from_offset") != F.col("reach")).alias("is_apart")
    ).unionByName(later.select(*UNIT, records().alias("size"), F.lit(0).alias("gap"), F.lit(False).alias("is_apart")))
    widest = F.ceil(F.greatest(F.max("size"), F.max("gap")) / PIECES_MAX)
    return (
        rows.groupBy(*UNIT)
        .agg(
            F.greatest(F.lit(SLOT_MIN), F.ceil(F.avg("size")), widest).alias("width"),
            F.max("is_apart").alias("is_apart"),
        )
        .where("is_apart")
        .drop("is_apart")
    )


def _pieces(rows: DataFrame, widths: DataFrame) -> DataFrame:
    """Cut the ranges of rows at the bounds of their unit's slots; rows of other units are left out."""
    slots = F.expr("sequence(from_offset div width, (to_offset - 1) div width)")
    return (
        rows.join(widths, UNIT, "inner")
        .withColumn("slot", F.explode(slots))
        .withColumns(
            {
                "from_offset": F.greatest("from_offset", F.col("slot") * F.col("width")),
                "to_offset": F.least("to_offset", (F.col("slot") + 1) * F.col("width")),
            }
        )
    )


def repeats(marked_rows: DataFrame, widths: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Return `dup_flagged`, `dup_unflagged` and `order_violations` per (hour_s, CONSUMER)."""
    rows = _pieces(marked_rows, widths)
    backs = rows.where(F.col("from_offset") < F.col("reach")).withColumn("to_offset", F.least("to_offset", "reach"))
    earlier = rows.select(
        *_AT,
        F.col("position").alias("other_position"),
        F.col("broker").alias("other_broker"),
        F.col("session_epoch").alias("other_session"),
        F.col("from_offset").alias("other_from"),
        F.col("to_offset").alias("other_to"),
    )
    is_same = (F.col("other_broker") == F.col("broker")) & (F.col("other_session") == F.col("session_epoch"))
    in_hours = backs.join(earlier, _AT, "inner").where("other_position < position").withColumn("is_same", is_same)
    row = ["hour_s", *CONSUMER, *_others(CONSUMER), "slot", "position", "attempt", "session_reach"]
    columns = [*row, "from_offset", "to_offset", "other_from", "other_to", "is_same"]
    laid = in_hours.select(*columns)
    if carry is not None:
        # In a session that is its own unit everything was handed to itself.
        units = carried(carry, SCOPE_UNIT).withColumn("is_same", F.col("group") == "")
        sessions = carried(carry, SCOPE_SESSION).withColumn("is_same", F.lit(True))
        for owners, keys in ((units, UNIT), (sessions, SESSION)):
            laid = laid.unionByName(backs.join(_ranges_of(owners, keys), keys, "inner").select(*columns))
    overlaps = laid.where("other_from < to_offset AND other_to > from_offset").withColumns(
        {
            "from_offset": F.greatest("from_offset", "other_from"),
            "to_offset": F.least("to_offset", "other_to"),
        }
    )
    sizes = union_sizes(
        overlaps,
        row,
        {
            "again": (F.lit(True), None),
            "again_same": (F.col("is_same"), None),
            "again_below": (F.lit(True), F.coalesce("session_reach", F.lit(0))),
        },
    )
    keys = ["hour_s", *CONSUMER]
    is_retry = F.col("attempt") > 1
    counted = sizes.groupBy(*keys).agg(
        F.sum(F.when(is_retry, F.col("again")).otherwise(F.col("again") - F.col("again_same"))).alias("dup_flagged"),
        F.sum(F.when(is_retry, 0).otherwise(F.col("again_same"))).alias("dup_unflagged"),
        F.sum(F.when(is_retry, 0).otherwise(F.col("again_below"))).alias("again_below"),
    )
    below = F.greatest(F.lit(0), F.least("to_offset", "session_reach") - F.col("from_offset"))
    late = (
        backs.where((F.col("attempt") == 1) & F.col("session_reach").isNotNull())
        .groupBy(*keys)
        .agg(F.sum(below).alias("below"))
    )
    return (
        late.join(counted, keys, "full")
        .fillna(0, ["below", "dup_flagged", "dup_unflagged", "again_below"])
        .select(
            *keys, "dup_flagged", "dup_unflagged", (F.col("below") - F.col("again_below")).alias("order_violations")
        )
    )


def _others(keys: list[str]) -> list[str]:
    return [name for name in UNIT if name not in keys]


def _ranges_of(owners: DataFrame, keys: list[str]) -> DataFrame:
    return owners.select(*keys, "is_same", F.explode("ranges").alias("range")).select(
        *keys, "is_same", F.col("range.f").alias("other_from"), F.col("range.t").alias("other_to")
    )


def gap_fates(
    marked_rows: DataFrame, later: DataFrame, widths: DataFrame, ledger: DataFrame, hours: list[int], *, settle_s: int
) -> DataFrame:
    """Return `healed_records`, `aborted`, `expired`, `lost` per (hour_s, CONSUMER) with gaps; the rest is unexplained.

    A record that fits several counts as the first of them.

    Args:
        later: deliveries up to `settle_s` behind the last hour.
        ledger: rows from an hour before the first hour to `settle_s` behind the last.
    """
    gaps = marked_rows.where(F.col("from_offset") > F.col("reach")).select(
        "hour_s", *UNIT, F.col("reach").alias("from_offset"), F.col("from_offset").alias("to_offset")
    )
    pieces = _pieces(gaps, widths).withColumn("gap_from", F.col("from_offset"))
    columns = ["hour_s", *UNIT, "slot", "gap_from", "from_offset", "to_offset", "other_from", "other_to", "rank"]
    range_of_other = [F.col("from_offset").alias("other_from"), F.col("to_offset").alias("other_to")]
    delivered = _pieces(
        marked_rows.select(*UNIT, "first_ns", "from_offset", "to_offset").unionByName(
            later.select(*UNIT, "first_ns", "from_offset", "to_offset")
        ),
        widths,
    )
    healing = (
        pieces.join(delivered.select(*_AT, "first_ns", *range_of_other), _AT, "inner")
        .where(F.col("first_ns") < (F.col("hour_s") + HOUR_S + settle_s) * NS_PER_S)
        .withColumn("rank", F.lit(0))
    )
    named = merged_ranges(
        in_hour_contexts(ledger, hours, settle_s=settle_s)
        .withColumn("rank", _rank_of_kind())
        .where(F.col("rank").isNotNull())
        .join(gaps.select("hour_s", *STREAM).distinct(), ["hour_s", *STREAM], "left_semi"),
        ["hour_s", *STREAM, "rank"],
    )
    explained = pieces.join(named.select("hour_s", *STREAM, "rank", *range_of_other), ["hour_s", *STREAM], "inner")
    laid = (
        healing.select(*columns)
        .unionByName(explained.select(*columns))
        .where("other_from < to_offset AND other_to > from_offset")
        .withColumns(
            {
                "from_offset": F.greatest("from_offset", "other_from"),
                "to_offset": F.least("to_offset", "other_to"),
            }
        )
    )
    names = ("healed", "to_aborted", "to_expired", "to_known")
    sizes = union_sizes(
        laid,
        ["hour_s", *UNIT, "slot", "gap_from"],
        {name: (F.col("rank") <= rank, None) for rank, name in enumerate(names)},
    )
    keys = ["hour_s", *CONSUMER]
    return (
        sizes.groupBy(*keys)
        .agg(*(F.sum(name).alias(name) for name in names))
        .select(
            *keys,
            F.col("healed").alias("healed_records"),
            (F.col("to_aborted") - F.col("healed")).alias("aborted"),
            (F.col("to_expired") - F.col("to_aborted")).alias("expired"),
            (F.col("to_known") - F.col("to_expired")).alias("lost"),
        )
    )


def _rank_of_kind() -> Column:
    kind = F.col("kind")
    return (
        F.when(kind == LedgerKind.ABORTED.value, F.lit(1))
        .when(kind == LedgerKind.EXPIRED.value, F.lit(2))
        .when(kind.isin(LedgerKind.COMMIT.value, LedgerKind.REPLICATED.value), F.lit(3))
    )
