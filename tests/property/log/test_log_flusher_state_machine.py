"""Flusher, log and marks against a list: every operation, crashes between them and in the middle of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from georelay.errors import StorageFailed
from georelay.ids import GroupId, RaftIndex
from region.log.entry import Entry
from region.log.entry_journal import EntryJournal, replay_journal
from region.log.errors import LogCorrupt
from region.log.flushed_marks import FlushedMarks
from region.log.flusher import Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal
from region.log.manifest import Manifest

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

DATA = Path("/data")
FOLDER = DATA / "groups" / "1"
GROUP = GroupId(1)
ALL = 10**9


def manifest_of(entry: Entry) -> Manifest:
    return Manifest(
        index=entry.index,
        term=entry.term,
        chain=entry.chain,
        stream_part=entry.stream_part,
        state=b"after %d" % entry.chain,
    )


class FlusherMachine(RuleBasedStateMachine):
    """`entries` is everything ever appended and not truncated, by index; the log must hold those from `start` on.

    `committed` stands for Raft's: what is below it is never truncated, and manifests are made only there.
    """

    make_fs: Callable[[int], CrashFileSystem]
    make_entries: Callable[[], EntryMaker]
    sync_works = True
    journal_bytes = 0  # of the entry journal's files; 0: there is none

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.fs = self.make_fs(seed)
        self.fs.make_durable_directory(FOLDER.parent)
        self.fs.sync_works = self.sync_works
        self.make, self.term, self.committed, self.base = self.make_entries(), 1, 0, 0
        self.entries: dict[int, Entry] = {}
        self.open()

    def open(self) -> None:
        replay_journal(self.fs, DATA, lambda _group: FOLDER)
        self.marks = FlushedMarks.open(self.fs, DATA)
        journal = HardStateJournal.open(self.fs, DATA)
        entries = EntryJournal(self.fs, DATA, size_bytes=self.journal_bytes) if self.journal_bytes else None
        self.flusher = Flusher(
            journal,
            post=lambda _tokens: None,
            on_failure=lambda _error: None,
            marks=self.marks,
            entries=entries,
        )
        self.log = GroupLog.open(
            FOLDER, self.fs, mark=self.marks.get(GROUP), segment_bytes_max=2000, index_interval_bytes=300
        )

    @property
    def last(self) -> int:
        return max(self.entries, default=self.base)

    def write(self, **fields: Any) -> None:
        self.flusher.run_cycle([GroupWrite(group_id=GROUP, log=self.log, token=0, **fields)])

    def made(self, sizes: list[int]) -> list[Entry]:
        return [self.make.data(bytes([1 + size % 255]) * size, records=1 + size % 3, term=self.term) for size in sizes]

    def keep(self, entries: list[Entry]) -> None:
        self.entries.update({int(entry.index): entry for entry in entries})

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=8), seal=st.booleans())
    def append(self, sizes: list[int], seal: bool) -> None:
        entries = self.made(sizes)
        self.write(entries=entries, seal=seal)
        self.keep(entries)

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=8), calls=st.integers(0, 12), keep=st.floats(0, 1))
    def append_and_lose_power(self, sizes: list[int], calls: int, keep: float) -> None:
        self.interrupted(self.made(sizes), calls, keep, min_last=self.last, seal=True)

    def interrupted(self, entries: list[Entry], calls: int, keep: float, *, min_last: int, **fields: Any) -> None:
        """Write, lose power on the way, and go on with what is found."""
        self.fs.calls_left = calls
        try:
            self.write(entries=entries, **fields)
            min_last = int(entries[-1].index) if entries else min_last
        except StorageFailed:
            pass
        self.keep(entries)
        self.fs.crash(keep=keep)
        self.open()
        found = int(self.log.last_index)
        assert min_last <= found <= self.last, (min_last, found, self.last)
        self.entries = {index: entry for index, entry in self.entries.items() if index <= found}
        self.rewind()

    @rule()
    def commit(self) -> None:
        self.committed = self.last

    @precondition(lambda self: self.last > self.committed and self.committed >= 1)
    @rule(data=st.data(), calls=st.one_of(st.none(), st.integers(0, 12)), keep=st.floats(0, 1))
    def truncate(self, data: st.DataObject, calls: int | None, keep: float) -> None:
        from_index = data.draw(st.integers(self.committed + 1, self.last))
        if calls is None:
            self.write(truncate_from=RaftIndex(from_index))
            self.entries = {index: entry for index, entry in self.entries.items() if index < from_index}
            self.rewind()
        else:
            self.interrupted([], calls, keep, min_last=from_index - 1, truncate_from=RaftIndex(from_index))
        self.term += 1

    @precondition(lambda self: self.committed > self.base)
    @rule(data=st.data(), calls=st.one_of(st.none(), st.integers(0, 12)), keep=st.floats(0, 1))
    def checkpoint(self, data: st.DataObject, calls: int | None, keep: float) -> None:
        at = data.draw(st.integers(max(self.log.first_index, self.committed - 6), self.committed))
        manifest = manifest_of(self.entries[at])
        if calls is None:
            self.write(manifest=manifest)
        else:
            self.interrupted([], calls, keep, min_last=self.last, manifest=manifest)

    @precondition(lambda self: self.committed > self.base)
    @rule(data=st.data(), calls=st.one_of(st.none(), st.integers(0, 12)), keep=st.floats(0, 1))
    def advance_start(self, data: st.DataObject, calls: int | None, keep: float) -> None:
        to = RaftIndex(data.draw(st.integers(self.base + 1, self.committed + 1)))
        if calls is None:
            self.write(advance_start=to)
        else:
            self.interrupted([], calls, keep, min_last=self.last, advance_start=to)
        assert self.base <= self.log.base_index < to
        self.base = int(self.log.base_index)

    @rule(ahead=st.integers(1, 9), calls=st.one_of(st.none(), st.integers(0, 15)), keep=st.floats(0, 1))
    def install(self, ahead: int, calls: int | None, keep: float) -> None:
        elsewhere = self.made([10] * ahead)
        manifest = manifest_of(elsewhere[-1])
        before = (dict(self.entries), self.base)
        self.fs.calls_left = calls
        finished = True
        try:
            self.write(install=manifest)
        except StorageFailed:
            finished = False
        if calls is not None:
            self.fs.crash(keep=keep)
            self.open()
        if finished or self.log.base_index == manifest.index:
            assert (self.log.first_index, self.log.last_chain) == (manifest.index + 1, manifest.chain)
            assert self.log.base_manifest() == manifest == self.log.manifest
            self.entries, self.base, self.committed = {}, int(manifest.index), int(manifest.index)
            self.make.rewind(elsewhere[-1])
            return
        self.entries, self.base = before
        self.make.rewind(self.entries.get(self.last))
        if not self.entries:
            self.make.index, self.make.chain = self.base, self.log.base_chain
            self.make.next_offset = int(self.log.next_offset)

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=8), calls=st.one_of(st.none(), st.integers(0, 12)))
    def adopt(self, sizes: list[int], calls: int | None) -> None:
        chain = self.log.last_chain
        entries = self.made(sizes)
        staged = self.log.stage_segment(entries[0].index)
        staged.write(0, b"".join(entry.frame for entry in entries))
        assert staged.verify(chain).last_index == entries[-1].index
        before = self.last
        self.fs.calls_left = calls
        finished = True
        try:
            self.write(adopt=[staged])
        except StorageFailed:
            finished = False
        self.keep(entries)
        if calls is not None:
            self.fs.crash()
            self.open()
            found = int(self.log.last_index)
            assert found == self.last if finished else found in (before, self.last)
            self.entries = {index: entry for index, entry in self.entries.items() if index <= found}
            self.rewind()
        self.committed = self.last

    def rewind(self) -> None:
        self.make.rewind(self.entries.get(self.last))
        if not self.entries:
            self.make.index, self.make.chain = self.base, self.log.base_chain
            self.make.next_offset = int(self.log.next_offset)

    @rule(keep=st.sampled_from([None, 0.0, 0.5, 1.0]))
    def crash(self, keep: float | None) -> None:
        self.fs.crash(keep=keep)
        self.open()

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.open()

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def the_log_is_the_list(self) -> None:
        log = self.log
        assert log.lost is None and log.corrupt_segments() == []
        assert (log.base_index, log.last_index) == (self.base, self.last)
        held = [self.entries[index] for index in range(self.base + 1, self.last + 1)]
        found = log.read_entries(RaftIndex(self.base + 1), RaftIndex(self.last + 1), ALL)
        assert [entry.frame for entry in found] == [entry.frame for entry in held]
        runs = tuple((e.index, e.term) for at, e in enumerate(held) if at == 0 or held[at - 1].term != e.term)
        assert log.term_runs == runs
        newest = log.manifest
        assert newest is not None or self.base == 0
        if newest is not None and newest.index in self.entries:
            assert newest == manifest_of(self.entries[newest.index])
        for info in log.sealed_segments():
            log.verify_segment(info.first_index)


def run(sync_works: bool, fs: object, entries: object, phases: tuple[Phase, ...], *, journal_bytes: int = 0) -> None:
    """Run the machine on file systems made by `fs`, whose syncs do something or nothing."""
    made = {"make_fs": staticmethod(fs), "make_entries": staticmethod(entries), "sync_works": sync_works}  # type: ignore[arg-type]
    made["journal_bytes"] = journal_bytes
    run_state_machine_as_test(
        type("Machine", (FlusherMachine,), made),
        settings=settings(
            stateful_step_count=30,
            database=None,
            derandomize=True,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_operation_behaves_like_the_list_through_crashes(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    run(True, crash_fs, entry_maker, tuple(Phase))


def test_the_flusher_machine_notices_when_the_sync_is_patched_out(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    with pytest.raises((AssertionError, LogCorrupt)):
        run(False, crash_fs, entry_maker, (Phase.generate,))


@pytest.mark.parametrize("journal_bytes", [8_192, 65_536])  # files are changed all the time; nearly never
def test_every_operation_behaves_like_the_list_where_small_writes_are_journaled(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker], journal_bytes: int
) -> None:
    run(True, crash_fs, entry_maker, tuple(Phase), journal_bytes=journal_bytes)
