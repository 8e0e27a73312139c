"""DuckDB computes the same figures by SQL of its own from the same files: generator and database must agree exactly."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import first

pytest.importorskip("duckdb")

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.expected import KEYS, Expected
from sla.generate.request import Fault, GenerateRequest
from sla.generate.run import run_generate

START = datetime.datetime(2026, 11, 20, 9, 55, tzinfo=datetime.UTC)
WORLDS: dict[str, dict[str, Any]] = {
    "everything on the way": {
        "start": datetime.datetime(2026, 11, 20, 9, 58, tzinfo=datetime.UTC),
        "seconds": 240,
        "faults": ["gap:count=3", "duplicate:count=2", "duplicate:flagged=1,count=2", "reorder:count=3",
                   "aborted:count=2", "expired:count=2", "rebalance", "link-cut:for=40", "slow-pair:region=us,peer=ap",
                   "wrong-clock:region=ap"],
    },
    "files that do not arrive": {
        "seconds": 450,
        "brokers": 1,
        "roll_s": 60,
        "faults": ["corrupt-file:region=us", "torn-file:region=eu,at=250", "empty-file:region=ap,at=330",
                   "wrong-schema:region=eu,rows=latency_hist,at=50", "missing-file:region=us,rows=probe",
                   "dropped-rows:region=us,rows=outcome", "late-traces:region=ap,at=50,for=125",
                   "silent-region:region=us,at=350,for=60", "reorder:count=2", "gap:count=2"],
    },
    "hours that settle": {
        "start": datetime.datetime(2026, 11, 20, 9, 45, tzinfo=datetime.UTC),
        "seconds": 2_700,
        "rate_per_s": 30,
        "brokers": 1,
        "faults": ["gap:count=4,at=500,heal=700", "gap:count=4,at=600,heal=1500", "gap:at=850,heal=100", "reorder"],
    },
    "regions that are down": {
        "regions": ("a", "b", "c", "d"),
        "rate_per_s": 1_100,
        "seconds": 200,
        "start": datetime.datetime(2026, 11, 20, 9, 58, tzinfo=datetime.UTC),
        "brokers": 1,
        "faults": ["region-outage:region=b,at=100,for=50", "publish-refused:region=c,at=160,for=20",
                   "clock-unknown:region=d", "asymmetric-path:region=a,peer=c,ms=30", "rebalance:region=a"],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=first(1, WORLDS))
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    special = dict(WORLDS[request.param])
    faults = tuple(Fault.parse(text) for text in special.pop("faults"))
    world: dict[str, Any] = {"start": START, "seconds": 600, "rate_per_s": 60, "seed": 7} | special
    return run_generate(GenerateRequest(out=tmp_path_factory.mktemp("gen"), faults=faults, **world))


def is_whole(path: Path, kind: TraceKind) -> bool:
    """Return whether a file can be read to its end, checksums verified, and has the columns of its kind."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            schema = file.schema_arrow.remove_metadata()
            for _ in file.iter_batches():
                pass
    except (OSError, pa.ArrowException):
        return False
    return bool(schema.equals(SCHEMAS[kind]))


@pytest.fixture(scope="module")
def database(expected: Expected) -> Iterator[Any]:
    """Open a database with a table per kind, of the files that are whole."""
    connection = duckdb.connect()
    for kind in TraceKind:
        paths = [path for path in expected.traces.rglob(f"{kind.value}-*.parquet") if is_whole(path, kind)]
        source = connection.read_parquet([str(path) for path in paths], hive_partitioning=False)
        source.create(kind.value)
    connection.execute(LEDGER_VIEWS.format(settle=expected.made_with["settle_s"]))
    yield connection
    connection.close()


LATENCY = """
    WITH rows AS (
        SELECT *, "second" // {span} * {span} AS ts_s FROM latency_hist
    ), buckets AS (
        SELECT ts_s, origin, dest, topic, "group", stage, bucket.b AS b, sum(bucket.n)::BIGINT AS n
        FROM rows, unnest(hist) AS pairs(bucket) GROUP BY ALL
    ), hists AS (
        SELECT ts_s, origin, dest, topic, "group", stage, list([b, n] ORDER BY b) AS hist FROM buckets GROUP BY ALL
    )
    SELECT ts_s, origin, dest, topic, "group", stage, sum(n)::BIGINT AS n, sum(n_good)::BIGINT AS n_good,
        sum(coalesce(n_good_lo, 0))::BIGINT AS n_good_lo, sum(coalesce(n_good_hi, n))::BIGINT AS n_good_hi,
        sum(if(clock_err_us IS NULL, n, 0))::BIGINT AS n_clock_unknown, sum(lat_sum_us)::BIGINT AS lat_sum_us,
        max(lat_max_us) AS lat_max_us, max(clock_err_us) AS clock_err_max_us, any_value(hists.hist) AS hist
    FROM rows JOIN hists USING (ts_s, origin, dest, topic, "group", stage) GROUP BY ALL
"""

