"""The transforms on tables small enough to count by hand, and against brute force."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from georelay.trace.histogram import bucket_index, bucket_mid
from georelay.trace.schema import SCHEMAS, TraceKind
from sla.schemas import DDL
from sla.transforms.integrity import coverage_by_region, integrity_by_stream, merged_ranges
from sla.transforms.latency import latency_by_pair
from sla.transforms.throughput import throughput_by_region

Rows = Callable[..., Any]
Ranges = list[tuple[int, int]]


def integrity_of(table: Any) -> tuple[int, int, int, int, int]:
    """Return (delivered, duplicated, gap, lost, out of order) of the only stream in the table."""
    (row,) = integrity_by_stream(table).collect()
    return row["delivered"], row["duplicated"], row["gap"], row["lost"], row["out_of_order"]


@pytest.mark.parametrize("kind", list(TraceKind))
def test_spark_and_arrow_agree_on_every_column(spark: Any, kind: TraceKind) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    def names_and_types(schema: Any) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in schema]

    table = spark.createDataFrame([], DDL[kind])
    assert names_and_types(table.schema) == names_and_types(from_arrow_schema(SCHEMAS[kind]))


def test_spark_and_python_agree_on_every_bucket(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from sla import hist_spark

    values = {0, 1} | {2**k + d for k in range(1, 41) for d in (-1, 0, 1)}
    values |= {math.floor(2 ** (b / 32)) + d for b in range(1, 1281) for d in (0, 1)}  # both sides of every bound
    rng = random.Random(1)
    values |= {rng.randrange(1, 2**40) for _ in range(2_000)}
    table = spark.createDataFrame([(value,) for value in sorted(values)], "us BIGINT")
    index = hist_spark.bucket_index(F.col("us"))
    rows = table.select("us", index.alias("b"), hist_spark.bucket_mid(index).alias("mid")).collect()
    assert [(row["us"], row["b"]) for row in rows if row["b"] != bucket_index(row["us"])] == []
    assert [row["mid"] for row in rows] == pytest.approx([bucket_mid(row["b"]) for row in rows], rel=1e-12)


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ([(0, 10), (10, 30)], (30, 0, 0, 0, 0)),
        ([(0, 10), (15, 30)], (25, 0, 5, 5, 0)),
        ([(0, 10), (10, 20), (0, 10)], (30, 10, 0, 0, 0)),
        ([(0, 10), (5, 20)], (25, 5, 0, 0, 0)),
        ([(0, 10), (20, 30), (10, 20)], (30, 0, 0, 0, 10)),
        ([(0, 10), (20, 30), (5, 20)], (35, 5, 0, 0, 10)),
        ([(0, 10), (20, 30), (10, 20), (10, 20)], (40, 10, 0, 0, 10)),
        ([(0, 10), (40, 50), (20, 30), (0, 5)], (35, 5, 20, 20, 10)),
    ],
    ids=["clean", "gap", "late-dup", "overlap", "reorder", "reorder-and-dup", "reorder-twice", "everything"],
)
def test_faults_in_a_session_are_counted_exactly(
    ledger: Rows, session: Ranges, expected: tuple[int, int, int, int, int]
) -> None:
    assert integrity_of(ledger(session, committed=[(0, 100)])) == expected


def test_two_sessions_may_read_the_same_records(ledger: Rows) -> None:
    table = ledger([(0, 10)], [(0, 10)], [(4, 10)], committed=[(0, 10)])
    assert integrity_of(table) == (26, 0, 0, 0, 0)
    assert integrity_by_stream(table).collect()[0]["sessions"] == 3


def test_a_gap_is_lost_only_as_far_as_it_is_known_to_be_committed(ledger: Rows) -> None:
    table = ledger([(0, 10), (50, 60)], committed=[(0, 20), (30, 35)], replicated=[(15, 25)])
    assert integrity_of(table) == (20, 0, 40, 20, 0)


def test_sessions_of_other_brokers_and_partitions_are_apart(ledger: Rows) -> None:
    others = [{"broker": "2002", "from_offset": 5, "to_offset": 10}, {"partition": 1, "from_offset": 0, "to_offset": 4}]
    rows = integrity_by_stream(ledger([(0, 10)], extra=others)).collect()
    assert [(row["partition"], row["delivered"], row["duplicated"]) for row in rows] == [(0, 15, 0), (1, 4, 0)]


def brute_force(session: Ranges, committed: Ranges) -> tuple[int, int, int, int, int]:
    """Judge a session offset by offset, as the definitions say."""
    seen: set[int] = set()
    delivered = duplicated = out_of_order = 0
    end = 0
    for first, stop in session:
        for offset in range(first, stop):
            delivered += 1
            if offset in seen:
                duplicated += 1
            elif offset < end:
                out_of_order += 1
            seen.add(offset)
        end = max(end, stop)
    gaps = set(range(min(seen), max(seen))) - seen
    known = {offset for first, stop in committed for offset in range(first, stop)}
    return delivered, duplicated, len(gaps), len(gaps & known), out_of_order


def test_random_sessions_are_judged_as_by_brute_force(ledger: Rows) -> None:
    rng = random.Random(11)
    sessions: list[Ranges] = []
    expected = [0] * 5
    committed = [(0, 17), (20, 33), (30, 60)]
    for _ in range(60):
        starts = [rng.randrange(60) for _ in range(rng.randrange(1, 9))]
        session = [(start, start + rng.randrange(1, 12)) for start in starts]
        sessions.append(session)
        expected = [a + b for a, b in zip(expected, brute_force(session, committed), strict=True)]
    assert integrity_of(ledger(*sessions, committed=committed)) == tuple(expected)


def test_merged_ranges_are_disjoint_and_cover_the_same_offsets(ledger: Rows) -> None:
    table = merged_ranges(ledger([(5, 8), (0, 3), (3, 5), (10, 20), (12, 15), (21, 22)]), ["topic"])
    assert [(row["from_offset"], row["to_offset"]) for row in table.orderBy("from_offset").collect()] == [
        (0, 8),
        (10, 20),
        (21, 22),
    ]


def test_coverage_tells_what_a_mirror_lacks(ledger: Rows) -> None:
    table = ledger(committed=[(0, 60), (60, 100)], replicated=[(0, 30), (40, 95), (40, 50)])
    (row,) = coverage_by_region(table).collect()
    assert (row["region"], row["committed"], row["replicated"], row["missing"]) == ("eu", 100, 85, 15)


def test_latency_is_merged_per_pair_and_counts_stay_exact(latency_hist: Rows) -> None:
    table = latency_hist(
        ({1_000: 90, 40_000: 9}, {}),
        ({1_000: 900, 50_001: 1}, {"second": 1}),
        ({70_000: 5}, {"dest": "ap"}),
        ({999_000: 7}, {"stage": "commit"}),
    )
    ap, eu = latency_by_pair(table).collect()
    assert (ap["dest"], ap["n"], ap["n_good"]) == ("ap", 5, 0)
    assert (eu["n"], eu["n_good"], eu["lat_max_us"]) == (1_000, 999, 50_001)
    assert eu["p50_us"] == pytest.approx(1_000, rel=0.011)
    assert eu["p99_us"] == pytest.approx(1_000, rel=0.011)
    assert eu["p99_9_us"] == pytest.approx(40_000, rel=0.011)


def test_a_quantile_is_never_above_the_longest_latency(latency_hist: Rows) -> None:
    (row,) = latency_by_pair(latency_hist(({10_000: 50}, {}))).collect()
    assert bucket_mid(bucket_index(10_000)) > 10_000 or row["p99_us"] <= 10_000
    assert row["p99_9_us"] <= 10_000


def test_an_unknown_clock_makes_the_good_count_an_interval_of_everything(latency_hist: Rows) -> None:
    (row,) = latency_by_pair(latency_hist(({1_000: 10}, {"clock_err_us": None}), ({1_000: 10}, {}))).collect()
    assert (row["n_good_lo"], row["n_good"], row["n_good_hi"], row["n_clock_unknown"]) == (10, 20, 20, 10)


def test_throughput_is_counted_per_second_beside_what_was_offered(ledger: Rows) -> None:
    def row(kind: str, region: str, second: int, first: int, end: int, topic: str = "orders") -> dict[str, Any]:
        return {
            "kind": kind, "region": region, "first_ns": second * 10**9 + 5, "from_offset": first, "to_offset": end,
            "topic": topic,
        }  # fmt: skip

    table = ledger(
        extra=[
            row("commit", "us", 100, 0, 1_000),
            row("commit", "us", 101, 1_000, 2_500),
            row("commit", "us", 101, 0, 9_000, topic="unread"),
            row("delivered", "eu", 100, 0, 999),
            row("delivered", "eu", 101, 999, 2_000),
            row("delivered", "eu", 101, 2_000, 2_400),
            row("delivered", "eu", 120, 2_400, 2_500),
        ]
    )
    (eu,) = throughput_by_region(table, per_s=1_000).collect()
    assert eu.asDict() == {
        "region": "eu", "delivered": 2_500, "first_second": 100, "last_second": 120, "max_1s": 1_401,
        "max_window": 240.0, "offered_max_window": 250.0, "loaded_seconds": 2, "loaded_seconds_met": 1,
    }  # fmt: skip
