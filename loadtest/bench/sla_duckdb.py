"""The heart of a report by DuckDB, to set beside Spark: `python -m loadtest.bench.sla_duckdb TRACES`.

It does less than the roll-up: histograms merged by minute, quantiles of pairs, gaps and repeats of sessions, seconds of
throughput, probes by minute; no clocks fitted again, nothing carried from hour to hour, nothing written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

THREADS = 2

MINUTE = """
    CREATE TABLE minute AS
    WITH buckets AS (
        SELECT "second" // 60 * 60 AS ts_s, origin, dest, topic, "group", stage, bucket.b AS b, sum(bucket.n) AS n
        FROM latency_hist, unnest(hist) AS pairs(bucket) GROUP BY ALL
    ), hists AS (
        SELECT ts_s, origin, dest, topic, "group", stage, list([b, n] ORDER BY b) AS hist FROM buckets GROUP BY ALL
    ), sums AS (
        SELECT "second" // 60 * 60 AS ts_s, origin, dest, topic, "group", stage, sum(n) AS n, sum(n_good) AS n_good,
            sum(coalesce(n_good_lo, 0)) AS n_good_lo, sum(coalesce(n_good_hi, n)) AS n_good_hi,
            sum(lat_sum_us) AS lat_sum_us, max(lat_max_us) AS lat_max_us
        FROM latency_hist GROUP BY ALL
    )
    SELECT * FROM sums JOIN hists USING (ts_s, origin, dest, topic, "group", stage)
"""
QUERIES = {
    "quantiles": """
        WITH buckets AS (
            SELECT origin, dest, stage, bucket.b AS b, sum(bucket.n) AS n
            FROM latency_hist, unnest(hist) AS pairs(bucket) GROUP BY ALL
        ), running AS (
            SELECT *, sum(n) OVER (PARTITION BY origin, dest, stage ORDER BY b) AS upto,
                sum(n) OVER (PARTITION BY origin, dest, stage) AS total FROM buckets
        )
        SELECT origin, dest, stage, min(b) FILTER (upto >= 0.5 * total), min(b) FILTER (upto >= 0.99 * total),
            min(b) FILTER (upto >= 0.999 * total) FROM running GROUP BY ALL
    """,
    "integrity": """
        WITH turns AS (
            SELECT *, max(to_offset) OVER (
                PARTITION BY region, broker, session_epoch, topic, origin, "partition", "group" ORDER BY deliver_seq
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS reach FROM ledger WHERE kind = 'delivered'
        )
        SELECT first_ns // 3600000000000, region, topic, origin, "partition", sum(to_offset - from_offset),
            count(*) FILTER (from_offset > reach), sum(greatest(0, least(to_offset, reach) - from_offset))
        FROM turns GROUP BY ALL
    """,
    "throughput": """
        WITH seconds AS (
            SELECT region, first_ns // 1000000000 AS s, sum(to_offset - from_offset) AS n
            FROM ledger WHERE kind = 'delivered' GROUP BY ALL
        )
        SELECT region, s // 60, sum(n), max(n), count(*) FILTER (n >= 1000) FROM seconds GROUP BY ALL
    """,
    "probes": """
        WITH best AS (
            SELECT origin, dest, seq, arg_min(outcome, delivered_ns) AS outcome FROM probe GROUP BY ALL
        )
        SELECT origin, dest, seq // 60, count(*), count(*) FILTER (outcome = 'ok') FROM best GROUP BY ALL
    """,
}


def main() -> int:
    """Print the seconds of each part and two sums to compare, as JSON."""
    import duckdb  # of the development dependencies

    traces = Path(sys.argv[1])
    connection = duckdb.connect(config={"threads": THREADS, "preserve_insertion_order": False})
    for kind in ("latency_hist", "ledger", "probe"):
        files = [str(path) for path in traces.rglob(f"{kind}-*.parquet")]
        connection.read_parquet(files, hive_partitioning=False).create_view(kind)
    seconds: dict[str, float] = {}
    for name, query in {"minute": MINUTE, **QUERIES}.items():
        began = time.monotonic()
        connection.execute(query).fetchall()
        seconds[name] = round(time.monotonic() - began, 2)
    sums = connection.execute("SELECT sum(n)::BIGINT, sum(n_good)::BIGINT FROM minute").fetchone()
    sys.stdout.write(json.dumps({"version": duckdb.__version__, "seconds": seconds, "sums": sums}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