# Offsets are counted one by one: nothing here knows about intervals.
LEDGER_VIEWS = """
    CREATE TABLE delivered AS
    SELECT *, coalesce("group", '') AS grp, first_ns // 3600000000000 AS hour,
        concat_ws('/', region, topic, origin, "partition", coalesce("group", '')) AS place,
        concat_ws('/', broker, session_epoch) AS session
    FROM ledger WHERE kind = 'delivered';
    ALTER TABLE delivered ADD COLUMN unit VARCHAR;
    UPDATE delivered SET unit = if(grp = '', concat_ws('/', place, session), place);

    CREATE TABLE ordered AS
    WITH timed AS (
        SELECT *, max(first_ns) OVER (PARTITION BY unit, session, hour ORDER BY deliver_seq) AS moment FROM delivered
    )
    SELECT *, row_number() OVER turn AS turn,
        max(to_offset) OVER (turn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reach,
        max(to_offset) OVER (
            PARTITION BY unit, session ORDER BY hour, deliver_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS own_reach
    FROM timed WINDOW turn AS (PARTITION BY unit ORDER BY hour, moment, broker, session_epoch, deliver_seq);

    CREATE TABLE handed AS
    SELECT *, row_number() OVER (PARTITION BY unit, record ORDER BY turn) AS nth,
        row_number() OVER (PARTITION BY unit, session, record ORDER BY turn) AS nth_of_session
    FROM (SELECT *, unnest(range(from_offset, to_offset)) AS record FROM ordered);

    CREATE TABLE known AS
    SELECT kind, region, topic, origin, "partition", first_ns, first_ns // 3600000000000 AS hour,
        unnest(range(from_offset, to_offset)) AS record
    FROM ledger WHERE kind <> 'delivered';

    CREATE TABLE missed AS
    WITH jumps AS (
        SELECT *, unnest(range(reach, from_offset)) AS record FROM ordered WHERE from_offset > reach
    ), healed AS (
        SELECT jumps.unit, jumps.turn, jumps.record FROM jumps JOIN handed ON handed.unit = jumps.unit
            AND handed.record = jumps.record AND handed.turn > jumps.turn
            AND handed.first_ns < (jumps.hour + 1) * 3600000000000 + {settle}000000000
        GROUP BY ALL
    ), facts AS (
        SELECT jumps.unit, jumps.turn, jumps.record, max(known.kind = 'aborted') AS is_aborted,
            max(known.kind = 'expired') AS is_expired, max(known.kind IN ('commit', 'replicated')) AS is_committed
        FROM jumps JOIN known USING (topic, origin, "partition", record)
        WHERE known.first_ns >= (jumps.hour - 1) * 3600000000000
            AND known.first_ns < (jumps.hour + 1) * 3600000000000 + {settle}000000000
        GROUP BY ALL
    )
    SELECT place, hour, CASE WHEN healed.record IS NOT NULL THEN 'healed' WHEN is_aborted THEN 'aborted'
        WHEN is_expired THEN 'expired' WHEN is_committed THEN 'lost' ELSE 'unexplained' END AS fate
    FROM jumps LEFT JOIN healed USING (unit, turn, record) LEFT JOIN facts USING (unit, turn, record);
"""

