"""Stored bytes of traces: a spool of an earlier build must be read by this one, and files keep their metadata."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from georelay.trace.spool import SpoolHeader, SpoolRows, read_spool
from mesh.tracing.rolling import roll

HERE = Path(__file__).parent
HEADER = SpoolHeader(
    kind=TraceKind.PROBE, region="eu", broker=2001, boot_id="b0", opened_ns=1_700_000_000 * 10**9, schema_version=2
)
ROWS = [
    {
        "origin": "us", "dest": "eu", "prober": "us/1001", "seq": 1_700_000_000 + number, "sent_ns": 5,
        "published_ns": 6, "delivered_ns": None, "outcome": "lost", "timeout_ms": 5_000, "schema_version": 2,
    }
    for number in range(3)
]  # fmt: skip


def test_the_first_frame_has_these_bytes() -> None:
    assert HEADER.encode().hex() == (
        "00000078"  # 120 bytes
        "4bbcd4db"  # CRC-32C
        + b'{"boot_id":"b0","broker":2001,"kind":"probe","opened_ns":1700000000000000000,"region":"eu",'
        b'"schema_version":2,"spool":1}'.hex()
    )


def test_a_frame_of_rows_begins_with_number_count_and_drops() -> None:
    frame = SpoolRows(first_row_seq=258, rows=3, dropped=1, message=b"arrow").encode()
    assert frame.hex() == "000000194c5241300000000000000102000000030000000000000001" + b"arrow".hex()


@pytest.mark.parametrize("name", ["spool_probe", "spool_probe_plain"])  # compressed, as earlier builds wrote; as it is
def test_a_spool_of_this_format_is_read(name: str) -> None:
    spool = read_spool(bytes.fromhex((HERE / f"{name}.hex").read_text()))
    assert (spool.header, spool.lost_bytes, len(spool.rows)) == (HEADER, 0, 1)
    (rows,) = spool.rows
    assert (rows.first_row_seq, rows.rows, rows.dropped) == (258, 3, 1)
    assert rows.batch(TraceKind.PROBE).to_pylist() == ROWS


def test_ledger_rows_of_version_2_are_read_and_lack_what_is_newer(tmp_path: Path) -> None:
    raw = bytes.fromhex((HERE / "spool_ledger_2.hex").read_text())
    (frame,) = read_spool(raw).rows
    row = {
        "kind": "commit", "region": "us", "broker": "1001", "origin": "", "topic": "orders", "partition": 3,
        "epoch": 1, "group": None, "from_offset": 10, "to_offset": 25, "first_ns": 7, "last_ns": 8, "attempt": 1,
        "session_epoch": 0, "deliver_seq": 0, "schema_version": 2, "records": None,
    }  # fmt: skip
    assert frame.batch(TraceKind.LEDGER, schema_version=2).to_pylist() == [row]
    spool = tmp_path / "ledger-1001-b0-000000.wal"
    spool.write_bytes(raw)
    (path,) = roll(spool, tmp_path).files
    assert pq.read_table(path).to_pylist() == [row]


@pytest.fixture
def rolled(tmp_path: Path) -> Path:
    spool = tmp_path / "probe-2001-b0-000000.wal"
    spool.write_bytes(bytes.fromhex((HERE / "spool_probe.hex").read_text()))
    (path,) = roll(spool, tmp_path).files
    return path


def test_a_file_has_this_name_and_metadata(rolled: Path) -> None:
    assert rolled.as_posix().endswith("date=2023-11-14/hour=22/region=eu/probe-2001-b0-000258.parquet")
    stored = pq.read_metadata(rolled).metadata
    assert {key: value for key, value in stored.items() if key.startswith(b"georelay.")} == {
        b"georelay.schema_version": b"3",
        b"georelay.kind": b"probe",
        b"georelay.writer": b"eu/2001",
        b"georelay.boot_id": b"b0",
        b"georelay.first_row_seq": b"258",
        b"georelay.last_row_seq": b"260",
        b"georelay.rows": b"3",
        b"georelay.dropped": b"1",
        b"georelay.hist_grid": b"5",
    }


def test_a_file_is_compressed_delta_coded_and_has_dictionaries(rolled: Path) -> None:
    group = pq.read_metadata(rolled).row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in columns["seq"].encodings
    assert "RLE_DICTIONARY" in columns["origin"].encodings
    assert pq.read_table(rolled).to_pylist() == ROWS


def make_spool() -> bytes:
    """Return the bytes of spool_probe_plain.hex as this build writes them."""
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMAS[TraceKind.PROBE])
    return HEADER.encode() + SpoolRows.of(TraceKind.PROBE, batch, first_row_seq=258, dropped=1).encode()


if __name__ == "__main__":
    (HERE / "spool_probe_plain.hex").write_text(make_spool().hex() + "\n")
