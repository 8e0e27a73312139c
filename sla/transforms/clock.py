"""Clocks of other regions, fitted after the fact: revised latencies and the roll-up `clock_hour`.

A fit is one minute of exchanges of one broker with one other broker. With FIT_EXCHANGES_MIN of them, which span
FIT_SPAN_NS at least, it is the line through the ones with the shortest round trips (an eighth, LOWEST_MIN at least);
else it is level at the shortest one's offset (RFC 5905 section 10; queues make a round trip longer, drift must be
fitted). Its bound is what no path can exceed: half of the shortest round trip, or what both hosts say of themselves.

A histogram keeps the offset its broker believed when it wrote. Where the fit differs from it by more than the error
claimed for it, the belief was wrong: every bucket is moved by the difference, one bucket conservative, and the error
becomes the fit's bound. The row does not name its broker: of several fits of a pair the nearest one judges. Left alone
are latencies of one clock (stage deliver, one region), rows without an error (nothing was believed) and rows whose
error is 0: that is configured, not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.histogram import GOOD_US_MAX
from georelay.trace.kinds import Stage
from sla.hist_spark import bucket_index, bucket_lower, bucket_mid, bucket_upper
from sla.local_rows import local_rows
from sla.tables import MINUTE_S
from sla.transforms.moments import hour_of, minute_of, second_of

LOWEST_SHARE: Final = 8
LOWEST_MIN: Final = 4
FIT_EXCHANGES_MIN: Final = 8
FIT_SPAN_NS: Final = 10_000_000_000
DRIFT_PPM_MAX: Final = 1_000  # two kernels, each slewing by at most 500 ppm
BROKERS_PER_REGION: Final = 1_000  # broker id = region number * 1000 + n
_FIT: Final = ["region", "broker", "boot_id", "peer", "peer_region", "minute_s"]
_FITS_TYPE: Final = "array<struct<theta_us: double, slope: double, bound_us: bigint>>"
_RUN: Final = ["region", "broker", "boot_id", "peer"]


def with_peer_region(clock: DataFrame, writers: Iterable[str]) -> DataFrame:
    """Add `peer_region` to clock rows; rows whose peer belongs to no known region are left out.

    Args:
        writers: who wrote traces, as `us/1001`. A broker that did not write is in the region of those with its number.
    """
    spark = clock.sparkSession
    by_broker: dict[str, str] = {}
    by_number: dict[int, str] = {}
    for writer in sorted(writers):
        region, _, broker = writer.rpartition("/")
        by_broker[broker] = region
        by_number[int(broker) // BROKERS_PER_REGION] = region
    exact = _lookup(spark, list(by_broker.items()), "peer STRING, exact STRING")
    near = _lookup(spark, list(by_number.items()), "number BIGINT, near STRING")
    is_number = F.col("peer").rlike("^[0-9]{1,9}$")
    number = F.when(is_number, F.floor(F.col("peer").cast("bigint") / BROKERS_PER_REGION))
    return (
        clock.withColumn("number", number)
        .join(exact, "peer", "left")
        .join(near, "number", "left")
        .withColumn("peer_region", F.coalesce("exact", "near", F.when(~is_number, F.col("peer"))))
        .where(F.col("peer_region").isNotNull())
        .drop("number", "exact", "near")
    )


def _lookup(spark: SparkSession, rows: list[tuple[str, str]] | list[tuple[int, str]], ddl: str) -> DataFrame:
    return F.broadcast(local_rows(spark, rows, ddl))


def clock_fits(clock: DataFrame) -> DataFrame:
    """Return one row per fit: `theta_us` at the start of its minute, `slope` in us per s, `bound_us`, `rtt_us`.

    Args:
        clock: rows with `peer_region`.
    """
    rows = clock.withColumns(
        {
            "minute_s": minute_of(second_of("t4_ns")),
            "x_s": F.pmod(F.col("t4_ns"), F.lit(MINUTE_S * 1_000_000_000)) / 1e9,
            "theta": F.col("theta_ns") / 1e3,
        }
    )
    fit = Window.partitionBy(*_FIT)
    lowest = rows.withColumns(
        {
            "rank": F.row_number().over(fit.orderBy("delta_ns", "t4_ns")),
            "exchanges": F.count("*").over(fit),
        }
    ).where(F.col("rank") <= F.greatest(F.lit(LOWEST_MIN), F.floor(F.col("exchanges") / LOWEST_SHARE)))
    is_first = F.col("rank") == 1
    sums = lowest.groupBy(*_FIT).agg(
        F.first("exchanges").alias("exchanges"),
        F.min("delta_ns").alias("delta_ns"),
        F.max(F.when(is_first, F.col("theta"))).alias("level"),
        (F.max("t4_ns") - F.min("t4_ns")).alias("span_ns"),
        F.regr_slope("theta", "x_s").alias("fitted_slope"),
        F.avg("theta").alias("mean_theta"),
        F.avg("x_s").alias("mean_x_s"),
    )
    is_line = (F.col("exchanges") >= FIT_EXCHANGES_MIN) & (F.col("span_ns") >= FIT_SPAN_NS)
    slope = F.when(is_line, F.col("fitted_slope")).otherwise(0.0)
    at_start = F.when(is_line, F.col("mean_theta") - F.col("fitted_slope") * F.col("mean_x_s"))
    hosts = _host_bounds(rows)
    ours = hosts.select(F.col("broker"), "minute_s", F.col("host_us").alias("own_us"))
    theirs = hosts.select(F.col("broker").alias("peer"), "minute_s", F.col("host_us").alias("peer_us"))
    path_us = F.ceil(F.col("delta_ns") / 2_000)
    return (
        sums.join(ours, ["broker", "minute_s"], "left")
        .join(theirs, ["peer", "minute_s"], "left")
        .select(
            *_FIT,
            F.coalesce(at_start, F.col("level")).alias("theta_us"),
            slope.alias("slope"),
            F.least(path_us, F.col("own_us") + F.col("peer_us")).alias("bound_us"),  # least skips null
            F.floor(F.col("delta_ns") / 1_000).alias("rtt_us"),
        )
    )


def _host_bounds(rows: DataFrame) -> DataFrame:
    """Return what each broker's host said of its clock in a minute: the largest, null when it did not know once."""
    is_known = ~F.col("host_unsync") & F.col("host_maxerr_us").isNotNull()
    return rows.groupBy("broker", "minute_s").agg(
        F.when(F.min(is_known.cast("int")) == 1, F.max("host_maxerr_us")).alias("host_us")
    )