INTEGRITY = """
    WITH rows AS (
        SELECT place, hour, any_value(origin) AS origin, any_value(region) AS dest, any_value(topic) AS topic,
            any_value("partition") AS "partition", any_value(grp) AS "group", count(DISTINCT session) AS sessions,
            count_if(from_offset > reach) AS gaps, max(greatest(to_offset, coalesce(reach, 0))) AS reach
        FROM ordered GROUP BY ALL
    ), records AS (
        SELECT place, hour, count(*) AS delivered,
            count_if(nth > 1 AND (attempt > 1 OR nth_of_session = 1)) AS dup_flagged,
            count_if(nth > 1 AND attempt = 1 AND nth_of_session > 1) AS dup_unflagged,
            count_if(nth = 1 AND attempt = 1 AND record < own_reach) AS order_violations
        FROM handed GROUP BY ALL
    ), fates AS (
        SELECT place, hour, count(*) AS gap_records, count_if(fate = 'healed') AS healed_records,
            count_if(fate = 'lost') AS lost, count_if(fate = 'unexplained') AS unexplained,
            count_if(fate = 'aborted') AS aborted, count_if(fate = 'expired') AS expired
        FROM missed GROUP BY ALL
    ), ends AS (
        SELECT rows.place, rows.hour, max(to_offset) AS committed_end FROM rows JOIN ledger
            ON ledger.topic = rows.topic AND ledger.origin = rows.origin AND ledger."partition" = rows."partition"
            AND ledger.kind IN ('commit', 'replicated') AND ledger.first_ns < (rows.hour + 1) * 3600000000000
        GROUP BY ALL
    )
    SELECT hour * 3600 AS ts_s, origin, dest, topic, "partition", "group", sessions, delivered, dup_flagged,
        dup_unflagged, gaps, coalesce(gap_records, 0) AS gap_records, coalesce(healed_records, 0) AS healed_records,
        coalesce(lost, 0) AS lost, coalesce(unexplained, 0) AS unexplained, coalesce(aborted, 0) AS aborted,
        coalesce(expired, 0) AS expired, order_violations,
        greatest(0, coalesce(committed_end, 0) - reach) AS pending
    FROM rows JOIN records USING (place, hour) LEFT JOIN fates USING (place, hour) LEFT JOIN ends USING (place, hour)
"""

STREAMS = """
    SELECT hour * 3600 AS ts_s, topic, origin, "partition",
        count(DISTINCT record) FILTER (kind = 'commit') AS committed,
        count(DISTINCT record) FILTER (kind = 'aborted') AS aborted,
        count(DISTINCT record) FILTER (kind = 'expired') AS expired, max(kind = 'commit')::INT AS epochs
    FROM known GROUP BY ALL HAVING committed + aborted + expired > 0
"""

MIRRORS = """
    WITH copies AS (SELECT * FROM known WHERE kind = 'replicated'),
    pairs AS (
        SELECT DISTINCT hours.hour, topic, origin, "partition", region
        FROM copies, (SELECT DISTINCT hour FROM known) AS hours
        WHERE copies.hour BETWEEN hours.hour - 24 AND hours.hour
    ), missing AS (
        SELECT pairs.*, count(DISTINCT commits.record) AS missing FROM pairs
        JOIN known AS commits ON commits.kind = 'commit' AND commits.hour = pairs.hour
            AND (commits.topic, commits.origin, commits."partition") = (pairs.topic, pairs.origin, pairs."partition")
        WHERE NOT EXISTS (
            SELECT 1 FROM copies WHERE copies.region = pairs.region AND copies.record = commits.record
                AND copies.topic = pairs.topic AND copies.origin = pairs.origin
                AND copies."partition" = pairs."partition"
                AND copies.first_ns >= (pairs.hour - 1) * 3600000000000
                AND copies.first_ns < (pairs.hour + 1) * 3600000000000 + {settle}000000000
        ) GROUP BY ALL
    ), replicated AS (
        SELECT hour, topic, origin, "partition", region, count(DISTINCT record) AS replicated FROM copies GROUP BY ALL
    ), committed AS (SELECT DISTINCT hour, topic, origin, "partition", true AS is_fed FROM known WHERE kind = 'commit')
    SELECT hour * 3600 AS ts_s, topic, origin, "partition", region, coalesce(replicated, 0) AS replicated,
        coalesce(missing, 0) AS missing
    FROM pairs LEFT JOIN replicated USING (hour, topic, origin, "partition", region)
    LEFT JOIN missing USING (hour, topic, origin, "partition", region)
    LEFT JOIN committed USING (hour, topic, origin, "partition")
    WHERE is_fed OR replicated > 0
"""

