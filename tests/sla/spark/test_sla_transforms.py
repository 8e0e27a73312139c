"""The transforms of the roll-ups on tables small enough to count by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from georelay.trace.histogram import bucket_bounds, bucket_index, bucket_mid
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.schemas import DDL
from sla.tables import DDL as ROLLUP_DDL
from sla.tables import HOUR_S, RollupTable
from tests.sla.spark_rows import table_of

Rows = Callable[..., Any]
S = 10**9
MS = 10**6
H0 = 1_000 * HOUR_S


@pytest.mark.parametrize("kind", list(TraceKind))
def test_spark_and_arrow_agree_on_every_column(spark: Any, kind: TraceKind) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    def names_and_types(schema: Any) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in schema]

    table = table_of(spark, [], DDL[kind])
    assert names_and_types(table.schema) == names_and_types(from_arrow_schema(SCHEMAS[kind]))


def test_spark_and_python_agree_on_every_bucket(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from sla import hist_spark

    values = {0, 1} | {2**k + d for k in range(1, 41) for d in (-1, 0, 1)}
    values |= {math.floor(2 ** (b / 32)) + d for b in range(1, 1281) for d in (0, 1)}  # both sides of every bound
    rng = random.Random(1)
    values |= {rng.randrange(1, 2**40) for _ in range(2_000)}
    table = table_of(spark, [(value,) for value in sorted(values)], "us BIGINT")
    index = hist_spark.bucket_index(F.col("us"))
    rows = table.select(
        "us",
        index.alias("b"),
        hist_spark.bucket_lower(index).alias("lower"),
        hist_spark.bucket_mid(index).alias("mid"),
        hist_spark.bucket_upper(index).alias("upper"),
    ).collect()
    assert [(row["us"], row["b"]) for row in rows if row["b"] != bucket_index(row["us"])] == []
    assert [row["mid"] for row in rows] == pytest.approx([bucket_mid(row["b"]) for row in rows], rel=1e-12)
    bounds = [bucket_bounds(row["b"]) for row in rows]
    assert [row["lower"] for row in rows] == pytest.approx([lower for lower, _ in bounds], rel=1e-12)
    assert [row["upper"] for row in rows] == pytest.approx([upper for _, upper in bounds], rel=1e-12)


def test_merged_ranges_are_disjoint_and_cover_the_same_offsets(ledger: Rows) -> None:
    from sla.transforms.ranges import merged_ranges

    table = merged_ranges(ledger([(5, 8), (0, 3), (3, 5), (10, 20), (12, 15), (21, 22)]), ["topic"])
    assert [(row["from_offset"], row["to_offset"]) for row in table.orderBy("from_offset").collect()] == [
        (0, 8),
        (10, 20),
        (21, 22),
    ]


def exchange(at_s: float, theta_us: float, delta_us: int, **changes: Any) -> dict[str, Any]:
    """Return a row of broker eu/2001 asking us/1001."""
    at_ns = H0 * S + int(at_s * S)
    return {
        "region": "eu", "broker": "2001", "peer": "1001", "t1_ns": at_ns - delta_us * 1_000, "t2_ns": 0, "t3_ns": 0,
        "t4_ns": at_ns, "theta_ns": int(theta_us * 1_000), "delta_ns": delta_us * 1_000, "host_maxerr_us": None,
        "host_unsync": True, "mono_ns": at_ns, "boot_id": "b0", "schema_version": 2,
    } | changes  # fmt: skip


def test_a_clock_is_the_line_through_the_shortest_round_trips_and_a_wrong_belief_is_moved_to_it(
    spark: Any, latency_hist: Rows
) -> None:
    from sla.transforms.clock import clock_by_hour, clock_fits, revised, with_peer_region

    # us is 30 ms ahead of eu and gains 50 us per second; every fourth exchange met no queue.
    rows = [
        exchange(second, 30_000 + 50 * second + (0 if second % 4 == 0 else 4_000), 1_000 if second % 4 == 0 else 9_000)
        for second in range(60)
    ]
    rows += [exchange(60 + second, 70_000, 1_000) for second in range(3)]  # it was set: too few for a line
    rows += [exchange(5, 1, 100, peer="3009"), exchange(5, 1, 100, peer="8001")]  # ap by its number; nobody's
    writers = ["us/1001", "eu/2001", "ap/3001"]
    clock = with_peer_region(table_of(spark, rows, DDL[TraceKind.CLOCK]), writers)
    made = clock_fits(clock)
    lines = made.collect()
    fits = table_of(spark, [row.asDict() for row in lines], made.schema.simpleString())  # planned once, not three times
    by_minute = {(row["peer_region"], row["minute_s"] - H0): row for row in lines}
    assert set(by_minute) == {("us", 0), ("us", 60), ("ap", 0)}
    line, level = by_minute["us", 0], by_minute["us", 60]
    assert (line["theta_us"], line["slope"], line["bound_us"]) == (pytest.approx(30_000), pytest.approx(50), 500)
    assert (level["theta_us"], level["slope"]) == (70_000, 0)
    hour = {row["peer"]: row for row in clock_by_hour(clock, fits, [H0]).collect()}
    assert (hour["us"]["exchanges"], hour["us"]["steps"], hour["us"]["unsync"], hour["us"]["rtt_min_us"]) == (
        63, 1, 63, 1_000,
    )  # fmt: skip
    assert hour["us"]["offset_us"] == 70_000
    assert hour["us"]["offset_spread_us"] == 70_000 - 31_500

    def believed(offset_us: int | None, error_us: int | None, **changes: Any) -> dict[str, Any]:
        return {"second": H0 + 20, "clock_offset_us": offset_us, "clock_err_us": error_us} | changes

    # Measured 25 ms with a correction of 0, while us was 31.025 ms ahead: they took 56 ms.
    table = latency_hist(
        ({25_000: 10}, believed(0, 600, topic="wrong")),
        ({25_000: 10}, believed(30_500, 600, topic="near enough")),
        ({25_000: 10}, believed(0, 0, topic="configured")),
        ({25_000: 10}, believed(None, None, topic="unknown")),
        ({25_000: 10}, believed(0, 600, topic="one clock", stage="deliver")),
        ({25_000: 10}, believed(0, 600, topic="other minute", second=H0 + 200)),
    )
    found = {row["topic"]: row for row in revised(table, fits).collect()}
    moved = found["wrong"]
    assert [(bucket["b"], bucket["n"]) for bucket in moved["hist"]] == [
        (bucket_index(int(bucket_mid(bucket_index(25_000)) + 31_025)), 10)
    ]
    assert (moved["n_good"], moved["n_good_lo"], moved["n_good_hi"]) == (0, 0, 0)
    assert (moved["n_clock_revised"], moved["clock_err_us"]) == (10, 500)
    assert (moved["lat_sum_us"], moved["lat_max_us"]) == (560_250, 56_025)
    for topic in ("near enough", "configured", "one clock", "other minute"):
        assert (found[topic]["n_clock_revised"], found[topic]["n_good_lo"], found[topic]["lat_max_us"]) == (
            0, 10, 25_000,
        ), topic  # fmt: skip
    unknown = found["unknown"]
    assert (unknown["n_good_lo"], unknown["n_good_hi"], unknown["n_clock_unknown"]) == (0, 10, 10)


def test_both_hosts_that_know_their_error_tighten_the_bound_of_a_fit(spark: Any) -> None:
    from sla.transforms.clock import clock_fits, with_peer_region

    known = {"host_maxerr_us": 100, "host_unsync": False}
    rows = [
        exchange(1, 5, 40_000, **known),
        exchange(1, -5, 40_000, region="us", broker="1001", peer="2001", **known),
        exchange(61, 5, 40_000, **known),
        exchange(61, -5, 40_000, region="us", broker="1001", peer="2001"),
    ]
    clock = with_peer_region(table_of(spark, rows, DDL[TraceKind.CLOCK]), ["us/1001", "eu/2001"])
    found = {(row["region"], row["minute_s"] - H0): row["bound_us"] for row in clock_fits(clock).collect()}
    assert found == {("eu", 0): 200, ("us", 0): 200, ("eu", 60): 20_000, ("us", 60): 20_000}


@pytest.mark.slow
def test_throughput_looks_back_into_the_hour_before_and_counts_what_is_read(ledger: Rows) -> None:
    from sla.transforms.throughput import throughput_by_minute

    def row(kind: str, second: int, first: int, end: int, topic: str = "orders") -> dict[str, Any]:
        return {
            "kind": kind, "region": "us" if kind == "commit" else "eu", "first_ns": (H0 + second) * S + 5,
            "from_offset": first, "to_offset": end, "topic": topic,
        }  # fmt: skip

    table = ledger(
        extra=[
            row("commit", -2, 0, 700),
            row("delivered", -1, 0, 600),
            row("commit", 0, 700, 2_000),
            row("commit", 0, 0, 9_000, topic="unread"),
            row("delivered", 0, 600, 1_600),
            row("commit", 1, 2_000, 3_400),
            row("delivered", 1, 1_600, 2_599),
            row("delivered", 130, 2_599, 2_600),
        ]
    )
    minutes = {row["ts_s"] - H0: row.asDict() for row in throughput_by_minute(table, None, [H0]).collect()}
    assert set(minutes) == {0, 120}
    assert minutes[0] == {
        "ts_s": H0, "dest": "eu", "delivered": 1_999, "offered": 2_700, "max_1s": 1_000, "max_10s_mean": 259.9,
        "offered_max_10s_mean": 340.0, "max_60s_mean": 2_599 / 60, "loaded_seconds": 2, "loaded_seconds_met": 1,
    }  # fmt: skip
    assert (minutes[120]["delivered"], minutes[120]["max_10s_mean"]) == (1, 0.1)


def test_a_region_that_replicated_yesterday_is_missed_when_it_is_cut_off(spark: Any, ledger: Rows) -> None:
    from sla.transforms.streams import mirrors_by_hour, streams_by_hour

    table = ledger(
        extra=[
            {"kind": "commit", "region": "us", "from_offset": 0, "to_offset": 60, "first_ns": H0 * S},
            {"kind": "commit", "region": "ap", "from_offset": 40, "to_offset": 100, "epoch": 2, "first_ns": H0 * S + 1},
            {"kind": "replicated", "region": "eu", "from_offset": 0, "to_offset": 30, "first_ns": H0 * S},
            {"kind": "replicated", "region": "eu", "from_offset": 20, "to_offset": 90, "first_ns": H0 * S + 9},
            {"kind": "replicated", "region": "eu", "from_offset": 90, "to_offset": 95,
             "first_ns": (H0 + HOUR_S + 899) * S},
            {"kind": "replicated", "region": "eu", "from_offset": 95, "to_offset": 100,
             "first_ns": (H0 + HOUR_S + 900) * S},
        ]
    )  # fmt: skip
    known = table_of(
        spark,
        [
            {"topic": "orders", "origin": "", "partition": 0, "dest": "ap", "last_ns": (H0 - 24 * HOUR_S) * S},
            {"topic": "orders", "origin": "", "partition": 0, "dest": "gone", "last_ns": (H0 - 24 * HOUR_S) * S - 1},
        ],
        ROLLUP_DDL[RollupTable.SESSIONS_HOUR],
    )
    found = mirrors_by_hour(table, known, [H0], settle_s=900).orderBy("region").collect()
    assert [(row["region"], row["replicated"], row["missing"]) for row in found] == [("ap", 0, 100), ("eu", 90, 5)]
    (stream,) = streams_by_hour(table, [H0]).collect()
    assert (stream["committed"], stream["aborted"], stream["epochs"]) == (100, 0, 2)


def test_a_quiet_consumer_is_known_for_a_day_and_then_begins_anew(spark: Any, ledger: Rows) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from sla.transforms.positions import deliveries_of, live_carry, marked

    def unit(session: int, last_ns: int) -> dict[str, Any]:
        return {
            "ts_s": H0 - HOUR_S, "scope": "unit", "origin": "", "dest": "eu", "topic": "orders", "partition": 0,
            "group": "", "broker": "2001", "session_epoch": session, "reach": 10, "ranges": [(0, 10)],
            "last_ns": last_ns,
        }  # fmt: skip

    day_ago = (H0 - 24 * HOUR_S) * S
    carry = table_of(spark, [unit(0, day_ago), unit(1, day_ago - 1)], ROLLUP_DDL[RollupTable.SESSIONS_HOUR])
    deliveries = deliveries_of(ledger([(5, 8)], [(5, 8)]).withColumn("first_ns", F.lit(H0 * S)))
    rows = marked(deliveries, live_carry(carry, deliveries)).orderBy("session_epoch").collect()
    assert [(row["session_epoch"], row["reach"], row["session_reach"]) for row in rows] == [
        (0, 10, 10),
        (1, None, None),
    ]


def test_what_is_carried_of_a_consumer_has_a_bound_and_forgets_the_oldest_holes(
    spark: Any, ledger: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from sla.transforms import positions

    monkeypatch.setattr(positions, "RANGES_CARRIED_MAX", 2)
    monkeypatch.setattr(positions, "SESSIONS_CARRIED_MAX", 1)
    table = ledger([(0, 1), (2, 3), (4, 5), (6, 8)], [(0, 7)]).withColumn(
        "first_ns", F.lit(H0 * S) + F.col("to_offset")
    )
    rows = positions.marked(positions.deliveries_of(table), None)
    (unit,) = positions.carry_of(rows, table, None, [H0], has_groups=False).where("scope = 'unit'").collect()
    assert (unit["session_epoch"], unit["reach"], unit["last_ns"]) == (0, 8, H0 * S + 8)
    assert [(item["f"], item["t"]) for item in unit["ranges"]] == [(0, 5), (6, 8)]


def test_of_several_rows_of_a_probe_the_earliest_delivery_counts_and_gateways_stay_apart(spark: Any) -> None:
    from sla.transforms.availability import probes_by_minute, requests_by_minute

    def probe(seq: int, outcome: str, delivered_ns: int | None = None) -> dict[str, Any]:
        return {"origin": "us", "dest": "eu", "seq": H0 + seq, "outcome": outcome, "delivered_ns": delivered_ns}

    rows = [
        probe(0, "ok", 5), probe(0, "late", 9), probe(1, "lost"), probe(1, "late", 7), probe(2, "lost"),
        probe(2, "refused"), probe(3, "lost"), probe(60, "ok", 1),
    ]  # fmt: skip
    table = probes_by_minute(table_of(spark, rows, DDL[TraceKind.PROBE])).orderBy("ts_s")
    first, second = table.collect()
    counts = ("probes", "probes_ok", "probes_late", "probes_lost", "probes_refused")
    assert tuple(first[name] for name in counts) == (4, 1, 1, 1, 1)
    assert tuple(second[name] for name in counts) == (1, 1, 0, 0, 0)

    def outcome(second: int, gateway: str, attempts: int) -> dict[str, Any]:
        return {
            "second": H0 + second, "region": "us", "gateway": gateway, "op": "publish", "attempts": attempts,
            "ok": attempts, "client_error": 0, "server_error": 0, "timeout": 0, "offered": 2 * attempts,
        }  # fmt: skip

    rows = [outcome(0, "", 3), outcome(0, "", 4), outcome(1, "", 5), outcome(0, "g1", 1), outcome(1, "g2", 1)]
    found = requests_by_minute(table_of(spark, rows, DDL[TraceKind.OUTCOME])).orderBy("source").collect()
    assert [(row["source"], row["attempts"], row["offered"], row["writers"]) for row in found] == [
        ("broker", 12, 24, 2),
        ("gateway", 2, 4, 2),
    ]
