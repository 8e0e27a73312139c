"""Rows of a batch -> what is counted of them. DataFrame in, small rows out; no state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import ProbeOutcome, Stage, TraceKind
from sla.live.state_core import MINUTE_S, BatchCounts, Counts, MinuteKey, Pair

KINDS: Final = (TraceKind.LATENCY_HIST, TraceKind.PROBE, TraceKind.CLOCK)  # clock: brokers without traffic live too
_NS_PER_S: Final = 1_000_000_000
# Of one probe the first row counts: `late` follows a `lost`.
_BAD_PROBES: Final = (ProbeOutcome.LOST.value, ProbeOutcome.REFUSED.value)
_KEYS: Final = ("is_late", "minute_s", "origin", "dest")


def prepared(rows: DataFrame, *, watermark_s: int) -> DataFrame:
    """Return rows of the stream with `moment_s`, `minute_s` and `is_late`: of a minute that was closed."""
    moment = (
        F.when(F.col("trace_kind") == TraceKind.LATENCY_HIST.value, F.col("second"))
        .when(F.col("trace_kind") == TraceKind.PROBE.value, F.col("seq"))
        .otherwise(F.floor(F.col("t4_ns") / _NS_PER_S))
    )
    with_moment = rows.withColumn("moment_s", moment.cast("bigint"))
    with_minute = with_moment.withColumn("minute_s", F.col("moment_s") - F.pmod("moment_s", F.lit(MINUTE_S)))
    is_counted = _is_total() | (F.col("trace_kind") == TraceKind.PROBE.value)
    return with_minute.withColumn("is_late", is_counted & (F.col("minute_s") + MINUTE_S <= F.lit(watermark_s)))


def _is_total() -> Column:
    return (F.col("trace_kind") == TraceKind.LATENCY_HIST.value) & (F.col("stage") == Stage.TOTAL.value)


def streams(rows: DataFrame) -> DataFrame:
    """Return (trace_kind, trace_region, trace_broker, rows, late_rows, newest_s)."""
    return rows.groupBy("trace_kind", "trace_region", "trace_broker").agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("is_late").cast("bigint")).alias("late_rows"),
        F.max("moment_s").alias("newest_s"),
    )


def latencies(rows: DataFrame) -> DataFrame:
    """Return per (is_late, minute, pair) and bucket: its records, and at one bucket of each row the row's counts."""
    exploded = rows.where(_is_total()).select(
        *_KEYS,
        "n",
        "n_good",
        F.coalesce("n_good_lo", F.lit(0)).alias("n_good_lo"),
        F.coalesce("n_good_hi", "n").alias("n_good_hi"),
        F.when(F.col("clock_err_us").isNull(), F.col("n")).otherwise(0).alias("n_clock_unknown"),
        "lat_sum_us",
        "lat_max_us",
        F.posexplode_outer("hist").alias("at", "bucket"),
    )
    is_first = F.coalesce(F.col("at"), F.lit(0)) == 0
    sums = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "lat_sum_us")
    return exploded.groupBy(*_KEYS, F.col("bucket.b").alias("b")).agg(
        F.sum("bucket.n").alias("bucket_n"),
        F.max("lat_max_us").alias("lat_max_us"),
        *(F.sum(F.when(is_first, F.col(name)).otherwise(0)).alias(name) for name in sums),
    )


def probes(rows: DataFrame) -> DataFrame:
    """Return (is_late, minute_s, origin, dest, probes_ok, probes_bad)."""
    is_bad = F.col("outcome").isin(*_BAD_PROBES)
    return (
        rows.where(F.col("trace_kind") == TraceKind.PROBE.value)
        .groupBy(*_KEYS)
        .agg(
            F.sum((F.col("outcome") == ProbeOutcome.OK.value).cast("bigint")).alias("probes_ok"),
            F.sum(is_bad.cast("bigint")).alias("probes_bad"),
        )
    )


def count(rows: DataFrame) -> BatchCounts:
    """Return what is in prepared rows; runs three queries."""
    found = [row.asDict() for row in streams(rows).collect()]
    minutes: dict[MinuteKey, Counts] = {}
    late: dict[Pair, Counts] = {}
    for key, counts in _counts(latencies(rows).collect(), probes(rows).collect()):
        is_late, minute_s, origin, dest = key
        target = (
            late.setdefault((origin, dest), Counts())
            if is_late
            else minutes.setdefault((minute_s, origin, dest), Counts())
        )
        target.add(counts)
    return BatchCounts(
        rows={
            kind: sum(row["rows"] for row in found if row["trace_kind"] == kind)
            for kind in sorted({row["trace_kind"] for row in found})
        },
        newest_s={
            (f"{row['trace_region']}/{row['trace_broker']}", row["trace_kind"]): row["newest_s"] for row in found
        },
        minutes=minutes,
        late=late,
        late_rows=sum(row["late_rows"] for row in found),
    )


def _counts(
    latency_rows: Iterable[Any], probe_rows: Iterable[Any]
) -> Iterable[tuple[tuple[bool, int, str, str], Counts]]:
    for row in latency_rows:
        yield (
            tuple(row[key] for key in _KEYS),
            Counts(
                n=row["n"],
                n_good=row["n_good"],
                n_good_lo=row["n_good_lo"],
                n_good_hi=row["n_good_hi"],
                n_clock_unknown=row["n_clock_unknown"],
                lat_sum_us=row["lat_sum_us"],
                lat_max_us=row["lat_max_us"],
                hist={} if row["b"] is None else {row["b"]: row["bucket_n"]},
            ),
        )
    for row in probe_rows:
        yield tuple(row[key] for key in _KEYS), Counts(probes_ok=row["probes_ok"], probes_bad=row["probes_bad"])
