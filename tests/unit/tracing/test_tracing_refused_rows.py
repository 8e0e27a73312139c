"""A row that no trace file can hold costs itself: the rows beside it are written, and the writer goes on."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import LEDGER_SCHEMA
from mesh.tracing import open_rows
from mesh.tracing.delivery_core import ATTEMPT_MAX
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.open_rows import ARENA_BYTES, ARENAS, HEADER_BYTES, DamagedRowsError, OpenRows, read_open_rows
from mesh.tracing.recorder import Recorder, TraceSettings
from mesh.tracing.recorder_core import Drained, RecorderCore
from mesh.tracing.sealing import seal
from mesh.tracing.spooler import Spooler
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
PARTITION, ATTEMPT = 8, 9  # places of the numbers of a row in the file of open rows
FIRST_ROW = 4_096


def ledger_row(first: int, **other: object) -> Row:
    values = {
        "kind": "delivered", "region": "eu", "broker": "2001", "origin": "", "topic": "t", "partition": 0, "epoch": 1,
        "group": None, "from_offset": first, "to_offset": first + 1, "first_ns": NOW, "last_ns": NOW, "attempt": 1,
        "session_epoch": 1, "deliver_seq": first, "records": None,
    }  # fmt: skip
    return tuple((values | other).values())


def ledger(directory: Path) -> list[dict[str, object]]:
    tables = [pq.ParquetFile(path).read() for path in sorted(directory.rglob("ledger-*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


def offsets(directory: Path) -> list[object]:
    return sorted(row["from_offset"] for row in ledger(directory))  # type: ignore[type-var]


def make_writer(directory: Path, boot_id: str) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000)


def leave_two_rows(directory: Path, topic: str = "t") -> Path:
    """Leave the open rows of a killed run, two ranges of one second; return their file."""
    rows = OpenRows(directory, region="eu", broker=2001, boot_id="b0", region_name=str)
    rows.open()
    core = RecorderCore(region="eu", broker=2001, first_session=100, region_name=str, journal=rows)
    for number in range(2):
        core.open_session(topic=topic, origin=0, partition=number, offset=0).delivered(
            epoch=1, base_offset=5 * number, record_count=5, entry_region=0, received_ns=NOW, delivered_ns=NOW
        )
    return directory / SPOOL_FOLDER / "open-2001-b0.rows"


def spoil(path: Path, number: int, value: int) -> None:
    """Write one of the numbers of the first row anew."""
    raw = bytearray(path.read_bytes())
    place = HEADER_BYTES + NOW // SECOND % ARENAS * ARENA_BYTES + FIRST_ROW
    struct.pack_into("@q", raw, place + 8 * number, value)
    path.write_bytes(raw)


async def test_a_record_that_is_handed_out_without_end_keeps_the_traces_of_its_broker(tmp_path: Path) -> None:
    settings = TraceSettings(directory=tmp_path)
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, settings=settings, clock_ns=lambda: NOW
    )
    recorder.start()
    session = recorder.open_session(topic="jobs", origin=0, partition=0, offset=7, group="q")
    for attempt in (32_767, 32_768, 1 << 40):
        session.delivered(
            epoch=1, base_offset=7, record_count=1, entry_region=0, received_ns=NOW, delivered_ns=NOW, attempt=attempt
        )
    recorder.committed(topic="t", origin=0, partition=0, epoch=1, from_offset=8, to_offset=9, now_ns=NOW)
    await recorder.close()
    assert offsets(tmp_path) == [7, 7, 7, 8]
    assert {row["attempt"] for row in ledger(tmp_path)} == {1, ATTEMPT_MAX}
    assert sum(recorder.stats.rows_dropped.values()) == 0


@pytest.mark.parametrize("other", [{"attempt": 1 << 15}, {"topic": "\ud800"}, {"epoch": 1 << 63}, {"region": 7}])
def test_a_row_that_arrow_refuses_is_dropped_and_counted_and_the_others_are_written(
    tmp_path: Path, other: dict[str, object]
) -> None:
    rows = [ledger_row(first, **(other if first in (3, 40) else {})) for first in range(50)]
    writer = make_writer(tmp_path, "b0")
    writer.take(Drained(rows={TraceKind.LEDGER: rows}))
    writer.take(Drained(rows={TraceKind.LEDGER: [ledger_row(50)]}))
    writer.roll()
    assert offsets(tmp_path) == [first for first in range(51) if first not in (3, 40)]
    assert writer.stats.rows_dropped[TraceKind.LEDGER] == 2
    assert writer.stats.rows_written[TraceKind.LEDGER] == 49


def test_the_numbers_of_the_other_rows_show_that_one_was_dropped(tmp_path: Path) -> None:
    spooler = Spooler(TraceKind.LEDGER, tmp_path, Identity(region="eu", broker=2001, boot_id="b0"))
    spooler.take([ledger_row(first, attempt=1 << (20 if first == 1 else 0)) for first in range(3)], 0, NOW)
    assert (spooler.dropped, spooler.rows_waiting, spooler.rows_spooled) == (1, 0, 2)
    spooler.rotate()
    make_writer(tmp_path, "b1").recover()
    names = sorted(path.name for path in tmp_path.rglob("ledger-*.parquet"))
    assert names == ["ledger-2001-b0-000000.parquet", "ledger-2001-b0-000002.parquet"]


def test_rows_that_arrow_refuses_while_others_wait_for_the_disk_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooler = Spooler(TraceKind.LEDGER, tmp_path, Identity(region="eu", broker=2001, boot_id="b0"))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.write", refuse)
        with pytest.raises(OSError, match="No space"):
            spooler.take([ledger_row(0), ledger_row(1, attempt=1 << 20), ledger_row(2)], 0, NOW)
    spooler.take([], 0, NOW)
    assert (spooler.dropped, spooler.rows_waiting, spooler.rows_spooled) == (1, 0, 2)


@pytest.mark.parametrize(
    ("number", "value"), [(PARTITION, 1 << 31), (PARTITION, -1), (ATTEMPT, 1 << 15), (ATTEMPT, -1)]
)
def test_a_number_beyond_its_column_in_a_file_of_open_rows_costs_its_row_only(
    tmp_path: Path, number: int, value: int
) -> None:
    path = leave_two_rows(tmp_path)
    spoil(path, number, value)
    with pytest.raises(DamagedRowsError) as caught:
        read_open_rows(path.read_bytes(), region="eu", broker=2001)
    assert ([row[8] for row in caught.value.rows], caught.value.damaged) == ([5], 1)
    after = make_writer(tmp_path, "b1")
    after.start()
    after.close()
    assert offsets(tmp_path) == [5]
    assert not path.exists()


@pytest.mark.parametrize(
    ("old", "new"), [(b'"topic-name"', b'"to\\ud800me"'), (b'["delivered"', b'["delayed!!"')], ids=["no text", "kind"]
)
def test_a_name_that_no_column_can_hold_costs_its_row_only(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = leave_two_rows(tmp_path, topic="topic-name")
    assert len(old) == len(new)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    found = seal(tmp_path, Identity(region="eu", broker=2001, boot_id="s1"), NOW)
    assert (found.damaged_rows, found.open_rows, found.files) == (1, 1, 1)
    assert offsets(tmp_path) == [5]


def test_what_no_row_in_memory_may_be_is_what_no_column_holds() -> None:
    widths = {name: LEDGER_SCHEMA.field(name).type.bit_width for name in ("partition", "attempt")}
    assert (1 << widths["partition"] - 1) - 1 == open_rows.PARTITION_MAX
    assert (1 << widths["attempt"] - 1) - 1 == ATTEMPT_MAX


def test_a_row_that_is_refused_only_when_it_is_written_is_counted_by_who_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = leave_two_rows(tmp_path)
    spoil(path, ATTEMPT, 1 << 20)
    monkeypatch.setattr(open_rows, "ATTEMPT_MAX", 1 << 30)
    found = seal(tmp_path, Identity(region="eu", broker=2001, boot_id="s1"), NOW)
    assert (found.damaged_rows, found.open_rows, found.files) == (1, 1, 1)
    assert offsets(tmp_path) == [5]
