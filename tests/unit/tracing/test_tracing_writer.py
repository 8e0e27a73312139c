"""Rows become files: whole, numbered, checksummed, and never at the cost of a record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import TraceFileMetadata
from georelay.trace.schema import LATENCY_HIST_SCHEMA, LEDGER_SCHEMA, SCHEMAS, TraceKind
from mesh.tracing import writer as writer_module
from mesh.tracing.recorder import Recorder, TraceSettings
from mesh.tracing.recorder_core import Drained, RecorderCore, Row
from mesh.tracing.writer import TraceWriter

NOW_NS = 1_700_000_000 * 10**9


def make_writer(directory: Path, roll_period_s: float = 0) -> TraceWriter:
    return TraceWriter(
        directory=directory,
        region="eu",
        broker=2001,
        boot_id="b0",
        clock_ns=lambda: NOW_NS,
        roll_period_s=roll_period_s,
    )


def make_drained(core: RecorderCore, rows: int = 3) -> Drained:
    """Return `rows` rows of each kind."""
    session = core.open_session(topic="orders", origin=1, partition=0, offset=0, group="g")
    session.caught_up(0)
    for second in range(rows):
        session.delivered(
            epoch=1, base_offset=second, record_count=1, entry_region=1, received_ns=second * 10**9,
            delivered_ns=second * 10**9 + 5_000_000,
        )  # fmt: skip
    return core.drain(0, final=True)


def files(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.rglob(f"{kind}-*.parquet"))


def metadata(path: Path) -> TraceFileMetadata:
    return TraceFileMetadata.decode(pq.read_schema(path).metadata)


def rows_of(path: Path, kind: TraceKind) -> list[Row]:
    table: Any = pq.ParquetFile(path, page_checksum_verification=True).read()
    assert table.schema.equals(SCHEMAS[kind])
    return [tuple(row.values()) for row in table.to_pylist()]


def test_rows_read_back_exactly_as_they_were_recorded(core: RecorderCore, tmp_path: Path) -> None:
    drained = make_drained(core)
    make_writer(tmp_path).take(drained)
    folder = tmp_path / "date=2023-11-14" / "hour=22" / "region=eu"
    assert rows_of(folder / "ledger-2001-b0-000000.parquet", TraceKind.LEDGER) == drained.ledger
    hist = rows_of(folder / "latency_hist-2001-b0-000000.parquet", TraceKind.LATENCY_HIST)
    assert hist == drained.latency_hist
    assert len(hist) == len(drained.ledger) == 3


def test_integers_are_delta_coded_and_pages_have_checksums(core: RecorderCore, tmp_path: Path) -> None:
    make_writer(tmp_path).take(make_drained(core, rows=500))
    (path,) = files(tmp_path, "ledger")
    column = pq.ParquetFile(path).metadata.row_group(0).column(LEDGER_SCHEMA.names.index("from_offset"))
    assert "DELTA_BINARY_PACKED" in column.encodings
    assert column.compression == "ZSTD"
    raw = bytearray(path.read_bytes())
    raw[column.data_page_offset + column.total_compressed_size - 8] ^= 1
    path.write_bytes(raw)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        rows_of(path, TraceKind.LEDGER)


def test_row_numbers_run_on_from_file_to_file(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.take(make_drained(core, rows=3))
    writer.take(make_drained(core, rows=2))
    numbers = [(m.first_row_seq, m.last_row_seq, m.rows) for m in map(metadata, files(tmp_path, "ledger"))]
    assert numbers == [(0, 2, 3), (3, 4, 2)]


def test_nothing_is_written_before_the_roll_period_is_over(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path, roll_period_s=10)
    writer.take(make_drained(core))
    assert files(tmp_path, "*") == []
    writer.roll()
    assert len(files(tmp_path, "*")) == 2


def test_dropped_rows_leave_a_jump_in_the_numbers(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.take(make_drained(core, rows=3))
    drained = make_drained(core, rows=2)
    writer.take(Drained(latency_hist=[], ledger=drained.ledger, latency_hist_dropped=0, ledger_dropped=4))
    last = metadata(files(tmp_path, "ledger")[-1])
    assert (last.first_row_seq, last.dropped, writer.stats.rows_dropped) == (7, 4, 4)


def test_a_file_never_spans_a_jump_in_the_numbers(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path, roll_period_s=10)
    writer.take(make_drained(core, rows=3))
    rows = make_drained(core, rows=2).ledger
    writer.take(Drained(latency_hist=[], ledger=rows, latency_hist_dropped=0, ledger_dropped=4))
    writer.roll()
    numbers = [(m.first_row_seq, m.last_row_seq, m.rows) for m in map(metadata, files(tmp_path, "ledger"))]
    assert numbers == [(0, 2, 3), (7, 8, 2)]


def test_a_full_disk_keeps_the_rows_for_the_next_roll(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "_sync", _fail)
        writer.take(make_drained(core, rows=3))
    assert (files(tmp_path, "ledger"), writer.stats.write_failures) == ([], 2)
    writer.take(make_drained(core, rows=2))
    (only,) = files(tmp_path, "ledger")
    assert metadata(only).rows == 5


def _fail(_: Path) -> None:
    raise OSError(28, "No space left on device")


def test_memory_is_bounded_while_the_disk_fails(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "_sync", _fail)
        patch.setattr(writer_module, "ROWS_HELD_MAX", 4)
        for _ in range(3):
            writer.take(make_drained(core, rows=2))
    writer.roll()
    assert [metadata(path).first_row_seq for path in files(tmp_path, "ledger")] == [2]
    assert writer.stats.rows_dropped == 4  # two of each kind


def test_a_conversion_never_takes_more_than_a_thousand_rows(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    convert = writer_module.batch_of

    def noted(kind: TraceKind, rows: list[Row]) -> Any:
        sizes.append(len(rows))
        return convert(kind, rows)

    monkeypatch.setattr(writer_module, "batch_of", noted)
    make_writer(tmp_path).take(make_drained(core, rows=2_500))
    assert sizes == [1_000, 1_000, 500] * 2


def test_a_thread_that_stands_still_is_refused_more_rows(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "DRAINS_QUEUED_MAX", 2)
    writer = make_writer(tmp_path)  # never started
    assert [writer.submit(make_drained(core)) for _ in range(3)] == [True, True, False]


def test_starting_removes_the_unfinished_files_of_an_earlier_run_only(tmp_path: Path) -> None:
    ours = tmp_path / ".tmp-ledger-2001-old-000003.parquet"
    other = tmp_path / ".tmp-ledger-2002-old-000003.parquet"
    for path in (ours, other):
        path.write_bytes(b"torn")
    writer = make_writer(tmp_path)
    writer.start()
    writer.close()
    assert (ours.exists(), other.exists()) == (False, True)


async def test_closing_the_recorder_writes_what_is_open(tmp_path: Path) -> None:
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, clock_ns=lambda: NOW_NS,
        settings=TraceSettings(directory=tmp_path, roll_period_s=300, clock_error_us=0),
    )  # fmt: skip
    recorder.start()
    session = recorder.open_session(topic="t", origin=0, partition=0, offset=0)
    session.caught_up(NOW_NS)
    session.delivered(
        epoch=1, base_offset=0, record_count=8, entry_region=1, received_ns=NOW_NS, delivered_ns=NOW_NS + 1_000
    )
    recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=NOW_NS)
    recorder.replicated(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=NOW_NS)
    await recorder.close()
    await recorder.close()
    (path,) = files(tmp_path, "ledger")
    assert [row[0] for row in rows_of(path, TraceKind.LEDGER)] == ["delivered", "commit", "replicated"]
    assert (
        rows_of(files(tmp_path, "latency_hist")[0], TraceKind.LATENCY_HIST)[0][LATENCY_HIST_SCHEMA.names.index("n")]
        == 8
    )
    assert (recorder.stats.rows_written, recorder.stats.files_written, recorder.stats.rows_dropped) == (4, 2, 0)


async def test_a_recorder_without_a_directory_counts_and_writes_nothing(tmp_path: Path) -> None:
    recorder = Recorder(region="eu", broker=1, boot_id="b0", region_name=str, settings=TraceSettings())
    recorder.start()
    recorder.open_session(topic="t", origin=0, partition=0, offset=0)
    await asyncio.sleep(0)
    await recorder.close()
    assert (recorder.stats.rows_written, files(tmp_path, "*")) == (0, [])


async def test_rows_the_writer_refuses_are_counted_once_and_told_to_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, clock_ns=lambda: NOW_NS,
        settings=TraceSettings(directory=tmp_path, clock_error_us=0),
    )  # fmt: skip
    writer = recorder._writer
    assert writer is not None
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "DRAINS_QUEUED_MAX", 0)
        recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=0)
        recorder._hand_over(recorder._core.drain(NOW_NS))
    assert recorder.stats.rows_dropped == 1
    recorder.start()
    recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=8, to_offset=9, now_ns=0)
    await recorder.close()
    assert recorder.stats.rows_dropped == 1
    assert metadata(files(tmp_path, "ledger")[0]).first_row_seq == 1
