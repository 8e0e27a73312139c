"""Total and bad events per minute and subject of every target that counts events. DataFrame in, DataFrame out.

The worst minutes are picked from Arrow tables of these counts.

The rows feed burn rates (sla.transforms.burn), the worst minutes and the worst topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from sla.judging.budgets import bad_share_allowed
from sla.judging.latency import Way
from sla.local_rows import local_rows
from sla.targets import ARROW, LatencyTarget, ProbesTarget, RequestsTarget
from sla.transforms import scopes
from sla.transforms.burn import SUBJECT

COUNTS = [*SUBJECT, "allowed", "ts_s", "total", "bad"]
_LIMITS_DDL = "origin STRING, dest STRING, home STRING, first_bad INT"


def latency_events(
    spark: SparkSession, minute: DataFrame, target: LatencyTarget, first_bad: Mapping[Way, int | None]
) -> DataFrame:
    """Return (target, allowed, origin, dest, topic, ts_s, total, bad) of the ways that have a limit.

    `dest` is the rest of the way: `eu`, or `us -> eu` by way of a home.

    Args:
        minute: rows of minutes or hours, with `home`.
        first_bad: way -> first bucket beyond its limit; None when the limit is the one that is counted exactly.
    """
    limits = local_rows(spark, [(*way, bucket) for way, bucket in sorted(first_bad.items())], _LIMITS_DDL)
    beyond = F.aggregate(
        F.filter("hist", lambda bucket: bucket["b"] >= F.col("first_bad")),
        F.lit(0).cast("bigint"),
        lambda total, bucket: total + bucket["n"],
    )
    bad = F.col("n") - F.col("n_good")
    if any(bucket is not None for bucket in first_bad.values()):  # else a year of histograms need not be read
        bad = F.when(F.col("first_bad").isNull(), bad).otherwise(beyond)
    rows = minute.where(F.col("stage") == target.stage.value).join(
        F.broadcast(limits), ["origin", "dest", "home"], "inner"
    )
    return rows.select(
        F.lit(target.name).alias("target"),
        _allowed(target.objective),
        "origin",
        F.when(F.col("home") == "", F.col("dest")).otherwise(F.concat_ws(ARROW, "home", "dest")).alias("dest"),
        "topic",
        "ts_s",
        F.col("n").alias("total"),
        bad.alias("bad"),
    )


def latency_counts(events: DataFrame) -> DataFrame:
    """Return the COUNTS of latency events: subjects are pairs."""
    return (
        events.groupBy("target", "allowed", F.col("origin").alias("a"), F.col("dest").alias("b"), "ts_s")
        .agg(F.sum("total").alias("total"), F.sum("bad").alias("bad"))
        .select(*COUNTS)
    )


def request_counts(requests: DataFrame, target: RequestsTarget) -> DataFrame:
    """Return the COUNTS of valid requests: subjects are (region, operation)."""
    operations = sorted(operation.value for operation in target.operations)
    total = F.greatest(F.lit(0), F.col("attempts") - F.col("client_error"))
    meant = requests.where((F.col("source") == target.source) & F.col("op").isin(operations))
    if target.scope.names:
        meant = meant.where(F.col("region").isin(sorted(target.scope.names)))
    return meant.select(
        F.lit(target.name).alias("target"),
        F.col("region").alias("a"),
        F.col("op").alias("b"),
        _allowed(target.objective),
        "ts_s",
        total.alias("total"),
        F.greatest(F.lit(0), total - F.col("ok")).alias("bad"),
    )


def probe_counts(probes: DataFrame, target: ProbesTarget) -> DataFrame:
    """Return the COUNTS of probes: subjects are pairs."""
    meant = probes.where(scopes.has_pair(target.scope))
    return meant.select(
        F.lit(target.name).alias("target"),
        F.col("origin").alias("a"),
        F.col("dest").alias("b"),
        _allowed(target.objective),
        "ts_s",
        F.col("probes").alias("total"),
        (F.col("probes") - F.col("probes_ok")).alias("bad"),
    )


def worst_minutes(counts: Any, *, start_s: int, end_s: int, most: int) -> Any:
    """Return per target the `most` rows of [start_s, end_s) with the most bad events, earliest first among equals.

    Args:
        counts: Arrow table of COUNTS.
    """
    inside = (pc.field("ts_s") >= start_s) & (pc.field("ts_s") < end_s) & (pc.field("bad") > 0)
    ranked = counts.filter(inside).sort_by(
        [("target", "ascending"), ("bad", "descending"), *((name, "ascending") for name in ("ts_s", "a", "b"))]
    )
    of_target = (
        ranked.filter(pc.field("target") == target).slice(0, most) for target in pc.unique(ranked["target"]).to_pylist()
    )
    return pa.concat_tables([ranked.slice(0, 0), *of_target])


def worst_topics(events: DataFrame, *, most: int) -> DataFrame:
    """Return per target the `most` (topic, pair) of the events with the most bad records."""
    sums = events.groupBy("target", "topic", "origin", "dest").agg(
        F.sum("total").alias("total"), F.sum("bad").alias("bad")
    )
    return _first(sums, ["topic", "origin", "dest"], most=most).drop("rank")


def _first(rows: DataFrame, order: list[str], *, most: int) -> DataFrame:
    ranked = Window.partitionBy("target").orderBy(F.desc("bad"), *order)
    return rows.where(F.col("bad") > 0).withColumn("rank", F.row_number().over(ranked)).where(F.col("rank") <= most)


def _allowed(objective: float) -> Column:
    return F.lit(bad_share_allowed(objective)).alias("allowed")
