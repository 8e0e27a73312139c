"""Rows of a batch -> what is counted of them. DataFrame in, small rows out; no state.

One query counts everything: each costs a second on a busy machine, however few rows there are.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import ProbeOutcome, Stage, TraceKind
from sla.live.requests_core import NAMES as REQUEST_NAMES
from sla.live.requests_core import RequestCounts, RequestMinute
from sla.live.state_core import MINUTE_S, BatchCounts, Counts, MinuteKey, Pair

# clock: brokers without traffic live too; outcome: gateways write nothing else.
KINDS: Final = (TraceKind.LATENCY_HIST, TraceKind.PROBE, TraceKind.CLOCK, TraceKind.OUTCOME)
_NS_PER_S: Final = 1_000_000_000
# Of one probe the first row counts: `late` follows a `lost`.
_BAD_PROBES: Final = (ProbeOutcome.LOST.value, ProbeOutcome.REFUSED.value)
_STREAM: Final = ("trace_kind", "trace_region", "trace_broker")
_KEYS: Final = (*_STREAM, "is_late", "minute_s", "origin", "dest", "region", "gateway", "op")
_SUMS: Final = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "lat_sum_us")


def prepared(rows: DataFrame, *, watermark_s: int) -> DataFrame:
    """Return rows of the stream with `moment_s`, `minute_s` and `is_late`: of a minute that was closed."""
    moment = (
        F.when(F.col("trace_kind").isin(TraceKind.LATENCY_HIST.value, TraceKind.OUTCOME.value), F.col("second"))
        .when(F.col("trace_kind") == TraceKind.PROBE.value, F.col("seq"))
        .otherwise(F.floor(F.col("t4_ns") / _NS_PER_S))
    )
    with_moment = rows.withColumn("moment_s", moment.cast("bigint"))
    with_minute = with_moment.withColumn("minute_s", F.col("moment_s") - F.pmod("moment_s", F.lit(MINUTE_S)))
    return with_minute.withColumn("is_late", _is_in_minutes() & (F.col("minute_s") + MINUTE_S <= F.lit(watermark_s)))


def _is_total() -> Column:
    return (F.col("trace_kind") == TraceKind.LATENCY_HIST.value) & (F.col("stage") == Stage.TOTAL.value)


def _is_in_minutes() -> Column:
    return _is_total() | (F.col("trace_kind") == TraceKind.PROBE.value)


def aggregated(rows: DataFrame) -> DataFrame:
    """Return per writer, kind, minute and what is counted there, and per bucket of histograms: sums and newest moment.

    Keys are null where they do not matter, so that rows fall together. What a row has once is added at one of its
    buckets.
    """
    is_request = F.col("trace_kind") == TraceKind.OUTCOME.value
    matters = {
        **dict.fromkeys(("origin", "dest"), _is_in_minutes()),
        **dict.fromkeys(("region", "gateway", "op"), is_request),
        "minute_s": _is_in_minutes() | is_request,
    }
    exploded = rows.select(
        *_STREAM,
        "is_late",
        "moment_s",
        *(F.when(condition, F.col(name)).alias(name) for name, condition in matters.items()),
        "n",
        "n_good",
        F.coalesce("n_good_lo", F.lit(0)).alias("n_good_lo"),
        F.coalesce("n_good_hi", "n").alias("n_good_hi"),
        F.when(F.col("clock_err_us").isNull(), F.col("n")).otherwise(0).alias("n_clock_unknown"),
        "lat_sum_us",
        "lat_max_us",
        "outcome",
        *REQUEST_NAMES,
        F.posexplode_outer(F.when(_is_total(), F.col("hist"))).alias("at", "bucket"),
    )
    is_first = F.coalesce(F.col("at"), F.lit(0)) == 0
    ones = {
        "rows": F.lit(1),
        "late_rows": F.col("is_late").cast("bigint"),
        "probes_ok": (F.col("outcome") == ProbeOutcome.OK.value).cast("bigint"),
        "probes_bad": F.col("outcome").isin(*_BAD_PROBES).cast("bigint"),
        **{name: F.col(name) for name in (*_SUMS, *REQUEST_NAMES)},
    }
    return exploded.groupBy(*_KEYS, F.col("bucket.b").alias("b")).agg(
        F.max("moment_s").alias("newest_s"),
        F.max("lat_max_us").alias("lat_max_us"),
        F.coalesce(F.sum("bucket.n"), F.lit(0)).alias("bucket_n"),
        *(F.coalesce(F.sum(F.when(is_first, value)), F.lit(0)).alias(name) for name, value in ones.items()),
    )


def count(rows: DataFrame) -> BatchCounts:
    """Return what is in prepared rows; runs one query."""
    read: Counter[str] = Counter()
    newest_s: dict[tuple[str, str], int] = {}
    minutes: dict[MinuteKey, Counts] = {}
    late: dict[Pair, Counts] = {}
    requests: dict[RequestMinute, RequestCounts] = {}
    late_rows = 0
    for row in aggregated(rows).collect():
        kind, stream = row["trace_kind"], f"{row['trace_region']}/{row['trace_broker']}"
        read[kind] += row["rows"]
        late_rows += row["late_rows"]
        newest_s[stream, kind] = max(newest_s.get((stream, kind), row["newest_s"]), row["newest_s"])
        if row["op"] is not None:
            key = (row["minute_s"], row["region"], row["gateway"], row["op"])
            requests.setdefault(key, RequestCounts()).add(RequestCounts(*(row[name] for name in REQUEST_NAMES)))
        elif row["minute_s"] is not None:
            pair = (row["origin"], row["dest"])
            of_pair = (
                late.setdefault(pair, Counts())
                if row["is_late"]
                else minutes.setdefault((row["minute_s"], *pair), Counts())
            )
            of_pair.add(_counts(row, kind))
    return BatchCounts(
        rows=dict(sorted(read.items())),
        newest_s=newest_s,
        minutes=minutes,
        late=late,
        late_rows=late_rows,
        requests=requests,
    )


def _counts(row: Any, kind: str) -> Counts:
    if kind == TraceKind.PROBE.value:
        return Counts(probes_ok=row["probes_ok"], probes_bad=row["probes_bad"])
    return Counts(
        **{name: row[name] for name in _SUMS},
        lat_max_us=row["lat_max_us"],
        hist={} if row["b"] is None else {row["b"]: row["bucket_n"]},
    )
