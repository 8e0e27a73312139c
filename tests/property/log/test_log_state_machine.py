"""GroupLog against a list: append, truncate, sync, crash and reopen in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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

from georelay.ids import Offset, RaftIndex
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType
from region.log.entry import Entry
from region.log.errors import LogCorrupt
from region.log.group_log import GroupLog
from region.log.segment_reader import read_group, valid_branch

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

FOLDER = Path("/data/groups/1")
ALL = 10**9


class LogMachine(RuleBasedStateMachine):
    """`model` is what was appended and not truncated; its first `synced` entries must survive everything."""

    make_fs: Callable[[int], CrashFileSystem]
    make_entries: Callable[[], EntryMaker]
    sync_works = True

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.fs = self.make_fs(seed)
        self.fs.make_durable_directory(FOLDER.parent)
        self.fs.sync_works = self.sync_works
        self.make, self.model, self.synced, self.term = self.make_entries(), list[Entry](), 0, 1
        self.open()

    def open(self) -> None:
        self.log = GroupLog.open(FOLDER, self.fs, segment_bytes_max=2000, index_interval_bytes=300)

    @rule(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=8), fill=st.integers(0, 255))
    def append(self, sizes: list[int], fill: int) -> None:
        entries = [self.make.data(bytes([fill]) * size, records=1 + size % 3, term=self.term) for size in sizes]
        self.log.append(entries)
        self.model += entries

    @rule(back=st.integers(0, 5), new_term=st.booleans())
    def begin_epoch(self, back: int, new_term: bool) -> None:
        self.term += new_term
        # Home and mirrors agree on a prefix of whole entries: no epoch begins inside one.
        starts = [int(self.make.next_offset), *(int(entry.base_offset) for entry in reversed(valid_branch(self.model)))]
        entry = self.make.begin_epoch(self.make.epoch + 1, starts[min(back, len(starts) - 1)], term=self.term)
        self.log.append([entry])
        self.model.append(entry)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        from_index = data.draw(st.integers(1, len(self.model)))
        self.log.truncate_suffix(RaftIndex(from_index))
        self.model = self.model[: from_index - 1]
        self.synced = min(self.synced, len(self.model))
        self.make.rewind(self.model[-1] if self.model else None)
        self.term += 1

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced = len(self.model)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.open()
        self.synced = len(self.model)  # recovery syncs what it finds
        self.check_whole_log()

    @rule(keep=st.sampled_from([None, 0.0, 0.5, 0.9, 1.0]))
    def crash(self, keep: float | None) -> None:
        self.fs.crash(keep=keep)
        self.open()
        found = self.log.last_index
        assert self.synced <= found <= len(self.model), (self.synced, found, len(self.model))
        self.model = self.model[:found]
        self.synced = found
        self.make.rewind(self.model[-1] if self.model else None)
        self.check_whole_log()

    def check_whole_log(self) -> None:
        frames = [entry.frame for entry in self.model]
        assert [entry.frame for entry in self.log.read_entries(RaftIndex(1), RaftIndex(len(frames) + 1), ALL)] == frames
        assert [entry.frame for entry in read_group(FOLDER, self.fs)] == frames if frames else True
        terms = {int(entry.index): entry.term for entry in self.model}
        assert self.log.term_runs == tuple((at, term) for at, term in terms.items() if terms.get(at - 1) != term)
        epochs = [entry for entry in self.model if entry.type is EntryType.EPOCH]
        assert self.log.epoch_starts == tuple((e.index, e.header().epoch, e.base_offset) for e in epochs)

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def durable_reads_agree_with_the_list(self) -> None:
        end = self.log.durable_index
        assert (self.log.last_index, end >= self.synced) == (len(self.model), True)
        found = self.log.read_entries(RaftIndex(max(1, end - 3)), RaftIndex(end + 5), ALL)
        assert [entry.frame for entry in found] == [entry.frame for entry in self.model[max(0, end - 4) : end]]
        assert self.log.last_chain == (self.model[-1].chain if self.model else 0)

    @precondition(lambda self: self.synced)
    @rule(data=st.data())
    def read_by_offset(self, data: st.DataObject) -> None:
        up_to = data.draw(st.integers(1, self.synced))
        branch = valid_branch(self.model[:up_to])
        offset = data.draw(st.integers(0, branch[-1].next_offset + 2 if branch else 2))
        expected = [entry.frame for entry in branch if entry.next_offset > offset]
        found = self.log.read_from_offset(Offset(offset), ALL, up_to_index=RaftIndex(up_to))
        assert [entry.frame for entry in found] == expected
        assert all(entry.type in OWNS_OFFSETS for entry in found)


def run(sync_works: bool, fs: object, entries: object, phases: tuple[Phase, ...]) -> None:
    """Run the machine on file systems made by `fs`, whose syncs do something or nothing."""
    made = {"make_fs": staticmethod(fs), "make_entries": staticmethod(entries), "sync_works": sync_works}  # type: ignore[arg-type]
    run_state_machine_as_test(
        type("Machine", (LogMachine,), made),
        settings=settings(
            stateful_step_count=40,
            database=None,
            derandomize=True,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_log_behaves_like_a_list_and_keeps_what_was_synced(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    run(True, crash_fs, entry_maker, tuple(Phase))


def test_the_machine_above_notices_when_the_sync_is_patched_out(
    crash_fs: Callable[[int], CrashFileSystem], entry_maker: Callable[[], EntryMaker]
) -> None:
    with pytest.raises((AssertionError, LogCorrupt)):
        run(False, crash_fs, entry_maker, (Phase.generate,))
