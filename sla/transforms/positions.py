"""Consumers' positions: every delivery beside how far its session and its unit had come before, and what is carried.

A session is one consumer position on one connection; its deliveries are ordered by the hour of `first_ns` and then by
`deliver_seq`, never by time. A unit is what shall be handed each record once: a session, or, where a group reads (a
queue), all sessions of the group in a region. Sessions of one group are ordered among each other by time: by the
largest `first_ns` that the session had shown in the hour up to the row, then by broker, session and `deliver_seq`.

`reach` is the end of the highest range so far; the first row of a unit sets it. A unit that is quiet for QUIET_S is
forgotten and begins anew. Of a group only the newest sessions are known by themselves, SESSIONS_CARRIED_MAX of them;
what older ones were handed stays known of the unit.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import LedgerKind
from sla.tables import HOUR_S, STREAM
from sla.transforms.moments import NS_PER_S, hour_of_ns
from sla.transforms.ranges import BEFORE, merged_ranges

CONSUMER: Final = ["origin", "dest", "topic", "partition", "group"]
UNIT: Final = [*CONSUMER, "unit_broker", "unit_session"]
SESSION: Final = [*UNIT, "broker", "session_epoch"]
QUIET_S: Final = 24 * HOUR_S
SESSIONS_CARRIED_MAX: Final = 10_000  # per consumer, newest first
RANGES_CARRIED_MAX: Final = 10_000  # per unit; what lies below the newest of them counts as delivered
NO_SESSION: Final = -1
SCOPE_UNIT: Final = "unit"
SCOPE_SESSION: Final = "session"
SCOPE_STREAM: Final = "stream"
SCOPE_MIRROR: Final = "mirror"
_ROW: Final = ["hour_s", *UNIT, "broker", "session_epoch", "deliver_seq"]


def deliveries_of(ledger: DataFrame) -> DataFrame:
    """Return the delivered ranges with `hour_s`, UNIT and SESSION columns."""
    rows = ledger.where(F.col("kind") == LedgerKind.DELIVERED.value).withColumns(
        {"group": F.coalesce("group", F.lit("")), "dest": F.col("region"), "hour_s": hour_of_ns("first_ns")}
    )
    return with_unit(rows).select(*_ROW, "attempt", "first_ns", "from_offset", "to_offset")


def with_unit(rows: DataFrame) -> DataFrame:
    """Add the columns that name the unit of a session."""
    is_single = F.col("group") == ""
    return rows.withColumns(
        {
            "unit_broker": F.when(is_single, F.col("broker")).otherwise(F.lit("")),
            "unit_session": F.when(is_single, F.col("session_epoch")).otherwise(F.lit(NO_SESSION).cast("bigint")),
        }
    )


def carried(carry: DataFrame, scope: str) -> DataFrame:
    """Return the rows of `sessions_hour` of one scope."""
    return with_unit(carry.where(F.col("scope") == scope))


def with_until(carry: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Add `until_s` to `sessions_hour`: from when on a unit or session is forgotten, null when it is not.

    That is the hour in which it came back, when it was quiet for QUIET_S then; in the hours before, it is known.
    """
    rows = carry.where(~F.col("scope").isin(SCOPE_UNIT, SCOPE_SESSION)).withColumn("until_s", _never())
    for scope, keys in ((SCOPE_UNIT, UNIT), (SCOPE_SESSION, SESSION)):
        back = deliveries.groupBy(*keys).agg(F.min("hour_s").alias("back_s"))
        is_quiet = F.col("last_ns") < (F.col("back_s") - QUIET_S) * NS_PER_S
        owners = carried(carry, scope).join(back, keys, "left").withColumn("until_s", F.when(is_quiet, F.col("back_s")))
        rows = rows.unionByName(owners.select(*carry.columns, "until_s"))
    return rows


