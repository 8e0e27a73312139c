"""Rows of the trace files: one Arrow schema per kind, shared by the brokers that write and the jobs that read.

Rule 1: columns are only ever added, nullable, at the end; types only widen. SCHEMA_VERSION counts the additions, and
        stands in the metadata of every file and in every row.
Rule 2: times are int64 nanoseconds (or seconds where the name says so) since 1970 UTC; no timestamp types, no unsigned.
Rule 3: a row is meaningful alone: regions and brokers by name, never by a number whose meaning is elsewhere.
Rule 4: the columns of STAMPED_COLUMNS are filled in by the writer; everything else is the recorder's.

delivery: one batch handed to one consumer; sampled, `sample_weight` is 1 / probability (Horvitz-Thompson). For
drill-down only: every figure of a report comes from the complete kinds. `commit_ns` is null at a mirror,
`replicated_ns` at the home; both are when the delivering broker saw the commit of its own region.
latency_hist: latencies of the records published in one second, by stage. `origin` is the region whose broker received
the records first (for `replicate`: the home region), `dest` the region where the stage ended. Latencies are corrected
by `clock_offset_us`; the clock columns are null when nothing is known about the clocks.
ledger: ranges of offsets [from_offset, to_offset) that were committed, replicated, delivered, aborted or expired.
`origin` is the region of the stream for homes=every, empty for homes=one. `session_epoch` names one consumer session of
one broker, `deliver_seq` counts its deliveries: order is judged by it, never by time.
A row `refused` or `undecided` names no offsets: `records` of publishes to the stream were answered by this broker with
an error, and are surely not stored, or may be; ranges have null there. A redirection is no answer.
outcome: what became of the requests of one second at one broker (`gateway` empty) or gateway. `offered` counts records.
probe: one canary record per second, region and destination, written by the destination; `seq` is the second it was due.
A probe without an answer in time has a row `lost`; one that comes later has a second row, `late`.
clock: one exchange with a broker of another region (or of the own one): `theta_ns` is the peer's clock minus ours,
`delta_ns` the round trip without the peer's part. `host_maxerr_us` is what the kernel knows about this host's clock.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from georelay.trace.kinds import TraceKind


def _required(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


def _version() -> Any:
    return pa.field("schema_version", pa.int16())  # nullable: rows of version 1 lack it


STAMPED_COLUMNS: Final = frozenset({"row_seq", "boot_id", "schema_version"})

DELIVERY_SCHEMA: Final = pa.schema(
    [
        _required("origin_region", pa.string()),
        pa.field("origin_broker", pa.string()),
        _required("dest_region", pa.string()),
        _required("dest_broker", pa.string()),
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("epoch", pa.int64()),
        pa.field("group", pa.string()),
        _required("session_epoch", pa.int64()),
        _required("base_offset", pa.int64()),
        _required("count", pa.int32()),
        _required("bytes", pa.int64()),
        _required("publish_first_ns", pa.int64()),
        _required("publish_last_ns", pa.int64()),
        pa.field("commit_ns", pa.int64()),
        pa.field("replicated_ns", pa.int64()),
        _required("delivered_first_ns", pa.int64()),
        _required("delivered_last_ns", pa.int64()),
        pa.field("acked_ns", pa.int64()),
        _required("lat_max_us", pa.int64()),
        _required("attempt", pa.int16()),
        _required("deliver_seq", pa.int64()),
        _required("sample_weight", pa.float64()),
        _required("sample_reason", pa.string()),
        pa.field("traceparent", pa.binary(16)),
        _required("row_seq", pa.int64()),
        _required("boot_id", pa.string()),
        _version(),
    ]
)

LATENCY_HIST_SCHEMA: Final = pa.schema(
    [
        _required("second", pa.int64()),
        _required("origin", pa.string()),
        _required("dest", pa.string()),
        _required("topic", pa.string()),
        _required("group", pa.string()),
        _required("grid", pa.int16()),
        _required("n", pa.int64()),
        _required("n_good", pa.int64()),
        _required("lat_sum_us", pa.int64()),
        _required("lat_max_us", pa.int64()),
        _required(
            "hist", pa.list_(_required("element", pa.struct([_required("b", pa.int32()), _required("n", pa.int64())])))
        ),
        _required("stage", pa.string()),
        pa.field("n_good_lo", pa.int64()),
        pa.field("n_good_hi", pa.int64()),
        pa.field("clock_offset_us", pa.int64()),
        pa.field("clock_err_us", pa.int64()),
        _version(),
    ]
)

LEDGER_SCHEMA: Final = pa.schema(
    [
        _required("kind", pa.string()),
        _required("region", pa.string()),
        _required("broker", pa.string()),
        _required("origin", pa.string()),
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("epoch", pa.int64()),
        pa.field("group", pa.string()),
        _required("from_offset", pa.int64()),
        _required("to_offset", pa.int64()),
        _required("first_ns", pa.int64()),
        _required("last_ns", pa.int64()),
        _required("attempt", pa.int16()),
        _required("session_epoch", pa.int64()),
        _required("deliver_seq", pa.int64()),
        _version(),
        pa.field("records", pa.int64()),  # since version 3
    ]
)

OUTCOME_SCHEMA: Final = pa.schema(
    [
        _required("second", pa.int64()),
        _required("region", pa.string()),
        _required("gateway", pa.string()),
        _required("op", pa.string()),
        _required("attempts", pa.int64()),
        _required("ok", pa.int64()),
        _required("client_error", pa.int64()),
        _required("server_error", pa.int64()),
        _required("timeout", pa.int64()),
        _required("offered", pa.int64()),
        _version(),
    ]
)

PROBE_SCHEMA: Final = pa.schema(
    [
        _required("origin", pa.string()),
        _required("dest", pa.string()),
        _required("prober", pa.string()),
        _required("seq", pa.int64()),
        _required("sent_ns", pa.int64()),
        pa.field("published_ns", pa.int64()),
        pa.field("delivered_ns", pa.int64()),
        _required("outcome", pa.string()),
        _required("timeout_ms", pa.int32()),
        _version(),
    ]
)

CLOCK_SCHEMA: Final = pa.schema(
    [
        _required("region", pa.string()),
        _required("broker", pa.string()),
        _required("peer", pa.string()),
        _required("t1_ns", pa.int64()),
        _required("t2_ns", pa.int64()),
        _required("t3_ns", pa.int64()),
        _required("t4_ns", pa.int64()),
        _required("theta_ns", pa.int64()),
        _required("delta_ns", pa.int64()),
        pa.field("host_maxerr_us", pa.int64()),
        _required("host_unsync", pa.bool_()),
        _required("mono_ns", pa.int64()),
        _required("boot_id", pa.string()),
        _version(),
    ]
)

SCHEMAS: Final = {
    TraceKind.DELIVERY: DELIVERY_SCHEMA,
    TraceKind.LATENCY_HIST: LATENCY_HIST_SCHEMA,
    TraceKind.LEDGER: LEDGER_SCHEMA,
    TraceKind.OUTCOME: OUTCOME_SCHEMA,
    TraceKind.PROBE: PROBE_SCHEMA,
    TraceKind.CLOCK: CLOCK_SCHEMA,
}
_ADDED: Final = {TraceKind.LEDGER: {"records": 3}}  # column -> the first version that has it
SPOOLED_VERSION_MIN: Final = 2  # of the oldest spools that are read
RECORDED_COLUMNS: Final = {
    kind: tuple(field.name for field in schema if field.name not in STAMPED_COLUMNS) for kind, schema in SCHEMAS.items()
}


def schema_of(kind: TraceKind, version: int) -> Any:
    """Return the schema that rows of a kind had in a version of this module, from 2 on."""
    added = _ADDED.get(kind, {})
    return pa.schema([field for field in SCHEMAS[kind] if added.get(field.name, 0) <= version])
