"""The roll-up `throughput_minute`: records per second that a region was handed and was offered, each record once.

delivered  records above all that anybody in the region had been handed of their stream: who reads them as well, or
           again, adds nothing, however many groups there are; nor does what is handed over late, below that.
offered    records committed in the streams that somebody in the region read in that hour or in the QUIET_S before it:
           a region that is handed nothing for hours was offered what it missed. One that several rows name counts once,
           in the second of one of them: who begins to lead a stream names again what was perhaps not named before.

A ledger row never spans two seconds, so counting by `first_ns` is exact. Windows end at each second of the minute and
look back into the hour before, of which they only know its own rows; a minute in which nothing was delivered or offered
has no row.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import LedgerKind
from sla.tables import HOUR_S, MINUTE_S, STREAM
from sla.transforms.moments import NS_PER_S, hour_of, minute_of, second_of
from sla.transforms.positions import QUIET_S, SCOPE_UNIT
from sla.transforms.ranges import BEFORE, records

LOADED_PER_S: Final = 1_000
SHORT_WINDOW_S: Final = 10
LONG_WINDOW_S: Final = 60
_HOUR: Final = ["hour_s", "dest"]


def throughput_by_minute(ledger: DataFrame, carry: DataFrame | None, hours: list[int]) -> DataFrame:
    """Return `throughput_minute` of some hours.

    Args:
        ledger: rows of the hours and of the minute before each.
        carry: `sessions_hour` of the hour before the first; None: nothing is known from before.
        hours: starts of the hours, consecutive, s.
    """
    rows = ledger.withColumn("second", second_of("first_ns"))
    delivered = rows.where(F.col("kind") == LedgerKind.DELIVERED.value).withColumns(
        {"dest": F.col("region"), "own_hour_s": hour_of("second")}
    )
    committed = rows.where(F.col("kind") == LedgerKind.COMMIT.value)
    before = _before(delivered, carry, hours)
    read = delivered.select(F.col("own_hour_s").alias("hour_s"), "dest", *STREAM)
    if before is not None:
        read = read.unionByName(before.select(*_HOUR, *STREAM))
    offered = _once(_with_hours(committed, hours)).join(read.distinct(), ["hour_s", *STREAM], "inner")
    handed = _once_handed(_with_hours(_with_reach(delivered, before), hours))
    seconds = _per_second(handed, "delivered").unionByName(_per_second(offered, "offered"), allowMissingColumns=True)
    is_inside = hour_of("second") == F.col("hour_s")
    busy = seconds.where(is_inside).select(*_HOUR, minute_of("second").alias("ts_s")).distinct()
    grid = busy.select(*_HOUR, F.explode(F.sequence("ts_s", F.col("ts_s") + (MINUTE_S - 1))).alias("second"))
    whole = (
        seconds.unionByName(grid, allowMissingColumns=True)
        .groupBy(*_HOUR, "second")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("delivered", "offered")))
    )
    return _summary(whole)


def _before(delivered: DataFrame, carry: DataFrame | None, hours: list[int]) -> DataFrame | None:
    """Return per (hour_s, dest, STREAM) that was read in the QUIET_S before the hour how far: `reach_before`."""
    parts = []
    if len(hours) > 1:
        inside = delivered.where(F.col("own_hour_s").isin(hours)).groupBy("own_hour_s", "dest", *STREAM)
        parts.append(inside.agg(F.max("to_offset").alias("reach"), F.max("first_ns").alias("last_ns")))
    if carry is not None:
        units = carry.where(F.col("scope") == SCOPE_UNIT)
        no_hour = F.lit(None).cast("bigint").alias("own_hour_s")
        parts.append(units.select(no_hour, "dest", *STREAM, "reach", "last_ns"))
    if not parts:
        return None
    later = F.filter(
        F.array(*(F.lit(hour).cast("bigint") for hour in hours)),
        lambda hour: (
            (F.col("own_hour_s").isNull() | (hour > F.col("own_hour_s")))
            & (F.col("last_ns") >= (hour - QUIET_S) * NS_PER_S)
        ),
    )
    known = reduce(DataFrame.unionByName, parts).withColumn("hour_s", F.explode(later))
    return known.groupBy(*_HOUR, *STREAM).agg(F.max("reach").alias("reach_before"))


def _with_reach(delivered: DataFrame, before: DataFrame | None) -> DataFrame:
    """Add how far somebody in the region had been handed the stream: `reach` in that hour, `reach_before` it."""
    in_order = Window.partitionBy("own_hour_s", "dest", *STREAM).orderBy(
        "first_ns", "broker", "session_epoch", "deliver_seq"
    )
    reach = F.max("to_offset").over(in_order.rowsBetween(*BEFORE))
    rows = delivered.select(*STREAM, "dest", "own_hour_s", "second", "from_offset", "to_offset", reach.alias("reach"))
    if before is not None:
        known = before.withColumnRenamed("hour_s", "own_hour_s")
        return rows.join(known, ["own_hour_s", "dest", *STREAM], "left")
    return rows.withColumn("reach_before", F.lit(None).cast("bigint"))


def _once_handed(rows: DataFrame) -> DataFrame:
    """Cut off what somebody in the region had been handed already; rows of which nothing is left are left out.

    After `_with_hours`. What an hour looks back at is cut by the rows of the hour before alone: what was handed before
    these is known only where both hours are made together.
    """
    reach_before = F.when(F.col("hour_s") == F.col("own_hour_s"), F.col("reach_before"))
    fresh_from = F.greatest("from_offset", "reach", reach_before)  # skips null
    return rows.withColumn("from_offset", fresh_from).where(F.col("from_offset") < F.col("to_offset"))


def _once(committed: DataFrame) -> DataFrame:
    """Cut off what another row names, too; an orphan branch and what took its place are of two epochs.

    Within a (hour_s, STREAM, epoch), after `_with_hours`: then it does not matter which hours are made together.
    """
    in_order = Window.partitionBy("hour_s", *STREAM, "epoch").orderBy("from_offset", "first_ns")
    reach = F.max("to_offset").over(in_order.rowsBetween(*BEFORE))
    fresh_from = F.greatest("from_offset", reach)  # skips null
    rows = committed.select("hour_s", *STREAM, "second", "to_offset", fresh_from.alias("from_offset"))
    return rows.where(F.col("from_offset") < F.col("to_offset"))


def _with_hours(rows: DataFrame, hours: list[int]) -> DataFrame:
    """Add `hour_s`: the hour of the second, and the next one, whose windows look back at it."""
    own = hour_of("second")
    is_before = F.col("second") > own + (HOUR_S - LONG_WINDOW_S)
    both = F.when(is_before, F.array(own, own + HOUR_S)).otherwise(F.array(own))
    return rows.withColumn("hour_s", F.explode(both)).where(F.col("hour_s").isin(hours))


def _per_second(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy(*_HOUR, "second").agg(F.sum(records()).alias(name))


def _summary(seconds: DataFrame) -> DataFrame:
    ends = Window.partitionBy(*_HOUR).orderBy("second")

    def mean(name: str, length_s: int) -> Column:
        return F.sum(name).over(ends.rangeBetween(-(length_s - 1), 0)) / length_s

    is_loaded = F.col("offered") >= LOADED_PER_S
    return (
        seconds.withColumns(
            {
                "mean_10s": mean("delivered", SHORT_WINDOW_S),
                "offered_mean_10s": mean("offered", SHORT_WINDOW_S),
                "mean_60s": mean("delivered", LONG_WINDOW_S),
            }
        )
        .where(hour_of("second") == F.col("hour_s"))
        .groupBy(minute_of("second").alias("ts_s"), "dest")
        .agg(
            F.sum("delivered").alias("delivered"),
            F.sum("offered").alias("offered"),
            F.max("delivered").alias("max_1s"),
            F.max("mean_10s").alias("max_10s_mean"),
            F.max("offered_mean_10s").alias("offered_max_10s_mean"),
            F.max("mean_60s").alias("max_60s_mean"),
            F.count_if(is_loaded).alias("loaded_seconds"),
            F.count_if(is_loaded & (F.col("delivered") >= LOADED_PER_S)).alias("loaded_seconds_met"),
        )
    )
