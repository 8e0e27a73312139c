"""Rows that still wait for the disk when a broker stops: written after all, there for the next start, or counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import LedgerKind, TraceKind
from mesh.tracing import spooler as spooler_module
from mesh.tracing.open_rows import ROWS_MAX, OpenRows
from mesh.tracing.recorder_core import Drained, RecorderCore
from mesh.tracing.refusals_core import RefusedStream
from mesh.tracing.retention import Retention
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
LEDGER, HISTOGRAMS = TraceKind.LEDGER, TraceKind.LATENCY_HIST


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def full_after(writes: int) -> Callable[[int, bytes], None]:
    """Return a write that the disk takes so many times."""
    write_whole, left = spooler_module._write_whole, [writes]

    def write(file: int, raw: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            full()
        write_whole(file, raw)

    return write


def make_core(journal: OpenRows | None, first_session: int = 100) -> RecorderCore:
    return RecorderCore(region="eu", broker=2001, first_session=first_session, region_name=str, journal=journal)


def make_writer(directory: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(
        directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000, open_rows=rows
    )


def opened(directory: Path, boot_id: str = "b0") -> OpenRows:
    rows = OpenRows(directory, region="eu", broker=2001, boot_id=boot_id, region_name=str)
    rows.open()
    return rows


def deliver(core: RecorderCore, ranges: int, first: int = 0) -> Drained:
    """Return rows of so many ranges of one second, and their one histogram."""
    for number in range(ranges):
        session = core.open_session(topic="t", origin=0, partition=number, offset=0)
        session.caught_up(NOW)
        session.delivered(
            epoch=1, base_offset=first, record_count=5, entry_region=0, received_ns=NOW, delivered_ns=NOW + 1_000
        )
    return core.drain(NOW, final=True)


def closed(writer: TraceWriter, drains: Sequence[Drained]) -> list[int]:
    """Run a writer on drains and stop it; return how many rows it told as given up, each time."""
    with capture_logs() as logs:
        writer.start()
        assert all(writer.submit(drained) for drained in drains)
        writer.close()
    return [entry["rows"] for entry in logs if entry["event"] == "trace.rows_dropped"]


def stored(directory: Path, kind: TraceKind = LEDGER) -> int:
    return sum(pq.read_metadata(path).num_rows for path in directory.rglob(f"{kind.value}-*.parquet"))


def next_start(directory: Path) -> TraceWriter:
    after = make_writer(directory, "b9")
    after.recover()
    after.roll()
    assert list((directory / SPOOL_FOLDER).iterdir()) == []
    return after


def test_rows_that_nobody_finds_again_are_counted_and_told_as_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained = deliver(make_core(None), 1_000)
    histograms = len(drained.cells)
    writer = make_writer(tmp_path, "b0")
    drained.rows.pop(TraceKind.DELIVERY)
    monkeypatch.setattr(spooler_module, "_write_whole", full)
    assert sorted(closed(writer, [drained])) == sorted([1_000, histograms])
    dropped = writer.stats.rows_dropped
    assert (dropped[LEDGER], dropped[HISTOGRAMS], histograms >= 1) == (1_000, histograms, True)
    assert not any(writer.stats.rows_written.values())


def test_of_the_rows_that_wait_only_those_are_given_up_that_the_next_start_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = opened(tmp_path)
    core = make_core(rows)
    core.refusals.add(RefusedStream(LedgerKind.REFUSED, "t", 0, 0), 7, NOW)
    drained = deliver(core, ROWS_MAX + 3)
    made = len(drained.rows[LEDGER])
    writer = make_writer(tmp_path, "b0", rows)
    with monkeypatch.context() as patched:
        patched.setattr(spooler_module, "_write_whole", full)
        closed(writer, [drained])
    rows.close()
    next_start(tmp_path)
    assert made == ROWS_MAX + 4
    assert (writer.stats.rows_dropped[LEDGER], stored(tmp_path)) == (4, ROWS_MAX)


@pytest.mark.parametrize("writes", range(6))
def test_wherever_the_disk_is_full_every_row_is_stored_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    rows = opened(tmp_path)
    core = make_core(rows)
    drains = []
    for first in (0, 10):
        core.refusals.add(RefusedStream(LedgerKind.REFUSED, "t", 0, 0), 7, NOW)
        drains.append(deliver(core, 5, first))
        drains[-1].rows.pop(TraceKind.DELIVERY)
        drains[-1].cells.clear()
    made = sum(len(drained.rows[LEDGER]) for drained in drains)
    writer = make_writer(tmp_path, "b0", rows)
    with monkeypatch.context() as patched:
        patched.setattr(spooler_module, "_write_whole", full_after(writes))
        closed(writer, drains)
    rows.close()
    next_start(tmp_path)
    assert stored(tmp_path) + writer.stats.rows_dropped[LEDGER] == made == 12
    assert (writer.stats.rows_dropped[LEDGER] > 0) == (writes < 3)  # a header and two frames


def test_a_disk_that_is_well_again_in_the_end_gets_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole, is_full = spooler_module._write_whole, [True]

    def write(file: int, raw: bytes) -> None:
        if is_full[0]:
            full()
        write_whole(file, raw)

    def enforce(_: Retention, __: int) -> int:
        is_full[0] = False  # it deletes old files
        return 0

    monkeypatch.setattr(spooler_module, "_write_whole", write)
    monkeypatch.setattr(Retention, "enforce", enforce)
    rows = opened(tmp_path)
    drained = deliver(make_core(rows), 10)
    drained.rows.pop(TraceKind.DELIVERY)
    histograms = len(drained.cells)
    writer = make_writer(tmp_path, "b0", rows)
    assert closed(writer, [drained]) == []
    rows.close()
    assert (stored(tmp_path), stored(tmp_path, HISTOGRAMS)) == (10, histograms)
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []
    assert writer.stats.rows_written[LEDGER] == 10


def test_rows_of_an_earlier_run_that_still_wait_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = opened(tmp_path)
    deliver(make_core(killed), 10)
    writer = make_writer(tmp_path, "b1")
    with monkeypatch.context() as patched:
        patched.setattr(spooler_module, "_write_whole", full)
        assert closed(writer, []) == []
    assert writer.stats.rows_dropped[LEDGER] == 0
    next_start(tmp_path)
    assert stored(tmp_path) == 10


@pytest.mark.parametrize("refused", ["listing", "reading"])
def test_open_rows_that_cannot_be_looked_at_in_the_end_are_counted_as_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    rows = opened(tmp_path)
    drained = deliver(make_core(rows), 10)
    drained.rows.pop(TraceKind.DELIVERY)
    drained.cells.clear()
    writer = make_writer(tmp_path, "b0", rows)
    monkeypatch.setattr(spooler_module, "_write_whole", full)
    if refused == "listing":
        monkeypatch.setattr("mesh.tracing.writer.left_open", full)
    else:
        monkeypatch.setattr(Path, "read_bytes", full)
    assert closed(writer, [drained]) == [10]
    rows.close()
