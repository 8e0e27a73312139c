"""The roll-up tables: names, columns and keys. What `rollup` writes and reports, judges and oracles read.

Rule 1: a roll-up row never spans two hours; an hour of a table is replaced whole or not at all (see sla.rollups).
Rule 2: key strings are never null: '' is "none" (no group, a stream with one home, a broker that is no gateway).
Rule 3: `ts_s` is the start of the row's minute or hour in seconds since 1970 UTC. The moment that decides it: second
        of publish for latency, `first_ns` for the ledger, `second` for outcomes, `seq` for probes, t4 for clocks.
Rule 4: a count that nothing is known about is null, never 0; a minute without data has no row.

minute, hour: latencies by stage; the hour is the sum of its minutes. `n_good*` count records within the target: as
    measured, surely, perhaps. A row whose clock error is unknown has none surely and all perhaps (`n_clock_unknown`).
    `n_clock_revised`: records whose clock was fitted anew, see sla.transforms.clock.
throughput_minute: records per second, seconds that end in the minute; windows look back up to 60 s.
integrity_hour: see sla.transforms.integrity for every word. stream_hour, mirror_hour: see sla.transforms.streams.
account_hour: which offsets the ledgers name, see sla.transforms.accounts.
sessions_hour: what later hours need of the consumers' positions and of their streams; nobody else reads it.
avail_minute: probes by their due second. requests_minute: requests at brokers and at gateways, never summed together.
clock_hour: how a peer's clock stood (`offset_us`: theirs minus ours). inputs_hour: what was read and what was not;
    `left_out_rows` and `too_late_rows` are in no other table, see sla.jobs.rollup_inputs.
"""

from __future__ import annotations

import enum
from typing import Final

HOUR_S: Final = 3_600
MINUTE_S: Final = 60


class RollupTable(enum.Enum):
    """The tables; the value is the name of the folder."""

    MINUTE = "minute"
    HOUR = "hour"
    THROUGHPUT_MINUTE = "throughput_minute"
    INTEGRITY_HOUR = "integrity_hour"
    STREAM_HOUR = "stream_hour"
    MIRROR_HOUR = "mirror_hour"
    SESSIONS_HOUR = "sessions_hour"
    ACCOUNT_HOUR = "account_hour"
    AVAIL_MINUTE = "avail_minute"
    REQUESTS_MINUTE = "requests_minute"
    CLOCK_HOUR = "clock_hour"
    INPUTS_HOUR = "inputs_hour"


_LATENCY_DDL: Final = """
    ts_s BIGINT, origin STRING, dest STRING, topic STRING, `group` STRING, stage STRING,
    n BIGINT, n_good BIGINT, n_good_lo BIGINT, n_good_hi BIGINT, n_clock_unknown BIGINT, n_clock_revised BIGINT,
    lat_sum_us BIGINT, lat_max_us BIGINT, clock_err_max_us BIGINT, hist ARRAY<STRUCT<b: INT, n: BIGINT>>
"""

DDL: Final = {
    RollupTable.MINUTE: _LATENCY_DDL,
    RollupTable.HOUR: _LATENCY_DDL,
    RollupTable.THROUGHPUT_MINUTE: """
        ts_s BIGINT, dest STRING,
        delivered BIGINT, offered BIGINT, max_1s BIGINT, max_10s_mean DOUBLE, offered_max_10s_mean DOUBLE,
        max_60s_mean DOUBLE, loaded_seconds BIGINT, loaded_seconds_met BIGINT
    """,
    RollupTable.INTEGRITY_HOUR: """
        ts_s BIGINT, origin STRING, dest STRING, topic STRING, partition INT, `group` STRING,
        sessions BIGINT, delivered BIGINT, dup_flagged BIGINT, dup_unflagged BIGINT, gaps BIGINT, gap_records BIGINT,
        healed_records BIGINT, lost BIGINT, unexplained BIGINT, aborted BIGINT, expired BIGINT,
        order_violations BIGINT, pending BIGINT
    """,
    RollupTable.STREAM_HOUR: """
        ts_s BIGINT, topic STRING, origin STRING, partition INT,
        committed BIGINT, aborted BIGINT, expired BIGINT, epochs BIGINT
    """,
    RollupTable.MIRROR_HOUR: """
        ts_s BIGINT, topic STRING, origin STRING, partition INT, region STRING, replicated BIGINT, missing BIGINT
    """,
    RollupTable.SESSIONS_HOUR: """
        ts_s BIGINT, scope STRING, origin STRING, dest STRING, topic STRING, partition INT, `group` STRING,
        broker STRING, session_epoch BIGINT,
        reach BIGINT, ranges ARRAY<STRUCT<f: BIGINT, t: BIGINT>>, last_ns BIGINT
    """,
    RollupTable.ACCOUNT_HOUR: """
        ts_s BIGINT, kind STRING, topic STRING, origin STRING, partition INT, region STRING, `group` STRING,
        records BIGINT, ranges ARRAY<STRUCT<f: BIGINT, t: BIGINT>>
    """,
    RollupTable.AVAIL_MINUTE: """
        ts_s BIGINT, origin STRING, dest STRING,
        probes BIGINT, probes_ok BIGINT, probes_late BIGINT, probes_lost BIGINT, probes_refused BIGINT
    """,
    RollupTable.REQUESTS_MINUTE: """
        ts_s BIGINT, region STRING, source STRING, op STRING,
        attempts BIGINT, ok BIGINT, client_error BIGINT, server_error BIGINT, timeout BIGINT, offered BIGINT,
        writers BIGINT
    """,
    RollupTable.CLOCK_HOUR: """
        ts_s BIGINT, region STRING, peer STRING,
        exchanges BIGINT, offset_us BIGINT, offset_spread_us BIGINT, drift_ppm DOUBLE, bound_max_us BIGINT,
        rtt_min_us BIGINT, steps BIGINT, unsync BIGINT
    """,
    RollupTable.INPUTS_HOUR: """
        ts_s BIGINT, kind STRING, region STRING,
        files BIGINT, bytes BIGINT, rows BIGINT, quarantined_files BIGINT, missing_rows BIGINT, dropped_rows BIGINT,
        writers ARRAY<STRING>, silent_writers ARRAY<STRING>,
        left_out_rows BIGINT, gone_rows BIGINT, too_late_rows BIGINT
    """,
}

LATENCY_KEYS: Final = ("ts_s", "origin", "dest", "topic", "group", "stage")
STREAM: Final = ("topic", "origin", "partition")
