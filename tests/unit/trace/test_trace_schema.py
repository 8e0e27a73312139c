"""Columns and file names of traces: a change here is a change of a stored format."""

from __future__ import annotations

import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.schema import LATENCY_HIST_SCHEMA, LEDGER_SCHEMA, SCHEMA_VERSION, TraceKind

METADATA = TraceFileMetadata(
    kind=TraceKind.LEDGER,
    writer="eu/2001",
    boot_id="b0",
    first_row_seq=5,
    last_row_seq=9,
    rows=5,
    dropped=2,
    hist_grid=5,
)


def test_latency_hist_has_the_columns_of_version_1() -> None:
    assert SCHEMA_VERSION == 1
    assert [f"{field.name} {field.type}" for field in LATENCY_HIST_SCHEMA] == [
        "second int64",
        "origin string",
        "dest string",
        "topic string",
        "group string",
        "grid int16",
        "n int64",
        "n_good int64",
        "lat_sum_us int64",
        "lat_max_us int64",
        "hist list<element: struct<b: int32 not null, n: int64 not null> not null>",
        "stage string",
        "n_good_lo int64",
        "n_good_hi int64",
        "clock_offset_us int64",
        "clock_err_us int64",
    ]


def test_ledger_has_the_columns_of_version_1() -> None:
    assert [f"{field.name} {field.type}" for field in LEDGER_SCHEMA] == [
        "kind string",
        "region string",
        "broker string",
        "origin string",
        "topic string",
        "partition int32",
        "epoch int64",
        "group string",
        "from_offset int64",
        "to_offset int64",
        "first_ns int64",
        "last_ns int64",
        "attempt int16",
        "session_epoch int64",
        "deliver_seq int64",
    ]


def test_a_file_name_reads_back() -> None:
    name = TraceFileName(kind=TraceKind.LATENCY_HIST, broker=1001, boot_id="a1b2", sequence=7)
    assert str(name) == "latency_hist-1001-a1b2-000007.parquet"
    assert TraceFileName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text", [".tmp-ledger-1-b-000000.parquet", "clock-1-b-000000.parquet", "ledger-1-b.parquet", "ledger-1-B-0.parquet"]
)
def test_a_foreign_or_unfinished_file_name_is_no_trace(text: str) -> None:
    assert TraceFileName.parse(text) is None


def test_the_folder_is_the_hour_in_utc() -> None:
    assert str(partition_path("eu", 1_700_000_000 * 10**9)) == "date=2023-11-14/hour=22/region=eu"


def test_metadata_reads_back() -> None:
    assert TraceFileMetadata.decode(METADATA.encode()) == METADATA


@pytest.mark.parametrize("key", list(METADATA.encode()))
def test_metadata_without_a_key_is_refused_by_name(key: bytes) -> None:
    raw = METADATA.encode()
    del raw[key]
    with pytest.raises(ValueError, match=key.removeprefix(b"georelay.").decode()):
        TraceFileMetadata.decode(raw)


def test_metadata_with_text_for_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="rows is 'many'"):
        TraceFileMetadata.decode(METADATA.encode() | {b"georelay.rows": b"many"})
