"""From roll-ups to the sums of a period. DataFrame in, DataFrame out; columns are the fields of sla.judging.facts.

Every function sums the rows of two periods at once: `is_now` is true for rows from `split_s` on. What a caller passes
must not reach beyond the two.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import WindowSpec

from georelay.trace.kinds import Stage
from sla.tables import MINUTE_S, STREAM
from sla.targets import MinutesTarget, ThroughputTarget

PAIR = ["origin", "dest"]
READER = [*STREAM, "dest", "group"]
_COUNTS = ["n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "n_clock_revised", "lat_sum_us"]
_PROBES = ["probes", "probes_ok", "probes_late", "probes_lost", "probes_refused"]
_REQUESTS = ["attempts", "ok", "client_error", "server_error", "timeout", "offered"]
_INTEGRITY = [
    "sessions", "delivered", "dup_flagged", "dup_unflagged", "gaps", "gap_records", "healed_records", "lost",
    "unexplained", "aborted", "expired", "order_violations",
]  # fmt: skip


def with_is_now(rows: DataFrame, split_s: int) -> DataFrame:
    """Add `is_now`."""
    return rows.withColumn("is_now", F.col("ts_s") >= split_s)


def latency_sums(rows: DataFrame, keys: list[str]) -> DataFrame:
    """Return per keys the sums of latency rows (minute or hour) and their merged histogram, buckets ascending."""
    per_bucket = (
        rows.select(*keys, *_COUNTS, "lat_max_us", "clock_err_max_us", F.posexplode_outer("hist").alias("at", "bucket"))
        .groupBy(*keys, F.col("bucket.b").alias("b"))
        .agg(
            F.sum("bucket.n").alias("in_bucket"),
            # Each row is repeated once per bucket: its counts are taken with the first.
            *(F.sum(F.when(F.coalesce("at", F.lit(0)) == 0, F.col(name))).alias(name) for name in _COUNTS),
            F.max("lat_max_us").alias("lat_max_us"),
            F.max("clock_err_max_us").alias("clock_err_max_us"),
        )
    )
    buckets = F.collect_list(F.when(F.col("b").isNotNull(), F.struct("b", F.col("in_bucket").alias("n"))))
    return per_bucket.groupBy(*keys).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS),
        F.max("lat_max_us").alias("lat_max_us"),
        F.max("clock_err_max_us").alias("clock_err_max_us"),
        F.array_sort(buckets).alias("hist"),
    )


def topic_homes(rows: DataFrame) -> DataFrame:
    """Return per (is_now, origin, topic, home) the records `n` that were committed there, and whether all were.

    Of records whose topic nobody wrote down (''), which may be of many topics, no home is the only one.
    """
    commits = rows.where((F.col("stage") == Stage.COMMIT.value) & (F.col("n") > 0))
    sums = commits.groupBy("is_now", "origin", "topic", F.col("dest").alias("home")).agg(F.sum("n").alias("n"))
    homes = Window.partitionBy("is_now", "origin", "topic")
    return sums.withColumn("is_only", (F.count(F.lit(1)).over(homes) == 1) & (F.col("topic") != ""))


def home_sums(homes: DataFrame) -> DataFrame:
    """Return per (is_now, origin, home, is_only) the records of all topics."""
    return homes.groupBy("is_now", "origin", "home", "is_only").agg(F.sum("n").alias("n"))


def with_home(rows: DataFrame, homes: DataFrame, keys: list[str]) -> DataFrame:
    """Add `home` to latency rows of the stage total: the only home of their topic when it is a third region.

    Args:
        homes: (*keys, origin, topic, home), one row for each topic that has only one.
        keys: what tells periods apart, if anything.
    """
    known = F.broadcast(homes.select(*keys, "origin", "topic", F.col("home").alias("only_home")))
    is_third = (F.col("only_home") != F.col("origin")) & (F.col("only_home") != F.col("dest"))
    home = F.when(is_third & (F.col("stage") == Stage.TOTAL.value), F.col("only_home")).otherwise("")
    return (
        rows.join(known, [*keys, "origin", "topic"], "left")
        .withColumn("home", F.coalesce(home, F.lit("")))
        .drop("only_home")
    )


def throughput_sums(rows: DataFrame, target: ThroughputTarget, missing: DataFrame, *, end_s: int) -> DataFrame:
    """Return per (is_now, dest) totals, best windows and how loaded minutes were met (see sla.judging.throughput).

    Args:
        rows: may reach beyond the end: the minute behind a loaded one may meet it.
        missing: share of the ledger's rows that are missing, `missing_share` per (is_now, dest).
        end_s: minutes from here on are not counted.
    """
    is_offered = F.col("offered_max_10s_mean") >= target.records_per_s * target.offered_margin
    is_delivered = F.col("max_10s_mean") >= target.records_per_s
    seen = 1 - F.coalesce("missing_share", F.lit(0.0))
    flagged = rows.join(F.broadcast(missing), ["is_now", "dest"], "left").withColumns(
        {
            "is_loaded": is_offered,
            "is_met_here": is_delivered,
            "is_perhaps_here": F.col("max_10s_mean") >= target.records_per_s * seen,
        }
    )
    sums = (
        flagged.where(F.col("ts_s") < end_s)
        .groupBy("is_now", "dest")
        .agg(
            F.sum("delivered").alias("delivered"),
            F.sum("offered").alias("offered"),
            F.count_if(F.col("delivered") > 0).alias("active_minutes"),
            F.max("max_1s").alias("max_1s"),
            F.max("max_10s_mean").alias("max_10s_mean"),
            F.max("offered_max_10s_mean").alias("offered_max_10s_mean"),
            F.max("max_60s_mean").alias("max_60s_mean"),
            F.sum("loaded_seconds").alias("loaded_seconds"),
            F.sum("loaded_seconds_met").alias("loaded_seconds_met"),
        )
    )
    loaded = _loaded_minutes(flagged).where(F.col("ts_s") < end_s)
    counts = loaded.groupBy("is_now", "dest").agg(
        F.count_if("is_loaded").alias("loaded_minutes"),
        F.count_if(F.col("is_loaded") & F.col("is_met")).alias("loaded_minutes_met"),
        F.count_if(F.col("is_loaded") & F.col("is_perhaps")).alias("loaded_minutes_perhaps_met"),
    )
    names = [name for name in counts.columns if name not in ("is_now", "dest")]
    return sums.join(F.broadcast(counts), ["is_now", "dest"], "left").fillna(0, names)


def _loaded_minutes(flagged: DataFrame) -> DataFrame:
    """Return loaded minutes, and others that may meet one, with whether they are met: by themselves or the next.

    Only these are put in order: of a year they may be few, and a minute that is neither says nothing of its neighbours.
    """
    by_time = Window.partitionBy("dest").orderBy("ts_s")
    return (
        flagged.where(F.col("is_loaded") | F.col("is_met_here") | F.col("is_perhaps_here"))
        .withColumn("was_loaded", _neighbour("is_loaded", by_time, -1))
        .withColumns(
            {
                name: F.col(f"{name}_here") | (~F.col("was_loaded") & _neighbour(f"{name}_here", by_time, 1))
                for name in ("is_met", "is_perhaps")
            }
        )
    )


def _neighbour(name: str, by_time: WindowSpec, step: int) -> Column:
    """Return a flag of the minute before (-1) or after (1), false when that minute has no row."""
    is_next_to = F.lag("ts_s", -step).over(by_time) == F.col("ts_s") + step * MINUTE_S
    return F.coalesce(F.lag(name, -step).over(by_time) & is_next_to, F.lit(False))


def integrity_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, stream, dest, group) the sums; `pending` is that of its last hour with deliveries."""
    return rows.groupBy("is_now", *READER).agg(
        *(F.sum(name).alias(name) for name in _INTEGRITY), F.max_by("pending", "ts_s").alias("pending")
    )


