"""Rows become files: whole, numbered, checksummed, kept for as long as asked, and never at the cost of a record."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import TraceFileMetadata
from georelay.trace.kinds import SCHEMA_VERSION, Operation, TraceKind
from georelay.trace.schema import LATENCY_HIST_SCHEMA, LEDGER_SCHEMA, SCHEMAS
from georelay.trace.spool import SpoolHeader
from mesh.tracing import rolling
from mesh.tracing import spooler as spooler_module
from mesh.tracing import writer as writer_module
from mesh.tracing.outcome_core import Totals
from mesh.tracing.recorder import Recorder, TraceSettings
from mesh.tracing.recorder_core import Drained, RecorderCore, Row
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

NOW_NS = 1_700_000_000 * 10**9
SECOND = 10**9


class WallClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        return self.now_ns


def make_writer(
    directory: Path, *, roll_period_s: float = 0, boot_id: str = "b0", clock: WallClock | None = None, **limits: Any
) -> TraceWriter:
    return TraceWriter(
        directory=directory,
        identity=Identity(region="eu", broker=2001, boot_id=boot_id),
        clock_ns=clock or WallClock(),
        roll_period_s=roll_period_s,
        slow_roll_period_s=roll_period_s,
        **limits,
    )


def make_drained(core: RecorderCore, rows: int = 3) -> Drained:
    """Return `rows` rows of each complete kind, and of deliveries."""
    session = core.open_session(topic="orders", origin=1, partition=0, offset=0, group="g")
    session.caught_up(0)
    for second in range(rows):
        session.delivered(
            epoch=1, base_offset=second, record_count=1, entry_region=1, received_ns=second * SECOND,
            delivered_ns=second * SECOND + 5_000_000,
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


def numbers(directory: Path, kind: str = "ledger") -> list[tuple[int, int, int]]:
    return [(m.first_row_seq, m.last_row_seq, m.rows) for m in map(metadata, files(directory, kind))]


def test_rows_read_back_exactly_as_they_were_recorded(core: RecorderCore, tmp_path: Path) -> None:
    drained = make_drained(core)
    made = drained.finished()
    make_writer(tmp_path).take(drained)
    folder = tmp_path / "date=2023-11-14" / "hour=22" / "region=eu"
    stamped = [(*row[:-1], SCHEMA_VERSION, row[-1]) for row in made[TraceKind.LEDGER]]
    assert rows_of(folder / "ledger-2001-b0-000000.parquet", TraceKind.LEDGER) == stamped
    hist = rows_of(folder / "latency_hist-2001-b0-000000.parquet", TraceKind.LATENCY_HIST)
    assert hist == [(*row, SCHEMA_VERSION) for row in made[TraceKind.LATENCY_HIST]]
    delivery = rows_of(folder / "delivery-2001-b0-000000.parquet", TraceKind.DELIVERY)
    assert delivery == [(*row, index, "b0", SCHEMA_VERSION) for index, row in enumerate(made[TraceKind.DELIVERY])]
    assert len(hist) == len(stamped) == len(delivery) == 3


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
    assert numbers(tmp_path) == [(0, 2, 3), (3, 4, 2)]


def test_rows_are_in_the_spool_before_the_roll_period_is_over_and_in_a_file_after(
    core: RecorderCore, tmp_path: Path
) -> None:
    clock = WallClock()
    writer = make_writer(tmp_path, roll_period_s=10, clock=clock)
    writer.take(make_drained(core))
    assert (files(tmp_path, "*"), len(list((tmp_path / ".spool").iterdir()))) == ([], 3)
    clock.now_ns += 10 * SECOND
    writer.take(make_drained(core))
    assert numbers(tmp_path) == [(0, 5, 6)]
    assert list((tmp_path / ".spool").iterdir()) == []


def test_kinds_that_no_verdict_is_made_of_are_rolled_more_rarely(core: RecorderCore, tmp_path: Path) -> None:
    clock = WallClock()
    identity = Identity(region="eu", broker=2001, boot_id="b0")
    writer = TraceWriter(directory=tmp_path, identity=identity, clock_ns=clock, roll_period_s=10)
    writer.take(make_drained(core))
    clock.now_ns += 10 * SECOND
    writer.take(make_drained(core))
    assert (len(files(tmp_path, "ledger")), files(tmp_path, "delivery")) == (1, [])
    clock.now_ns += 50 * SECOND
    writer.take(make_drained(core))
    assert len(files(tmp_path, "delivery")) == 1


def test_a_spool_that_has_many_rows_is_rolled_early(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "ROWS_PER_FILE_MAX", 3)
    make_writer(tmp_path, roll_period_s=300).take(make_drained(core))
    assert numbers(tmp_path) == [(0, 2, 3)]


def test_dropped_rows_leave_a_jump_in_the_numbers(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.take(make_drained(core, rows=3))
    drained = make_drained(core, rows=2)
    drained.dropped = {TraceKind.LEDGER: 4}
    writer.take(drained)
    last = metadata(files(tmp_path, "ledger")[-1])
    assert (last.first_row_seq, last.dropped, writer.stats.rows_dropped[TraceKind.LEDGER]) == (7, 4, 4)


def test_a_file_never_spans_a_jump_in_the_numbers(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path, roll_period_s=10)
    writer.take(make_drained(core, rows=3))
    drained = make_drained(core, rows=2)
    drained.dropped = {TraceKind.LEDGER: 4}
    writer.take(drained)
    writer.roll()
    assert numbers(tmp_path) == [(0, 2, 3), (7, 8, 2)]


def _fail(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_roll_that_fails_keeps_the_spool_for_the_next_one(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(rolling, "sync", _fail)
        writer.take(make_drained(core, rows=3))
    assert (files(tmp_path, "ledger"), writer.stats.write_failures) == ([], 3)
    writer.take(make_drained(core, rows=2))
    assert numbers(tmp_path) == [(0, 2, 3), (3, 4, 2)]


def test_while_the_spool_cannot_be_written_complete_kinds_wait_and_the_others_are_given_up(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(spooler_module, "_write_whole", _fail)
        writer.take(make_drained(core, rows=3))
    assert writer.stats.rows_dropped[TraceKind.DELIVERY] == 3
    assert writer.stats.rows_dropped[TraceKind.LEDGER] == writer.stats.rows_written[TraceKind.LEDGER] == 0
    writer.take(make_drained(core, rows=2))
    assert numbers(tmp_path) == [(0, 4, 5)]
    assert numbers(tmp_path, "delivery") == [(3, 4, 2)]
    assert metadata(files(tmp_path, "delivery")[0]).dropped == 3


def test_memory_is_bounded_while_the_disk_fails(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(spooler_module, "_write_whole", _fail)
        patch.setattr(spooler_module, "ROWS_HELD_MAX", 4)
        for _ in range(3):
            writer.take(make_drained(core, rows=2))
    writer.take(Drained())
    writer.roll()
    assert numbers(tmp_path) == [(2, 5, 4)]
    assert writer.stats.rows_dropped[TraceKind.LEDGER] == 2


def test_a_frame_that_was_written_in_part_is_cut_off_again(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path, roll_period_s=10)
    writer.take(make_drained(core, rows=3))

    def half(file: int, raw: bytes) -> None:
        os.write(file, raw[: len(raw) // 2])
        _fail()

    with monkeypatch.context() as patch:
        patch.setattr(spooler_module, "_write_whole", half)
        writer.take(make_drained(core, rows=2))
    writer.take(Drained())
    writer.roll()
    assert (numbers(tmp_path), writer.stats.lost_bytes) == ([(0, 4, 5)], 0)


def test_a_conversion_never_takes_more_than_a_thousand_rows(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    convert = spooler_module.batch_of

    def noted(kind: TraceKind, rows: list[Row], **stamps: Any) -> Any:
        sizes.append(len(rows))
        return convert(kind, rows, **stamps)

    monkeypatch.setattr(spooler_module, "batch_of", noted)
    drained = make_drained(core, rows=1_800)
    drained.rows.pop(TraceKind.DELIVERY)
    make_writer(tmp_path).take(drained)
    assert sizes == [1_000, 800] * 2


def test_a_thread_that_stands_still_is_refused_more_rows(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "DRAINS_QUEUED_MAX", 2)
    writer = make_writer(tmp_path)  # never started
    assert [writer.submit(make_drained(core)) for _ in range(3)] == [True, True, False]


def test_starting_rolls_the_spools_and_removes_the_unfinished_files_of_an_earlier_run_only(
    core: RecorderCore, tmp_path: Path
) -> None:
    ours = tmp_path / ".tmp-ledger-2001-old-000003.parquet"
    other = tmp_path / ".tmp-ledger-2002-old-000003.parquet"
    for path in (ours, other):
        path.write_bytes(b"torn")
    make_writer(tmp_path, roll_period_s=300, boot_id="old").take(make_drained(core))  # killed: it rolls nothing
    foreign = tmp_path / ".spool" / "ledger-2002-other-000000.wal"
    foreign.write_bytes(b"another broker's")
    writer = make_writer(tmp_path)
    writer.start()
    writer.close()
    assert (ours.exists(), other.exists(), foreign.exists()) == (False, True, True)
    (recovered,) = files(tmp_path, "ledger-2001-old")
    assert metadata(recovered).rows == 3


def test_a_crash_between_the_rename_and_the_end_of_the_spool_makes_no_second_file(
    core: RecorderCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock()
    writer = make_writer(tmp_path, roll_period_s=300, clock=clock)
    writer.take(make_drained(core))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _fail)
        writer.roll()
    clock.now_ns += 7_200 * SECOND  # recovered two hours later: still the same place
    make_writer(tmp_path, clock=clock, boot_id="b1").recover()
    assert numbers(tmp_path) == [(0, 2, 3)]


def test_an_empty_spool_is_removed_and_counted(tmp_path: Path) -> None:
    (tmp_path / ".spool").mkdir()
    (tmp_path / ".spool" / "ledger-2001-old-000000.wal").write_bytes(b"\0\0")
    writer = make_writer(tmp_path)
    writer.recover()
    assert (list((tmp_path / ".spool").iterdir()), writer.stats.lost_bytes) == ([], 2)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 1])
def test_a_spool_of_a_version_that_is_not_known_stays_for_the_program_that_knows_it(
    tmp_path: Path, version: int
) -> None:
    (tmp_path / ".spool").mkdir()
    spool = tmp_path / ".spool" / "ledger-2001-old-000000.wal"
    header = SpoolHeader(
        kind=TraceKind.LEDGER, region="eu", broker=2001, boot_id="old", opened_ns=NOW_NS, schema_version=version
    )
    raw = header.encode() + b"frames"
    spool.write_bytes(raw)
    writer = make_writer(tmp_path)
    writer.recover()
    writer.roll()
    assert (spool.read_bytes(), writer.stats.lost_bytes, writer.stats.files_written) == (raw, 0, 0)


def test_files_over_their_age_are_deleted_with_their_folders(core: RecorderCore, tmp_path: Path) -> None:
    clock = WallClock()
    writer = make_writer(tmp_path, clock=clock, age_ms_max=3_600_000)
    writer.take(make_drained(core, rows=1))
    clock.now_ns += 3_601 * SECOND
    writer.take(make_drained(core, rows=1))
    assert numbers(tmp_path) == [(1, 1, 1)]
    assert [path.name for path in tmp_path.glob("date=*/hour=*")] == ["hour=23"]
    assert writer.stats.files_deleted == 3


def test_the_oldest_files_are_deleted_while_all_are_over_the_size(core: RecorderCore, tmp_path: Path) -> None:
    writer = make_writer(tmp_path, size_bytes_max=0)
    writer.take(make_drained(core, rows=1))
    assert (files(tmp_path, "*"), writer.stats.size_bytes) == ([], 0)


def test_files_of_earlier_runs_count_and_those_of_other_brokers_do_not(core: RecorderCore, tmp_path: Path) -> None:
    make_writer(tmp_path, boot_id="old").take(make_drained(core, rows=1))
    foreign = files(tmp_path, "ledger")[0].with_name("ledger-2002-x-000000.parquet")
    foreign.write_bytes(b"another broker's")
    writer = make_writer(tmp_path, size_bytes_max=0)
    writer.recover()
    writer.roll()
    assert files(tmp_path, "*") == [foreign]


def make_recorder(directory: Path | None, **changes: Any) -> Recorder:
    return Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, clock_ns=lambda: NOW_NS,
        settings=TraceSettings(directory=directory, **changes),
    )  # fmt: skip


async def test_closing_the_recorder_writes_what_is_open(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, roll_period_s=300, rows_per_s_max=0)
    recorder.start()
    session = recorder.open_session(topic="t", origin=0, partition=0, offset=0)
    session.caught_up(NOW_NS)
    session.delivered(
        epoch=1, base_offset=0, record_count=8, entry_region=1, received_ns=NOW_NS, delivered_ns=NOW_NS + 1_000
    )
    recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=NOW_NS)
    recorder.replicated(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=NOW_NS)
    recorder.expired(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=2)
    recorder.keep(TraceKind.PROBE, ("us", "eu", "us/1001", 1, 2, 3, 4, "ok", 5_000))
    recorder.outcome_totals = lambda: {Operation.PUBLISH: Totals(ok=3, offered=8)}
    await recorder.close()
    await recorder.close()
    (path,) = files(tmp_path, "ledger")
    assert [row[0] for row in rows_of(path, TraceKind.LEDGER)] == ["delivered", "commit", "replicated", "expired"]
    (hist,) = rows_of(files(tmp_path, "latency_hist")[0], TraceKind.LATENCY_HIST)
    assert hist[LATENCY_HIST_SCHEMA.names.index("n")] == 8
    (outcome,) = rows_of(files(tmp_path, "outcome")[0], TraceKind.OUTCOME)
    assert outcome == (NOW_NS // SECOND - 1, "eu", "", "publish", 3, 3, 0, 0, 0, 8, SCHEMA_VERSION)
    assert len(files(tmp_path, "probe")) == 1
    assert (recorder.stats.rows_written, recorder.stats.writer.files_written) == (7, 4)
    assert set(recorder.stats.rows_dropped.values()) == {0}


async def test_a_recorder_without_a_directory_counts_and_writes_nothing(tmp_path: Path) -> None:
    recorder = make_recorder(None)
    recorder.start()
    recorder.open_session(topic="t", origin=0, partition=0, offset=0)
    await asyncio.sleep(0)
    await recorder.close()
    assert (recorder.stats.rows_written, files(tmp_path, "*")) == (0, [])


async def test_rows_the_writer_refuses_are_counted_once_and_told_to_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make_recorder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "DRAINS_QUEUED_MAX", 0)
        recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=0, to_offset=8, now_ns=0)
        recorder._hand_over(recorder._core.drain(NOW_NS))
    assert recorder.stats.rows_dropped[TraceKind.LEDGER] == 1
    recorder.start()
    recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=8, to_offset=9, now_ns=0)
    await recorder.close()
    assert recorder.stats.rows_dropped[TraceKind.LEDGER] == 1
    assert metadata(files(tmp_path, "ledger")[0]).first_row_seq == 1
