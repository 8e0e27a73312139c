"""Makes writes of a data directory durable, many groups at a time: in a thread, or quick ones on the event loop.

Rule 1: a token is posted only after every byte of its write was synced.
Rule 2: terms and votes are durable before the entries of the same cycle are written, so no log on disk is ever ahead
of its group's term.
Rule 3: writes of one group happen in the order they were submitted.
Rule 4: the first failed write or sync stops everything for good. A sync is never tried again: Linux may have dropped
the pages and would report success. `on_failure` is told once; no token is posted after it.
Rule 5: after the sync, and before the tokens, the groups' flushed marks are written; a mark is lowered before a cut.
Marks are synced MARKS_SYNC_MS later, beside the cycles: a power cut makes them no older than that.
Rule 6: small writes are synced in the entry journal, all of a cycle at once, where there is one; large ones, and what
changes more than the end of a segment, where they belong. Whatever is no append settles its group in the journal first.
Rule 7: a log whose own bytes turn out to be damaged while it is cut is left as it is, alone: `on_log_damaged` is told
before the tokens of that cycle are posted; what is posted for this log from then on says nothing about the disk.
Rule 8: one cycle at a time. The loop does one only when everything that it left to the thread has come back, and only
of what is small, changes nothing but ends of logs and fits into the entry journal: one sync of a quick disk
(flush_place_core).

There is no linger timer: while one cycle syncs, the writes that arrive form the next one. What need not be durable for
a token (room for later writes, removing large files) is left to a helper thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from georelay.errors import StorageFailed
from georelay.ids import GroupId, RaftIndex
from region.log.disk_space import DiskSpace
from region.log.entry import Entry
from region.log.entry_journal import EntryJournal, JournalRow
from region.log.errors import LogCorrupt
from region.log.flush_place_core import FlushPlace
from region.log.flushed_marks import FlushedMark, FlushedMarks
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal, HardStateLike
from region.log.manifest import Manifest
from region.log.staging import StagedSegment

log = structlog.get_logger()

SYNC_ALL_FROM: Final = 4  # dirty logs: from here one sync of the whole file system costs less, where it is ours
SYNC_THREADS: Final = 4  # besides the flusher's own, which syncs one log itself
SPACE_CHECK_MS: Final = 250
# Damage that strikes between an entry's own sync and that of its mark, and is followed by a power cut, cannot be told
# from a torn tail. The shorter this is, the smaller that window; each sync costs the disk as much as one group commit.
MARKS_SYNC_MS: Final = 100
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class GroupWrite:
    """What one group wants durable. Done in the order of the fields; `token` is posted when all of it is durable.

    Args:
        install: replaces the whole log.
        seal: ends the last segment after `entries`.
        adopt: verified segments that follow the last entry.
        replace: verified segments that take the place of damaged ones.
        manifest: of an entry that was applied here.
        advance_start: the log may begin there from now on.
        forget: the group was deleted in the whole region (its folder is gone); never for one that only left this
            broker, whose votes must be remembered in case it comes back.
    """

    group_id: GroupId
    log: GroupLog | None
    token: object
    hard_state: HardStateLike | None = None
    install: Manifest | None = None
    truncate_from: RaftIndex | None = None
    entries: Sequence[Entry] = ()
    seal: bool = False
    adopt: Sequence[StagedSegment] = ()
    replace: Sequence[StagedSegment] = ()
    manifest: Manifest | None = None
    advance_start: RaftIndex | None = None
    forget: bool = False

    @property
    def only_appends(self) -> bool:
        """Return whether it changes nothing but the end of a log."""
        changes_more = self.truncate_from is not None or self.install is not None or self.hard_state is not None
        return self.log is not None and not changes_more and not self.forget and not self.rearranges

    @property
    def rearranges(self) -> bool:
        """Return whether it does more than append and truncate."""
        return bool(
            self.seal or self.adopt or self.replace or self.manifest is not None or self.advance_start is not None
        )


@dataclass(slots=True, kw_only=True)
class _Dirty:
    """A log that this cycle touched, and the entries that are not written yet."""

    group_id: GroupId
    log: GroupLog
    entries: list[Entry]


@dataclass(slots=True, kw_only=True)
class FlusherStats:
    """Counters since the start, for metrics. Written by the cycle that runs; durations are of the last cycle."""

    cycles: int = 0
    cycles_on_loop: int = 0  # of these
    writes: int = 0
    syncs: int = 0
    written_bytes: int = 0
    last_sync_us: int = 0
    sync_us_total: int = 0
    sync_us_max: int = 0


_LOOK_AT_MARKS: Final = GroupWrite(group_id=GroupId(0), log=None, token=None)  # not a write: there are marks to sync


class Flusher:
    """Group commit. `start` runs it in its own thread; without it, `run_cycle` does one cycle in the caller's.

    Args:
        journal: used by the flusher only from now on.
        entries: holds small writes; used by the flusher only from now on. None: every log is synced itself.
        post: called once per cycle, in the flusher's thread, with the durable tokens in the order of submission.
        on_failure: called once, in the flusher's thread, when storage has failed.
        on_log_damaged: called once for each log of rule 7, in the flusher's thread; None: it is a failure of storage.
        marks: told how far each log is durable; None: nobody is.
        sync_all: makes everything in the data directory durable at once; None where that costs others too much.
        disk_space: measured now and then.
    """

    def __init__(
        self,
        journal: HardStateJournal,
        *,
        post: Callable[[list[object]], None],
        on_failure: Callable[[StorageFailed], None],
        marks: FlushedMarks | None = None,
        sync_all: Callable[[], None] | None = None,
        disk_space: DiskSpace | None = None,
        on_log_damaged: Callable[[GroupLog, LogCorrupt], None] | None = None,
        entries: EntryJournal | None = None,
    ) -> None:
        self._entries = entries
        self._on_log_damaged = on_log_damaged
        self._damaged: set[GroupLog] = set()
        self._marks = marks
        self._sync_all = sync_all
        self._disk_space = disk_space
        self._space_checked_ns = 0
        self._marks_noted_ns: int | None = None  # the oldest that is not synced; None: all are
        self._failing = threading.Lock()
        self._has_told = False
        self._helper: ThreadPoolExecutor | None = None
        self._journal = journal
        self._post = post
        self._on_failure = on_failure
        self._queue: SimpleQueue[GroupWrite | None] = SimpleQueue()
        self._failure: StorageFailed | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._place = FlushPlace()
        self.stats = FlusherStats()

    @property
    def failed(self) -> bool:
        """Return whether storage has failed; nothing becomes durable any more."""
        return self._failure is not None

    @property
    def queue_length(self) -> int:
        """Return the writes that wait for the next cycle."""
        return self._queue.qsize()

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="log-helper")
        self._sync_pool()  # here: it is used by two threads
        if self._entries is not None:
            self._entries.run_aside = lambda work: self._sync_pool().submit(work)
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def submit(self, write: GroupWrite) -> None:
        """Queue a write; any thread, never blocks. What a group may have in flight is bounded by Raft's limits."""
        assert not self._stopped, "submit after stop"
        self._queue.put(write)

    @property
    def is_quick(self) -> bool:
        """Return whether the disk takes so little time that the event loop may wait for it."""
        return self._place.is_on_loop and self._entries is not None and self._entries.is_wanted()

    def fits_on_loop(self, writes: Sequence[GroupWrite]) -> bool:
        """Return whether a cycle with these writes waits for one small sync of a quick disk, and for nothing else."""
        if self._entries is None or not self.is_quick:
            return False
        size_bytes = 0
        for write in writes:
            if not write.only_appends:
                return False
            size_bytes += sum([len(entry.frame) for entry in write.entries])
        return size_bytes <= self._entries.row_bytes_max and self._entries.has_room(len(writes), size_bytes)

    def flush_on_loop(self, writes: Sequence[GroupWrite]) -> list[object]:
        """Do a cycle here and now; return its tokens in order, none when storage has failed (`on_failure` is told).

        Nothing of what was submitted may be on its way (rule 8).
        """
        noted_ns = self._marks_noted_ns
        tokens = self._cycle(writes)
        self.stats.cycles_on_loop += 1
        if self._marks_noted_ns not in (None, noted_ns):
            self._queue.put(_LOOK_AT_MARKS)
        return tokens

    def stop(self) -> None:
        """Finish what was submitted, post its tokens, end the thread; logs and journals stay open.

        Nothing is left to replay.
        """
        if self._stopped:
            return
        self._stopped = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        self.finish_entries()
        if self._marks_noted_ns is not None and not self.failed:
            self.sync_marks()
        for pool in (self._pool, self._helper):
            if pool is not None:
                pool.shutdown()

    def finish_entries(self) -> None:
        """Leave an empty entry journal; `on_failure` is told when that fails."""
        if self._entries is None or self.failed:
            return
        try:
            self._entries.finish()
        except OSError as error:
            self._tell(StorageFailed(f"a sync of the data directory failed: {error}"), error)

    def marks_due_ms(self, now_ns: int) -> float | None:
        """Return in how many milliseconds the marks are to be synced, <= 0 now; None when all of them are."""
        if self._marks_noted_ns is None or self.failed:
            return None
        return MARKS_SYNC_MS - (now_ns - self._marks_noted_ns) / _NS_PER_MS

    def sync_marks(self) -> None:
        """Make the marks durable; it may run beside a cycle. `on_failure` is told when that fails."""
        if self._marks is None:
            return
        self._marks_noted_ns = None  # before the sync: what is noted during it waits for the next one
        try:
            self._marks.sync()
        except OSError as error:
            self._tell(StorageFailed(f"a sync of the data directory failed: {error}"), error)

    def _tell(self, failure: StorageFailed, cause: BaseException) -> None:
        """Fail for good, and say so once: a cycle and the sync of the marks may fail side by side."""
        with self._failing:
            self._failure = self._failure or failure
            is_first, self._has_told = not self._has_told, True
        if is_first:
            log.critical("storage.failed", error=str(failure), cause=repr(cause))
            self._on_failure(failure)

    def run_cycle(self, writes: Sequence[GroupWrite]) -> list[object]:
        """Make the writes durable; return their tokens in order.

        Raises:
            StorageFailed: now or in an earlier cycle; the data directory must not be used again.
        """
        if self._failure is not None:
            raise self._failure
        started = time.perf_counter_ns()
        stats = self.stats
        try:
            self._write_hard_states(writes)
            self._settle(writes)
            dirty = self._write_entries(writes)
            before_sync = time.perf_counter_ns()
            self._write_journal(dirty, leaving={write.group_id for write in writes if write.log is None})
            self._sync([item.log for item in dirty])
            self._note_marks(dirty, started)
            self._check_space(started)
        except OSError as error:
            self._failure = StorageFailed(f"a write or sync of the data directory failed: {error}")
            raise self._failure from error
        except BaseException as error:
            # One of our invariants is broken: what is on disk is as unknown as after a failed write.
            self._failure = StorageFailed(f"the flusher is broken: {error!r}")
            raise
        ended = time.perf_counter_ns()
        stats.cycles += 1
        stats.writes += len(writes)
        stats.last_sync_us = (ended - before_sync) // 1000
        stats.sync_us_total += stats.last_sync_us
        stats.sync_us_max = max(stats.sync_us_max, stats.last_sync_us)
        self._place.took(stats.last_sync_us)
        self._leave_chores(dirty)
        return [write.token for write in writes]

    def _run(self) -> None:
        running = True
        while running:
            writes, running = self._take()
            if not writes or self._failure is not None:
                self._sync_marks_if_due()
                continue
            if tokens := self._cycle(writes):
                self._post(tokens)
            self._sync_marks_if_due()

    def _cycle(self, writes: Sequence[GroupWrite]) -> list[object]:
        """Do a cycle; return what is to be posted: nothing after a failure, which is told."""
        try:
            tokens = self.run_cycle(writes)
        except Exception as error:  # noqa: BLE001 - whatever broke, the broker must be told and must end
            failure = self._failure
            assert failure is not None
            self._tell(failure, error)
            return []
        return [] if self.failed else tokens  # the marks, meanwhile: no token is posted after `on_failure`

    def _sync_marks_if_due(self) -> None:
        due_ms = self.marks_due_ms(time.perf_counter_ns())
        if due_ms is not None and due_ms <= 0:
            self._marks_noted_ns = None
            self._sync_pool().submit(self.sync_marks)  # chores may take seconds: marks do not wait behind them

    def _take(self) -> tuple[list[GroupWrite], bool]:
        """Wait for a write, or until marks are due, and return all that are queued; False once the end was reached."""
        writes: list[GroupWrite] = []
        due_ms = self.marks_due_ms(time.perf_counter_ns())
        try:
            item = self._queue.get(timeout=None if due_ms is None else max(due_ms, 0) / 1_000)
            while item is not None:
                if item is not _LOOK_AT_MARKS:
                    writes.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return writes, True
        return writes, False

    def _write_hard_states(self, writes: Sequence[GroupWrite]) -> None:
        states = {write.group_id: write.hard_state for write in writes if write.hard_state is not None}
        forgotten = [write.group_id for write in writes if write.forget]
        if states or forgotten:
            self.stats.written_bytes += self._journal.append(states, forgotten=forgotten)
            self._journal.sync()
            self.stats.syncs += 1

    def _settle(self, writes: Sequence[GroupWrite]) -> None:
        """Take back what the entry journal holds of groups that do more than append, or have another log now."""
        if self._entries is None:
            return
        self._entries.check()
        groups = set()
        for write in writes:
            held = self._entries.log_of(write.group_id)
            cuts = write.truncate_from is not None or write.install is not None
            if held is not None and (cuts or held is not write.log):
                groups.add(write.group_id)
        if groups:
            self._entries.settle(groups)
            self.stats.syncs += 1 + len(groups)

    def _write_entries(self, writes: Sequence[GroupWrite]) -> list[_Dirty]:
        """Write and truncate; return the logs to sync. Appends of one group that follow each other become one."""
        pending: dict[GroupLog, _Dirty] = {}
        for write in writes:
            if write.log is None:
                assert not write.entries and write.truncate_from is None and not write.rearranges, write
                continue
            if write.log in self._damaged:
                continue
            dirty = pending.get(write.log)
            if dirty is None:
                dirty = pending[write.log] = _Dirty(group_id=write.group_id, log=write.log, entries=[])
            try:
                self._take_in(dirty, write)
            except LogCorrupt as error:
                if self._on_log_damaged is None:
                    raise
                del pending[write.log]
                self._damaged.add(write.log)
                self._on_log_damaged(write.log, error)
        for dirty in pending.values():
            self._append(dirty)
        return list(pending.values())

    def _take_in(self, dirty: _Dirty, write: GroupWrite) -> None:
        if write.install is not None or write.truncate_from is not None:
            self._append(dirty)
            self._cut(dirty, write)
        dirty.entries.extend(write.entries)
        if write.rearranges:
            self._append(dirty)
            _rearrange(dirty.log, write)

    def _append(self, dirty: _Dirty) -> None:
        self.stats.written_bytes += dirty.log.append(dirty.entries)
        dirty.entries.clear()

    def _cut(self, dirty: _Dirty, write: GroupWrite) -> None:
        def before_cut(end: FlushedMark) -> None:
            mark = None if self._marks is None else self._marks.get(dirty.group_id)
            if self._marks is not None and mark is not None and mark.index > end.index and dirty.log.lost is None:
                self._marks.lower(dirty.group_id, end)
                self.stats.syncs += 1

        if write.install is not None:
            dirty.log.install(write.install, before_cut=before_cut)
        if write.truncate_from is not None:
            dirty.log.truncate_suffix(write.truncate_from, before_cut=before_cut)

    def _sync(self, logs: Sequence[GroupLog]) -> None:
        # Side by side they share commits of the file system's journal: four take hardly longer than one, where one
        # after the other each waits for a commit of its own.
        dirty = [group_log for group_log in logs if group_log.is_dirty]
        if self._sync_all is not None and len(dirty) >= SYNC_ALL_FROM:
            self._sync_all()
            self.stats.syncs += 1 + sum(group_log.sync(all_synced=True) for group_log in logs)
            return
        own, others = [*(group_log for group_log in logs if not group_log.is_dirty), *dirty[:1]], dirty[1:]
        under_way = [self._sync_pool().submit(group_log.sync) for group_log in others]
        self.stats.syncs += sum(group_log.sync() for group_log in own)
        self.stats.syncs += sum(sync.result() for sync in under_way)

    def _sync_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        return self._pool

    def _write_journal(self, dirty: Sequence[_Dirty], *, leaving: Collection[GroupId]) -> None:
        """Make small appends durable in the entry journal; not those of logs that are closed after this cycle."""
        if self._entries is None or not self._entries.is_wanted():
            return
        rows: list[tuple[GroupId, GroupLog, JournalRow]] = []
        room = self._entries.frame_bytes_max
        for item in dirty:
            row = item.log.journal_row()
            fits = row is not None and row.size_bytes <= min(room, self._entries.row_bytes_max)
            if row is not None and fits and item.group_id not in leaving:
                rows.append((item.group_id, item.log, row))
                room -= row.size_bytes
        if rows and self._entries.has_room(len(rows), sum(row.size_bytes for _, _, row in rows)):
            self.stats.written_bytes += self._entries.write(rows)
            self.stats.syncs += 1
            for _, group_log, _ in rows:
                group_log.journaled()

    def _note_marks(self, dirty: Sequence[_Dirty], now_ns: int) -> None:
        if self._marks is None:
            return
        changed: dict[GroupId, FlushedMark] = {}
        for item in dirty:
            if item.log.lost is None and (mark := item.log.end_mark) != self._marks.get(item.group_id):
                changed[item.group_id] = mark
        if changed:
            self._marks.note(changed)
            if self._marks_noted_ns is None:
                self._marks_noted_ns = now_ns

    def _check_space(self, now_ns: int) -> None:
        if self._disk_space is not None and now_ns - self._space_checked_ns >= SPACE_CHECK_MS * 1_000_000:
            self._space_checked_ns = now_ns
            self._disk_space.check()

    def _leave_chores(self, dirty: Sequence[_Dirty]) -> None:
        for item in dirty:
            if item.log.has_chores():
                if self._helper is None:
                    _do_chores(item.log)
                else:
                    self._helper.submit(_do_chores, item.log)


def _rearrange(group_log: GroupLog, write: GroupWrite) -> None:
    if write.seal:
        group_log.seal()
    for staged in write.adopt:
        group_log.adopt(staged)
    for staged in write.replace:
        group_log.replace_segment(staged)
    if write.manifest is not None:
        group_log.write_manifest(write.manifest)
    if write.advance_start is not None:
        group_log.advance_start(write.advance_start)


def _do_chores(group_log: GroupLog) -> None:
    try:
        group_log.do_chores()
    except OSError as error:  # nothing depends on it: what was put away is removed at the next start
        log.warning("log.chores_failed", directory=str(group_log.directory), reason=str(error))
