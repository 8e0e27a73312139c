"""Group commit: order, durability before every token, and the end after the first failure."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.log.disk_space import DiskLevel, DiskSpace
from region.log.errors import LogCorrupt
from region.log.flushed_marks import FlushedMarks
from region.log.flusher import MARKS_SYNC_MS, Flusher, GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardState, HardStateJournal

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker, Event, RecordingFileSystem


class Broker:
    """A flusher over a recording file system, with as many groups as a test asks for."""

    def __init__(self, path: Path, fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]) -> None:
        self.path, self.fs = path, fs
        self.journal = HardStateJournal.open(fs, path)
        self.tokens: list[list[object]] = []
        self.failures: list[StorageFailed] = []
        self.flusher = Flusher(self.journal, post=self._post, on_failure=self.failures.append)
        self.groups = {n: (GroupLog.open(path / "groups" / str(n), fs), entry_maker()) for n in range(1, 9)}
        fs.events.clear()

    def _post(self, tokens: list[object]) -> None:
        self.fs._note("post", Path(str(tokens)))
        self.tokens.append(tokens)

    def write(self, group: int, *, count: int = 1, vote: int | None = None, term: int = 1) -> GroupWrite:
        log, make = self.groups[group]
        return GroupWrite(
            group_id=GroupId(group),
            log=log,
            token=(group, make.index + count),
            hard_state=None if vote is None else HardState(Term(term), BrokerId(vote)),
            entries=[make.data(b"x" * 100, term=term) for _ in range(count)],
        )

    def run_cycle(self, writes: list[GroupWrite]) -> None:
        self._post(self.flusher.run_cycle(writes))


@pytest.fixture
def broker(tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]) -> Broker:
    return Broker(tmp_path, recording_fs, entry_maker)


def run_some_cycles(broker: Broker) -> None:
    broker.run_cycle([broker.write(1)])
    broker.run_cycle([broker.write(1, count=3), broker.write(2, vote=7), broker.write(1)])
    broker.run_cycle([broker.write(group) for group in range(1, 9)])
    broker.run_cycle([GroupWrite(group_id=GroupId(3), log=None, token=0, hard_state=HardState(Term(2), BrokerId(1)))])


def test_no_token_is_posted_before_the_sync_that_covers_it(broker: Broker) -> None:
    run_some_cycles(broker)
    assert broker.fs.posts_before_sync() == 0
    assert broker.fs.kinds().count("post") == 4 and broker.fs.kinds().count("write") > 4


def test_the_check_above_notices_when_the_sync_is_patched_out(broker: Broker) -> None:
    broker.fs.sync_works = False
    run_some_cycles(broker)
    assert broker.fs.posts_before_sync() == 4


def test_hard_state_is_durable_before_entries_are_written(broker: Broker) -> None:
    broker.run_cycle([broker.write(1, vote=3)])
    names = [(event.kind, event.path.name) for event in broker.fs.events if event.kind in {"write", "sync"}]
    segment = f"{1:020d}.log"
    assert names == [("write", "hard-state"), ("sync", "hard-state"), ("write", segment), ("sync", segment)]


def test_a_cycle_writes_and_syncs_each_group_once(broker: Broker) -> None:
    broker.run_cycle([broker.write(1), broker.write(2)])
    broker.fs.events.clear()
    broker.run_cycle([broker.write(1), broker.write(2), broker.write(1, count=5), broker.write(2)])
    sizes = [event.size for event in broker.fs.events if event.kind == "write"]
    assert sizes == [6 * 228, 2 * 228]
    assert broker.fs.kinds() == ["write", "write", "sync", "sync", "post"]


def test_tokens_come_in_the_order_of_submission(broker: Broker) -> None:
    broker.run_cycle([broker.write(2), broker.write(1), broker.write(2)])
    assert broker.tokens == [[(2, 1), (1, 1), (2, 2)]]


def test_a_truncation_stands_between_the_appends_around_it(broker: Broker) -> None:
    log, make = broker.groups[1]
    first, second, third = make.data(b"1"), make.data(b"2"), make.data(b"3")
    make.rewind(first)
    other = make.data(b"other", term=2)
    writes = [
        GroupWrite(group_id=GroupId(1), log=log, token=1, entries=[first, second, third]),
        GroupWrite(group_id=GroupId(1), log=log, token=2, truncate_from=RaftIndex(2), entries=[other]),
    ]
    broker.run_cycle(writes)
    found = log.read_entries(RaftIndex(1), RaftIndex(9), 10**6)
    assert [entry.frame for entry in found] == [first.frame, other.frame]


@pytest.mark.parametrize("groups", [[1], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_directory"])
def test_the_first_failure_is_the_last_cycle(broker: Broker, kind: str, groups: list[int]) -> None:
    broker.fs.fault = lambda what, _path: OSError(errno.EIO, "I/O error") if what == kind else None
    with pytest.raises(StorageFailed, match="I/O error"):
        broker.run_cycle([broker.write(group) for group in groups])
    broker.fs.fault = lambda _kind, _path: None
    broker.fs.events.clear()
    with pytest.raises(StorageFailed):
        broker.run_cycle([broker.write(7)])
    assert broker.fs.events == [] and broker.tokens == [] and broker.flusher.failed


def test_a_short_write_is_a_failure(broker: Broker) -> None:
    broker.fs.fault = lambda kind, _path: 100 if kind == "write" else None
    with pytest.raises(StorageFailed, match="short write: 100 of 228"):
        broker.run_cycle([broker.write(1)])
    assert "sync" not in broker.fs.kinds() and broker.flusher.failed


def test_a_failed_journal_sync_writes_no_entry(broker: Broker) -> None:
    broker.fs.fault = lambda kind, path: (
        OSError(errno.EIO, "gone") if (kind, path.name) == ("sync", "hard-state") else None
    )
    with pytest.raises(StorageFailed):
        broker.run_cycle([broker.write(1, vote=2)])
    assert [event.path.name for event in broker.fs.events if event.kind == "write"] == ["hard-state"]


def test_a_broken_invariant_stops_it_like_a_failed_disk(broker: Broker) -> None:
    write = broker.write(1)
    with pytest.raises(AssertionError):
        broker.flusher.run_cycle([write, write])
    with pytest.raises(StorageFailed):
        broker.flusher.run_cycle([broker.write(2)])


def test_the_thread_drains_everything_before_it_stops(broker: Broker) -> None:
    broker.flusher.start()
    for _ in range(50):
        broker.flusher.submit(broker.write(1))
    broker.flusher.stop()
    assert [token for tokens in broker.tokens for token in tokens] == [(1, n) for n in range(1, 51)]
    assert broker.groups[1][0].durable_index == 50 and broker.flusher.stats.writes == 50


def test_the_next_batch_forms_while_a_sync_runs(broker: Broker) -> None:
    in_sync, go_on = threading.Event(), threading.Event()

    def wait(kind: str, _path: Path) -> None:
        if kind == "sync":
            in_sync.set()
            go_on.wait(10)

    broker.fs.fault = wait
    broker.flusher.start()
    broker.flusher.submit(broker.write(1))
    assert in_sync.wait(10)
    for _ in range(20):
        broker.flusher.submit(broker.write(1))
    assert broker.flusher.queue_length == 20
    go_on.set()
    broker.flusher.stop()
    assert [len(tokens) for tokens in broker.tokens] == [1, 20]


def test_the_thread_reports_a_failure_once_and_posts_nothing_more(broker: Broker) -> None:
    broker.fs.fault = lambda kind, _path: OSError(errno.EIO, "I/O error") if kind == "sync" else None
    broker.flusher.start()
    for _ in range(3):
        broker.flusher.submit(broker.write(1))
    broker.flusher.stop()
    assert len(broker.failures) == 1 and broker.tokens == []


def test_stats_count_what_was_done(broker: Broker) -> None:
    broker.run_cycle([broker.write(1, vote=1), broker.write(2)])
    stats = broker.flusher.stats
    writes: list[Event] = [event for event in broker.fs.events if event.kind == "write"]
    syncs = [kind for kind in broker.fs.kinds() if kind in {"sync", "sync_directory"}]
    assert (stats.cycles, stats.writes, stats.syncs) == (1, 2, len(syncs))
    assert stats.written_bytes == sum(event.size for event in writes)


def test_the_logs_of_a_cycle_are_synced_side_by_side(
    broker: Broker, recording_fs: RecordingFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)
    sync = recording_fs.fdatasync

    def meet(handle: int) -> None:
        together.wait(timeout=5)
        sync(handle)

    monkeypatch.setattr(recording_fs, "fdatasync", meet)
    broker.run_cycle([broker.write(group) for group in (1, 2, 3)])
    assert broker.tokens == [[(1, 1), (2, 1), (3, 1)]]
    assert [broker.groups[group][0].durable_index for group in (1, 2, 3)] == [1, 1, 1]


def test_one_failed_sync_of_several_side_by_side_is_the_last_cycle(
    broker: Broker, recording_fs: RecordingFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, done = recording_fs.fdatasync, itertools.count()

    def fail_once(handle: int) -> None:
        if next(done) == 1:
            raise OSError(errno.EIO, "I/O error")
        sync(handle)

    monkeypatch.setattr(recording_fs, "fdatasync", fail_once)
    with pytest.raises(StorageFailed, match="I/O error"):
        broker.run_cycle([broker.write(group) for group in (1, 2, 3)])
    assert broker.flusher.failed and broker.tokens == []


def test_one_sync_of_the_file_system_does_for_many_files(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    handle = recording_fs.open(tmp_path / "hard-state")
    broker.flusher = Flusher(
        broker.journal,
        post=broker._post,
        on_failure=broker.failures.append,
        sync_all=lambda: recording_fs.sync_file_system(handle),
    )
    recording_fs.events.clear()
    broker.run_cycle([broker.write(group) for group in range(1, 9)])
    assert recording_fs.kinds().count("sync_all") == 1 and "sync" not in recording_fs.kinds()
    assert [broker.groups[group][0].durable_index for group in range(1, 9)] == [1] * 8
    recording_fs.events.clear()
    broker.run_cycle([broker.write(group) for group in range(1, 4)])
    assert recording_fs.kinds().count("sync") == 3 and "sync_all" not in recording_fs.kinds()


def test_a_failed_sync_of_the_file_system_is_the_last_cycle(broker: Broker) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "I/O error")

    flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, sync_all=fail)
    with pytest.raises(StorageFailed, match="I/O error"):
        flusher.run_cycle([broker.write(group) for group in range(1, 9)])
    assert flusher.failed and broker.groups[1][0].durable_index == 0


def test_marks_are_written_after_the_sync_and_before_the_tokens(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)
    broker.flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks)
    recording_fs.events.clear()
    broker.run_cycle([broker.write(1)])
    names = [(e.kind, e.path.name) for e in recording_fs.events if e.kind in {"write", "sync", "post"}]
    segment = f"{1:020d}.log"
    marks_file = "flushed-marks"
    grown = [("write", marks_file), ("sync", marks_file)]  # once per 128 groups
    assert names[:-1] == [("write", segment), ("sync", segment), *grown, ("write", marks_file)]
    assert names[-1][0] == "post"
    assert marks.get(GroupId(1)) == broker.groups[1][0].end_mark


def test_marks_are_synced_some_time_after_they_were_noted_and_once(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)
    flusher = broker.flusher = Flusher(
        broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks
    )
    assert flusher.marks_due_ms(time.perf_counter_ns()) is None
    broker.run_cycle([broker.write(1)])
    noted_ns = time.perf_counter_ns()
    broker.run_cycle([broker.write(1)])
    due_ms = flusher.marks_due_ms(noted_ns)
    assert due_ms is not None and due_ms <= MARKS_SYNC_MS  # the second write did not put it off
    recording_fs.events.clear()
    flusher.sync_marks()
    assert [(e.kind, e.path.name) for e in recording_fs.events] == [("sync", "flushed-marks")]
    assert flusher.marks_due_ms(time.perf_counter_ns()) is None


def test_a_clean_stop_leaves_no_mark_that_is_not_durable(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)
    broker.flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks)
    broker.run_cycle([broker.write(1)])
    recording_fs.events.clear()
    broker.flusher.stop()
    assert [(e.kind, e.path.name) for e in recording_fs.events] == [("sync", "flushed-marks")]


def test_marks_do_not_wait_for_chores(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks, synced, done = FlushedMarks.open(recording_fs, tmp_path), threading.Event(), threading.Event()
    sync = marks.sync
    marks.sync = lambda: (sync(), synced.set())  # type: ignore[method-assign, assignment, func-returns-value]
    flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks)
    flusher.start()
    assert flusher._helper is not None
    flusher._helper.submit(done.wait)
    flusher.submit(broker.write(1))
    assert synced.wait(10)
    done.set()
    flusher.stop()


def test_the_thread_syncs_marks_also_when_nothing_more_is_written(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)
    synced = threading.Event()
    sync = marks.sync
    marks.sync = lambda: (sync(), synced.set())  # type: ignore[method-assign, assignment, func-returns-value]
    flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks)
    flusher.start()
    flusher.submit(broker.write(1))
    assert synced.wait(10)
    flusher.stop()


def test_a_mark_that_cannot_be_synced_ends_everything_at_once(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    marks.sync = fail  # type: ignore[method-assign]
    flusher = broker.flusher = Flusher(
        broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks
    )
    broker.run_cycle([broker.write(1)])
    flusher.sync_marks()
    flusher.sync_marks()
    assert flusher.failed and [str(failure) for failure in broker.failures] == [
        "a sync of the data directory failed: [Errno 5] the disk is gone"
    ]
    with pytest.raises(StorageFailed, match="the disk is gone"):
        flusher.run_cycle([broker.write(1)])


def test_a_mark_is_lowered_durably_before_the_log_is_cut(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    marks = FlushedMarks.open(recording_fs, tmp_path)
    broker.flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, marks=marks)
    broker.run_cycle([broker.write(1, count=3)])
    recording_fs.events.clear()
    log = broker.groups[1][0]
    broker.run_cycle([GroupWrite(group_id=GroupId(1), log=log, token=0, truncate_from=RaftIndex(2))])
    kinds = [(e.kind, e.path.name) for e in recording_fs.events][:3]
    assert kinds == [("write", "flushed-marks"), ("sync", "flushed-marks"), ("truncate", f"{1:020d}.log")]
    found = marks.get(GroupId(1))
    assert found is not None and found.index == 1


def test_a_forgotten_group_leaves_the_journal(broker: Broker) -> None:
    broker.run_cycle([broker.write(1, vote=3), broker.write(2, vote=3)])
    broker.run_cycle([GroupWrite(group_id=GroupId(1), log=None, token=0, forget=True)])
    assert set(broker.journal.load()) == {2}
    assert set(HardStateJournal.open(broker.fs, broker.path).load()) == {2}


def test_the_room_on_the_disk_is_measured_now_and_then(
    tmp_path: Path, recording_fs: RecordingFileSystem, entry_maker: Callable[[], EntryMaker]
) -> None:
    broker = Broker(tmp_path, recording_fs, entry_maker)
    space = DiskSpace(recording_fs, tmp_path, reserve_bytes=1 << 62)
    space.level = DiskLevel.OK
    broker.flusher = Flusher(broker.journal, post=broker._post, on_failure=broker.failures.append, disk_space=space)
    broker.run_cycle([broker.write(1)])
    assert space.level is DiskLevel.FULL


def test_a_log_that_is_damaged_where_it_is_to_be_cut_is_left_alone_and_the_others_go_on(broker: Broker) -> None:
    log, _ = broker.groups[1]
    log.limit_segments(400)
    broker.run_cycle([broker.write(1, count=6)])
    sealed = sorted(log.directory.glob("*.log"))[0]
    raw = bytearray(sealed.read_bytes())
    raw[150] ^= 1
    sealed.write_bytes(raw)
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    told: list[tuple[GroupLog, LogCorrupt]] = []
    broker.flusher = Flusher(
        broker.journal,
        post=broker._post,
        on_failure=broker.failures.append,
        on_log_damaged=lambda damaged, error: told.append((damaged, error)),
    )
    cut = GroupWrite(group_id=GroupId(1), log=log, token="cut", truncate_from=RaftIndex(2))
    broker.run_cycle([cut, broker.write(1), broker.write(2)])
    broker.run_cycle([broker.write(1), broker.write(2)])
    assert [damaged for damaged, _ in told] == [log] and not broker.flusher.failed
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before
    assert log.last_index == 6 and broker.groups[2][0].durable_index == 2


def test_damage_that_nobody_can_be_told_of_stops_everything(broker: Broker) -> None:
    log, _ = broker.groups[1]
    broker.run_cycle([broker.write(1, count=2)])
    (path,) = log.directory.glob("*.log")
    raw = bytearray(path.read_bytes())
    raw[30] ^= 1
    path.write_bytes(raw)
    with pytest.raises(LogCorrupt):
        broker.run_cycle([GroupWrite(group_id=GroupId(1), log=log, token=0, truncate_from=RaftIndex(2))])
    assert broker.flusher.failed
