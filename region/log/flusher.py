"""One thread per data directory that makes writes durable, many groups at a time.

Rule 1: a token is posted only after every byte of its write was synced.
Rule 2: terms and votes are durable before the entries of the same cycle are written, so no log on disk is ever ahead
of its group's term.
Rule 3: writes of one group happen in the order they were submitted.
Rule 4: the first failed write or sync stops everything for good. A sync is never tried again: Linux may have dropped
the pages and would report success. `on_failure` is told once; no token is posted after it.

There is no linger timer: while one cycle syncs, the writes that arrive form the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from georelay.errors import StorageFailed
from georelay.ids import GroupId, RaftIndex
from region.log.entry import Entry
from region.log.group_log import GroupLog
from region.log.hard_state import HardStateJournal, HardStateLike

log = structlog.get_logger()

SEQUENTIAL_SYNCS_MAX: Final = 3  # up to here one after the other is as fast as a pool
SYNC_THREADS: Final = 4


@dataclass(slots=True, kw_only=True)
class GroupWrite:
    """What one group wants durable. Done in the order of the fields; `token` is posted when all of it is durable."""

    group_id: GroupId
    log: GroupLog | None
    token: object
    hard_state: HardStateLike | None = None
    truncate_from: RaftIndex | None = None
    entries: Sequence[Entry] = ()


@dataclass(slots=True, kw_only=True)
class FlusherStats:
    """Counters since the start, for metrics. Written by the flusher alone; durations are of the last cycle."""

    cycles: int = 0
    writes: int = 0
    syncs: int = 0
    written_bytes: int = 0
    last_cycle_us: int = 0
    last_sync_us: int = 0
    sync_us_total: int = 0
    sync_us_max: int = 0


class Flusher:
    """Group commit. `start` runs it in its own thread; without it, `run_cycle` does one cycle in the caller's.

    Args:
        journal: used by the flusher only from now on.
        post: called once per cycle, in the flusher's thread, with the durable tokens in the order of submission.
        on_failure: called once, in the flusher's thread, when storage has failed.
    """

    def __init__(
        self,
        journal: HardStateJournal,
        *,
        post: Callable[[list[object]], None],
        on_failure: Callable[[StorageFailed], None],
    ) -> None:
        self._journal = journal
        self._post = post
        self._on_failure = on_failure
        self._queue: SimpleQueue[GroupWrite | None] = SimpleQueue()
        self._failure: StorageFailed | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
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
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def submit(self, write: GroupWrite) -> None:
        """Queue a write; any thread, never blocks. What a group may have in flight is bounded by Raft's limits."""
        assert not self._stopped, "submit after stop"
        self._queue.put(write)

    def stop(self) -> None:
        """Finish what was submitted, post its tokens, end the thread. Logs and journal stay open."""
        if self._stopped:
            return
        self._stopped = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()

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
            dirty = self._write_entries(writes)
            before_sync = time.perf_counter_ns()
            self._sync(dirty)
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
        stats.last_cycle_us = (ended - started) // 1000
        stats.last_sync_us = (ended - before_sync) // 1000
        stats.sync_us_total += stats.last_sync_us
        stats.sync_us_max = max(stats.sync_us_max, stats.last_sync_us)
        return [write.token for write in writes]

    def _run(self) -> None:
        running = True
        while running:
            writes, running = self._take()
            if not writes or self._failure is not None:
                continue
            try:
                tokens = self.run_cycle(writes)
            except Exception as error:  # noqa: BLE001 - whatever broke, the broker must be told and must end
                failure = self._failure
                assert failure is not None
                log.critical("storage.failed", error=str(failure), cause=repr(error))
                self._on_failure(failure)
                continue
            self._post(tokens)

    def _take(self) -> tuple[list[GroupWrite], bool]:
        """Wait for a write and return all that are queued; False once the end was reached."""
        writes: list[GroupWrite] = []
        try:
            item = self._queue.get()
            while item is not None:
                writes.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return writes, True
        return writes, False

    def _write_hard_states(self, writes: Sequence[GroupWrite]) -> None:
        states = {write.group_id: write.hard_state for write in writes if write.hard_state is not None}
        if states:
            self.stats.written_bytes += self._journal.append(states)
            self._journal.sync()
            self.stats.syncs += 1

    def _write_entries(self, writes: Sequence[GroupWrite]) -> list[GroupLog]:
        """Write and truncate; return the logs to sync. Appends of one group that follow each other become one."""
        pending: dict[GroupLog, list[Entry]] = {}
        for write in writes:
            if write.log is None:
                assert not write.entries and write.truncate_from is None, write
                continue
            entries = pending.setdefault(write.log, [])
            if write.truncate_from is not None:
                self.stats.written_bytes += write.log.append(entries)
                entries.clear()
                write.log.truncate_suffix(write.truncate_from)
            entries.extend(write.entries)
        for group_log, entries in pending.items():
            self.stats.written_bytes += group_log.append(entries)
        return list(pending)

    def _sync(self, dirty: Sequence[GroupLog]) -> None:
        if len(dirty) <= SEQUENTIAL_SYNCS_MAX:
            self.stats.syncs += sum(group_log.sync() for group_log in dirty)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        self.stats.syncs += sum(self._pool.map(_sync_one, dirty))


def _sync_one(group_log: GroupLog) -> int:
    return group_log.sync()
