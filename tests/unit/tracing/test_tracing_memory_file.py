"""Open rows lie in memory where there is some that outlives a process: no disk can hold up the broker's loop."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from georelay.trace.spool import SPOOL_FOLDER
from mesh.tracing import memory_file
from mesh.tracing.lane import Identity
from mesh.tracing.open_rows import FILE_BYTES, OpenRows, left_open
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.sealing import seal
from mesh.tracing.writer import TraceWriter

NOW = 1_700_000_000 * 10**9
LINK = "open-2001-b0.rows"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(memory_file, "MEMORY_FOLDER", folder)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == folder)
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return tmp_path / "traces"


def opened(traces: Path, boot_id: str = "b0") -> OpenRows:
    rows = OpenRows(traces, region="eu", broker=2001, boot_id=boot_id, region_name=str)
    rows.open()
    return rows


def deliver(rows: OpenRows) -> RecorderCore:
    core = RecorderCore(region="eu", broker=2001, first_session=100, region_name=str, journal=rows)
    core.open_session(topic="t", origin=0, partition=0, offset=0).delivered(
        epoch=1, base_offset=0, record_count=5, entry_region=1, received_ns=NOW, delivered_ns=NOW
    )
    return core


def writer(traces: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    return TraceWriter(
        directory=traces,
        identity=Identity(region="eu", broker=2001, boot_id=boot_id),
        clock_ns=lambda: NOW,
        roll_period_s=1_000,
        open_rows=rows,
    )


def killed(rows: OpenRows) -> None:
    """Give up what the kernel takes from a killed process: its locks."""
    assert rows._map is not None
    rows._map.close()


def test_the_file_is_in_memory_and_a_link_to_it_beside_the_spools(memory: Path, traces: Path) -> None:
    rows = opened(traces)
    (made,) = memory.iterdir()
    link = traces / SPOOL_FOLDER / LINK
    assert link.readlink() == made
    assert (made.stat().st_size, made.stat().st_mode & 0o777) == (FILE_BYTES, 0o600)
    assert made.stat().st_blocks * 512 >= FILE_BYTES  # there is room for all of it
    rows.close()
    assert (list(memory.iterdir()), list((traces / SPOOL_FOLDER).iterdir())) == ([], [])


def test_the_next_run_takes_the_rows_and_removes_both(memory: Path, traces: Path) -> None:
    rows = opened(traces)
    deliver(rows)
    killed(rows)
    after = writer(traces, "b1")
    after.recover()
    after.roll()
    assert len(list(traces.rglob("ledger-*.parquet"))) == 1
    assert (list(memory.iterdir()), list((traces / SPOOL_FOLDER).iterdir())) == ([], [])


@pytest.mark.parametrize("reason", ["no folder", "no mount", "full", "no links"])
def test_without_such_memory_the_file_is_beside_the_spools(
    memory: Path, traces: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    allocate = os.posix_fallocate

    def full(file: int, *rest: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").startswith(str(memory)):
            raise OSError(28, "No space left on device")
        allocate(file, *rest)

    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    if reason == "no folder":
        monkeypatch.setattr(memory_file, "MEMORY_FOLDER", memory / "nowhere")
        monkeypatch.setattr(os.path, "ismount", lambda _: True)
    elif reason == "no mount":
        monkeypatch.setattr(os.path, "ismount", lambda _: False)
    elif reason == "full":
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        monkeypatch.setattr(os, "symlink", no_links)
    rows = opened(traces)
    link = traces / SPOOL_FOLDER / LINK
    assert link.is_file() and not link.is_symlink() and list(memory.iterdir()) == []
    deliver(rows)
    after = writer(traces, "b1")
    after.recover()
    after.roll()
    assert len(list(traces.rglob("ledger-*.parquet"))) == 1


def test_a_link_whose_memory_is_gone_has_no_rows_and_goes_with_the_next_start(memory: Path, traces: Path) -> None:
    killed(opened(traces))
    for path in memory.iterdir():
        path.unlink()  # the machine has booted, or a container was made anew
    assert left_open(traces, 2001, "") == []
    rows = opened(traces, "b1")
    assert [path.name for path in (traces / SPOOL_FOLDER).iterdir()] == ["open-2001-b1.rows"]
    rows.close()


def test_memory_that_no_link_names_any_more_is_given_back_by_the_next_start(memory: Path, traces: Path) -> None:
    killed(opened(traces / "removed"))
    killed(opened(traces / "kept"))
    running = opened(traces / "running")
    for name in ("removed", "running"):
        (traces / name / SPOOL_FOLDER / LINK).unlink()
    (memory / "georelay-rows-other").write_bytes(b"what somebody else put there" * 1_000)
    (memory / "georelay-rows-link").symlink_to(memory / "georelay-rows-other")
    found = {path.resolve() for path in traces.rglob("open-*.rows")}
    assert len(found) == 1
    rows = opened(traces, "b1")
    left = {path for path in memory.iterdir() if not path.name.startswith(("georelay-rows-other", "georelay-rows-li"))}
    assert found < left and len(left) == 3  # kept, running, and the new one
    assert len(list(memory.iterdir())) == 5
    rows.close()
    killed(running)


def test_nobody_else_locks_the_memory_of_a_run(memory: Path, traces: Path) -> None:
    rows = opened(traces)
    (made,) = memory.iterdir()
    with made.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    rows.close()


def test_a_report_that_seals_what_a_killed_run_left_gives_its_memory_back(memory: Path, traces: Path) -> None:
    rows = opened(traces)
    deliver(rows)
    killed(rows)
    found = seal(traces, Identity(region="eu", broker=2001, boot_id="s0"), NOW)
    assert (found.open_rows, list(memory.iterdir())) == (1, [])
