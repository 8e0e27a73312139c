"""Open rows lie in memory where there is some that outlives a process: no disk can hold up the broker's loop."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from pathlib import Path

import pytest

from georelay.trace.files import SPOOL_FOLDER
from mesh.tracing import memory_file
from mesh.tracing.open_rows import FILE_BYTES, OpenRows, left_open
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.sealing import seal
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

NOW = 1_700_000_000 * 10**9
LINK = "open-2001-b0.rows"
DAY_S = 86_400


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
    left = {path for path in memory.iterdir() if path.name not in ("georelay-rows-other", "georelay-rows-link")}
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


def age(memory: Path, seconds: float) -> None:
    """Let the runs have shown their last sign so long ago."""
    for path in memory.iterdir():
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def rows_after_the_next_start(traces: Path) -> int:
    rows = opened(traces, "b1")
    after = writer(traces, "b1", rows)
    after.recover()
    after.roll()
    rows.close()
    return len(list(traces.rglob("ledger-*.parquet")))


@pytest.mark.parametrize("idle_s", [0.0, 10 * DAY_S])
def test_rows_of_a_directory_that_was_moved_are_there_for_its_next_start(
    memory: Path, tmp_path: Path, idle_s: float
) -> None:
    rows = opened(tmp_path / "old")
    deliver(rows)
    killed(rows)
    (tmp_path / "old").rename(tmp_path / "new")
    age(memory, idle_s)
    assert rows_after_the_next_start(tmp_path / "new") == 1
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("layout", ["same path", "another path", "no such path"])
@pytest.mark.parametrize("idle_s", [0.0, DAY_S / 2])
def test_a_start_in_another_container_leaves_the_rows_of_a_broker_whose_folder_it_does_not_see(
    memory: Path, tmp_path: Path, layout: str, idle_s: float
) -> None:
    root, hidden = tmp_path / "root", tmp_path / "hidden"
    rows = opened(root / "data" / "a")
    deliver(rows)
    killed(rows)
    age(memory, idle_s)
    root.rename(hidden)  # the other container has folders of its own under the same names
    (root / "data").mkdir(parents=True)
    own = {"same path": root / "data" / "a", "another path": root / "data" / "b", "no such path": tmp_path / "c"}[
        layout
    ]
    if layout == "no such path":
        (root / "data").rmdir()
    for boot_id in ("y", "z"):  # the second finds the folder that the first has made
        other = OpenRows(own, region="eu", broker=2002, boot_id=boot_id, region_name=str)
        other.open()
        other.close()
    shutil.rmtree(root)
    hidden.rename(root)
    assert rows_after_the_next_start(root / "data" / "a") == 1


@pytest.mark.parametrize(("idle_s", "stays"), [(60, True), (3_600, False)])
def test_memory_of_a_deleted_directory_is_given_back_after_a_while(
    memory: Path, tmp_path: Path, idle_s: float, stays: bool
) -> None:
    killed(opened(tmp_path / "deleted"))
    shutil.rmtree(tmp_path / "deleted")
    age(memory, idle_s)
    opened(tmp_path / "b").close()
    assert bool(list(memory.iterdir())) == stays


@pytest.mark.parametrize(("idle_s", "stays"), [(3_600, True), (2 * DAY_S, False)])
@pytest.mark.parametrize("at", ["root/data", "root/data/traces", "root/data/traces/.spool"])
def test_memory_whose_link_lay_below_another_folder_of_that_name_is_given_back_after_a_day(
    memory: Path, tmp_path: Path, at: str, idle_s: float, stays: bool
) -> None:
    traces = tmp_path / "root" / "data" / "traces"
    killed(opened(traces))
    (tmp_path / at).rename(tmp_path / "hidden")
    (tmp_path / at).mkdir()
    age(memory, idle_s)
    opened(tmp_path / "b").close()
    assert bool(list(memory.iterdir())) == stays


@pytest.mark.parametrize(("idle_s", "stays"), [(3_600, True), (2 * DAY_S, False)])
def test_a_file_that_does_not_say_which_folder_its_link_was_in_is_given_back_after_a_day(
    memory: Path, tmp_path: Path, idle_s: float, stays: bool
) -> None:
    rows = opened(tmp_path / "a")
    (made,) = memory.iterdir()
    link = os.fsencode(tmp_path / "a" / SPOOL_FOLDER / LINK)
    note = b"georelay link 2\n" + struct.pack("=QH", Path("/proc/self/ns/mnt").stat().st_ino, len(link)) + link
    with made.open("r+b") as file:
        file.seek(memory_file.LINK_AT)
        file.write(note.ljust(memory_file.HEADER_BYTES - memory_file.LINK_AT, b"\0"))
    killed(rows)
    opened(tmp_path / "b").close()
    assert made.exists()  # its link names it
    (tmp_path / "a" / SPOOL_FOLDER / LINK).unlink()
    age(memory, idle_s)
    opened(tmp_path / "b").close()
    assert made.exists() == stays


def test_a_file_whose_note_makes_no_sense_stays(memory: Path, tmp_path: Path) -> None:
    killed(opened(tmp_path / "a"))
    (made,) = memory.iterdir()
    shutil.rmtree(tmp_path / "a")
    for lengths in (struct.pack("=HH", 9, 0xFFFF), struct.pack("=HH", 0xFFFF, 9), struct.pack("=HH", 4_000, 0)):
        with made.open("r+b") as file:
            file.seek(memory_file.LINK_AT + len(b"georelay link 3\n"))
            file.write(lengths)
        age(memory, 2 * DAY_S)
        opened(tmp_path / "b").close()
        assert made.exists(), lengths


def test_a_path_with_too_many_folders_is_kept_beside_the_spools(memory: Path, tmp_path: Path) -> None:
    rows = opened(tmp_path.joinpath(*["d"] * 250))
    assert list(memory.iterdir()) == []
    assert rows._map is not None
    rows.close()


def test_a_run_shows_that_it_lives_whenever_rows_are_spooled(memory: Path, traces: Path) -> None:
    rows = opened(traces)
    age(memory, DAY_S)
    (made,) = memory.iterdir()
    before_ns = made.stat().st_mtime_ns
    rows.spooled([])
    assert made.stat().st_mtime_ns >= before_ns + int(0.9 * DAY_S * 1e9)
    made.unlink()
    rows.spooled([])  # somebody has removed it: the mapping is still there
    rows.close()


@pytest.mark.parametrize("reason", ["on disk", "refused"])
def test_a_disk_that_refuses_the_time_of_a_file_costs_nothing(
    memory: Path, traces: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "on disk":
        monkeypatch.setattr(os.path, "ismount", lambda _: False)
    rows = opened(traces)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    rows.spooled([])
    rows.close()


def test_links_that_cannot_be_looked_at_keep_all_memory(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(opened(tmp_path / "a"))
    (tmp_path / "a" / SPOOL_FOLDER / LINK).unlink()

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        memory_file.give_back(tmp_path / "b" / SPOOL_FOLDER)
    assert len(list(memory.iterdir())) == 1
    memory_file.give_back(tmp_path / "b" / SPOOL_FOLDER)
    assert list(memory.iterdir()) == []
