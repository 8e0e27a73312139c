"""A start that fails half, and a kill after it, double no ledger row: spools wait for the open rows of their run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import IN_PROGRESS_PREFIX, SPOOL_FOLDER
from mesh.tracing import memory_file
from mesh.tracing import writer as writer_module
from mesh.tracing.open_rows import OpenRows
from mesh.tracing.recorder_core import Drained, RecorderCore
from mesh.tracing.retention import Retention
from mesh.tracing.writer import OPEN_ROWS_TRIES_MAX, TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
WANTED = [(0, 10), (10, 20), (20, 30)]
OPEN_FILE = f"{SPOOL_FOLDER}/open-2001-b0.rows"


def make_writer(directory: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(
        directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000, open_rows=rows
    )


def leave(directory: Path) -> None:
    """Leave what a kill leaves: 0-10 rolled, 10-20 spooled and not marked so, 20-30 in no spool."""
    rows = OpenRows(directory, region="eu", broker=2001, boot_id="b0", region_name=str)
    rows.open()
    core = RecorderCore(region="eu", broker=2001, first_session=100, region_name=str, journal=rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    writer = make_writer(directory, "b0", rows)
    for second in range(3):
        at_ns = NOW + second * SECOND
        session.delivered(
            epoch=1, base_offset=10 * second, record_count=10, entry_region=0, received_ns=at_ns, delivered_ns=at_ns
        )
        if second == 1:
            writer.take(core.drain(at_ns))
            writer.roll()
    writer._open_rows = None  # killed between the spool and its mark
    writer.take(core.drain(NOW + 2 * SECOND))


def stored(directory: Path) -> list[tuple[int, int]]:
    rows = (pq.ParquetFile(path).read().to_pylist() for path in directory.rglob("ledger-*.parquet"))
    return sorted((row["from_offset"], row["to_offset"]) for table in rows for row in table)


def left(directory: Path) -> list[str]:
    return [path.name for path in (directory / SPOOL_FOLDER).iterdir()]


def refusal(number: int) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def unreadable(monkeypatch: pytest.MonkeyPatch, prefix: str, number: int = errno.EMFILE) -> None:
    """Let reads of files of such names fail."""
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name.startswith(prefix):
            raise OSError(number, os.strerror(number))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)


def is_rolled(directory: Path, kind: str) -> bool:
    return not list((directory / SPOOL_FOLDER).glob(f"{kind}-2001-b0-*.wal"))


def ended(directory: Path, boot_id: str) -> None:
    after = make_writer(directory, boot_id)
    after.recover()
    after.roll()
    assert (stored(directory), left(directory)) == (WANTED, [])


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "full disk": lambda patched: patched.setattr(os, "write", refusal(errno.ENOSPC)),
    "open rows unread": lambda patched: unreadable(patched, "open-"),
    "spool unread": lambda patched: unreadable(patched, "ledger-"),
    "not listed": lambda patched: patched.setattr(writer_module, "left_open", refusal(errno.EIO)),
    "not removed": lambda patched: patched.setattr("mesh.tracing.memory_file.remove", refusal(errno.EIO)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kill_after_a_start_that_failed_half_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    leave(tmp_path)
    for boot_id in ("b1", "b2"):
        with monkeypatch.context() as patched:
            FAULTS[fault](patched)
            make_writer(tmp_path, boot_id).recover()
        assert is_rolled(tmp_path, "latency_hist")  # what has no open rows waits for nobody
    ended(tmp_path, "b3")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_started_half_ends_it_once_the_disk_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    leave(tmp_path)
    writer = make_writer(tmp_path, "b1")
    with monkeypatch.context() as patched:
        FAULTS[fault](patched)
        writer.recover()
        writer.take(Drained())
        writer.roll()
    writer.take(Drained())
    writer.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_started_half_and_ended_in_order_leaves_the_rest_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    leave(tmp_path)
    with monkeypatch.context() as patched:
        FAULTS[fault](patched)
        writer = make_writer(tmp_path, "b1")
        writer.start()
        writer.close()
    ended(tmp_path, "b2")


NOT_LOOKED_AT: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "spools": lambda patched: patched.setattr(writer_module, "left_over", refusal(errno.EIO)),
    "files": lambda patched: patched.setattr(Retention, "load", refusal(errno.EIO)),
    "unfinished files": lambda patched: patched.setattr(writer_module, "remove_unfinished", refusal(errno.EIO)),
}


@pytest.mark.parametrize("what", NOT_LOOKED_AT)
def test_what_a_start_could_not_look_at_is_looked_at_by_a_later_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    leave(tmp_path)
    unfinished = tmp_path / f"{IN_PROGRESS_PREFIX}ledger-2001-b0-000003.parquet"
    unfinished.write_bytes(b"torn")
    before = len(list(tmp_path.rglob("*.parquet"))) - 1
    writer = make_writer(tmp_path, "b1")
    with monkeypatch.context() as patched:
        NOT_LOOKED_AT[what](patched)
        writer.recover()
        writer.roll()
    failures = writer.stats.write_failures
    assert failures >= 2
    writer.roll()
    assert (stored(tmp_path), left(tmp_path), unfinished.exists()) == (WANTED, [], False)
    assert (writer.stats.files, writer.stats.write_failures) == (before + writer.stats.files_written, failures)


@pytest.mark.parametrize("what", ["files", "unfinished files"])
def test_spools_do_not_wait_for_what_else_a_start_could_not_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    leave(tmp_path)
    NOT_LOOKED_AT[what](monkeypatch)
    writer = make_writer(tmp_path, "b1")
    writer.recover()
    writer.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


def test_spools_that_are_found_late_are_not_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)
    rows = OpenRows(tmp_path, region="eu", broker=2001, boot_id="b1", region_name=str)
    rows.open()
    core = RecorderCore(region="eu", broker=2001, first_session=200, region_name=str, journal=rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=30)
    writer = make_writer(tmp_path, "b1", rows)

    def deliver(base: int) -> None:
        at_ns = NOW + base * SECOND
        session.delivered(
            epoch=1, base_offset=base, record_count=10, entry_region=0, received_ns=at_ns, delivered_ns=at_ns
        )
        writer.take(core.drain(at_ns + SECOND))

    with monkeypatch.context() as patched:
        NOT_LOOKED_AT["spools"](patched)
        writer.recover()
        deliver(30)
    writer._roll_spoolers([])  # a roll of another kind: the ledger's spool stays open
    deliver(40)
    writer.roll()
    rows.close()
    assert (stored(tmp_path), left(tmp_path)) == ([*WANTED, (30, 40), (40, 50)], [])
    assert writer.stats.write_failures == 1


@pytest.mark.parametrize("what", NOT_LOOKED_AT)
def test_a_kill_of_a_run_that_could_not_look_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    leave(tmp_path)
    for boot_id in ("b1", "b2"):
        with monkeypatch.context() as patched:
            NOT_LOOKED_AT[what](patched)
            writer = make_writer(tmp_path, boot_id)
            writer.recover()
            writer.take(Drained())
    ended(tmp_path, "b3")


def test_open_rows_that_stay_unreadable_are_given_up_and_their_spools_are_rolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path)
    unreadable(monkeypatch, "open-", errno.EIO)
    writer = make_writer(tmp_path, "b1")
    writer.recover()
    for _ in range(OPEN_ROWS_TRIES_MAX - 2):
        writer.roll()
    assert (tmp_path / OPEN_FILE).exists() and not is_rolled(tmp_path, "ledger")
    writer.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED[:2], [])


def test_open_rows_do_not_wait_for_ever_for_a_spool_that_stays_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path)
    with monkeypatch.context() as patched:
        unreadable(patched, "ledger-", errno.EIO)
        writer = make_writer(tmp_path, "b1")
        writer.recover()
        for _ in range(OPEN_ROWS_TRIES_MAX - 1):
            writer.roll()
        assert not (tmp_path / OPEN_FILE).exists()
    (spool,) = (tmp_path / SPOOL_FOLDER).glob("ledger-2001-b0-*.wal")
    spool.unlink()  # the disk has lost it
    writer.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


def test_a_spool_that_somebody_removed_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)
    writer = make_writer(tmp_path, "b1")
    with monkeypatch.context() as patched:
        unreadable(patched, "open-")
        writer.recover()
    for path in (tmp_path / SPOOL_FOLDER).glob("ledger-2001-b0-*.wal"):
        path.unlink()
    writer.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


def test_open_rows_in_memory_of_another_user_are_given_up_and_hold_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path)
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(memory_file, "MEMORY_FOLDER", memory)
    target = memory / "georelay-rows-1"
    (tmp_path / OPEN_FILE).rename(target)
    (tmp_path / OPEN_FILE).symlink_to(target)
    unreadable(monkeypatch, "open-", errno.EACCES)
    unlink = Path.unlink

    def refused(path: Path, *, missing_ok: bool = False) -> None:
        if path == target:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    writer = make_writer(tmp_path, "b1")
    writer.recover()
    for _ in range(OPEN_ROWS_TRIES_MAX):
        writer.roll()
    assert (stored(tmp_path), left(tmp_path), target.exists()) == (WANTED[:2], [], True)
