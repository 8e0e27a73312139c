"""Each operation on a log, with the power cut after every call to the file system: never anything in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import GroupId, RaftIndex
from region.log.entry import Entry
from region.log.flushed_marks import FlushedMark, FlushedMarks
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal
from region.log.manifest import Manifest
from region.log.staging import StagedSegment
from tests.tiers import first

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

DATA = Path("/data")
FOLDER = DATA / "groups" / "1"
GROUP = GroupId(1)
State = tuple[object, ...]


def manifest_of(entry: Entry) -> Manifest:
    return Manifest(
        index=entry.index,
        term=entry.term,
        chain=entry.chain,
        stream_part=entry.stream_part,
        membership=b"m",
        state=b"state after %d" % entry.index,
    )


@dataclass
class Bed:
    """A log of 20 entries in segments of four, manifests at 8 and 16, all durable."""

    fs: CrashFileSystem
    make: EntryMaker
    log: GroupLog
    flusher: Flusher
    entries: list[Entry]

    def write(self, **fields: object) -> None:
        self.flusher.run_cycle([GroupWrite(group_id=GROUP, log=self.log, token=0, **fields)])  # type: ignore[arg-type]

    def stage(self, entries: list[Entry], previous_chain: int) -> StagedSegment:
        staged = self.log.stage_segment(entries[0].index)
        staged.write(0, b"".join(entry.frame for entry in entries))
        staged.verify(previous_chain)
        return staged


def open_log(fs: CrashFileSystem, mark: FlushedMark | None) -> GroupLog:
    return GroupLog.open(FOLDER, fs, mark=mark, segment_bytes_max=1000, index_interval_bytes=300)


def make_bed(fs: CrashFileSystem, make: EntryMaker) -> Bed:
    fs.make_durable_directory(FOLDER.parent)
    marks = FlushedMarks.open(fs, DATA)
    journal = HardStateJournal.open(fs, DATA)
    flusher = Flusher(journal, post=lambda _tokens: None, on_failure=lambda _error: None, marks=marks)
    bed = Bed(fs, make, open_log(fs, None), flusher, [])
    bed.entries = [make.data(bytes([n + 1]) * 100, term=1 + n // 9) for n in range(20)]
    bed.write(entries=bed.entries)
    for n in (8, 16):
        bed.write(manifest=manifest_of(bed.entries[n - 1]))
    return bed


def state_of(log: GroupLog) -> State:
    found = log.read_entries(RaftIndex(log.first_index), RaftIndex(log.last_index + 1), 10**9)
    newest = log.manifest
    return (
        log.first_index,
        log.last_index,
        tuple(entry.frame for entry in found),
        log.term_runs,
        (log.base_index, log.base_term, log.base_chain),
        (log.last_chain, log.last_term, log.next_offset),
        None if newest is None else newest.state,
        log.lost,
        tuple(log.corrupt_segments()),
    )


def do_seal(bed: Bed) -> None:
    bed.write(seal=True)


def do_manifest(bed: Bed) -> None:
    bed.write(manifest=manifest_of(bed.entries[-1]))


def do_advance(bed: Bed) -> None:
    bed.write(advance_start=RaftIndex(18))


def do_truncate(bed: Bed) -> None:
    bed.write(truncate_from=RaftIndex(18))


def do_truncate_into_a_sealed_segment(bed: Bed) -> None:
    bed.log.seal()
    bed.write(truncate_from=RaftIndex(19))


def do_install(bed: Bed) -> None:
    ahead = [bed.make.data(b"elsewhere", term=4) for _ in range(30)]
    bed.write(install=manifest_of(ahead[-1]))


def do_install_below_the_end(bed: Bed) -> None:
    bed.make.rewind(bed.entries[15])
    other = [bed.make.data(b"other", term=5) for _ in range(2)]
    bed.write(install=manifest_of(other[-1]))


def do_adopt(bed: Bed) -> None:
    news = [bed.make.data(b"new%d" % n, term=4) for n in range(6)]
    bed.write(adopt=[bed.stage(news, bed.entries[-1].chain)])


def do_adopt_after_seal(bed: Bed) -> None:
    news = [bed.make.data(b"new%d" % n, term=4) for n in range(6)]
    bed.write(seal=True, adopt=[bed.stage(news, bed.entries[-1].chain)])


def do_replace(bed: Bed) -> None:
    bed.write(replace=[bed.stage(bed.entries[4:8], bed.entries[3].chain)])


OPERATIONS = [
    do_seal,
    do_manifest,
    do_advance,
    do_truncate,
    do_truncate_into_a_sealed_segment,
    do_install,
    do_install_below_the_end,
    do_adopt,
    do_adopt_after_seal,
    do_replace,
]


CRASHES = [(0, 0.0), (1, 1.0), (2, 0.5), (3, 0.5), (4, 0.8), (5, 0.2)]  # seed, share of what was not synced that stays


@pytest.mark.parametrize("crashes", first(1, [CRASHES[:3], CRASHES[3:]]), ids=["all or half", "other shares"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__.removeprefix("do_"))
def test_a_crash_after_any_call_leaves_what_was_before_or_what_is_after(
    crash_fs: Callable[[int], CrashFileSystem],
    entry_maker: Callable[[], EntryMaker],
    operation: Callable[[Bed], None],
    crashes: list[tuple[int, float]],
) -> None:
    bed = make_bed(crash_fs(0), entry_maker())
    before = state_of(bed.log)
    operation(bed)
    after = state_of(bed.log)
    seen, calls = set[State](), 0
    while True:
        finished = False
        for seed, keep in crashes:
            bed = make_bed(crash_fs(seed), entry_maker())
            bed.fs.calls_left = calls
            try:
                operation(bed)
                finished = True
            except OSError:
                pass
            except Exception as error:
                assert "the power is off" in str(error), calls  # noqa: PT017 - StorageFailed of the flusher
            bed.fs.crash(keep=keep)
            log = open_log(bed.fs, FlushedMarks.open(bed.fs, DATA).get(GROUP))
            found = state_of(log)
            assert found in (before, after), (calls, keep, found[:2], before[:2], after[:2])
            assert not finished or found == after
            seen.add(found)
        if finished:
            break
        calls += 1
    assert calls > 3 and seen == {before, after}


def test_several_segments_are_adopted_one_after_the_other(
    crash_fs: Callable[[int], CrashFileSystem], make: EntryMaker
) -> None:
    bed = make_bed(crash_fs(0), make)
    first = [make.data(b"a%d" % n, term=4) for n in range(3)]
    second = [make.data(b"b%d" % n, term=4) for n in range(3)]
    staged = [bed.stage(first, bed.entries[-1].chain), bed.stage(second, first[-1].chain)]
    bed.write(adopt=staged)
    expected = [*bed.entries, *first, *second]
    bed.fs.crash(keep=0.0)
    again = open_log(bed.fs, FlushedMarks.open(bed.fs, DATA).get(GROUP))
    assert [entry.frame for entry in again.read_entries(RaftIndex(1), RaftIndex(99), 10**9)] == [
        entry.frame for entry in expected
    ]
    assert [info.last_index for info in again.sealed_segments()] == [4, 8, 12, 16, 20, 23, 26]
