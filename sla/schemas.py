"""Spark's view of the trace files. The Arrow schemas of georelay.trace are the originals; a test holds both equal."""

from __future__ import annotations

from typing import Final

from georelay.trace.schema import TraceKind

LATENCY_HIST_DDL: Final = """
    second BIGINT, origin STRING, dest STRING, topic STRING, `group` STRING, grid SMALLINT, n BIGINT, n_good BIGINT,
    lat_sum_us BIGINT, lat_max_us BIGINT, hist ARRAY<STRUCT<b: INT, n: BIGINT>>, stage STRING,
    n_good_lo BIGINT, n_good_hi BIGINT, clock_offset_us BIGINT, clock_err_us BIGINT
"""

LEDGER_DDL: Final = """
    kind STRING, region STRING, broker STRING, origin STRING, topic STRING, partition INT, epoch BIGINT, `group` STRING,
    from_offset BIGINT, to_offset BIGINT, first_ns BIGINT, last_ns BIGINT, attempt SMALLINT,
    session_epoch BIGINT, deliver_seq BIGINT
"""

DDL: Final = {TraceKind.LATENCY_HIST: LATENCY_HIST_DDL, TraceKind.LEDGER: LEDGER_DDL}
