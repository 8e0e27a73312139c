"""The writer of trace files: rows in, spool and Parquet files out, in a thread of its own.

Rule 1: the thread works in short steps and rests after each (pace.py): the event loop waits for a step, never for
        the rows of a second or for a file.
Rule 2: a failing disk costs traces, never records.
Rule 3: nothing here raises into the broker: what fails is logged, counted and tried again.
Rule 4: ledger spools of earlier runs become files once the open rows of those runs are spooled here and their files
        are gone: only beside them the next start sees which open rows a spool has.
Rule 5: rows that still wait for the disk at the end are given up, and counted, unless the next start finds them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from georelay.trace.kinds import COMPLETE_KINDS, TraceKind
from mesh.tracing import memory_file
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.offset_run_core import NotedRow
from mesh.tracing.open_rows import (
    NOTED_ROWS_MAX,
    DamagedRowsError,
    OpenRows,
    left_open,
    read_open_rows,
    without_spooled,
)
from mesh.tracing.pace import Pace
from mesh.tracing.recorder_core import Drained
from mesh.tracing.retention import AGE_MS_MAX, SIZE_BYTES_MAX, Retention
from mesh.tracing.rolling import ROWS_PER_FILE_MAX, SPOOL_BYTES_MAX, left_over, remove_unfinished, roll
from mesh.tracing.spooled_ledger import is_ledger, spooled_ledger
from mesh.tracing.spooler import Spooler
from mesh.tracing.written import Identity, WriterStats

SLOW_ROLL_PERIOD_S: Final = 60.0  # of kinds with a few rows per second: a file every few seconds would hold nothing
DRAINS_QUEUED_MAX: Final = 120  # two minutes of a thread that stands still
DRAINS_QUEUED_SOON: Final = 600  # of a drain in pieces, see Drained.has_more
OPEN_ROWS_TRIES_MAX: Final = 30  # one per roll: what cannot be read after so many is given up
DRAINS_HURRIED: Final = 4  # behind so many there is no time for rests: the open rows have room for 8 seconds

log = structlog.get_logger()


class TraceWriter:
    """Spools and rolls the trace files of one broker.

    Args:
        directory: the trace directory, shared by all brokers of a mesh on one host; made when missing.
        identity: whose rows these are.
        clock_ns: wall clock, ns since 1970.
        roll_period_s: age at which a spool becomes a file, >= 0. Short: fresh reports; long: fewer files.
        slow_roll_period_s: the same for the kinds that no verdict is made of.
        age_ms_max, size_bytes_max: see Retention.
        open_rows: is told which of its rows are spooled.
    """

    def __init__(
        self,
        *,
        directory: Path,
        identity: Identity,
        clock_ns: Callable[[], int],
        roll_period_s: float,
        slow_roll_period_s: float = SLOW_ROLL_PERIOD_S,
        age_ms_max: int = AGE_MS_MAX,
        size_bytes_max: int = SIZE_BYTES_MAX,
        open_rows: OpenRows | None = None,
    ) -> None:
        self._directory = directory
        self._open_rows = open_rows
        self._identity = identity
        self._clock_ns = clock_ns
        self._roll_period_ns = {
            kind: int(max(roll_period_s, 0.0 if kind in COMPLETE_KINDS else slow_roll_period_s) * 1e9)
            for kind in TraceKind
        }
        self._rest = Pace(self._is_hurried)
        self._spoolers = {kind: Spooler(kind, directory, identity, rest=self._rest) for kind in TraceKind}
        self._retention = Retention(
            directory,
            region=identity.region,
            broker=identity.broker,
            age_ms_max=age_ms_max,
            size_bytes_max=size_bytes_max,
        )
        self._unseen: dict[str, Callable[[], None]] = {}  # what of earlier runs is still to be looked at, and how
        self._unrolled: list[Path] = []  # spools whose turn it is
        self._held: list[Path] = []  # ledger spools of earlier runs that left open rows
        self._recovered: list[Path] = []  # files of open rows whose rows the ledger's spooler has
        self._is_open_left = False  # there are more such files, perhaps
        self._open_tries = 0
        self._noted: deque[NotedRow] = deque(maxlen=NOTED_ROWS_MAX)  # rows that the ledger's spooler has
        self._queue: queue.Queue[Drained | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self.stats = WriterStats()

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    def submit(self, drained: Drained) -> bool:
        """Hand over rows from the event loop; False when the thread stands still: count them lost."""
        limit = DRAINS_QUEUED_SOON if drained.has_more else DRAINS_QUEUED_MAX
        if self._queue.qsize() >= limit:
            return False
        self._queue.put_nowait(drained)
        return True

    def close(self) -> None:
        """Roll everything and end the thread, see Rule 5. Blocks: call it outside the event loop."""
        self._is_closing = True
        if self._thread is not None:
            self._queue.put_nowait(None)
            self._thread.join()
            self._thread = None

    def _is_hurried(self) -> bool:
        """Return whether somebody waits for the rows: whoever closes it, or called it without its thread."""
        return self._thread is None or self._is_closing or self._queue.qsize() > DRAINS_HURRIED

    def _run(self) -> None:
        self.recover()
        while True:
            drained = self._queue.get()
            began_ns = time.thread_time_ns()
            if drained is None:
                self._end()
                return
            self.take(drained)
            self.stats.busy_ns += time.thread_time_ns() - began_ns

    def recover(self) -> None:
        """Take over what earlier runs of this broker left: files to keep count of, and spools to roll."""
        self._unseen = {
            "unfinished files": lambda: remove_unfinished(self._directory, self._identity.broker),
            "files": lambda: self._retention.load(self._clock_ns()),
            "spools": self._find_spools,
        }
        self._look()
        self._roll_spools()

    def _look(self) -> None:
        """Find what earlier runs left, as far as the disk lets; the rest is tried again at the next roll."""
        for what, find in list(self._unseen.items()):
            try:
                find()
            except OSError as error:
                self._failed(f"recover {what}", error)
            else:
                del self._unseen[what]
        if self._is_open_left:
            self._take_open_rows()

    def _find_spools(self) -> None:
        for path in left_over(self._directory, self._identity.broker, self._identity.boot_id):
            (self._held if is_ledger(path) else self._unrolled).append(path)
        self._is_open_left = True  # not before: the spools tell which open rows are spooled

    def _take_open_rows(self) -> None:
        """Spool the ledger rows that earlier runs had not spooled when they were killed."""
        identity = self._identity
        self._open_tries += 1
        try:
            found = left_open(self._directory, identity.broker, identity.boot_id)
            paths = [path for path in found if path not in self._recovered]
            spooled = self._spooled() if paths else []
        except OSError as error:
            self._failed("recover open rows", error)
            return
        self._is_open_left = False
        recovered: list[Row] = []
        for path in paths:
            try:
                recovered += read_open_rows(path.read_bytes(), region=identity.region, broker=identity.broker)
            except FileNotFoundError:  # removed by somebody
                continue
            except OSError as error:
                self._failed(f"recover {path.name}", error)
                if self._open_tries < OPEN_ROWS_TRIES_MAX:
                    self._is_open_left = True
                    continue
                log.warning("trace.open_rows_lost", path=str(path), broker=identity.broker)
            except DamagedRowsError as error:
                log.warning("trace.open_rows_damaged", path=str(path), rows=error.damaged, broker=identity.broker)
                recovered += error.rows
            self._recovered.append(path)
        rows = without_spooled(recovered, spooled)
        if rows:
            log.info("trace.rows_recovered", rows=len(rows), broker=identity.broker)
            self._spool(self._spoolers[TraceKind.LEDGER], rows, 0, self._clock_ns())
        self._mark_spooled()

    def _spooled(self) -> list[Row]:
        """Return the ledger rows of earlier runs' spools. Raises OSError, in the end for no spool any more."""
        rows: list[Row] = []
        for path in list(self._held):
            try:
                rows += spooled_ledger([path])
            except FileNotFoundError:  # removed by somebody
                self._held.remove(path)
            except OSError as error:
                if self._open_tries < OPEN_ROWS_TRIES_MAX:
                    raise
                self._failed(f"recover {path.name}", error)
                self._held.remove(path)
                self._unrolled.append(path)
        return rows

    def _mark_spooled(self) -> None:
        """Forget open rows whose ledger rows are spooled: all of them, or none while some wait for the disk."""
        if self._spoolers[TraceKind.LEDGER].rows_waiting:
            return
        if self._open_rows is not None:
            self._open_rows.spooled(self._noted)
        self._noted.clear()
        paths, self._recovered = self._recovered, []
        for path in paths:
            try:
                memory_file.remove(path)
            except OSError as error:
                self._failed(f"remove {path.name}", error)
                self._recovered.append(path)
        if not self._recovered and not self._is_open_left:
            self._unrolled += self._held
            self._held = []

    def take(self, drained: Drained) -> None:
        """Spool rows, and roll when it is time."""
        now_ns = self._clock_ns()
        rows = drained.finished()
        self._rest()
        for kind, spooler in self._spoolers.items():
            mine, dropped = rows.get(kind, []), drained.dropped.get(kind, 0)
            if mine or dropped or spooler.rows_waiting:
                self._spool(spooler, mine, dropped, now_ns)
        self._noted.extend(drained.noted)
        self._mark_spooled()
        due = [spooler for spooler in self._spoolers.values() if self._is_due(spooler, now_ns)]
        if due:
            self._roll_spoolers(due)

    def _spool(self, spooler: Spooler, rows: list[tuple[object, ...]], dropped: int, now_ns: int) -> None:
        before, waiting = spooler.dropped, spooler.rows_waiting
        try:
            spooler.take(rows, dropped, now_ns)
        except OSError as error:
            self._failed(f"spool {spooler.kind.value}", error)
        given_up = spooler.dropped - before
        self.stats.rows_written[spooler.kind] += waiting + len(rows) + dropped - given_up - spooler.rows_waiting
        self._given_up(spooler.kind, given_up)

    def _given_up(self, kind: TraceKind, rows: int) -> None:
        if rows:
            self.stats.rows_dropped[kind] += rows
            log.warning("trace.rows_dropped", kind=kind.value, rows=rows, broker=self._identity.broker)

    def _is_due(self, spooler: Spooler, now_ns: int) -> bool:
        if not spooler.rows_spooled:
            return False
        return (
            spooler.rows_spooled >= ROWS_PER_FILE_MAX
            or spooler.spool_bytes >= SPOOL_BYTES_MAX
            or now_ns - spooler.opened_ns >= self._roll_period_ns[spooler.kind]
        )

    def roll(self) -> None:
        """Make files of every spool; one that fails is tried again at the next roll."""
        self._roll_spoolers(self._spoolers.values())

    def _end(self) -> None:
        """Roll everything; rows that the disk refuses once more are given up but for those of open rows."""
        self.roll()
        waiting = [spooler for spooler in self._spoolers.values() if spooler.rows_waiting]
        if not waiting:
            return
        for spooler in waiting:  # the files that were deleted just now may have made room
            self._spool(spooler, [], 0, self._clock_ns())
        self._mark_spooled()
        self.roll()
        for spooler in waiting:
            rows = spooler.waiting
            if rows and spooler.kind is TraceKind.LEDGER:
                rows = without_spooled(rows, self._found_next())
            self._given_up(spooler.kind, len(rows))

    def _found_next(self) -> list[Row]:
        """Return the open rows that the next start finds, of this run and of earlier ones."""
        identity = self._identity
        rows: list[Row] = []
        try:
            for path in left_open(self._directory, identity.broker, ""):
                try:
                    rows += read_open_rows(path.read_bytes(), region=identity.region, broker=identity.broker)
                except DamagedRowsError as error:
                    rows += error.rows
        except OSError as error:  # what cannot be looked at may be lost
            self._failed("look at open rows", error)
        return rows

    def _roll_spoolers(self, spoolers: Iterable[Spooler]) -> None:
        self._look()
        for spooler in spoolers:
            if spooler.kind is TraceKind.LEDGER and (spooler.rows_waiting or self._recovered):
                continue  # rows of its spool are in open rows, too: only while it is a spool the next run sees that
            spool = spooler.rotate()
            if spool is not None:
                self._unrolled.append(spool)
        self._roll_spools()
        try:
            self._retention.enforce(self._clock_ns())
        except OSError as error:
            self._failed("delete", error)
        self.stats.files_deleted = self._retention.files_deleted
        self.stats.files, self.stats.size_bytes = self._retention.files, self._retention.size_bytes

    def _roll_spools(self) -> None:
        spools, self._unrolled = self._unrolled, []
        for spool in spools:
            try:
                rolled = roll(spool, self._directory, rest=self._rest)
                for path in rolled.files:
                    self._retention.added(path, self._clock_ns())
            except FileNotFoundError:  # removed by somebody: nothing left to do
                log.warning("trace.spool_gone", path=str(spool))
            except OSError as error:
                self._failed(f"roll {spool.name}", error)
                self._unrolled.append(spool)
            else:
                self.stats.files_written += len(rolled.files)
                self.stats.lost_bytes += rolled.lost_bytes

    def _failed(self, action: str, error: Exception) -> None:
        self.stats.write_failures += 1
        log.warning("trace.write_failed", action=action, error=str(error), broker=self._identity.broker)