ACCOUNTS = """
    WITH named AS (
        SELECT kind, region, topic, origin, "partition", coalesce("group", '') AS "group",
            first_ns // 3600000000000 AS hour,
            unnest(range(from_offset, to_offset)) AS record
        FROM ledger
    ), single AS (SELECT DISTINCT * FROM named), numbered AS (
        SELECT *, record - row_number() OVER (
            PARTITION BY kind, region, topic, origin, "partition", "group", hour ORDER BY record
        ) AS island FROM single
    ), islands AS (
        SELECT kind, region, topic, origin, "partition", "group", hour, min(record) AS f, max(record) + 1 AS t,
            count(*) AS n
        FROM numbered GROUP BY kind, region, topic, origin, "partition", "group", hour, island
    )
    SELECT hour * 3600 AS ts_s, kind, topic, origin, "partition", region, "group", sum(n)::BIGINT AS records,
        list([f, t] ORDER BY f) AS ranges
    FROM islands GROUP BY ALL
    UNION ALL
    SELECT first_ns // 3600000000000 * 3600 AS ts_s, kind, topic, origin, "partition", region, '' AS "group",
        sum(records)::BIGINT AS records, [] AS ranges
    FROM ledger WHERE kind IN ('refused', 'undecided') GROUP BY ALL
"""

THROUGHPUT = """
    WITH hours AS (SELECT DISTINCT first_ns // 3600000000000 AS hour FROM ledger),
    reads AS (
        SELECT DISTINCT region AS dest, topic, origin, "partition", hours.hour FROM delivered, hours
        WHERE delivered.hour <= hours.hour AND first_ns >= (hours.hour - 24) * 3600000000000
    ), grid AS (
        SELECT dest, hour, unnest(range(hour * 3600 - 60, hour * 3600 + 3600)) AS s
        FROM (SELECT DISTINCT dest, hour FROM reads)
    ), reached AS (
        SELECT *, max(to_offset) OVER (ever ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stood,
            max(to_offset) OVER (of_hour ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stood_of_hour
        FROM delivered WINDOW
            ever AS (PARTITION BY region, topic, origin, "partition"
                ORDER BY first_ns, broker, session_epoch, deliver_seq),
            of_hour AS (PARTITION BY region, topic, origin, "partition", hour
                ORDER BY first_ns, broker, session_epoch, deliver_seq)
    ), handed AS (
        SELECT region AS dest, first_ns // 1000000000 AS s,
            sum(greatest(0, to_offset - greatest(from_offset, coalesce(stood, 0)))) AS n,
            sum(greatest(0, to_offset - greatest(from_offset, coalesce(stood_of_hour, 0)))) AS n_of_hour
        FROM reached GROUP BY ALL
    ), commits AS (
        SELECT hours.hour, topic, origin, "partition", epoch, first_ns // 1000000000 AS s, from_offset, to_offset,
            max(to_offset) OVER (PARTITION BY hours.hour, topic, origin, "partition", epoch
                ORDER BY from_offset, first_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stood
        FROM ledger, hours WHERE kind = 'commit'
            AND first_ns // 1000000000 BETWEEN hours.hour * 3600 - 59 AND hours.hour * 3600 + 3599
    ), offers AS (
        SELECT dest, hour, s, sum(greatest(0, to_offset - greatest(from_offset, coalesce(stood, 0)))) AS n
        FROM reads JOIN commits USING (topic, origin, "partition", hour) GROUP BY ALL
    ), seconds AS (
        SELECT grid.dest, grid.hour, grid.s,
            coalesce(if(grid.s < grid.hour * 3600, handed.n_of_hour, handed.n), 0) AS d, coalesce(offers.n, 0) AS o
        FROM grid LEFT JOIN handed USING (dest, s)
        LEFT JOIN offers ON offers.dest = grid.dest AND offers.hour = grid.hour AND offers.s = grid.s
    ), sums AS (
        SELECT *, sum(d) OVER (w ROWS 9 PRECEDING) AS d10, sum(o) OVER (w ROWS 9 PRECEDING) AS o10,
            sum(d) OVER (w ROWS 59 PRECEDING) AS d60 FROM seconds WINDOW w AS (PARTITION BY dest, hour ORDER BY s)
    )
    SELECT s // 60 * 60 AS ts_s, dest, sum(d)::BIGINT AS delivered, sum(o)::BIGINT AS offered, max(d)::BIGINT AS max_1s,
        max(d10) / 10 AS max_10s_mean, max(o10) / 10 AS offered_max_10s_mean, max(d60) / 60 AS max_60s_mean,
        count_if(o >= 1000) AS loaded_seconds, count_if(o >= 1000 AND d >= 1000) AS loaded_seconds_met
    FROM sums WHERE s >= hour * 3600 GROUP BY ALL HAVING sum(d) + sum(o) > 0
"""

