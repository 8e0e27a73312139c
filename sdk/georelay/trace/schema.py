"""Rows of the trace files: one Arrow schema per kind, shared by the brokers that write and the jobs that read.

Rule 1: columns are only ever added, nullable, at the end; types only widen. SCHEMA_VERSION counts the additions.
Rule 2: times are int64 nanoseconds (or seconds where the name says so) since 1970 UTC; no timestamp types, no unsigned.
Rule 3: a row is meaningful alone: regions and brokers by name, never by a number whose meaning is elsewhere.

latency_hist: latencies of the records published in one second. `origin` is the region whose broker received the
records first, `dest` the region that delivered them. The clock columns are null when the clock error is unknown.
ledger: ranges of offsets [from_offset, to_offset) that were committed, replicated or delivered. `origin` is the
region of the stream for homes=every, empty for homes=one. `session_epoch` names one consumer session of one broker,
`deliver_seq` counts its deliveries: order is judged by it, never by time.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1


class TraceKind(enum.Enum):
    """Kinds of trace files; the value is the first part of the file name."""

    LATENCY_HIST = "latency_hist"
    LEDGER = "ledger"


class Stage(enum.Enum):
    """Part of the way of a record that a latency covers."""

    COMMIT = "commit"
    REPLICATE = "replicate"
    DELIVER = "deliver"
    TOTAL = "total"  # from the first broker's receive stamp to the consumer's socket


class LedgerKind(enum.Enum):
    """What happened to a range of offsets."""

    COMMIT = "commit"  # committed in the home region
    REPLICATED = "replicated"  # committed in a mirror region
    DELIVERED = "delivered"  # handed to a consumer
    ABORTED = "aborted"
    EXPIRED = "expired"


def _required(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


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
    ]
)

SCHEMAS: Final = {TraceKind.LATENCY_HIST: LATENCY_HIST_SCHEMA, TraceKind.LEDGER: LEDGER_SCHEMA}