def revised(latency_hist: DataFrame, fits: DataFrame | None) -> DataFrame:
    """Return latency rows with moved histograms where the clock was wrong; counts as sla.tables has them.

    Args:
        fits: from `clock_fits`; None: no exchange is known and nothing is moved.

    The result has `clock_err_us`, `n_clock_unknown` and `n_clock_revised` beside the columns of the input; where the
    clock error is unknown, `n_good_lo` is 0 and `n_good_hi` is n.
    """
    rows = latency_hist.withColumn("fit_minute_s", minute_of("second"))
    if fits is None:
        rows = rows.withColumn("fits", F.lit(None).cast(_FITS_TYPE))
    else:
        pairs = fits.groupBy(
            F.col("region").alias("dest"),
            F.col("peer_region").alias("origin"),
            F.col("minute_s").alias("fit_minute_s"),
        ).agg(F.collect_list(F.struct("theta_us", "slope", "bound_us")).alias("fits"))
        rows = rows.join(F.broadcast(pairs), ["dest", "origin", "fit_minute_s"], "left")
    at_s = F.col("second") - F.col("fit_minute_s") + 0.5
    nearest = F.array_min(F.transform("fits", lambda fit: _distance(fit, at_s)))
    is_judged = (
        (F.col("origin") != F.col("dest")) & (F.col("stage") != Stage.DELIVER.value) & (F.col("clock_err_us") > 0)
    )
    rows = rows.withColumn("fit", F.when(is_judged, nearest)).withColumn(
        "is_revised", F.coalesce(F.col("fit.distance_us") > F.col("clock_err_us"), F.lit(False))
    )
    is_revised, is_unknown = F.col("is_revised"), F.col("clock_err_us").isNull()
    shift = F.col("fit.offset_us") - F.col("clock_offset_us")
    bound = F.col("fit.bound_us")

    def either(moved: Column, kept: Column | str) -> Column:
        return F.when(is_revised, moved).otherwise(F.col(kept) if isinstance(kept, str) else kept)

    columns = {
        "n_good": either(_count(lambda b: bucket_mid(b) + shift <= GOOD_US_MAX), "n_good"),
        "n_good_lo": either(
            _count(lambda b: bucket_upper(b) + shift + bound <= GOOD_US_MAX), F.coalesce("n_good_lo", F.lit(0))
        ),
        "n_good_hi": either(
            _count(lambda b: bucket_lower(b) + shift - bound <= GOOD_US_MAX), F.coalesce("n_good_hi", "n")
        ),
        "n_clock_unknown": F.when(is_unknown, F.col("n")).otherwise(F.lit(0)).cast("bigint"),
        "n_clock_revised": F.when(is_revised, F.col("n")).otherwise(F.lit(0)).cast("bigint"),
        "lat_sum_us": either(F.greatest(F.lit(0), F.col("lat_sum_us") + F.col("n") * shift), "lat_sum_us"),
        "lat_max_us": either(F.greatest(F.lit(0), F.col("lat_max_us") + shift), "lat_max_us"),
        "clock_err_us": either(bound, "clock_err_us"),
        "hist": either(F.transform("hist", lambda bucket: _moved(bucket, shift)), "hist"),
    }
    return rows.withColumns(columns).drop("fit_minute_s", "fits", "fit", "is_revised")


