"""Trace files as brokers write them, and an object store: what tests of the report read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from tests.sla.s3_stand_in import CREDENTIALS, StandIn, standing_in

TRACE_HOUR_S = 1_700_000_000 // 3_600 * 3_600  # 2023-11-14 22:00 UTC
LEDGER_ROW: dict[str, Any] = {
    "kind": "delivered", "region": "eu", "broker": "2001", "origin": "", "topic": "orders", "partition": 0, "epoch": 1,
    "group": None, "from_offset": 0, "to_offset": 1, "first_ns": TRACE_HOUR_S * 10**9, "last_ns": TRACE_HOUR_S * 10**9,
    "attempt": 1, "session_epoch": 1, "deliver_seq": 0, "schema_version": SCHEMA_VERSION,
}  # fmt: skip
HIST_ROW: dict[str, Any] = {
    "second": TRACE_HOUR_S, "origin": "us", "dest": "eu", "topic": "orders", "group": "", "grid": 5, "n": 1,
    "n_good": 1, "lat_sum_us": 5_000, "lat_max_us": 5_000, "hist": [{"b": 393, "n": 1}], "stage": "total",
    "n_good_lo": 1, "n_good_hi": 1, "clock_offset_us": 0, "clock_err_us": 0, "schema_version": SCHEMA_VERSION,
}  # fmt: skip
TraceWriter = Callable[..., str]


@pytest.fixture
def write_trace() -> TraceWriter:
    """Write one trace file as a broker does and return its path below the trace directory.

    `rows` are those of a ledger or a histogram, changed; or a number of ledger rows one second apart. `schema` and
    `writing` overrule how the file is written, further names its metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
    from georelay.trace.schema import SCHEMAS

    def write(
        directory: Path, rows: int | Sequence[dict[str, Any]], *, first: int = 0, hour_s: int = TRACE_HOUR_S,
        kind: TraceKind = TraceKind.LEDGER, region: str = "eu", broker: int = 2001, boot: str = "b0",
        schema: Any = None, writing: dict[str, Any] | None = None, **changes: Any,
    ) -> str:  # fmt: skip
        if isinstance(rows, int):
            at_ns = [(hour_s + second) * 10**9 for second in range(first, first + rows)]
            rows = [
                {"from_offset": first + i, "to_offset": first + i + 1, "first_ns": at_ns[i], "deliver_seq": first + i}
                for i in range(rows)
            ]
        defaults = HIST_ROW if kind is TraceKind.LATENCY_HIST else LEDGER_ROW if kind is TraceKind.LEDGER else {}
        fields: dict[str, Any] = {
            "kind": kind, "writer": f"{region}/{broker}", "boot_id": boot, "first_row_seq": first,
            "last_row_seq": first + len(rows) - 1, "rows": len(rows), "dropped": 0, "hist_grid": 5,
        }  # fmt: skip
        metadata = TraceFileMetadata(**fields | changes)
        name = TraceFileName(kind=kind, broker=broker, boot_id=boot, sequence=first)
        relative = f"{partition_path(region, hour_s * 10**9)}/{name}"
        (directory / relative).parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([defaults | row for row in rows], schema=schema or SCHEMAS[kind])
        options = {"compression": "zstd", "write_page_checksum": True} | (writing or {})
        pq.write_table(table.replace_schema_metadata(metadata.encode()), directory / relative, **options)
        return relative

    return write


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An object store on loopback, and credentials for it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with standing_in() as server:
        yield server
