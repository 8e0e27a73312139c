"""The entry journal: one sync for the small writes of a cycle, replay after a crash, and what damage of it does."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from georelay.errors import DataDirectoryError, StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.entry_journal import (
    JOURNAL_NAMES,
    ROW_BYTES_MAX,
    START_BYTES,
    EntryJournal,
    decode_frames,
    encode_frame,
)
from region.log.errors import OpenNotDurable
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker, RecordingFileSystem

DATA = Path("/data")
SMALL, LARGE = 100, ROW_BYTES_MAX


class Broker:
    """A data directory with its flusher, and entries for as many groups as a test names."""

    def __init__(
        self, fs: Any, maker: Callable[[], EntryMaker], path: Path = DATA, *, size_bytes: int = 1 << 20
    ) -> None:
        self.fs, self.path, self._maker, self._size_bytes = fs, path, maker, size_bytes
        self.makers: dict[int, EntryMaker] = {}
        self.made: dict[int, list[Entry]] = {}
        self.failures: list[StorageFailed] = []
        self.start()

    def start(self) -> None:
        self.directory = DataDirectory.open(self.path, mesh_id="mesh", broker_id=BrokerId(1001), fs=self.fs)
        self.directory.entries._size_bytes = self._size_bytes
        self.flusher = Flusher(
            self.directory.open_hard_states(),
            post=lambda _: None,
            on_failure=self.failures.append,
            marks=self.directory.marks,
            entries=self.directory.entries,
        )
        self.logs: dict[int, GroupLog] = {}

    def log(self, group: int) -> GroupLog:
        if group not in self.logs:
            self.logs[group] = self.directory.open_group(GroupId(group))
        return self.logs[group]

    def write(self, group: int, *, size: int = SMALL, **fields: Any) -> GroupWrite:
        maker = self.makers.setdefault(group, self._maker())
        entry = maker.data(bytes([group + 1]) * size)
        self.made.setdefault(group, []).append(entry)
        return GroupWrite(group_id=GroupId(group), log=self.log(group), token=0, entries=[entry], **fields)

    def append(self, *groups: int, size: int = SMALL) -> None:
        self.flusher.run_cycle([self.write(group, size=size) for group in groups])

    def append_often(self, group: int, times: int) -> None:
        for _ in range(times):
            self.append(group)

    def holds(self, group: int) -> bool:
        """Return whether the log of a group is what was made for it."""
        log = self.log(group)
        found = log.read_entries(RaftIndex(1), RaftIndex(log.last_index + 1), 1 << 30)
        return [entry.frame for entry in found] == [entry.frame for entry in self.made.get(group, [])]

    def kill(self) -> None:
        """Begin anew with what is on disk; nothing is closed in the old life but its lock."""
        self.directory.close()
        self.start()

    @property
    def format(self) -> int:
        handle = self.fs.open(self.path / "FORMAT", write=False)
        try:
            return int(json.loads(self.fs.pread(handle, 4_096, 0))["format"])
        finally:
            self.fs.close(handle)


@pytest.fixture
def crashing(crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]) -> Broker:
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    return Broker(fs, entry_maker)


def test_small_writes_of_many_groups_are_synced_once(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(recording_fs, entry_maker, tmp_path)
    broker.append(*range(8))  # makes their segments, whose names the journal cannot hold
    broker.append(*range(8))
    recording_fs.events.clear()
    broker.append(*range(8))
    synced = [event.path.name for event in recording_fs.events if event.kind == "sync"]
    assert synced == [JOURNAL_NAMES[0]]
    (written,) = (event.size for event in recording_fs.events if (event.kind, event.path.name) == ("write", synced[0]))
    assert written == 32 + 8 * (24 + len(broker.made[0][-1].frame))
    assert all(broker.holds(group) for group in range(8))


def test_a_large_write_goes_to_its_segment_alone(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(recording_fs, entry_maker, tmp_path)
    broker.append(1)
    broker.append(1)
    recording_fs.events.clear()
    broker.append(1, size=LARGE)
    touched = {event.path.name for event in recording_fs.events if event.kind in {"write", "sync"}}
    assert touched == {f"{1:020d}.log", "flushed-marks"}


def test_what_was_promised_is_there_after_a_power_cut_though_no_segment_was_synced(crashing: Broker) -> None:
    for _ in range(5):
        crashing.append(0, 1, 2)
    crashing.fs.crash(keep=0)
    crashing.start()
    assert all(crashing.holds(group) for group in range(3))
    assert not any(crashing.fs.exists(DATA / name) for name in JOURNAL_NAMES)


def test_what_was_replayed_is_durable_before_the_journal_is_gone(crashing: Broker) -> None:
    for _ in range(3):
        crashing.append(0)
    crashing.fs.crash(keep=0)
    crashing.start()  # opens no group
    crashing.fs.crash(keep=0)
    crashing.start()
    assert crashing.holds(0)


def test_a_group_that_leaves_is_durable_in_its_segments(crashing: Broker) -> None:
    for _ in range(3):
        crashing.append(0)
    crashing.flusher.run_cycle([GroupWrite(group_id=GroupId(0), log=None, token=0)])
    crashing.log(0).close()
    crashing.fs.crash(keep=0)
    crashing.start()
    assert crashing.holds(0)


def test_a_group_that_leaves_in_the_cycle_of_its_last_append_is_durable_in_its_segments(crashing: Broker) -> None:
    crashing.append(0, 1)
    crashing.flusher.run_cycle([crashing.write(0), GroupWrite(group_id=GroupId(0), log=None, token=0)])
    crashing.log(0).close()
    crashing.flusher.stop()
    crashing.fs.crash(keep=0)
    crashing.start()
    assert crashing.holds(0) and crashing.log(0).last_index == 2


def test_a_replay_that_is_interrupted_begins_anew(crashing: Broker) -> None:
    for _ in range(5):
        crashing.append(0, 1, 2)
    crashing.fs.crash(keep=0)
    for calls in range(14):
        crashing.fs.calls_left = calls
        with pytest.raises((OSError, DataDirectoryError, OpenNotDurable)):
            crashing.start()
        crashing.fs.crash(keep=0.5)
    crashing.start()
    assert all(crashing.holds(group) for group in range(3))


def test_a_file_is_written_over_only_when_its_segments_are_synced(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    broker = Broker(fs, entry_maker, size_bytes=2_048)
    broker.append(0)
    broker.append(0)
    for _ in range(40):  # both files several times
        broker.append(1)
    fs.crash(keep=0)
    broker.start()
    assert broker.holds(0) and broker.holds(1)


def test_segments_that_cannot_be_synced_aside_end_the_broker(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(recording_fs, entry_maker, tmp_path, size_bytes=2_048)
    broker.append(0)
    broker.append(1)
    recording_fs.fault = lambda kind, path: (
        OSError(errno.EIO, "gone") if kind == "sync" and path.suffix == ".log" else None
    )
    with pytest.raises(StorageFailed, match="gone"):
        broker.append_often(0, 40)
    with pytest.raises(StorageFailed):
        broker.append(1)


def test_a_failed_sync_aside_is_not_forgotten_by_the_next_sync_of_that_file(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    """Linux tells one of them, and has dropped the pages of both."""
    broker = Broker(recording_fs, entry_maker, tmp_path)
    broker.append_often(0, 2)
    log = broker.log(0)
    log.append([broker.makers[0].data(b"x")])
    recording_fs.fault = lambda kind, _: OSError(errno.EIO, "gone") if kind == "sync" else None
    with pytest.raises(OSError, match="gone"):
        log.sync_aside()
    recording_fs.fault = lambda _kind, _path: None
    with pytest.raises(OSError, match="gone"):
        log.sync()


def test_the_flusher_does_not_wait_for_segments_that_are_synced_aside(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    """There may be thousands: it syncs itself meanwhile what the journal has no room for, as if there was none."""
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    broker = Broker(fs, entry_maker, size_bytes=2_048)
    left: list[Callable[[], None]] = []

    def leave(work: Callable[[], None]) -> Any:
        left.append(work)
        if done.is_done:
            work()
        return done

    done = _Later()
    broker.directory.entries.run_aside = leave
    broker.append(0)
    for _ in range(20):
        broker.append(0, 1)
    assert len(left) == 1
    broker.flusher.run_cycle([GroupWrite(group_id=GroupId(1), log=None, token=0)])  # must be said in the journal
    left[0]()
    done.is_done = True
    broker.append_often(0, 20)
    assert len(left) > 2
    fs.crash(keep=0)
    broker.start()
    assert broker.holds(0) and broker.holds(1)


class _Later:
    """What is not done yet; whoever waits for it waits for ever."""

    is_done = False

    def done(self) -> bool:
        return self.is_done

    def result(self) -> None:
        assert self.is_done


@pytest.mark.parametrize("others", [0, 12])  # the rows are in the file in use, or in the other one
def test_a_log_that_was_cut_does_not_get_its_former_end_back(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker], others: int
) -> None:
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    crashing = Broker(fs, entry_maker, size_bytes=3_072)
    for _ in range(4):
        crashing.append(0)
    crashing.append_often(1, others)
    kept = crashing.made[0][:2]
    crashing.makers[0].rewind(kept[-1])
    crashing.made[0] = list(kept)
    entry = crashing.makers[0].data(b"x" * 1_000, term=2)  # too large for the journal: no newer row covers older ones
    crashing.made[0].append(entry)
    write = GroupWrite(group_id=GroupId(0), log=crashing.log(0), token=0, truncate_from=RaftIndex(3), entries=[entry])
    crashing.flusher.run_cycle([write])
    crashing.fs.crash(keep=1)
    crashing.start()
    assert crashing.holds(0)


def test_a_group_that_is_made_again_gets_nothing_of_the_former_one(crashing: Broker) -> None:
    for _ in range(3):
        crashing.append(0)
    crashing.flusher.run_cycle([GroupWrite(group_id=GroupId(0), log=None, token=0)])
    crashing.log(0).close()
    crashing.directory.remove_group(GroupId(0))
    for known in (crashing.logs, crashing.makers, crashing.made):
        del known[0]
    crashing.append(0, size=10)
    crashing.kill()
    assert crashing.holds(0)


def test_a_clean_stop_leaves_nothing_to_replay_and_a_directory_for_older_brokers(crashing: Broker) -> None:
    assert crashing.format == 2
    crashing.append(0)
    crashing.append(0)
    assert crashing.format == 3
    crashing.flusher.stop()
    assert crashing.failures == [] and crashing.format == 2
    assert not any(crashing.fs.exists(DATA / name) for name in JOURNAL_NAMES)
    crashing.fs.crash(keep=0)
    crashing.start()
    assert crashing.holds(0)


def test_the_end_of_the_last_frame_may_be_missing_and_nothing_else_is(crashing: Broker) -> None:
    for _ in range(3):
        crashing.append(0)
    crashing.fs.crash(keep=0)
    journal = DATA / JOURNAL_NAMES[0]
    whole = crashing.fs.content(journal)
    frame = 32 + (24 + 128 + SMALL + 31) // 32 * 32
    for cut in range(1, frame, 7):
        crashing.fs.put(journal, whole[: START_BYTES + 2 * frame - cut] + bytes(cut))
        crashing.fs.put(DATA / JOURNAL_NAMES[1], b"")
        crashing.directory.close()
        crashing.start()
        assert crashing.log(0).last_index >= 2, cut
        crashing.logs.clear()


def test_no_flipped_bit_of_the_journal_loses_an_entry_in_silence(crashing: Broker) -> None:
    for _ in range(4):
        crashing.append(0, 1)
    crashing.directory.marks.sync()
    crashing.fs.crash(keep=0)
    names = [DATA / name for name in JOURNAL_NAMES] + [DATA / "flushed-marks"]
    segments = [DATA / "groups" / str(group) / f"{1:020d}.log" for group in (0, 1)]
    before = {path: crashing.fs.content(path) for path in (*names, *segments)}
    repaired = 0
    end = len(before[names[0]].rstrip(b"\0"))
    for position in range(0, end, 3):
        for path, content in before.items():
            crashing.fs.put(path, content)
        crashing.fs.flip(names[0], position, bit=position % 8)
        crashing.directory.close()
        crashing.start()
        for group in (0, 1):
            assert crashing.log(group).lost is not None or crashing.holds(group), (position, group)
            repaired += crashing.log(group).lost is not None
    assert repaired > 0


@pytest.mark.parametrize("at", [20, 40])  # in the header, in the rows
@pytest.mark.parametrize("frame", [0, 1])
def test_what_lies_behind_a_damaged_frame_counts(crashing: Broker, frame: int, at: int) -> None:
    """The mark of what was written last may not be on disk yet: without its row nobody would miss it."""
    crashing.append(0)
    crashing.append(1)
    crashing.append(1)  # the first frame; each has one row of one entry
    crashing.append(1)
    crashing.append(0)
    entry = len(crashing.made[0][0].frame)
    crashing.fs.crash(keep=0)
    crashing.fs.flip(DATA / JOURNAL_NAMES[0], START_BYTES + frame * (32 + (24 + entry + 31) // 32 * 32) + at)
    crashing.start()
    assert crashing.log(0).last_index == 2


@pytest.mark.parametrize("sector", [0, 4_096])
def test_a_file_counts_whose_beginning_the_disk_has_lost_in_one_of_two_places(crashing: Broker, sector: int) -> None:
    """It was written long ago: what came last must not hang on it, as its mark may not be on disk yet."""
    crashing.append(0, 1)
    crashing.append_often(1, 40)
    crashing.directory.marks.sync()
    crashing.append(0)
    crashing.fs.crash(keep=0)
    crashing.fs.flip(DATA / JOURNAL_NAMES[0], sector + 20)
    crashing.start()
    assert crashing.holds(0) and crashing.holds(1)


def test_a_file_without_its_beginning_is_told(crashing: Broker) -> None:
    crashing.append_often(0, 2)
    crashing.fs.crash(keep=0)
    for sector in (0, 4_096):
        crashing.fs.flip(DATA / JOURNAL_NAMES[0], sector + 20)
    with structlog.testing.capture_logs() as told:
        crashing.start()
    assert "journal.beginning_damaged" in [row["event"] for row in told]


def test_a_file_of_a_broker_that_wrote_no_beginning_is_replayed(crashing: Broker) -> None:
    crashing.append_often(0, 4)
    crashing.fs.crash(keep=0)
    journal = DATA / JOURNAL_NAMES[0]
    crashing.fs.put(journal, crashing.fs.content(journal)[START_BYTES:])
    crashing.start()
    assert crashing.holds(0)


def test_a_second_file_whose_first_frame_is_damaged_counts_from_its_second_one_on(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    fs = crash_fs(1)
    fs.make_durable_directory(DATA.parent)
    broker = Broker(fs, entry_maker, size_bytes=2_048)
    broker.append(0, 1)
    broker.append(1)
    while not fs.content(DATA / JOURNAL_NAMES[1]):
        broker.append(1)
    broker.append(0)
    fs.crash(keep=0)
    fs.flip(DATA / JOURNAL_NAMES[1], 40)
    broker.start()
    assert broker.holds(0)


def test_what_lies_behind_bytes_that_the_disk_does_not_give_back_counts(
    crashing: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing.append(0, 1)
    crashing.append_often(1, 40)
    crashing.append(0)
    crashing.fs.crash(keep=0)
    pread, journal = crashing.fs.pread, crashing.fs._file(DATA / JOURNAL_NAMES[0])

    def refuse(handle: int, size: int, position: int) -> bytes:
        if position == START_BYTES + 4_096 and crashing.fs._handles[handle] is journal:
            raise OSError(errno.EIO, "bad sector")
        return bytes(pread(handle, size, position))

    monkeypatch.setattr(crashing.fs, "pread", refuse)
    crashing.start()
    assert crashing.holds(0) and not crashing.holds(1)


def test_bytes_that_a_client_sent_do_not_pass_for_a_frame(crashing: Broker) -> None:
    row = struct.pack(">IIQQ", 0, 0, 0, 0)
    forged = [b"".join(encode_frame([row], 1, sequence)) for sequence in range(1_000)]
    whole = b"".join(encode_frame([row], 1, 1 << 40))
    garbage = whole[:40] + bytes(24)
    found = list(decode_frames(whole + garbage + b"".join(forged)))
    assert [sequence for sequence, _ in found] == [1 << 40]
    crashing.append_often(0, 2)
    (begin, _), *_ = decode_frames(crashing.fs.content(DATA / JOURNAL_NAMES[0]))
    assert begin > 1 << 40  # but for one time in a million


def damage_what_took_back(broker: Broker) -> None:
    """Flip a bit of the frame that takes the rows of group 0 back."""
    content = broker.fs.content(DATA / JOURNAL_NAMES[0])
    (sequence,) = [each for each, rows in decode_frames(content) if any(not row.content for row in rows)]
    frame = b"".join(encode_frame([struct.pack(">IIQQ", 0, 0, 0, 0)], 1, sequence))
    broker.fs.flip(DATA / JOURNAL_NAMES[0], content.index(frame) + 40)


@pytest.mark.parametrize("size", [SMALL, 1_000, LARGE])
def test_a_row_is_not_written_over_what_took_its_place_when_the_row_that_took_it_back_is_damaged(
    crashing: Broker, size: int
) -> None:
    for _ in range(4):
        crashing.append(0)
    kept = crashing.made[0][:2]
    crashing.makers[0].rewind(kept[-1])
    crashing.made[0] = list(kept)
    entry = crashing.makers[0].data(b"x" * size, term=2)
    crashing.made[0].append(entry)
    write = GroupWrite(group_id=GroupId(0), log=crashing.log(0), token=0, truncate_from=RaftIndex(3), entries=[entry])
    crashing.flusher.run_cycle([write])
    crashing.fs.crash(keep=0)
    damage_what_took_back(crashing)
    crashing.start()
    assert crashing.log(0).lost is None and crashing.holds(0)


def cut_off(broker: Broker, kept: int) -> None:
    """Cut the log of group 0 behind so many entries; one follows that is in its segment alone."""
    left = broker.made[0][:kept]
    broker.makers[0].rewind(left[-1])
    entry = broker.makers[0].data(b"x" * LARGE, term=2)
    broker.made[0] = [*left, entry]
    cut = RaftIndex(kept + 1)
    write = GroupWrite(group_id=GroupId(0), log=broker.log(0), token=0, truncate_from=cut, entries=[entry])
    broker.flusher.run_cycle([write])


def append_two(broker: Broker) -> None:
    """Append two entries to group 0 that are one row."""
    write = broker.write(0)
    write.entries = [*write.entries, *broker.write(0).entries]
    broker.flusher.run_cycle([write])


@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_end_of_a_row_is_not_written_over_what_took_its_place_either(crashing: Broker, *, is_sealed: bool) -> None:
    crashing.append(0)
    append_two(crashing)
    cut_off(crashing, 2)
    if is_sealed:
        crashing.log(0).seal()
        crashing.directory.marks.sync()
    crashing.fs.crash(keep=0)
    damage_what_took_back(crashing)
    crashing.start()
    assert crashing.log(0).lost is None and crashing.holds(0)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])  # the power goes in the next ones
@pytest.mark.parametrize("seed", range(24))
def test_a_power_cut_while_a_file_is_written_over_leaves_no_former_use_with_holes(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker], seed: int, calls: int
) -> None:
    """A row may be there and not what took it back: of what was not synced any sector may be missing."""
    fs = crash_fs(seed)
    fs.make_durable_directory(DATA.parent)
    broker = Broker(fs, entry_maker, size_bytes=16 << 10)
    broker.append(0, 1)
    broker.append_often(1, 2)
    append_two(broker)
    broker.append_often(1, 2)
    broker.append(0)
    broker.append_often(1, 2)
    cut_off(broker, 2)
    entries, turns = broker.directory.entries, []
    begin_use = entries._begin_use

    def counted() -> None:
        turns.append(0)
        fs.calls_left = calls if len(turns) == 2 else None
        begin_use()

    entries._begin_use = counted  # type: ignore[method-assign]
    with suppress(StorageFailed):
        while len(turns) < 2:
            broker.append(1, size=3_500)
    fs.crash(keep=0.5)
    broker.start()
    assert broker.log(0).lost is None and broker.holds(0)


def test_nothing_is_made_before_the_first_write(tmp_path: Path, recording_fs: RecordingFileSystem) -> None:
    journal = EntryJournal(recording_fs, tmp_path)
    journal.check()
    journal.finish()
    journal.close()
    assert recording_fs.events == []