def _distance(fit: Column, at_s: Column) -> Column:
    offset_us = F.round(fit["theta_us"] + fit["slope"] * at_s).cast("bigint")
    return F.struct(
        F.abs(offset_us - F.col("clock_offset_us")).alias("distance_us"),
        offset_us.alias("offset_us"),
        fit["bound_us"].alias("bound_us"),
    )


def _moved(bucket: Column, shift: Column) -> Column:
    latency_us = F.greatest(F.lit(0.0), bucket_mid(bucket["b"]) + shift)
    return F.struct(bucket_index(latency_us).alias("b"), bucket["n"].alias("n"))


def _count(is_good: Callable[[Column], Column]) -> Column:
    """Return the records in the buckets for which `is_good(bucket)` holds."""
    return F.aggregate(
        F.filter("hist", lambda bucket: is_good(bucket["b"])),
        F.lit(0).cast("bigint"),
        lambda total, bucket: total + bucket["n"],
    )


def clock_by_hour(clock: DataFrame, fits: DataFrame, hours: list[int]) -> DataFrame:
    """Return `clock_hour`: how each region's clock stood against each other one's, hour by hour.

    Args:
        clock: rows with `peer_region`; those of the hour before the first are looked at for steps only.
        hours: starts of the hours, s.
    """
    pair = ["ts_s", "region", "peer"]
    middle = F.col("theta_us") + F.col("slope") * (MINUTE_S / 2)
    minutes = (
        fits.withColumns({"ts_s": hour_of("minute_s"), "middle_us": middle})
        .where(F.col("ts_s").isin(hours))
        .groupBy("ts_s", "region", F.col("peer_region"), "minute_s")
        .agg(F.min(F.struct("bound_us", "broker", "boot_id", F.col("peer"), "middle_us", "slope")).alias("best"))
    )
    ordered = F.array_sort(F.collect_list(F.struct("minute_s", "best.middle_us", "best.slope")))
    offsets = (
        minutes.groupBy("ts_s", "region", F.col("peer_region").alias("peer"))
        .agg(
            ordered.alias("points"),
            F.max("best.middle_us").alias("highest_us"),
            F.min("best.middle_us").alias("lowest_us"),
            F.max("best.bound_us").cast("bigint").alias("bound_max_us"),
        )
        .withColumns({"one": F.col("points")[0], "last": F.element_at("points", -1)})
        .withColumns(
            {
                "offset_us": F.round(F.col("points")[F.floor(F.size("points") / 2).cast("int")]["middle_us"]).cast(
                    "bigint"
                ),
                "offset_spread_us": F.round(F.col("highest_us") - F.col("lowest_us")).cast("bigint"),
                # us per s are parts per million
                "drift_ppm": F.when(F.size("points") == 1, F.col("one.slope")).otherwise(
                    (F.col("last.middle_us") - F.col("one.middle_us"))
                    / F.greatest(F.lit(1), F.col("last.minute_s") - F.col("one.minute_s"))
                ),
            }
        )
    )
    run = Window.partitionBy(*_RUN).orderBy("mono_ns")
    elapsed_ns = F.col("mono_ns") - F.lag("mono_ns").over(run)
    allowed_ns = (F.col("delta_ns") + F.lag("delta_ns").over(run)) / 2 + elapsed_ns * DRIFT_PPM_MAX / 1_000_000
    counted = (
        clock.withColumn("is_step", F.abs(F.col("theta_ns") - F.lag("theta_ns").over(run)) > allowed_ns)
        .withColumn("ts_s", hour_of(second_of("t4_ns")))
        .where(F.col("ts_s").isin(hours))
        .groupBy("ts_s", "region", F.col("peer_region").alias("peer"))
        .agg(
            F.count("*").alias("exchanges"),
            F.floor(F.min("delta_ns") / 1_000).alias("rtt_min_us"),
            F.count_if("is_step").alias("steps"),
            F.count_if("host_unsync").alias("unsync"),
        )
    )
    return counted.join(offsets, pair, "inner")
