"""Appending, truncating and reading one group's log on the real file system."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.log.entry import Entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker, RecordingFileSystem


def open_log(path: Path, *, segment_bytes_max: int = 4096) -> GroupLog:
    return GroupLog.open(path, OsFileSystem(), segment_bytes_max=segment_bytes_max, index_interval_bytes=512)


def frames(entries: list[Entry]) -> list[bytes]:
    return [bytes(entry.frame) for entry in entries]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "groups" / "1"


@pytest.fixture
def hundred(make: EntryMaker) -> list[Entry]:
    return [make.data(bytes([n]) * 100, records=2, timestamp_ms=1000 + n, term=1 + n // 40) for n in range(100)]


def test_an_empty_log_creates_nothing(folder: Path) -> None:
    log = open_log(folder)
    assert (log.first_index, log.last_index, log.last_term, log.next_offset) == (1, 0, 0, 0)
    assert log.last_entry() is None and log.recovered_tail(1000) == []
    assert not folder.exists()


def test_reading_gives_back_every_entry_verbatim(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    assert frames(log.read_entries(RaftIndex(1), RaftIndex(101), 10**9)) == frames(hundred)


def test_what_is_not_synced_is_not_read(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred[:10])
    log.sync()
    log.append(hundred[10:20])
    assert (log.last_index, log.durable_index) == (20, 10)
    assert len(log.read_entries(RaftIndex(5), RaftIndex(99), 10**9)) == 6


def test_a_reopened_log_knows_its_end_terms_and_tail(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    log.close()
    again = open_log(folder)
    assert (again.first_index, again.last_index, again.last_chain) == (1, 100, hundred[-1].chain)
    assert again.term_runs == ((1, 1), (41, 2), (81, 3))
    assert again.next_offset == 200 and again.last_term == Term(3)
    last = again.last_entry()
    assert last is not None and last.frame == hundred[-1].frame
    again.close()


@pytest.mark.parametrize("max_bytes", [0, 1, 228, 456, 457, 5000, 10**6])
def test_the_recovered_tail_fits_its_limit_but_holds_the_last_entry(
    folder: Path, hundred: list[Entry], max_bytes: int
) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    count = min(100, max(1, max_bytes // hundred[0].size))
    assert frames(log.recovered_tail(max_bytes)) == frames(hundred[-count:])


def test_segments_roll_before_they_pass_their_size(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.log"))]
    assert max(sizes) <= 4096 < max(sizes) + hundred[0].size and sum(sizes) == sum(entry.size for entry in hundred)


def test_an_entry_over_the_segment_size_stands_alone(folder: Path, make: EntryMaker) -> None:
    log = open_log(folder)
    log.append([make.data(), make.data(bytes(9000)), make.data()])
    log.sync()
    assert [path.name for path in sorted(folder.glob("*.log"))] == [f"{n:020d}.log" for n in (1, 2, 3)]


def test_an_epoch_entry_opens_a_segment(folder: Path, make: EntryMaker) -> None:
    log = open_log(folder)
    log.append([make.data(), make.begin_epoch(1, 1), make.data()])
    log.sync()
    assert [path.name for path in sorted(folder.glob("*.log"))] == [f"{n:020d}.log" for n in (1, 2)]
    assert log.epoch_starts == ((2, 1, 1),)


def test_the_first_epoch_stays_in_the_segment_of_the_first_noop(folder: Path, make: EntryMaker) -> None:
    log = open_log(folder)
    log.append([make.control(), make.begin_epoch(1, 0), make.data(), make.data()])
    log.sync()
    for seen in (log, open_log(folder)):
        assert [path.name for path in sorted(folder.glob("*"))] == [f"{1:020d}.log"]
        assert seen.epoch_starts == ((2, 1, 0),)
        assert [e.index for e in seen.read_from_offset(Offset(0), 1 << 20)] == [3, 4]
        assert [e.index for e in seen.read_from_offset(Offset(1), 1 << 20)] == [4]


def test_a_second_epoch_that_starts_further_on_stays_as_well_while_no_offset_is_owned(
    folder: Path, make: EntryMaker
) -> None:
    log = open_log(folder)
    log.append([make.begin_epoch(1, 0), make.control(), make.begin_epoch(2, 0), make.data()])
    log.sync()
    assert [path.name for path in sorted(folder.glob("*.log"))] == [f"{1:020d}.log"]
    assert [e.index for e in log.read_from_offset(Offset(0), 1 << 20)] == [4]


def test_an_epoch_that_starts_below_the_controls_before_it_opens_a_segment(folder: Path, make: EntryMaker) -> None:
    log = open_log(folder)
    log.append([*(make.data() for _ in range(3))])
    log.seal()  # the next segment holds only controls, at offset 3
    log.append([make.control(), make.begin_epoch(2, 1), make.data()])
    log.sync()
    assert [path.name for path in sorted(folder.glob("*.log"))] == [f"{n:020d}.log" for n in (1, 4, 5)]
    assert [e.index for e in log.read_from_offset(Offset(0), 1 << 20)] == [1, 6]


def test_a_segment_is_synced_before_the_next_is_created(
    folder: Path, make: EntryMaker, recording_fs: RecordingFileSystem
) -> None:
    log = GroupLog.open(folder, recording_fs, segment_bytes_max=300)
    log.append([make.data(bytes(100)), make.data(bytes(100))])
    kinds = [event.kind for event in recording_fs.events if event.path.suffix == ".log"]
    assert kinds == ["create", "write", "sync", "create", "write"]


def test_the_first_entry_is_returned_whatever_its_size(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    assert frames(log.read_entries(RaftIndex(7), RaftIndex(20), 1)) == frames(hundred[6:7])
    assert frames(log.read_entries(RaftIndex(7), RaftIndex(20), 3 * 228 + 227)) == frames(hundred[6:9])


@pytest.mark.parametrize("from_index", [1, 2, 17, 18, 19, 50, 99, 100])
def test_truncation_forgets_the_suffix_here_and_after_a_restart(
    folder: Path, hundred: list[Entry], make: EntryMaker, from_index: int
) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    log.truncate_suffix(RaftIndex(from_index))
    kept = hundred[: from_index - 1]
    make.rewind(kept[-1] if kept else None)
    kept.append(make.data(b"rewritten", term=9))
    log.append(kept[-1:])
    log.sync()
    log.close()
    for one in (log, open_log(folder)):
        assert frames(one.read_entries(RaftIndex(1), RaftIndex(200), 10**9)) == frames(kept)
        assert (one.last_chain, one.next_offset, one.last_term) == (kept[-1].chain, kept[-1].next_offset, 9)


def test_truncation_beyond_the_end_changes_nothing(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.truncate_suffix(RaftIndex(101))
    assert log.last_index == 100


def test_truncation_removes_segments_from_the_last_with_a_sync_each(
    folder: Path, hundred: list[Entry], recording_fs: RecordingFileSystem
) -> None:
    log = GroupLog.open(folder, recording_fs, segment_bytes_max=4096)
    log.append(hundred)
    log.sync()
    recording_fs.events.clear()
    log.truncate_suffix(RaftIndex(30))
    calls = [(event.kind, event.path.name) for event in recording_fs.events if event.path.suffix != ".index"]
    names = [f"{first:020d}.log" for first in (86, 69, 52, 35)]
    expected = [call for name in names for call in (("remove", name), ("sync_directory", "1"))]
    assert calls == [*expected, ("truncate", f"{18:020d}.log"), ("sync", f"{18:020d}.log")]


def test_a_read_across_a_truncation_is_refused(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()

    class TruncatesUnderRead(OsFileSystem):
        def pread(self, handle: int, size: int, position: int) -> bytes:
            log.truncate_suffix(RaftIndex(50))
            return super().pread(handle, size, position)

    object.__setattr__(log._view, "fs", TruncatesUnderRead())
    with pytest.raises(ReadInterrupted):
        log.read_entries(RaftIndex(1), RaftIndex(101), 10**9)


def test_readers_in_other_threads_see_whole_entries_or_are_told_to_read_again(folder: Path, make: EntryMaker) -> None:
    log = open_log(folder)
    wrong, reads, done = list[object](), [0], threading.Event()

    def read() -> None:
        while not done.is_set():
            with suppress(ReadInterrupted):
                end = log.durable_index
                found = log.read_entries(RaftIndex(max(1, end - 20)), RaftIndex(end + 1), 10**9)
                reads[0] += len(found)
                wrong.extend(entry for entry in found if entry.payload[:4] != entry.index.to_bytes(4, "big"))
                wrong.extend(pair for pair in pairwise(found) if pair[1].index != pair[0].index + 1)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for turn in range(15):
            log.append([make.data((make.index + 1).to_bytes(4, "big") * 50, term=1 + turn) for _ in range(20)])
            log.sync()
            if turn % 3 == 2:
                keep = log.read_entries(RaftIndex(make.index - 25), RaftIndex(make.index - 24), 1)[0]
                log.truncate_suffix(RaftIndex(keep.index + 1))
                make.rewind(keep)
        done.set()
    assert [reader.result() for reader in readers] == [None, None] and wrong == [] and reads[0] > 0


def test_reading_a_removed_group_says_read_again(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred)
    log.sync()
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(ReadInterrupted):
        log.read_entries(RaftIndex(1), RaftIndex(2), 1)


def test_a_read_of_a_damaged_entry_names_file_and_position(folder: Path, hundred: list[Entry]) -> None:
    log = open_log(folder)
    log.append(hundred[:3])
    log.sync()
    path = next(folder.glob("*.log"))
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    with pytest.raises(LogCorrupt, match=f"{path} is damaged at byte 228"):
        log.read_entries(RaftIndex(1), RaftIndex(4), 10**9)


# -- offsets, epochs, orphan branches -------------------------------------------------------------------------------


@pytest.fixture
def forked(folder: Path, make: EntryMaker) -> tuple[GroupLog, list[Entry]]:
    """A log with epochs at 0, 30 and 20; offsets 20-39 of the first and 30-44 of the second epoch are orphans."""
    entries = [make.control(), make.begin_epoch(1, 0)]
    entries += [make.data(b"one%d" % n, records=5, timestamp_ms=100 + n) for n in range(8)]  # 0..39
    entries += [make.begin_epoch(2, 30), make.control()]
    entries += [make.data(b"two%d" % n, records=5, timestamp_ms=200 + n) for n in range(3)]  # 30..44
    entries += [make.begin_epoch(3, 20)]
    entries += [make.data(b"three%d" % n, records=5, timestamp_ms=300 + n) for n in range(30)]  # 20..169
    log = open_log(folder, segment_bytes_max=1024)
    log.append(entries)
    log.sync()
    return log, entries


def test_offset_reads_never_return_an_orphan(forked: tuple[GroupLog, list[Entry]]) -> None:
    log, _ = forked
    found = log.read_from_offset(Offset(0), 10**9)
    assert [entry.base_offset for entry in found] == list(range(0, 170, 5))
    assert [bytes(entry.payload)[:3] for entry in found] == [b"one"] * 4 + [b"thr"] * 30


def test_an_offset_read_begins_with_the_batch_that_owns_the_offset(forked: tuple[GroupLog, list[Entry]]) -> None:
    log, _ = forked
    for offset in range(0, 170, 3):
        (found,) = log.read_from_offset(Offset(offset), 1)
        assert found.base_offset <= offset < found.next_offset
        assert bytes(found.payload)[:3] == (b"one" if offset < 20 else b"thr")


def test_an_epoch_above_the_commit_index_makes_no_orphans_yet(forked: tuple[GroupLog, list[Entry]]) -> None:
    log, entries = forked
    third = next(entry.index for entry in entries if entry.type is EntryType.EPOCH and entry.base_offset == 20)
    found = log.read_from_offset(Offset(0), 10**9, up_to_index=RaftIndex(third - 1))
    assert [bytes(entry.payload)[:3] for entry in found] == [b"one"] * 6 + [b"two"] * 3
    assert [entry.base_offset for entry in found] == list(range(0, 45, 5))


def test_an_offset_beyond_the_end_reads_as_nothing(forked: tuple[GroupLog, list[Entry]]) -> None:
    log, _ = forked
    assert log.read_from_offset(Offset(170), 10**9) == []
    assert log.read_from_offset(Offset(0), 10**9, up_to_index=RaftIndex(1)) == []


@pytest.mark.parametrize(
    ("timestamp_ms", "base_offset"), [(0, 0), (102, 10), (103, 15), (104, 20), (250, 20), (315, 95)]
)
def test_a_timestamp_finds_the_first_valid_batch_at_or_after_it(
    forked: tuple[GroupLog, list[Entry]], timestamp_ms: int, base_offset: int
) -> None:
    log, _ = forked
    found = log.offset_for_timestamp(timestamp_ms)
    assert found is not None and found[0] == base_offset and found[1] >= timestamp_ms


def test_a_timestamp_after_the_last_record_finds_nothing(forked: tuple[GroupLog, list[Entry]]) -> None:
    log, _ = forked
    assert log.offset_for_timestamp(330) is None
    assert log.offset_for_timestamp(0, up_to_index=RaftIndex(2)) is None


def test_timestamps_that_go_back_are_still_found(folder: Path, make: EntryMaker) -> None:
    stamps = [(n * 7919) % 1000 for n in range(200)]
    log = open_log(folder)
    log.append([make.data(timestamp_ms=stamp) for stamp in stamps])
    log.sync()
    for wanted in range(0, 1001, 13):
        expected = next((at for at, stamp in enumerate(stamps) if stamp >= wanted), None)
        found = log.offset_for_timestamp(wanted)
        assert (None if found is None else found[0]) == expected


def test_a_thousand_empty_groups_open_without_a_file(tmp_path: Path, recording_fs: RecordingFileSystem) -> None:
    logs = [GroupLog.open(tmp_path / str(n), recording_fs) for n in range(1000)]
    assert len(logs) == 1000 and recording_fs.events == [] and recording_fs.paths == {}
