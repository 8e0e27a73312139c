"""The roll-ups `avail_minute` and `requests_minute`. DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.kinds import ProbeOutcome
from sla.transforms.moments import minute_of

BROKER: Final = "broker"
GATEWAY: Final = "gateway"
_COUNTS: Final = ("attempts", "ok", "client_error", "server_error", "timeout", "offered")


def probes_by_minute(probe: DataFrame) -> DataFrame:
    """Return `avail_minute`: what became of every probe that was due in a minute.

    Of several rows of one probe the one with the earliest delivery counts; any delivery beats none, and without one a
    refusal (it is known why) beats a loss.
    """
    is_refused = F.col("outcome") == ProbeOutcome.REFUSED.value
    best = Window.partitionBy("origin", "dest", "seq").orderBy(
        F.col("delivered_ns").asc_nulls_last(), F.when(is_refused, 0).otherwise(1), "outcome"
    )
    probes = probe.withColumn("rank", F.row_number().over(best)).where(F.col("rank") == 1)
    return probes.groupBy(minute_of("seq").alias("ts_s"), "origin", "dest").agg(
        F.count("*").alias("probes"),
        *(F.count_if(F.col("outcome") == outcome.value).alias(f"probes_{outcome.value}") for outcome in ProbeOutcome),
    )


def requests_by_minute(outcome: DataFrame) -> DataFrame:
    """Return `requests_minute`: the requests of a minute at brokers and at gateways, apart.

    `writers` are the gateways by name; brokers have none in their rows, so it is how many wrote one and the same
    second.
    """
    keys = ["ts_s", "region", "source", "op"]
    is_gateway = F.col("gateway") != ""
    rows = outcome.withColumns(
        {"ts_s": minute_of("second"), "source": F.when(is_gateway, F.lit(GATEWAY)).otherwise(F.lit(BROKER))}
    )
    seconds = rows.groupBy(*keys, "second").agg(
        F.count("*").alias("rows"),
        F.collect_set("gateway").alias("gateways"),
        *(F.sum(name).alias(name) for name in _COUNTS),
    )
    gateways = F.size(F.array_distinct(F.flatten(F.collect_list("gateways")))).cast("bigint")
    return seconds.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.when(F.col("source") == GATEWAY, gateways).otherwise(F.max("rows")).alias("writers"),
    )
