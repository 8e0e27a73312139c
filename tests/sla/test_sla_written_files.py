"""What brokers write is what reports read: the shipping writer's files, verified and compacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import RECORDED_COLUMNS, SCHEMAS
from mesh.tracing.rolling import roll
from mesh.tracing.spooler import Spooler
from mesh.tracing.written import Identity
from sla.jobs.compact import CompactRequest, run_compact
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.manifest import TIME_COLUMNS

OPENED_NS = 1_700_000_000 * 10**9


def value_of(field: Any, number: int, kind: TraceKind) -> object:
    """Return some value of a column; times lie in the hour of OPENED_NS, one second apart."""
    name, units_per_s = TIME_COLUMNS[kind]
    if field.name == name:
        return (1_700_000_000 + number) * units_per_s
    if field.nullable and number % 2:
        return None
    if pa.types.is_string(field.type):
        return f"{field.name}-é{number % 3}"
    if pa.types.is_list(field.type):
        return [(7, number), (9, 1)]
    if pa.types.is_fixed_size_binary(field.type):
        return bytes([number]) * field.type.byte_width
    if pa.types.is_boolean(field.type):
        return number % 3 == 0
    return 1.5 if pa.types.is_floating(field.type) else number


@pytest.mark.parametrize("kind", list(TraceKind))
def test_files_of_the_shipping_writer_are_good_and_can_be_compacted(tmp_path: Path, kind: TraceKind) -> None:
    spooler = Spooler(kind, tmp_path, Identity(region="eu", broker=2001, boot_id="54b1c987107e"))
    columns = [SCHEMAS[kind].field(name) for name in RECORDED_COLUMNS[kind]]
    for first in (0, 10):
        rows = [tuple(value_of(field, number, kind) for field in columns) for number in range(first, first + 10)]
        spooler.take(rows, 3, OPENED_NS)
        spool = spooler.rotate()
        assert spool is not None
        roll(spool, tmp_path)
    files = run_verify(VerifyRequest(traces=tmp_path))
    assert [bad.reason for bad in files.bad] == []
    assert [(file.metadata.rows, file.metadata.dropped) for file in files.good] == [(10, 3), (10, 6)]
    assert (files.rows_missing(kind), files.rows_dropped()) == (3, 6)
    times = [(file.time_min_s, file.time_max_s) for file in files.good]
    assert times == [(1_700_000_000, 1_700_000_009), (1_700_000_010, 1_700_000_019)]
    before = _rows(files.paths(kind))
    done = run_compact(CompactRequest(traces=tmp_path, clock_ns=lambda: OPENED_NS + 10**9 * 86_400))
    after = run_verify(VerifyRequest(traces=tmp_path))
    assert done.files_before == 0  # three rows are missing between them
    assert _rows(after.paths(kind)) == before


def test_consecutive_files_of_the_shipping_writer_become_one_that_it_could_have_written(tmp_path: Path) -> None:
    kind = TraceKind.LATENCY_HIST
    spooler = Spooler(kind, tmp_path, Identity(region="eu", broker=2001, boot_id="54b1c987107e"))
    columns = [SCHEMAS[kind].field(name) for name in RECORDED_COLUMNS[kind]]
    for first in (0, 10):
        rows = [tuple(value_of(field, number, kind) for field in columns) for number in range(first, first + 10)]
        spooler.take(rows, 0, OPENED_NS)
        spool = spooler.rotate()
        assert spool is not None
        roll(spool, tmp_path)
    files = run_verify(VerifyRequest(traces=tmp_path))
    written = pq.ParquetFile(files.paths(kind)[0])
    before = _rows(files.paths(kind))
    run_compact(CompactRequest(traces=tmp_path, clock_ns=lambda: OPENED_NS + 10**9 * 86_400))
    after = run_verify(VerifyRequest(traces=tmp_path))
    (path,) = after.paths(kind)
    assert _rows([path]) == before
    made = pq.ParquetFile(path)
    assert made.schema_arrow.remove_metadata().equals(written.schema_arrow.remove_metadata())
    for index in range(made.metadata.num_columns):
        ours, theirs = (file.metadata.row_group(0).column(index) for file in (made, written))
        assert (ours.compression, ours.encodings) == (theirs.compression, theirs.encodings)


def _rows(paths: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in paths:
        found += pq.read_table(path, partitioning=None).to_pylist()
    return found
