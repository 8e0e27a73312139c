"""Damage of what was durable, in every file: no wrong byte is ever read, no loss is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import DataDirectoryError
from georelay.ids import GroupId, RaftIndex, Term
from georelay.wire.crc import crc32c
from region.log.entry import Entry
from region.log.errors import LogCorrupt, StartMoved
from region.log.flushed_marks import FlushedMark, FlushedMarks, LostTail
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal
from region.log.manifest import Manifest
from region.log.scrubber import IDLE_SECONDS, Scrubber, next_target
from tests.tiers import first

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

DATA = Path("/data")
FOLDER = DATA / "groups" / "1"
GROUP = GroupId(1)
ALL = 10**9


def manifest_of(entry: Entry) -> Manifest:
    return Manifest(
        index=entry.index, term=entry.term, chain=entry.chain, stream_part=entry.stream_part, state=b"state" * 20
    )


class Replica:
    """Twelve entries in segments of four, made by a flusher; a manifest at 4 and at 10; perhaps begun above index 1."""

    def __init__(self, fs: CrashFileSystem, make: EntryMaker, *, start: int = 1) -> None:
        self.fs, self.make = fs, make
        fs.make_durable_directory(FOLDER.parent)
        self.reopen()
        self.entries = [make.data(bytes([n + 1]) * 60, term=1 + n // 7) for n in range(12)]
        self.write(entries=self.entries)
        for n in (4, 10):
            self.write(manifest=manifest_of(self.entries[n - 1]))
        if start > 1:
            self.write(advance_start=RaftIndex(start))
        self.log.close()
        self.files = {path: fs.content(path) for path in (*self.paths(), DATA / "flushed-marks")}

    def paths(self) -> list[Path]:
        return [FOLDER / name for name in self.fs.list_directory(FOLDER)]

    def restore(self) -> None:
        for path in self.paths():
            self.fs.remove(path)
        for path, content in self.files.items():
            self.fs.put(path, content)

    def reopen(self) -> None:
        """Open as DataDirectory.open_group does."""
        self.marks = FlushedMarks.open(self.fs, DATA)
        journal = HardStateJournal.open(self.fs, DATA)
        self.flusher = Flusher(journal, post=lambda _tokens: None, on_failure=lambda _error: None, marks=self.marks)
        mark = self.marks.get(GROUP)
        self.log = GroupLog.open(FOLDER, self.fs, mark=mark, segment_bytes_max=800, index_interval_bytes=200)
        if self.log.lost is not None:
            self.marks.sync()

    def write(self, **fields: object) -> None:
        self.flusher.run_cycle([GroupWrite(group_id=GROUP, log=self.log, token=0, **fields)])  # type: ignore[arg-type]

    def read(self) -> list[Entry]:
        """Read as far as reading goes; LogCorrupt ends it."""
        found: list[Entry] = []
        index = int(self.log.first_index)
        while index <= self.log.last_index:
            with suppress(LogCorrupt):
                found += self.log.read_entries(RaftIndex(index), RaftIndex(index + 1), ALL)
            index += 1
        return found


@pytest.fixture
def replica(crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker) -> Replica:
    return Replica(crash_fs(0), make)


# The end of a file's name, and where the log begins. The segments begin at 1, 5 and 9; the last one is open.
DAMAGED = [
    *(("5.log", 1), ("9.log", 1), (".index", 1), (".manifest", 1), ("flushed-marks", 1)),
    *((".manifest", 5), ("flushed-marks", 5)),
    *first(0, [("1.log", 1), (".log", 5), (".index", 5)]),
]


@pytest.mark.parametrize("every_second_from", first(1, (0, 1)))
@pytest.mark.parametrize(("kind", "start"), DAMAGED)
def test_a_flipped_bit_in_any_file_is_refused_noticed_or_harmless(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker, kind: str, start: int, every_second_from: int
) -> None:
    replica = Replica(crash_fs(0), make, start=start)
    good = {entry.index: entry.frame for entry in replica.entries}
    cases = 0
    for path, content in list(replica.files.items()):
        if not path.name.endswith(kind):
            continue
        for position in range(every_second_from, len(content), 2):
            replica.restore()
            replica.fs.flip(path, position, bit=position // 2 % 8)
            cases += 1
            try:
                replica.reopen()
            except LogCorrupt:
                assert kind == "flushed-marks", (path, position)
                continue
            found = replica.read()
            assert all(entry.frame == good[entry.index] for entry in found), (path, position)
            held = {int(entry.index) for entry in found}
            missing = {index for index in good if index >= start} - held
            noticed = replica.log.lost == LostTail(RaftIndex(12), Term(2), replica.entries[-1].chain)
            noticed = noticed or replica.log.corrupt_segments() != []
            assert noticed or not missing or replica.log.last_index == 12, (path, position, missing)
            if path.suffix != ".log":
                assert not missing, (path, position)
            elif missing and replica.log.lost is None:
                # In the open segment below its checkpoint: found by the read, and again after a restart.
                with pytest.raises(LogCorrupt):
                    replica.log.read_entries(RaftIndex(min(missing)), RaftIndex(min(missing) + 1), ALL)
    assert cases > 25


def test_every_lost_byte_at_the_end_of_the_open_segment_is_noticed(replica: Replica) -> None:
    last = max(path for path in replica.files if path.suffix == ".log")
    content = replica.files[last]
    for size in range(len(content)):
        replica.restore()
        replica.fs.put(last, content[:size])
        replica.reopen()
        assert replica.log.lost is not None and replica.log.lost.index == 12, size
        assert replica.log.last_index < 12


def test_a_tail_above_the_mark_is_cut_whatever_it_holds(replica: Replica) -> None:
    last = max(path for path in replica.files if path.suffix == ".log")
    for tail in (b"\xff" * 700, b"GR\x01\x00" + b"\x01" * 600, bytes(5000)):
        replica.restore()
        replica.fs.put(last, replica.files[last] + tail)
        replica.reopen()
        assert replica.log.lost is None and replica.log.last_index == 12
        assert replica.fs.content(last) == replica.files[last]


def test_a_loss_is_remembered_over_restarts_until_the_log_is_whole_again(replica: Replica) -> None:
    last = max(path for path in replica.files if path.suffix == ".log")
    replica.fs.flip(last, 188 + 150)
    replica.reopen()
    lost, end = replica.log.lost, int(replica.log.last_index)
    assert lost is not None and lost.index == 12 and end < 12
    damaged = [path for path in replica.paths() if path.suffix == ".damaged"]
    assert len(damaged) == 1
    replica.write(entries=replica.entries[end:11])
    replica.fs.crash(keep=0.0)
    replica.reopen()
    assert replica.log.lost == lost and replica.log.last_index == 11
    replica.write(entries=replica.entries[11:])
    assert replica.log.lost is None
    assert [path for path in replica.paths() if path.suffix == ".damaged"] == []
    replica.fs.crash(keep=0.0)
    replica.reopen()
    assert replica.log.lost is None and len(replica.read()) == 12


def test_a_log_of_a_newer_term_makes_up_for_a_loss_as_well(replica: Replica) -> None:
    last = max(path for path in replica.files if path.suffix == ".log")
    replica.fs.put(last, b"")
    replica.reopen()
    end = int(replica.log.last_index)
    replica.make.rewind(replica.entries[end - 1])
    replica.write(entries=[replica.make.data(b"of a new leader", term=3)])
    assert replica.log.lost is None
    replica.fs.crash(keep=0.0)
    replica.reopen()
    assert replica.log.lost is None and replica.log.last_index == end + 1


def test_a_missing_segment_cuts_the_log_and_is_noticed(replica: Replica) -> None:
    names = sorted(path for path in replica.files if path.suffix == ".log")
    replica.fs.remove(names[1])
    replica.reopen()
    assert replica.log.last_index == 4 and replica.log.lost is not None and replica.log.lost.index == 12
    kept = sorted(path.name for path in replica.paths() if path.suffix == ".damaged")
    assert kept == [f"{path.name}.damaged" for path in names[2:]]


def test_a_folder_that_is_gone_is_noticed(replica: Replica) -> None:
    for path in replica.paths():
        replica.fs.remove(path)
    replica.reopen()
    assert (replica.log.first_index, replica.log.last_index) == (1, 0)
    assert replica.log.lost is not None and replica.log.lost.index == 12


def test_without_any_readable_manifest_a_log_that_began_later_starts_anew(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker
) -> None:
    replica = Replica(crash_fs(0), make, start=5)
    assert replica.log.first_index > 1
    for path in replica.paths():
        if path.suffix == ".manifest":
            replica.fs.flip(path, 60)
    replica.reopen()
    assert (replica.log.first_index, replica.log.last_index) == (1, 0)
    assert replica.log.lost is not None and replica.log.lost.index == 12
    replica.reopen()
    assert replica.log.lost is not None and replica.log.lost.index == 12


def test_a_damaged_newest_manifest_gives_way_to_the_one_before(replica: Replica) -> None:
    newest = max(path for path in replica.files if path.suffix == ".manifest")
    replica.fs.flip(newest, 130)
    replica.reopen()
    assert replica.log.manifest == manifest_of(replica.entries[3])


def test_a_damaged_sealed_segment_is_not_read_until_it_is_replaced(replica: Replica) -> None:
    first = min(path for path in replica.files if path.suffix == ".log")
    replica.fs.flip(first, 300)
    replica.reopen()
    log = replica.log
    info = log.sealed_segments()[0]
    with pytest.raises(LogCorrupt):
        log.verify_segment(1)
    assert log.corrupt_segments() == [1]
    with pytest.raises(LogCorrupt):
        log.read_entries(RaftIndex(1), RaftIndex(2), ALL)  # the first entry itself is whole
    with pytest.raises(LogCorrupt):
        log.read_segment_bytes(1, 0, 100)
    staged = log.stage_segment(1)
    for entry in replica.entries[: info.last_index]:
        staged.write(sum(each.size for each in replica.entries[: entry.index - 1]), entry.frame)
    assert staged.verify(info.previous_chain) == info
    replica.write(replace=[staged])
    assert log.corrupt_segments() == [] and len(replica.read()) == 12
    replica.fs.crash(keep=0.0)
    replica.reopen()
    replica.log.verify_segment(1)


def test_a_read_marks_the_damaged_segment_it_meets(replica: Replica) -> None:
    replica.fs.flip(min(path for path in replica.files if path.suffix == ".log"), 300)
    replica.reopen()
    with pytest.raises(LogCorrupt):
        replica.log.read_entries(RaftIndex(1), RaftIndex(12), ALL)
    assert replica.log.corrupt_segments() == [1]


def test_staged_bytes_that_are_not_whole_entries_are_refused(replica: Replica) -> None:
    entries, log = replica.entries, replica.log
    for content in (b"", entries[0].frame[:-1], entries[0].frame + entries[2].frame, b"x" * 200):
        staged = log.stage_segment(1)
        staged.write(0, content)
        with pytest.raises(LogCorrupt):
            staged.verify(0)
        staged.discard()
    staged = log.stage_segment(1)
    staged.write(0, entries[0].frame)
    with pytest.raises(LogCorrupt, match="does not continue"):
        staged.verify(77)
    with pytest.raises(ValueError, match="outside a segment"):
        staged.write(1 << 40, b"x")


def test_a_staged_file_does_not_survive_a_restart(replica: Replica) -> None:
    replica.log.stage_segment(1)
    replica.reopen()
    assert [path for path in replica.paths() if path.suffix == ".staged"] == []


def test_reading_below_the_start_says_that_the_start_moved(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker
) -> None:
    replica = Replica(crash_fs(0), make)
    replica.reopen()
    old_view = replica.log._view
    boundary = replica.log.sealed_segments()[1].last_index
    replica.write(manifest=manifest_of(replica.entries[boundary - 1]))
    replica.write(advance_start=RaftIndex(12))
    assert replica.log.first_index == boundary + 1
    with pytest.raises(StartMoved):
        replica.log.read_entries(RaftIndex(1), RaftIndex(3), ALL)
    with pytest.raises(FileNotFoundError):  # which a reader that holds the old view is told as ReadInterrupted
        old_view.read_entries(1, 3, ALL)
    assert [path for path in replica.paths() if path.name.endswith(".removed")] == []
    base = replica.log.base_manifest()
    assert base is not None and base.index == boundary


# -- the scrubber -----------------------------------------------------------------------------------------------


def test_the_scrubber_reads_every_sealed_segment_once_a_round(replica: Replica) -> None:
    replica.reopen()
    scrubber = Scrubber(lambda: {GROUP: replica.log}, bytes_per_second=1000, on_corrupt=lambda *_found: None)
    waited = 0.0
    while (wait := scrubber.step()) != IDLE_SECONDS:
        waited += wait
    sealed = replica.log.sealed_segments()
    assert scrubber.stats.segments == len(sealed) and scrubber.stats.rounds == 1
    assert waited == pytest.approx(sum(info.size_bytes for info in sealed) / 1000)


def test_the_scrubber_reports_each_damaged_segment_once(replica: Replica) -> None:
    second = sorted(path for path in replica.files if path.suffix == ".log")[1]
    replica.fs.flip(second, 300)
    replica.reopen()
    found: list[tuple[GroupId, int]] = []
    scrubber = Scrubber(
        lambda: {GROUP: replica.log},
        bytes_per_second=1,
        on_corrupt=lambda group, first, _error: found.append((group, first)),
    )
    for _ in range(30):
        scrubber.step()
    assert found == [(GROUP, int(second.stem))] and replica.log.corrupt_segments() == [int(second.stem)]


def test_the_scrubber_goes_round_by_group_and_index() -> None:
    segments = {GroupId(2): [1], GroupId(3): [], GroupId(1): [9, 4]}
    assert next_target(segments, segments.__getitem__, None) == (1, 4)
    assert next_target(segments, segments.__getitem__, (GroupId(1), 4)) == (1, 9)
    assert next_target(segments, segments.__getitem__, (GroupId(1), 9)) == (2, 1)
    assert next_target(segments, segments.__getitem__, (GroupId(2), 1)) is None


def test_the_scrubber_asks_no_group_behind_the_next_segment() -> None:
    asked: list[GroupId] = []

    def segments_of(group: GroupId) -> list[int]:
        asked.append(group)
        return [1, 5]

    assert next_target([GroupId(n) for n in range(1000)], segments_of, (GroupId(7), 1)) == (7, 5)
    assert asked == [7]


# -- marks ------------------------------------------------------------------------------------------------------


def test_marks_are_kept_per_group_and_forgotten_with_it(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    made = {GroupId(n): FlushedMark(RaftIndex(n + 1), Term(n), n) for n in range(100)}
    marks.note(made)
    marks.sync()
    marks.forget(GroupId(40))
    fs.crash(keep=0.0)
    again = FlushedMarks.open(fs, DATA)
    del made[GroupId(40)]
    assert {group: again.get(group) for group in map(GroupId, range(100)) if again.get(group)} == made
    again.note({GroupId(500): FlushedMark(RaftIndex(1), Term(1), 1)})
    assert len(fs.content(DATA / "flushed-marks")) == 4096  # no row was added
    again.note({GroupId(n): FlushedMark(RaftIndex(1), Term(1), 1) for n in range(501, 529)})
    fs.crash(keep=0.0)
    assert len(fs.content(DATA / "flushed-marks")) == 8192  # room is durable before it is used


def test_marks_of_an_unknown_format_are_refused(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    header = b"GRFM\x00\x02" + bytes(22)
    fs.put(DATA / "flushed-marks", header + int(crc32c(header)).to_bytes(4, "big"))
    with pytest.raises(DataDirectoryError, match="has format 2, this broker knows 1"):
        FlushedMarks.open(fs, DATA)


@pytest.mark.parametrize("seed", first(5, range(20)))
def test_a_torn_write_of_marks_leaves_each_row_old_or_new(
    crash_fs: Callable[[int], CrashFileSystem], seed: int
) -> None:
    fs = crash_fs(seed)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    groups = [GroupId(n) for n in range(200)]
    old, new = FlushedMark(RaftIndex(1), Term(1), 1), FlushedMark(RaftIndex(2), Term(2), 2)
    marks.note(dict.fromkeys(groups, old))
    marks.sync()
    marks.note(dict.fromkeys(groups, new))
    fs.crash()
    again = FlushedMarks.open(fs, DATA)
    assert {again.get(group) for group in groups} <= {old, new}


@pytest.mark.parametrize(("position", "held"), [(300, 5), (10, 4)])
def test_a_sealed_segment_damaged_together_with_its_index_cuts_the_log(
    replica: Replica, position: int, held: int
) -> None:
    names = sorted(path for path in replica.files if path.suffix == ".log")
    replica.fs.flip(names[1], position)
    replica.fs.flip(names[1].with_suffix(".index"), 20)
    replica.reopen()
    assert replica.log.last_index == held and replica.log.corrupt_segments() == []
    assert replica.log.lost is not None and (replica.log.lost.index, replica.log.lost.term) == (12, 2)
    assert [entry.frame for entry in replica.read()] == [entry.frame for entry in replica.entries[:held]]
    assert any(path.suffix == ".damaged" for path in replica.paths())
    replica.write(entries=replica.entries[held:])
    replica.fs.crash(keep=0.0)
    replica.reopen()
    assert replica.log.lost is None and len(replica.read()) == 12


def test_a_sealed_segment_that_grew_or_shrank_is_damaged(replica: Replica) -> None:
    first = min(path for path in replica.files if path.suffix == ".log")
    for content in (replica.files[first] + b"\x00", replica.files[first][:-188]):
        replica.restore()
        replica.reopen()
        replica.fs.put(first, content)
        with pytest.raises(LogCorrupt):
            replica.log.verify_segment(1)
        replica.reopen()
        assert replica.log.corrupt_segments() == [1] and replica.log.last_index == 12


def test_an_install_whose_file_is_damaged_is_undone(replica: Replica) -> None:
    manifest = manifest_of(replica.entries[-1])
    raw = bytearray(manifest.encode())
    raw[50] ^= 1
    replica.fs.put(FOLDER / f"{12:020d}.install", bytes(raw))
    replica.reopen()
    assert replica.log.lost is None and len(replica.read()) == 12


def test_a_replacement_of_another_history_is_refused(replica: Replica, entry_maker: Callable[[], EntryMaker]) -> None:
    replica.reopen()
    other = entry_maker()
    staged = replica.log.stage_segment(1)
    staged.write(0, b"".join(other.data(b"other").frame for _ in range(4)))
    staged.verify(0)
    replica.log.mark_corrupt(1)
    replica.write(replace=[staged])
    assert replica.log.corrupt_segments() == [1]


def test_damage_in_a_sealed_segment_above_the_newest_manifest_is_cut_and_remembered_as_a_loss(
    replica: Replica,
) -> None:
    replica.fs.remove(FOLDER / f"{10:020d}.manifest")  # the one at 4 is the newest now: the machine follows 5 to 12
    replica.fs.flip(FOLDER / f"{5:020d}.log", 300, bit=3)
    replica.reopen()
    assert replica.log.lost == LostTail(RaftIndex(12), Term(2), replica.entries[-1].chain)
    assert 4 <= replica.log.last_index < 8
    assert [entry.frame for entry in replica.read()] == [
        entry.frame for entry in replica.entries[: replica.log.last_index]
    ]


def test_a_read_that_meets_damage_in_the_open_segment_marks_it(replica: Replica) -> None:
    replica.reopen()
    replica.fs.flip(FOLDER / f"{9:020d}.log", 150, bit=1)
    with pytest.raises(LogCorrupt):
        replica.log.read_entries(RaftIndex(9), RaftIndex(10), ALL)
    assert replica.log.corrupt_segments() == [9]
    assert replica.log.read_entries(RaftIndex(5), RaftIndex(9), ALL)


@pytest.mark.parametrize(("start", "at"), [(1, 4), (5, 4)], ids=["where the log may begin", "where it begins"])
def test_a_damaged_manifest_is_noticed_and_replaced_by_that_of_another_replica(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker, start: int, at: int
) -> None:
    replica = Replica(crash_fs(0), make, start=start)
    replica.fs.flip(FOLDER / f"{at:020d}.manifest", 60, bit=0)
    replica.reopen()
    assert replica.log.verify_manifests() == [at]
    other = manifest_of(replica.entries[at - 1])
    assert replica.log.fits(other)
    assert not replica.log.fits(replace(other, chain=other.chain ^ 1))
    replica.write(manifest=other)
    assert replica.log.verify_manifests() == []
    assert replica.log.read_manifest(at) == other


def test_a_damaged_checkpoint_of_the_open_segment_does_not_stay(replica: Replica) -> None:
    index = FOLDER / f"{9:020d}.index"
    replica.fs.flip(index, 20, bit=0)
    replica.reopen()
    assert replica.log.last_index == 12
    assert not replica.fs.exists(index)


def test_a_damaged_manifest_that_nobody_begins_with_goes_when_the_next_is_written(replica: Replica) -> None:
    damaged = FOLDER / f"{10:020d}.manifest"
    replica.fs.flip(damaged, 60, bit=0)
    replica.reopen()
    assert replica.log.verify_manifests() == []  # nobody has to fetch it
    replica.write(manifest=manifest_of(replica.entries[11]))
    assert not replica.fs.exists(damaged)
    assert replica.log.manifest_index == 12


def test_a_log_that_begins_above_index_1_knows_what_was_before_it(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker
) -> None:
    replica = Replica(crash_fs(0), make, start=5)
    replica.restore()
    replica.reopen()
    log, before = replica.log, replica.entries[3]
    assert (log.base_index, log.base_term, log.base_chain) == (4, before.term, before.chain)
    assert (log.first_index, log.last_index, log.lost, log.corrupt_segments()) == (5, 12, None, [])


def test_without_a_mark_a_log_that_began_later_and_has_no_manifest_is_refused_from_its_first_byte(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker
) -> None:
    replica = Replica(crash_fs(0), make, start=5)
    for path in replica.paths():
        if path.suffix == ".manifest":
            replica.fs.remove(path)
    replica.fs.remove(DATA / "flushed-marks")
    with pytest.raises(LogCorrupt, match="is damaged at byte 0: it begins above index 1, and no manifest in"):
        replica.reopen()