def live_carry(carry: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return `sessions_hour` without the units and sessions that were quiet for QUIET_S when they came back."""
    return live(with_until(carry, deliveries))


def live(carry: DataFrame) -> DataFrame:
    """Return the rows of `with_until` that are never forgotten."""
    return carry.where("until_s IS NULL").drop("until_s")


def _never() -> Column:
    return F.lit(None).cast("bigint")


def marked(deliveries: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Add to every delivery where its unit and its session stood.

    Added: `position` (order in the unit), `reach` and `session_reach` (null: nothing before), `is_first` (of its
    session in its hour).

    Args:
        deliveries: of the hours that are rolled up, and nothing later.
        carry: from `live_carry`; None: nothing is known from before.
    """
    if carry is None:
        nothing = F.lit(None).cast("bigint")
        rows = deliveries.withColumns({"carried_reach": nothing, "carried_session_reach": nothing})
    else:
        units = carried(carry, SCOPE_UNIT).select(*UNIT, F.col("reach").alias("carried_reach"))
        sessions = carried(carry, SCOPE_SESSION).select(*SESSION, F.col("reach").alias("carried_session_reach"))
        rows = deliveries.join(units, UNIT, "left").join(sessions, SESSION, "left")
    by_session = Window.partitionBy(*SESSION).orderBy("hour_s", "deliver_seq")
    seen = rows.withColumns(
        {
            "session_end": F.max("to_offset").over(by_session.rowsBetween(*BEFORE)),
            "order_ns": F.max("first_ns").over(by_session.rowsBetween(Window.unboundedPreceding, 0)),
            "is_first": F.coalesce(F.lag("hour_s").over(by_session) != F.col("hour_s"), F.lit(True)),
        }
    )
    by_unit = Window.partitionBy(*UNIT).orderBy("hour_s", "order_ns", "broker", "session_epoch", "deliver_seq")
    of_session = F.when(F.col("group") == "", F.col("carried_reach")).otherwise(F.col("carried_session_reach"))
    return seen.withColumns(
        {
            "position": F.row_number().over(by_unit),
            "reach": F.greatest(F.max("to_offset").over(by_unit.rowsBetween(*BEFORE)), "carried_reach"),  # skips null
            "session_reach": F.greatest("session_end", of_session),
        }
    ).drop("carried_reach", "carried_session_reach", "session_end", "order_ns")


def carry_of(
    marked_rows: DataFrame, ledger: DataFrame, carry: DataFrame | None, hours: list[int], *, has_groups: bool = True
) -> DataFrame:
    """Return `sessions_hour` of some hours: what is known at the end of each.

    Args:
        marked_rows: from `marked`, of these hours.
        ledger: rows of these hours at least.
        carry: `sessions_hour` of the hour before the first, from `with_until` where units may be forgotten; None:
            nothing is known from before.
        has_groups: whether any group reads; without one there are no sessions to keep beside the units.
    """

    def before(scope: str) -> DataFrame | None:
        return None if carry is None else carried(carry, scope)

    names = ["ts_s", "scope", *CONSUMER, "broker", "session_epoch", "reach", "ranges", "last_ns"]
    units = _states(marked_rows, before(SCOPE_UNIT), UNIT, hours).withColumns(
        {"scope": F.lit(SCOPE_UNIT), "broker": F.col("unit_broker"), "session_epoch": F.col("unit_session")}
    )
    replicated = ledger.where(F.col("kind") == LedgerKind.REPLICATED.value).withColumn("dest", F.col("region"))
    mirrors = _ends(replicated, before(SCOPE_MIRROR), [*STREAM, "dest"], hours)
    streams = stream_ends(ledger, carry, hours)
    rows = [
        units,
        _nameless(streams.withColumns({"scope": F.lit(SCOPE_STREAM), "dest": F.lit("")})),
        _nameless(mirrors.withColumn("scope", F.lit(SCOPE_MIRROR))),
    ]
    if has_groups:
        of_groups = marked_rows.where(F.col("group") != "")
        sessions = _states(of_groups, before(SCOPE_SESSION), SESSION, hours)
        rows.append(sessions.withColumn("scope", F.lit(SCOPE_SESSION)))
    everything = reduce(DataFrame.unionByName, [row.select(*names) for row in rows])
    newest = Window.partitionBy("ts_s", "scope", *CONSUMER).orderBy(F.desc("last_ns"), "broker", "session_epoch")
    return (
        everything.where(F.col("last_ns") >= (F.col("ts_s") + HOUR_S - QUIET_S) * NS_PER_S)
        .withColumn("rank", F.row_number().over(newest))
        .where(F.col("rank") <= SESSIONS_CARRIED_MAX)
        .drop("rank")
    )


def stream_ends(ledger: DataFrame, carry: DataFrame | None, hours: list[int]) -> DataFrame:
    """Return `reach` and `last_ns` per (ts_s, STREAM): how far a stream was committed at the end of each hour.

    Args:
        ledger: later rows than of these hours are passed over.
        carry: `sessions_hour` of the hour before the first; None: nothing is known from before.
    """
    is_known = F.col("kind").isin(LedgerKind.COMMIT.value, LedgerKind.REPLICATED.value)
    before = None if carry is None else carry.where(F.col("scope") == SCOPE_STREAM)
    return _ends(ledger.where(is_known), before, list(STREAM), hours)


def _nameless(rows: DataFrame) -> DataFrame:
    none = F.array().cast("array<struct<f: bigint, t: bigint>>")
    return rows.withColumns(
        {
            "group": F.lit(""),
            "broker": F.lit(""),
            "session_epoch": F.lit(NO_SESSION).cast("bigint"),
            "ranges": none,
        }
    )


def _at_ends(rows: DataFrame, hours: list[int]) -> DataFrame:
    """Repeat every row of an hour (null: before all) as `ts_s` for the end of each hour from it on, up to `until_s`."""
    starts = F.array(*(F.lit(hour).cast("bigint") for hour in hours))
    later = F.filter(starts, lambda hour: F.col("hour_s").isNull() | (hour >= F.col("hour_s")))
    if "until_s" in rows.columns:
        later = F.filter(later, lambda hour: F.col("until_s").isNull() | (hour < F.col("until_s")))
    return rows.withColumn("ts_s", F.explode(later))


def _states(rows: DataFrame, before: DataFrame | None, keys: list[str], hours: list[int]) -> DataFrame:
    """Return reach, ranges and last_ns per key at the end of each hour."""
    new = rows.select(*keys, "hour_s", "from_offset", "to_offset", F.col("first_ns").alias("last_ns"))
    islands = merged_ranges(new, [*keys, "hour_s"], largest=["last_ns"])
    if before is not None:
        no_hour, until = (
            _never().alias("hour_s"),
            "until_s" if "until_s" in before.columns else _never().alias("until_s"),
        )
        old = before.select(*keys, no_hour, F.explode("ranges").alias("range"), "last_ns", until).select(
            *keys,
            "hour_s",
            F.col("range.f").alias("from_offset"),
            F.col("range.t").alias("to_offset"),
            "last_ns",
            "until_s",
        )
        islands = islands.withColumn("until_s", _never()).unionByName(old)
    ranges = F.array_sort(F.collect_list(F.struct(F.col("from_offset").alias("f"), F.col("to_offset").alias("t"))))
    return (
        merged_ranges(_at_ends(islands, hours), ["ts_s", *keys], largest=["last_ns"])
        .groupBy("ts_s", *keys)
        .agg(F.max("to_offset").alias("reach"), ranges.alias("ranges"), F.max("last_ns").alias("last_ns"))
        .withColumn("ranges", _bounded("ranges"))
    )


def _bounded(name: str) -> Column:
    """Return at most RANGES_CARRIED_MAX ranges: the oldest are joined to one."""
    ranges = F.col(name)
    over = F.size(ranges) - RANGES_CARRIED_MAX
    oldest = F.struct(ranges[0]["f"].alias("f"), ranges[F.greatest(over, F.lit(0))]["t"].alias("t"))
    newest = F.slice(ranges, F.greatest(over, F.lit(0)) + 2, F.lit(RANGES_CARRIED_MAX))
    return F.when(over > 0, F.concat(F.array(oldest), newest)).otherwise(ranges)


def _ends(rows: DataFrame, before: DataFrame | None, keys: list[str], hours: list[int]) -> DataFrame:
    """Return the highest end and the last time per key at the end of each hour."""
    new = rows.groupBy(*keys, hour_of_ns("first_ns").alias("hour_s")).agg(
        F.max("to_offset").alias("reach"), F.max("first_ns").alias("last_ns")
    )
    if before is not None:
        new = new.unionByName(before.select(*keys, F.lit(None).cast("bigint").alias("hour_s"), "reach", "last_ns"))
    return (
        _at_ends(new, hours)
        .groupBy("ts_s", *keys)
        .agg(F.max("reach").alias("reach"), F.max("last_ns").alias("last_ns"))
    )
