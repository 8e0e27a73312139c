"""What a log is after a stop, at every truncation point and every damaged byte of its tail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import RaftIndex
from region.log.entry import ENTRY_HEADER_BYTES, Entry
from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem, tear_explains
from region.log.group_log import GroupLog

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

FOLDER = Path("/data/groups/1")
SEGMENT = FOLDER / f"{1:020d}.log"


def put_segment(fs: CrashFileSystem, content: bytes, first_index: int = 1) -> None:
    fs.make_durable_directory(FOLDER)
    fs.put(FOLDER / f"{first_index:020d}.log", content)


def recovered_frames(fs: CrashFileSystem) -> list[bytes]:
    log = GroupLog.open(FOLDER, fs)
    return [bytes(entry.frame) for entry in log.read_entries(RaftIndex(1), RaftIndex(1000), 10**9)]


@pytest.fixture
def tail(make: EntryMaker) -> list[Entry]:
    # No sector of zeros in the payloads: then every flipped bit can be told from a torn write.
    return [make.data(bytes(range(1, 60)) * (n + 1), records=n + 1) for n in range(4)] + [make.control()]


def test_every_truncation_point_recovers_the_whole_entries_before_it(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    raw = b"".join(entry.frame for entry in tail)
    fs = crash_fs(0)
    for size in range(len(raw) + 1):
        put_segment(fs, raw[:size])
        expected, end = list[bytes](), 0
        for entry in tail:
            end += entry.size
            if end <= size:
                expected.append(bytes(entry.frame))
        assert recovered_frames(fs) == expected, size
        assert fs.content(SEGMENT) == b"".join(expected), size


def test_every_flipped_byte_is_refused_with_file_and_position(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    raw = b"".join(entry.frame for entry in tail)
    starts = [sum(entry.size for entry in tail[:n]) for n in range(len(tail))]
    fs = crash_fs(0)
    for position in range(len(raw)):
        put_segment(fs, raw)
        fs.flip(SEGMENT, position, bit=position % 8)
        with pytest.raises(LogCorrupt) as caught:
            GroupLog.open(FOLDER, fs)
        assert caught.value.position == max(start for start in starts if start <= position)
        assert caught.value.path == SEGMENT and len(fs.content(SEGMENT)) == len(raw)


def test_every_lost_sector_of_the_tail_is_cut_and_never_read_as_an_entry(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    raw = b"".join(entry.frame for entry in tail)
    fs = crash_fs(0)
    for lost in range(0, len(raw), 512):
        put_segment(fs, raw[:lost] + bytes(len(raw[lost : lost + 512])) + raw[lost + 512 :])
        frames = recovered_frames(fs)
        assert frames == [entry.frame for entry in tail[: len(frames)]]
        assert sum(map(len, frames)) <= lost


def test_damage_in_a_sealed_segment_is_never_cut(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=300)
    log.append([make.data(bytes(100)) for _ in range(2)])
    log.sync()
    log.close()
    first = tmp_path / f"{1:020d}.log"
    first.write_bytes(first.read_bytes()[:-1])
    again = GroupLog.open(tmp_path, OsFileSystem())
    assert again.corrupt_segments() == [1] and again.last_index == 2
    with pytest.raises(LogCorrupt, match="it has 227 bytes, its index says 228"):
        again.read_entries(RaftIndex(1), RaftIndex(2), 1)
    (tmp_path / f"{1:020d}.index").unlink()
    with pytest.raises(LogCorrupt, match="damaged at byte 0: entry needs 228 bytes, 227 are left"):
        GroupLog.open(tmp_path, OsFileSystem())
    assert first.stat().st_size == 227


def test_a_missing_segment_is_refused(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=300)
    log.append([make.data(bytes(100)) for _ in range(3)])
    log.close()
    (tmp_path / f"{2:020d}.log").unlink()
    with pytest.raises(LogCorrupt, match="begins at index 3, the one before it ends at 1"):
        GroupLog.open(tmp_path, OsFileSystem())


def test_a_segment_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "17.log").write_bytes(b"")
    with pytest.raises(LogCorrupt, match="20 digits"):
        GroupLog.open(tmp_path, OsFileSystem())


def test_entries_of_another_history_behind_the_tail_are_refused(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    one, other = entry_maker(), entry_maker()
    mine, theirs = [one.data(b"a"), one.data(b"b")], [other.data(b"x"), other.data(b"y")]
    fs = crash_fs(0)
    put_segment(fs, bytes(mine[0].frame + theirs[1].frame))
    with pytest.raises(LogCorrupt, match="does not continue"):
        GroupLog.open(FOLDER, fs)


def test_an_index_file_is_made_again_when_it_is_missing_or_wrong(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=1000, index_interval_bytes=256)
    log.append([make.data(bytes(100)) for _ in range(10)])
    log.sync()
    log.close()
    index = tmp_path / f"{1:020d}.index"
    good = index.read_bytes()
    for damage in (None, good[:-1], good[:80] + b"\x01" + good[81:]):
        index.unlink()
        if damage is not None:
            index.write_bytes(damage)
        GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=1000, index_interval_bytes=256)
        assert index.read_bytes() == good


def test_recovery_makes_what_it_found_durable(crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(FOLDER.parent)
    log = GroupLog.open(FOLDER, fs)
    log.append(tail)  # the process dies here: the page cache still has it all
    assert GroupLog.open(FOLDER, fs).last_index == len(tail)
    fs.crash(keep=0.0)
    assert GroupLog.open(FOLDER, fs).last_index == len(tail)


def test_a_new_log_survives_a_crash_after_its_first_sync(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(FOLDER.parent)
    log = GroupLog.open(FOLDER, fs)
    log.append(tail)
    log.sync()
    fs.crash(keep=0.0)
    assert recovered_frames(fs) == [entry.frame for entry in tail]


def test_a_folder_that_a_dead_process_left_empty_survives_a_crash_after_the_first_sync(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(FOLDER.parent)
    fs.make_directory(FOLDER)  # there was no room for its first segment, and that process ended before any sync
    log = GroupLog.open(FOLDER, fs)
    log.append(tail)
    log.sync()
    fs.crash(keep=0.0)
    assert recovered_frames(fs) == [entry.frame for entry in tail]


def test_a_folder_made_for_a_segment_that_was_not_taken_survives_a_crash_after_the_first_sync(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(FOLDER.parent)
    log = GroupLog.open(FOLDER, fs)
    log.stage_segment(RaftIndex(1)).discard()
    log.append(tail)
    log.sync()
    fs.crash(keep=0.0)
    assert recovered_frames(fs) == [entry.frame for entry in tail]


def test_without_the_sync_a_crash_loses_the_log(crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(FOLDER.parent)
    fs.sync_works = False
    log = GroupLog.open(FOLDER, fs)
    log.append(tail)
    log.sync()
    fs.crash(keep=0.0)
    assert recovered_frames(fs) == []


@pytest.mark.parametrize(
    ("raw", "position", "torn"),
    [
        (b"\0" * 10, 0, True),
        (b"\1" * 512 + b"\0" * 3, 0, True),
        (b"\1" * 509 + b"\0" * 3, 0, False),
        (b"\1" * 511 + b"\0" * 3, 1, True),
        (b"\1" + b"\0" * 600, 0, True),
        (b"\1" + b"\0" * 500, 0, False),
    ],
)
def test_only_a_sector_of_zeros_explains_a_tear(raw: bytes, position: int, torn: bool) -> None:
    assert tear_explains(raw, position) is torn


def test_a_tail_that_ends_inside_a_header_is_torn(
    crash_fs: Callable[[int], CrashFileSystem], tail: list[Entry]
) -> None:
    fs = crash_fs(0)
    put_segment(fs, bytes(tail[0].frame + tail[1].frame[: ENTRY_HEADER_BYTES - 1]))
    assert recovered_frames(fs) == [tail[0].frame]