def stream_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, stream) what was committed, aborted and expired."""
    return rows.groupBy("is_now", *STREAM).agg(
        *(F.sum(name).alias(name) for name in ("committed", "aborted", "expired")), F.max("epochs").alias("epochs")
    )


def mirror_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, stream, mirror region) what was replicated and what was missing."""
    return rows.groupBy("is_now", *STREAM, "region").agg(
        F.sum("replicated").alias("replicated"), F.sum("missing").alias("missing")
    )


def probe_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, origin, dest) the probes by what became of them."""
    return rows.groupBy("is_now", *PAIR).agg(*(F.sum(name).alias(name) for name in _PROBES))


def minutes_sums(rows: DataFrame, target: MinutesTarget, *, probed: tuple[int, int]) -> DataFrame:
    """Return per (is_now, origin, dest) minutes up and down, and the longest run of down minutes (first of equals).

    Args:
        probed: first second of this period in which probes are expected, and the one after the last; `up_s` and
            `down_s` are the seconds in it, and a minute without any is left out.
    """
    bad = F.col("probes") - F.col("probes_ok")
    keys = ["is_now", *PAIR]
    inside_s = F.least(F.col("ts_s") + MINUTE_S, F.lit(probed[1])) - F.greatest(F.col("ts_s"), F.lit(probed[0]))
    known = (
        rows.where(F.col("probes") > 0)
        .withColumn("is_down", bad >= F.lit(target.down_share) * F.col("probes"))
        .withColumn("inside_s", F.when(F.col("is_now"), inside_s).otherwise(MINUTE_S))
        .where(F.col("inside_s") > 0)
    )
    # Only the minutes that were down are put in order: of a year they are few.
    by_time = Window.partitionBy(*keys).orderBy("ts_s")
    runs = (
        known.where("is_down")
        .withColumn("run", F.col("ts_s") - MINUTE_S * F.row_number().over(by_time))
        .groupBy(*keys, "run")
        .agg(F.count(F.lit(1)).alias("minutes"), F.min("ts_s").alias("first_s"))
    )
    longest = runs.groupBy(*keys).agg(
        F.max(F.struct("minutes", (-F.col("first_s")).alias("before_s"))).alias("longest")
    )
    is_up = ~F.col("is_down")
    return (
        known.groupBy(*keys)
        .agg(
            F.count_if(is_up).alias("up"),
            F.count_if("is_down").alias("down"),
            F.sum(F.when(is_up, F.col("inside_s")).otherwise(0)).alias("up_s"),
            F.sum(F.when(F.col("is_down"), F.col("inside_s")).otherwise(0)).alias("down_s"),
        )
        .join(longest, keys, "left")
        .select(
            *keys,
            "up",
            "down",
            "up_s",
            "down_s",
            F.coalesce("longest.minutes", F.lit(0)).alias("longest_down_minutes"),
            (-F.col("longest.before_s")).alias("longest_down_s"),
        )
    )


def request_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, region, source, op) the requests by what became of them."""
    return rows.groupBy("is_now", "region", "source", "op").agg(
        *(F.sum(name).alias(name) for name in _REQUESTS), F.max("writers").alias("writers")
    )


