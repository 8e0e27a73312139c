"""Rows that a kill would take before they are spooled are counted: a metric of 0 means that none would be lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import TraceKind
from mesh.tracing.open_rows import ARENAS, ROWS_MAX, OpenRows
from mesh.tracing.recorder import Recorder, TraceSettings
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def opened(directory: Path) -> tuple[OpenRows, RecorderCore]:
    rows = OpenRows(directory, region="eu", broker=2001, boot_id="b0", region_name=str)
    rows.open()
    return rows, RecorderCore(region="eu", broker=2001, first_session=100, region_name=str, journal=rows)


def make_writer(directory: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(
        directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000, open_rows=rows
    )


def deliver(session: Any, base: int, at_ns: int) -> None:
    session.delivered(epoch=1, base_offset=base, record_count=5, entry_region=0, received_ns=at_ns, delivered_ns=at_ns)


def stored(directory: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in directory.rglob("ledger-*.parquet"))


async def test_without_a_file_of_open_rows_every_row_is_unkept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TraceSettings(directory=tmp_path)
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, settings=settings, clock_ns=lambda: NOW
    )
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        recorder.start()
    for number in range(5):
        recorder.committed(topic=f"t{number}", origin=0, partition=0, epoch=1, from_offset=0, to_offset=5, now_ns=NOW)
    assert recorder.stats.rows_unkept == 5
    await recorder.close()


def test_rows_whose_room_is_taken_before_they_are_spooled_are_unkept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, core = opened(tmp_path)
    writer = make_writer(tmp_path, "b0", rows)
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    with monkeypatch.context() as patched:  # the disk is full for 12 seconds
        patched.setattr(os, "write", refuse)
        for second in range(12):
            deliver(session, 10 * second, NOW + second * SECOND)
            writer.take(core.drain(NOW + (second + 1) * SECOND))
    assert rows.unnoted == 12 - ARENAS
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert stored(tmp_path) + rows.unnoted == 12


def test_rows_that_were_spooled_in_time_are_not_counted(tmp_path: Path) -> None:
    rows, core = opened(tmp_path)
    writer = make_writer(tmp_path, "b0", rows)
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    for second in range(3 * ARENAS):
        deliver(session, 10 * second, NOW + second * SECOND)
        deliver(session, 10 * second + 7, NOW + second * SECOND + 1)
        writer.take(core.drain(NOW + (second + 1) * SECOND))
    assert rows.unnoted == 0


def test_a_full_second_that_nobody_spooled_is_counted_row_by_row(tmp_path: Path) -> None:
    rows, core = opened(tmp_path)
    for number in range(ROWS_MAX + 3):
        deliver(core.open_session(topic="t", origin=0, partition=number, offset=0), 0, NOW)
    assert rows.unnoted == 3
    noted = core.drain(NOW + SECOND).noted
    rows.spooled(noted[:24])
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 9, NOW + ARENAS * SECOND)
    assert rows.unnoted == 3 + ROWS_MAX - 24
    rows.close()


async def test_rows_that_the_writer_refuses_are_dropped_and_not_there_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [NOW]
    settings = TraceSettings(directory=tmp_path)
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b0", region_name=str, settings=settings, clock_ns=lambda: now[0]
    )
    recorder.start()
    writer: Any = recorder._writer
    for number, refuses in enumerate((True, False)):
        with monkeypatch.context() as patched:
            if refuses:  # its thread stands still
                patched.setattr(writer, "submit", lambda _: False)
            first = 5 * number
            recorder.committed(
                topic="t", origin=0, partition=0, epoch=1, from_offset=first, to_offset=first + 5, now_ns=now[0]
            )
            now[0] += SECOND
            recorder._hand_over(recorder._core.drain(now[0]))
    await recorder.close()
    assert recorder.stats.rows_dropped[TraceKind.LEDGER] == 1
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert stored(tmp_path) == 1
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []
