"""Ledger rows survive a kill -9 before they are spooled: none is lost, none is there twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.schema import LedgerKind, TraceKind
from georelay.trace.spool import SPOOL_FOLDER
from mesh.tracing import open_rows
from mesh.tracing.lane import Identity
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.open_rows import FILE_BYTES, OpenRows, left_open, read_open_rows, without_spooled
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.writer import TraceWriter

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
REGIONS = {1: "us", 2: "eu"}


def opened(directory: Path, boot_id: str = "b0") -> OpenRows:
    rows = OpenRows(directory, region="eu", broker=2001, boot_id=boot_id, region_name=REGIONS.__getitem__)
    rows.open()
    return rows


def core_with(rows: OpenRows) -> RecorderCore:
    return RecorderCore(region="eu", broker=2001, first_session=100, region_name=REGIONS.__getitem__, journal=rows)


def deliver(session: Any, base: int, count: int, at_ns: int) -> None:
    session.delivered(
        epoch=1, base_offset=base, record_count=count, entry_region=1, received_ns=at_ns - 5, delivered_ns=at_ns
    )


def kept(directory: Path, boot_id: str = "b0") -> list[Row]:
    path = directory / SPOOL_FOLDER / f"open-2001-{boot_id}.rows"
    return read_open_rows(path.read_bytes(), region="eu", broker=2001)


def drained(core: RecorderCore, now_ns: int = NOW, *, final: bool = True) -> list[Row]:
    return core.drain(now_ns, final=final).finished().get(TraceKind.LEDGER, [])


def make_writer(directory: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(
        directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000, open_rows=rows
    )


def stored(directory: Path) -> list[tuple[int, int]]:
    tables = [pq.ParquetFile(path).read() for path in sorted(directory.rglob("ledger-*.parquet"))]
    return [(row["from_offset"], row["to_offset"]) for table in tables for row in table.to_pylist()]


def test_a_row_is_kept_as_it_grows(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    session = core.open_session(topic="orders", origin=1, partition=3, offset=0, group="g")
    for base in (0, 10, 20):
        deliver(session, base, 10, NOW + base)
    head = ("delivered", "eu", "2001", "us", "orders", 3, 1, "g")
    assert kept(tmp_path) == [(*head, 0, 30, NOW, NOW + 20, 1, 100, 0, None)]


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9), st.integers(0, SECOND // 2)), max_size=40
)


@given(EVENTS)
def test_what_is_kept_is_what_would_have_been_written(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("open")
    core = core_with(opened(directory))
    sessions = [core.open_session(topic=f"t{number}", origin=0, partition=0, offset=0) for number in range(2)]
    at_ns = NOW
    for which, base, count, step_ns in events:
        at_ns += step_ns // 8
        if which < 2:
            deliver(sessions[which], base, count, at_ns)
        else:
            core.log_advanced(
                LedgerKind.COMMIT, topic="t0", origin=0, partition=0, epoch=1, from_offset=base,
                to_offset=base + count, now_ns=at_ns,
            )  # fmt: skip
    found = kept(directory)
    assert sorted(map(repr, found)) == sorted(map(repr, drained(core, at_ns)))


def test_seconds_that_are_spooled_are_not_kept(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    deliver(session, 0, 10, NOW)
    deliver(session, 10, 10, NOW + SECOND)
    writer = make_writer(tmp_path, "b0", rows)
    writer.take(core.drain(NOW + SECOND))
    assert [(row[8], row[9]) for row in kept(tmp_path)] == [(10, 20)]


def test_the_next_run_writes_what_a_killed_one_had_not(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    deliver(session, 0, 10, NOW)
    deliver(session, 10, 10, NOW + SECOND)
    make_writer(tmp_path, "b0", rows).take(core.drain(NOW + SECOND))
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert sorted(stored(tmp_path)) == [(0, 10), (10, 20)]
    assert left_open(tmp_path, 2001, "b1") == []


@pytest.mark.parametrize("kills", [1, 3])
def test_a_kill_between_the_spool_and_its_mark_doubles_nothing(tmp_path: Path, kills: int) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    deliver(core.open_session(topic="orders", origin=0, partition=0, offset=0), 0, 10, NOW)
    make_writer(tmp_path, "b0").take(core.drain(NOW + SECOND))  # nobody marks it
    raw = (tmp_path / SPOOL_FOLDER / "open-2001-b0.rows").read_bytes()
    assert len(read_open_rows(raw, region="eu", broker=2001)) == 1
    for number in range(kills):
        again = make_writer(tmp_path, f"b{number + 1}")
        again._unrolled += open_left_spools(tmp_path)
        again._take_open_rows()
        (tmp_path / SPOOL_FOLDER / "open-2001-b0.rows").write_bytes(raw)  # killed before it was removed
    last = make_writer(tmp_path, "b9")
    last.recover()
    last.roll()
    assert stored(tmp_path) == [(0, 10)]


def open_left_spools(directory: Path) -> list[Path]:
    return sorted((directory / SPOOL_FOLDER).glob("*.wal"))


def test_a_run_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    deliver(core_with(rows).open_session(topic="t", origin=0, partition=0, offset=0), 0, 1, NOW)
    rows.close()
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []
    rows.grown(8_192, 5, 5)  # what comes later has no place
    rows.saved(3)


def test_rows_without_room_are_counted_and_harm_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_rows, "ROWS_MAX", 2)
    rows = opened(tmp_path)
    core = core_with(rows)
    for number in range(3):
        deliver(core.open_session(topic="t", origin=0, partition=number, offset=0), 0, 1, NOW)
    deliver(core.open_session(topic="t" * 249, origin=0, partition=9, offset=0, group="g" * 255), 0, 1, NOW + SECOND)
    assert (rows.unnoted, len(kept(tmp_path))) == (2, 2)
    assert len(drained(core, NOW + SECOND)) == 4


def test_an_old_second_gives_its_room_to_a_new_one(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    for second in range(open_rows.ARENAS + 2):
        deliver(session, 10 * second, 10, NOW + second * SECOND)
    assert sorted(row[8] for row in kept(tmp_path)) == [10 * second for second in range(2, open_rows.ARENAS + 2)]


def test_a_disk_that_is_full_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    core = core_with(opened(tmp_path))
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 1, NOW)
    assert len(drained(core)) == 1
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []


@pytest.mark.parametrize("raw", [b"", b"x" * 100, bytes(FILE_BYTES), b"georelay open rows 1\n"])
def test_what_is_no_such_file_has_no_rows(raw: bytes) -> None:
    assert read_open_rows(raw, region="eu", broker=2001) == []


def test_rows_are_told_apart_by_session_and_place() -> None:
    def row(session: int, first: int) -> Row:
        return ("delivered", "eu", "1", "", "t", 0, 1, None, first, first + 5, 7, 8, 1, session, 0, None)

    assert without_spooled([row(1, 0), row(1, 5), row(2, 0)], [row(1, 0)]) == [row(1, 5), row(2, 0)]