AVAILABILITY = """
    WITH best AS (
        SELECT origin, dest, seq,
            arg_min(outcome, (coalesce(delivered_ns, 9223372036854775807), if(outcome = 'refused', 0, 1))) AS outcome
        FROM probe GROUP BY ALL
    )
    SELECT seq // 60 * 60 AS ts_s, origin, dest, count(*) AS probes, count_if(outcome = 'ok') AS probes_ok,
        count_if(outcome = 'late') AS probes_late, count_if(outcome = 'lost') AS probes_lost,
        count_if(outcome = 'refused') AS probes_refused
    FROM best GROUP BY ALL
"""

REQUESTS = """
    WITH seconds AS (
        SELECT "second" AS s, region, if(gateway = '', 'broker', 'gateway') AS via, op, sum(attempts) AS attempts,
            sum(ok) AS ok, sum(client_error) AS client_error, sum(server_error) AS server_error,
            sum("timeout") AS "timeout", sum(offered) AS offered, count(*) AS n, list(DISTINCT gateway) AS gateways
        FROM outcome GROUP BY ALL
    )
    SELECT s // 60 * 60 AS ts_s, region, via AS source, op, sum(attempts)::BIGINT AS attempts, sum(ok)::BIGINT AS ok,
        sum(client_error)::BIGINT AS client_error, sum(server_error)::BIGINT AS server_error,
        sum("timeout")::BIGINT AS "timeout", sum(offered)::BIGINT AS offered,
        if(via = 'gateway', len(list_distinct(flatten(list(gateways)))), max(n)) AS writers
    FROM seconds GROUP BY ts_s, region, via, op
"""

CLOCKS = """
    WITH ids AS (SELECT DISTINCT broker AS peer, region AS peer_region FROM clock),
    steps AS (
        SELECT *, coalesce(abs(theta_ns - lag(theta_ns) OVER w)
            > (delta_ns + lag(delta_ns) OVER w) / 2 + (mono_ns - lag(mono_ns) OVER w) / 1000, false) AS is_step
        FROM clock WINDOW w AS (PARTITION BY broker, boot_id, peer ORDER BY mono_ns)
    )
    SELECT t4_ns // 3600000000000 * 3600 AS ts_s, region, peer_region AS peer, count(*) AS exchanges,
        min(delta_ns) // 1000 AS rtt_min_us, count_if(is_step) AS steps, count_if(host_unsync) AS unsync
    FROM steps JOIN ids USING (peer) GROUP BY ALL
"""

QUERIES = {
    "minute": LATENCY, "hour": LATENCY, "throughput_minute": THROUGHPUT,
    "integrity_hour": INTEGRITY, "stream_hour": STREAMS, "mirror_hour": MIRRORS,
    "account_hour": ACCOUNTS, "avail_minute": AVAILABILITY,
    "requests_minute": REQUESTS, "clock_hour": CLOCKS,
}  # fmt: skip
SPANS = {"minute": 60, "hour": 3_600}


@pytest.mark.parametrize("table", QUERIES)
def test_sql_and_generator_agree_exactly(database: Any, expected: Expected, table: str) -> None:
    cursor = database.execute(QUERIES[table].format(span=SPANS.get(table), settle=expected.made_with["settle_s"]))
    columns = [column[0] for column in cursor.description]
    found = sorted(cursor.fetchall(), key=lambda row: tuple(row[columns.index(name)] for name in KEYS[table]))
    wanted = [tuple(row[name] for name in columns) for row in expected.rows(table)]
    if found != wanted:  # each row is looked for in all others: only then
        assert [row for row in found if row not in wanted][:3] == [row for row in wanted if row not in found][:3]
    assert found == wanted


def test_every_delivery_has_its_row(database: Any, expected: Expected) -> None:
    count = database.execute("SELECT count(*), count(DISTINCT (boot_id, row_seq)) FROM delivery").fetchone()
    assert count == (expected.files["delivery_rows"], expected.files["delivery_rows"]) or expected.files["broken"]
