"""Trace files as DataFrames: Spark's own reader and ours over pyarrow.fs say the same, and both refuse damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.errors import JobFailed
from sla.jobs.verify import VerifyRequest, run_verify
from sla.schemas import ARROW, DDL
from sla.sources import arrowfs
from sla.sources.arrowfs import TraceRead, batches, pieces, read_over_arrow
from sla.sources.location import Location
from sla.sources.manifest import TraceFiles
from sla.sources.reading import check_row_count, read

TraceWriter = Callable[..., str]


@pytest.fixture
def traces(tmp_path: Path, write_trace: TraceWriter) -> Path:
    """Three schemas side by side. The name tries Spark's path expansion."""
    directory = tmp_path / "my [traces] {1} *"
    ours = SCHEMAS[TraceKind.LEDGER]
    older = ours.remove(ours.get_field_index("schema_version"))
    narrow = older.set(older.get_field_index("from_offset"), pa.field("from_offset", pa.int32(), nullable=False))
    newer = ours.append(pa.field("later", pa.string()))
    write_trace(directory, 3, boot="old", schema=narrow, schema_version=1)
    write_trace(directory, 3, boot="own")
    write_trace(directory, 3, boot="new", schema=newer, schema_version=3)
    write_trace(directory, [{"hist": [{"b": 1, "n": 2}, {"b": 7, "n": 1}]}, {"hist": []}], kind=TraceKind.LATENCY_HIST)
    return directory


def over_arrow(files: TraceFiles) -> TraceFiles:
    """Return the same files as those of a store: a URI that is not opened as this machine's directory."""
    return replace(files, location=replace(files.location, uri=Path(files.location.root).as_uri()))


@pytest.mark.parametrize(
    ("kind", "columns"),
    [(TraceKind.LEDGER, ["to_offset", "schema_version", "from_offset", "kind"]), (TraceKind.LATENCY_HIST, None)],
)
def test_both_readers_return_the_same_rows_of_every_schema(
    spark: Any, traces: Path, kind: TraceKind, columns: list[str] | None
) -> None:
    files = run_verify(VerifyRequest(traces=traces))
    native = read(spark, files, kind, columns)
    ours = read_over_arrow(spark, over_arrow(files), kind, columns)
    assert ours.schema == native.schema
    assert ours.columns == (columns or SCHEMAS[kind].names)
    found = sorted(ours.collect(), key=repr)
    assert found == sorted(native.collect(), key=repr)
    check_row_count(files, kind, len(found))
    with pytest.raises(JobFailed, match=f"files that hold {len(found)}"):
        check_row_count(files, kind, 2 * len(found))


def test_no_file_of_a_kind_is_an_empty_table(spark: Any, traces: Path) -> None:
    files = run_verify(VerifyRequest(traces=traces))
    assert read(spark, files, TraceKind.CLOCK, ["theta_ns"]).collect() == []


def test_a_store_is_read_over_arrow_and_a_directory_is_not(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sla.sources import reading

    files = run_verify(VerifyRequest(traces=traces))
    asked: list[TraceKind] = []
    monkeypatch.setattr(reading, "read_over_arrow", lambda spark, files, kind, columns: asked.append(kind))
    store = replace(files, location=Location.open("s3://bucket/traces?region=us-east-1"))
    reading.read(None, store, TraceKind.LEDGER)
    assert asked == [TraceKind.LEDGER]


def test_a_page_that_rotted_since_it_was_verified_is_an_error(spark: Any, traces: Path) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    files = run_verify(VerifyRequest(traces=traces))
    path = traces / files.good[1].relative
    raw = bytearray(path.read_bytes())
    raw[pq.read_metadata(path).row_group(0).column(0).data_page_offset - 1] ^= 0x10
    path.write_bytes(raw)
    kind = files.good[1].kind
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)crc"):
        read(spark, files, kind).collect()
    with pytest.raises(OSError, match=r"(?i)crc"):
        list(batches(files.location, files.good[1].relative, ARROW[kind]))


@pytest.mark.parametrize("kind", list(TraceKind))
def test_the_arrow_twin_has_the_columns_of_sparks_schema(spark: Any, kind: TraceKind) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    assert from_arrow_schema(ARROW[kind]) == spark.createDataFrame([], DDL[kind]).schema


def test_files_are_shared_out_in_pieces() -> None:
    mib = 1 << 20
    assert pieces([]) == []
    assert pieces([("a", 31 * mib), ("b", 1 * mib), ("c", 40 * mib), ("d", 1)]) == [("a", "b"), ("c",), ("d",)]
    many = pieces([(str(number), 1) for number in range(600)])
    assert [len(piece) for piece in many] == [256, 256, 88]
    assert [name for piece in many for name in piece] == [str(number) for number in range(600)]


def test_options_are_checked() -> None:
    whole = {"location": "traces", "kind": "ledger", "files": json.dumps([["a", 1]])}
    assert TraceRead.of_options(whole).columns == tuple(SCHEMAS[TraceKind.LEDGER].names)
    for options, message in (
        ({name: value for name, value in whole.items() if name != "files"}, "'files' of format"),
        (whole | {"kind": "other"}, "'other' is not a valid TraceKind"),
        (whole | {"columns": "kind,offset"}, "no column 'offset'"),
    ):
        with pytest.raises(ValueError, match=message):
            TraceRead.of_options(options)


def test_a_file_is_read_in_batches_of_the_schema_asked_for(
    tmp_path: Path, write_trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrowfs, "_ROWS_PER_BATCH", 4)
    name = write_trace(tmp_path, 10)
    schema = pa.schema([pa.field("to_offset", pa.int64()), pa.field("later", pa.string())])
    found = list(batches(Location.open(tmp_path.as_uri()), name, schema))
    assert [batch.num_rows for batch in found] == [4, 4, 2]
    assert pa.Table.from_batches(found).to_pydict() == {"to_offset": list(range(1, 11)), "later": [None] * 10}
