"""The roll-up `integrity_hour`: what every consumer was handed, twice, too late or not at all.

Words (session, unit, reach: see sla.transforms.positions):

delivered         records handed over, repeats included.
dup_flagged       records that the unit had been handed before, and that say so (attempt > 1) or that another session of
                  the group had been handed (its position went back when the group was shared out anew).
dup_unflagged     those that the same session had been handed before. Decided first: a late repeat is not also late.
order_violations  records handed over for the first time (attempt 1) below the end of what the session had.
gaps, gap_records forward jumps of the unit, and the records they jumped over.
healed_records    of these, handed over after all, `settle_s` behind the hour at the latest; then `aborted` and
                  `expired`, which nobody shall see; then `lost`: known as committed in any region; `unexplained`: not.
pending           committed records above the highest reach of the consumer's units.

A gap and what became of it stand in the hour of the jumping row. DataFrame in, DataFrame out.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sla.tables import STREAM
from sla.transforms.positions import CONSUMER, stream_ends
from sla.transforms.ranges import records
from sla.transforms.repeats import gap_fates, repeats

_COUNTS = (
    "sessions", "delivered", "dup_flagged", "dup_unflagged", "gaps", "gap_records", "healed_records", "lost",
    "aborted", "expired", "order_violations",
)  # fmt: skip


def integrity_by_hour(
    marked_rows: DataFrame,
    later: DataFrame,
    ledger: DataFrame,
    carry: DataFrame | None,
    hours: list[int],
    *,
    settle_s: int,
    widths: DataFrame | None,
) -> DataFrame:
    """Return `integrity_hour` of some hours.

    Args:
        marked_rows: their deliveries, from sla.transforms.positions.marked; used several times: cached by the caller.
        later: deliveries from the end of the last hour to `settle_s` behind it.
        ledger: rows from an hour before the first hour to `settle_s` behind the last.
        carry: from sla.transforms.positions.live_carry; None: nothing is known from before.
        hours: starts of the hours, consecutive, s.
        widths: from sla.transforms.repeats.slot_widths; None when that has no rows: everything came in order, once.
    """
    facts = [_sums(marked_rows)]
    if widths is not None:
        facts.append(repeats(marked_rows, widths, carry))
        facts.append(gap_fates(marked_rows, later, widths, ledger, hours, settle_s=settle_s))
    keys = ["hour_s", *CONSUMER]
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), facts)
    rows = rows.withColumns({name: F.lit(0) for name in _COUNTS if name not in rows.columns})
    sums = rows.groupBy(*keys).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS), F.max("reach").alias("reach")
    )
    ends = committed_ends(ledger, carry, hours)
    explained = F.col("healed_records") + F.col("aborted") + F.col("expired") + F.col("lost")
    return (
        sums.join(ends, ["hour_s", *STREAM], "left")
        .withColumns(
            {
                "ts_s": F.col("hour_s"),
                "unexplained": F.col("gap_records") - explained,
                "pending": F.greatest(F.lit(0), F.coalesce(F.col("committed_end") - F.col("reach"), F.lit(0))),
            }
        )
        .drop("hour_s", "reach", "committed_end")
    )


def _sums(rows: DataFrame) -> DataFrame:
    jump = F.col("from_offset") - F.col("reach")
    return rows.groupBy("hour_s", *CONSUMER).agg(
        F.count_if("is_first").alias("sessions"),
        F.sum(records()).alias("delivered"),
        F.count_if(jump > 0).alias("gaps"),
        F.sum(F.when(jump > 0, jump).otherwise(0)).alias("gap_records"),
        F.max(F.greatest("to_offset", "reach")).alias("reach"),
    )


def committed_ends(ledger: DataFrame, carry: DataFrame | None, hours: list[int]) -> DataFrame:
    """Return `committed_end` per (hour_s, STREAM): the end of what any region knew as committed in or before it."""
    return stream_ends(ledger, carry, hours).select(
        F.col("ts_s").alias("hour_s"), *STREAM, F.col("reach").alias("committed_end")
    )
