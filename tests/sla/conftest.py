"""One Spark session for all tests of the report, and builders of small tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from tests.sla.s3_stand_in import CREDENTIALS, StandIn, standing_in

Rows = Callable[..., Any]
LEDGER_DEFAULTS: dict[str, Any] = {
    "kind": "delivered", "region": "eu", "broker": "2001", "origin": "", "topic": "orders", "partition": 0, "epoch": 1,
    "group": None, "first_ns": 0, "last_ns": 0, "attempt": 1, "session_epoch": 1, "deliver_seq": 0,
}  # fmt: skip
HIST_DEFAULTS: dict[str, Any] = {
    "second": 0, "origin": "us", "dest": "eu", "topic": "orders", "group": "", "grid": 5, "stage": "total",
    "clock_offset_us": 0, "clock_err_us": 0,
}  # fmt: skip


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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.fail("Java is not installed: run make setup")
    from sla.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        master="local[2]",
        conf={"spark.sql.warehouse.dir": str(folder)},
        is_quick=True,
        jvm_log=folder / "spark.log",
    )
    yield session
    session.stop()


@pytest.fixture
def ledger(spark: Any) -> Rows:
    """Build a ledger from deliveries [from, to) in delivery order, and from ranges of other kinds."""
    from sla.schemas import DDL
    from tests.sla.spark_rows import table_of

    def build(
        *sessions: Sequence[tuple[int, int]],
        committed: Sequence[tuple[int, int]] = (),
        replicated: Sequence[tuple[int, int]] = (),
        extra: Sequence[dict[str, Any]] = (),
    ) -> Any:
        rows = [
            LEDGER_DEFAULTS | {"from_offset": first, "to_offset": end, "session_epoch": number, "deliver_seq": sequence}
            for number, session in enumerate(sessions)
            for sequence, (first, end) in enumerate(session)
        ]
        for kind, region, ranges in (("commit", "us", committed), ("replicated", "eu", replicated)):
            rows += [
                LEDGER_DEFAULTS | {"kind": kind, "region": region, "from_offset": first, "to_offset": end}
                for first, end in ranges
            ]
        rows += [LEDGER_DEFAULTS | row for row in extra]
        return table_of(spark, rows, DDL[TraceKind.LEDGER])

    return build


@pytest.fixture
def latency_hist(spark: Any) -> Rows:
    """Build latency rows from {latency_us: records} per row."""
    from georelay.trace.histogram import LatencyHistogram
    from sla.schemas import DDL
    from tests.sla.spark_rows import table_of

    def build(*rows: tuple[dict[int, int], dict[str, Any]]) -> Any:
        built = []
        for latencies, columns in rows:
            error_us = columns.get("clock_err_us", 0)
            histogram = LatencyHistogram(clock_error_us=error_us)
            for latency_us, count in latencies.items():
                histogram.add(latency_us, count)
            built.append(
                HIST_DEFAULTS
                | {
                    "n": histogram.n,
                    "n_good": histogram.n_good,
                    "n_good_lo": None if error_us is None else histogram.n_good_lo,
                    "n_good_hi": None if error_us is None else histogram.n_good_hi,
                    "lat_sum_us": histogram.lat_sum_us,
                    "lat_max_us": histogram.lat_max_us,
                    "hist": sorted(histogram.buckets.items()),
                }
                | columns
            )
        return table_of(spark, built, DDL[TraceKind.LATENCY_HIST])

    return build