def clock_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, region, peer) how the peer's clocks stood; an hour without a bound leaves none."""
    has_bounds = F.count("bound_max_us") == F.count(F.lit(1))
    return rows.groupBy("is_now", "region", "peer").agg(
        F.sum("exchanges").alias("exchanges"),
        F.round(F.avg("offset_us")).cast("bigint").alias("offset_us"),
        F.max("offset_spread_us").alias("offset_spread_us"),
        F.avg("drift_ppm").alias("drift_ppm"),
        F.when(has_bounds, F.max("bound_max_us")).alias("bound_max_us"),
        F.min("rtt_min_us").alias("rtt_min_us"),
        F.sum("steps").alias("steps"),
        F.sum("unsync").alias("unsync"),
    )


def input_sums(rows: DataFrame) -> DataFrame:
    """Return per (is_now, kind, region) what was read and what is missing."""
    sums = ("files", "bytes", "rows", "quarantined_files", "missing_rows", "dropped_rows")
    return rows.groupBy("is_now", "kind", "region").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.sum(F.coalesce("gone_rows", F.greatest("missing_rows", "dropped_rows"))).alias("gone_rows"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("writers")))).alias("writers"),
        F.sum(F.size("writers")).alias("writer_hours"),
        F.sum(F.size("silent_writers")).alias("silent_writer_hours"),
        F.sum(F.coalesce("left_out_rows", F.lit(0)) + F.coalesce("too_late_rows", F.lit(0))).alias("left_out_rows"),
    )
