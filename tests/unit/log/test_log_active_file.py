"""Room taken in advance: when, how much, how it is given back, and that nobody ever takes it for data."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import GroupId, RaftIndex, Term
from region.log.active_file import ROOM_FROM_BYTES, ROOM_STEP_BYTES_MIN, ActiveFile
from region.log.filesystem import OsFileSystem
from region.log.flushed_marks import FlushedMark
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal
from region.log.segment_reader import read_group
from tests.tiers import first

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker, RecordingFileSystem

KIB = 1024


def grown(path: Path, make: EntryMaker, *, fs: OsFileSystem | None = None) -> GroupLog:
    log = GroupLog.open(path, fs or OsFileSystem())
    for _ in range(5):
        log.append([make.data(b"\x07" * 16 * KIB)])
        log.sync()
        if log.has_chores():
            log.do_chores()
    return log


def test_a_small_segment_takes_no_room(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path / "1", OsFileSystem())
    log.append([make.data(b"x" * 1000)])
    log.sync()
    assert not log.has_chores()
    assert (
        next((tmp_path / "1").glob("*.log")).stat().st_size == log.read_entries(RaftIndex(1), RaftIndex(2), 1)[0].size
    )


def test_room_that_a_full_disk_gave_a_part_of_is_given_back_when_the_segment_is_sealed(
    tmp_path: Path, make: EntryMaker
) -> None:
    """Else a whole segment would be longer than its index says, and count as damaged."""

    class Full(OsFileSystem):
        def allocate(self, handle: int, position: int, size: int) -> None:
            super().allocate(handle, position, size // 2)
            raise OSError(errno.ENOSPC, "no space left")

    log = GroupLog.open(tmp_path / "1", Full())
    log.append([make.data(b"\x07" * ROOM_FROM_BYTES)])
    log.sync()
    assert log.has_chores()
    log.do_chores()
    log.seal()
    log.append([make.data(b"x")])
    log.sync()
    log.verify_segment(RaftIndex(1))
    mark = log.end_mark
    log.close()
    assert GroupLog.open(tmp_path / "1", OsFileSystem(), mark=mark).lost is None


def test_room_grows_in_steps_that_double(tmp_path: Path) -> None:
    file = ActiveFile(OsFileSystem(), size_bytes_max=1 << 20)
    file.open(tmp_path / "x.log", size_bytes=0, create=True)
    sizes, end = [], 0
    while end < 900 * KIB:
        end += file.write([b"\x01" * ROOM_FROM_BYTES], end)
        if file.ask_for_room():
            assert not file.ask_for_room()  # once is enough
            file.make_room()
            sizes.append((tmp_path / "x.log").stat().st_size // KIB)
    steps = [sizes[0] - 32, *(after - before for before, after in pairwise(sizes))]
    assert steps[0] * KIB == ROOM_STEP_BYTES_MIN and steps[:4] == [64, 128, 256, 512] and sizes[-1] == 1024
    file.close()


def test_sealing_gives_the_room_back(tmp_path: Path, make: EntryMaker) -> None:
    log = grown(tmp_path / "1", make)
    path = next((tmp_path / "1").glob("*.log"))
    assert path.stat().st_size > 5 * 17 * KIB
    log.seal()
    log.sync()
    assert path.stat().st_size == log.sealed_segments()[0].size_bytes
    log.verify_segment(1)


def test_room_asked_for_before_the_seal_is_not_taken_after_it(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path / "1", OsFileSystem())
    log.append([make.data(b"\x07" * 40 * KIB)])
    log.sync()
    assert log.has_chores()
    log.seal()
    log.sync()
    log.do_chores()  # the helper thread was late
    path = tmp_path / "1" / f"{1:020d}.log"
    assert path.stat().st_size == log.sealed_segments()[0].size_bytes
    assert (tmp_path / "1" / f"{2:020d}.log").stat().st_size == 0


def test_closing_gives_the_room_back(tmp_path: Path, make: EntryMaker) -> None:
    grown(tmp_path / "1", make).close()
    assert next((tmp_path / "1").glob("*.log")).stat().st_size == 5 * (16 * KIB + 128)


@pytest.mark.parametrize("with_mark", [False, True])
def test_a_restart_takes_room_for_free_space(tmp_path: Path, make: EntryMaker, with_mark: bool) -> None:
    log = grown(tmp_path / "1", make)
    mark = FlushedMark(log.last_index, log.last_term, log.last_chain) if with_mark else None
    again = GroupLog.open(tmp_path / "1", OsFileSystem(), mark=mark)  # the process was killed: nothing was closed
    assert (again.last_index, again.lost) == (5, None)
    again.append([make.data(b"goes on")])
    again.sync()
    assert [entry.index for entry in read_group(tmp_path / "1")] == [1, 2, 3, 4, 5, 6]


def test_the_segment_reader_stops_at_the_room(tmp_path: Path, make: EntryMaker) -> None:
    grown(tmp_path / "1", make)
    assert [entry.index for entry in read_group(tmp_path / "1")] == [1, 2, 3, 4, 5]


def test_a_truncation_leaves_no_old_byte_in_the_room(tmp_path: Path, make: EntryMaker) -> None:
    log = grown(tmp_path / "1", make)
    kept = log.read_entries(RaftIndex(2), RaftIndex(3), 1)[0]
    log.truncate_suffix(RaftIndex(3))
    make.rewind(kept)
    log.append([make.data(b"short", term=2)])
    log.sync()
    again = GroupLog.open(tmp_path / "1", OsFileSystem())
    assert (again.last_index, again.last_term) == (3, 2)


def test_a_file_system_that_has_no_room_to_give_is_asked_once(
    tmp_path: Path, make: EntryMaker, recording_fs: RecordingFileSystem
) -> None:
    asked = []

    def refuse(kind: str, _path: Path) -> OSError | None:
        if kind == "allocate":
            asked.append(kind)
            return OSError(errno.EOPNOTSUPP, "Operation not supported")
        return None

    recording_fs.fault = refuse
    log = grown(tmp_path / "1", make, fs=recording_fs)  # type: ignore[arg-type]
    assert asked == ["allocate"] and log.durable_index == 5


def test_the_flusher_leaves_taking_room_to_its_helper(
    tmp_path: Path, make: EntryMaker, recording_fs: RecordingFileSystem
) -> None:
    journal = HardStateJournal.open(recording_fs, tmp_path)
    flusher = Flusher(journal, post=lambda _tokens: None, on_failure=lambda _error: None)
    log = GroupLog.open(tmp_path / "groups" / "1", recording_fs)
    flusher.start()
    for _ in range(5):
        flusher.submit(GroupWrite(group_id=GroupId(1), log=log, token=0, entries=[make.data(b"x" * 20 * KIB)]))
    flusher.stop()
    assert "allocate" in recording_fs.kinds() and log.durable_index == 5


@pytest.mark.parametrize("seed", first(6, range(30)))
def test_a_crash_with_room_taken_keeps_what_was_promised_and_nothing_else(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker, seed: int
) -> None:
    fs, folder = crash_fs(seed), Path("/data/groups/1")
    fs.make_durable_directory(folder.parent)
    log = GroupLog.open(folder, fs)
    log.append([make.data(b"\x07" * 40 * KIB)])
    log.sync()
    assert log.has_chores()
    log.do_chores()
    log.append([make.data(bytes(600) + b"\x08" * 3000) for _ in range(4)])  # in the room, and never synced
    fs.crash()
    again = GroupLog.open(folder, fs, mark=FlushedMark(RaftIndex(1), Term(1), 0))
    assert again.lost is None and 1 <= again.last_index <= 5
    found = again.read_entries(RaftIndex(1), RaftIndex(9), 10**9)
    assert [entry.index for entry in found] == list(range(1, int(again.last_index) + 1))
