"""The read side of the trace files: Spark's schemas and their Arrow twins. A test holds both equal to the written ones.

Every column is nullable here: a file of an older version may lack the newest ones.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS

DELIVERY_DDL: Final = """
    origin_region STRING, origin_broker STRING, dest_region STRING, dest_broker STRING, topic STRING, partition INT,
    epoch BIGINT, `group` STRING, session_epoch BIGINT, base_offset BIGINT, count INT, bytes BIGINT,
    publish_first_ns BIGINT, publish_last_ns BIGINT, commit_ns BIGINT, replicated_ns BIGINT,
    delivered_first_ns BIGINT, delivered_last_ns BIGINT, acked_ns BIGINT, lat_max_us BIGINT, attempt SMALLINT,
    deliver_seq BIGINT, sample_weight DOUBLE, sample_reason STRING, traceparent BINARY, row_seq BIGINT,
    boot_id STRING, schema_version SMALLINT
"""

LATENCY_HIST_DDL: Final = """
    second BIGINT, origin STRING, dest STRING, topic STRING, `group` STRING, grid SMALLINT, n BIGINT, n_good BIGINT,
    lat_sum_us BIGINT, lat_max_us BIGINT, hist ARRAY<STRUCT<b: INT, n: BIGINT>>, stage STRING,
    n_good_lo BIGINT, n_good_hi BIGINT, clock_offset_us BIGINT, clock_err_us BIGINT, schema_version SMALLINT
"""

LEDGER_DDL: Final = """
    kind STRING, region STRING, broker STRING, origin STRING, topic STRING, partition INT, epoch BIGINT, `group` STRING,
    from_offset BIGINT, to_offset BIGINT, first_ns BIGINT, last_ns BIGINT, attempt SMALLINT,
    session_epoch BIGINT, deliver_seq BIGINT, schema_version SMALLINT, records BIGINT
"""

OUTCOME_DDL: Final = """
    second BIGINT, region STRING, gateway STRING, op STRING, attempts BIGINT, ok BIGINT, client_error BIGINT,
    server_error BIGINT, timeout BIGINT, offered BIGINT, schema_version SMALLINT
"""

PROBE_DDL: Final = """
    origin STRING, dest STRING, prober STRING, seq BIGINT, sent_ns BIGINT, published_ns BIGINT, delivered_ns BIGINT,
    outcome STRING, timeout_ms INT, schema_version SMALLINT
"""

CLOCK_DDL: Final = """
    region STRING, broker STRING, peer STRING, t1_ns BIGINT, t2_ns BIGINT, t3_ns BIGINT, t4_ns BIGINT,
    theta_ns BIGINT, delta_ns BIGINT, host_maxerr_us BIGINT, host_unsync BOOLEAN, mono_ns BIGINT, boot_id STRING,
    schema_version SMALLINT
"""

DDL: Final = {
    TraceKind.DELIVERY: DELIVERY_DDL,
    TraceKind.LATENCY_HIST: LATENCY_HIST_DDL,
    TraceKind.LEDGER: LEDGER_DDL,
    TraceKind.OUTCOME: OUTCOME_DDL,
    TraceKind.PROBE: PROBE_DDL,
    TraceKind.CLOCK: CLOCK_DDL,
}


def _nullable(kind: Any) -> Any:
    """Return a type whose parts are all nullable, named as Spark names them."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _nullable(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


ARROW: Final = {
    kind: pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])
    for kind, schema in SCHEMAS.items()
}
