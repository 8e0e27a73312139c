"""What a broker remembers of its deliveries and commits until the next second: pure, all times are arguments.

Rule 1: a second's row is complete unless records of it are still under way; what comes later is another row.
Rule 2: memory is bounded. Trace rows (delivery, outcome, probe, clock) that find no room are dropped and counted; a
        ledger row only when ROWS_WAITING_MAX of them wait, which no loop can produce in a second; histograms never.
Rule 3: a drain looks at no more than RUNS_PER_DRAIN ranges, and makes no more rows of refusals, nor of late ranges: a
        broker with many consumers is asked several times, and its loop is never held.
Rule 4: rows of histograms are made where they are written, in the writer's thread.
Rule 5: late ranges find places in the journal from the newest on: older ones were more likely named before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from georelay.trace.kinds import COMPLETE_KINDS, LedgerKind, Stage, TraceKind
from mesh.tracing.aborted_core import CommittedEntry, OpenTransactions
from mesh.tracing.delivery_core import DeliverySession
from mesh.tracing.latency_cells_core import SAME_CLOCK, Cell, Correction, LatencyCells, Row
from mesh.tracing.offset_run_core import NS_PER_S, CommitTimes, LateRange, NotedRow, OffsetRun, RunJournal
from mesh.tracing.refusals_core import Refusals, RefusedCount, RefusedStream
from mesh.tracing.sampling_core import Sampler

__all__ = ["DeliverySession", "Drained", "LeftOut", "RecorderCore", "Row"]

ROWS_WAITING_MAX: Final = 200_000  # ledger rows between two drains
TRACE_ROWS_WAITING_MAX: Final = 20_000  # per other kind
RUNS_PER_DRAIN: Final = 2_000  # about 2 ms
LOGS_PER_DRAIN: Final = 500
QUIET_NS: Final = 30 * NS_PER_S
LATE_AT_ONCE: Final = 64  # of a stream, the newest; about 0.2 ms
LATE_NS_MAX: Final = 23 * 3_600 * NS_PER_S  # reports look for rows of an hour in the 24 hours behind it
ROWS_PER_S_MAX: Final = 500

Describe = Callable[[Any], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Late ranges that are too old to be named.

    Attributes:
        records: how many offsets they have.
        oldest_us: the oldest append time, us since 1970; 0 when there are none.
    """

    records: int = 0
    oldest_us: int = 0


@dataclass(slots=True, kw_only=True)
class Drained:
    """What is complete.

    Attributes:
        rows: by kind, in the order of the kind's recorded columns; delivery rows lack names, see `finished`.
        cells: closed histograms.
        dropped: rows given up since the last drain, by kind.
        has_more: whether another drain would find more now.
        noted: the ledger rows that the journal has.
    """

    rows: dict[TraceKind, list[Row]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    dropped: dict[TraceKind, int] = field(default_factory=dict)
    has_more: bool = False
    noted: list[NotedRow] = field(default_factory=list)
    region: str = ""
    broker: str = ""
    region_name: Callable[[int], str] = str

    def finished(self) -> dict[TraceKind, list[Row]]:
        """Return every row as it is written; called in the writer's thread."""
        rows = dict(self.rows)
        if self.cells:
            rows[TraceKind.LATENCY_HIST] = [
                cell.row(dest=self.region, region_name=self.region_name) for cell in self.cells
            ]
        deliveries = rows.get(TraceKind.DELIVERY, [])
        if deliveries:
            heads = {
                origin: (self.region_name(origin) if origin else "", None, self.region, self.broker)
                for origin in {row[0] for row in deliveries}
            }
            rows[TraceKind.DELIVERY] = [heads[row[0]] + row[4:] for row in deliveries]
        return rows

    def counts(self) -> dict[TraceKind, int]:
        """Return how many rows of each kind it holds or has given up."""
        counts = {kind: len(rows) for kind, rows in self.rows.items()}
        counts[TraceKind.LATENCY_HIST] = len(self.cells)
        for kind, dropped in self.dropped.items():
            counts[kind] = counts.get(kind, 0) + dropped
        return counts


class _Log:
    """What this broker knows of one stream that it leads."""

    __slots__ = ("commit_cell", "commits", "is_home", "runs", "transactions")

    def __init__(self) -> None:
        self.runs: dict[LedgerKind, OffsetRun] = {}
        self.commits = CommitTimes()
        self.transactions = OpenTransactions()
        self.commit_cell: Cell | None = None
        self.is_home = False

    def committed_at(self, offset: int) -> int | None:
        """Return when an offset became readable here, None unknown."""
        return self.commits.at(offset)

    def is_quiet(self, now_ns: int) -> bool:
        """Return whether nothing here will be asked for again."""
        return (
            now_ns - self.commits.newest_ns > QUIET_NS
            and not self.transactions.are_open
            and not any(run.is_open for run in self.runs.values())
        )


class RecorderCore:
    """All open rows of one broker.

    Args:
        region: name of this broker's region; region_number: its number.
        broker: mesh-wide broker id.
        first_session: number of the first session; larger than any of an earlier run (such as the start time in ns).
        region_name: region number -> name; asked in the writer's thread.
        correction: region number -> what to add to a latency that began on one of its clocks.
        rows_per_s_max: see sampling_core.
        journal: is told of every range of the ledger at once, but for what `late_unnoted` counts.

    Attributes:
        late_unnoted: late ranges that wait, or have waited, for a drain without a place in the journal.
    """

    def __init__(
        self,
        *,
        region: str,
        broker: int,
        first_session: int,
        region_name: Callable[[int], str],
        correction: Callable[[int], Correction] = lambda _region: SAME_CLOCK,
        rows_per_s_max: int = ROWS_PER_S_MAX,
        journal: RunJournal | None = None,
    ) -> None:
        self._region = region
        self._broker = str(broker)
        self._next_session = first_session
        self._journal = journal
        self._started_us = first_session // 1_000
        self._region_name = region_name
        self._logs: dict[tuple[str, int, int], _Log] = {}
        self._rows: dict[TraceKind, list[Row]] = {kind: [] for kind in TraceKind}
        self._dropped: dict[TraceKind, int] = {}
        self._noted: list[NotedRow] = []
        self._open_runs: deque[OffsetRun] = deque()
        self._late: deque[tuple[OffsetRun, list[LateRange]]] = deque()  # ranges in the order of the log
        self.late_unnoted = 0
        self._to_sweep: list[tuple[str, int, int]] = []
        self._left_to_see = 0  # of a drain that was cut short
        self._turned = -1  # the last second that the sampler heard of
        self.cells = LatencyCells(correction)
        self.sampler = Sampler(rows_per_s_max)
        self.refusals = Refusals()

    @property
    def negative_latencies(self) -> int:
        """Return the records that seem to have arrived before they were sent."""
        return self.cells.negative_latencies

    def open_session(self, *, topic: str, origin: int, partition: int, offset: int, group: str = "") -> DeliverySession:
        """Return a new session of a consumer that asks for `offset` first."""
        number = self._next_session
        self._next_session = number + 1
        run = OffsetRun(
            opened=self._open_runs.append,
            close=self._close_run,
            kind=LedgerKind.DELIVERED,
            topic=topic,
            origin=origin,
            partition=partition,
            group=group,
            session=number,
            journal=self._journal,
        )
        return DeliverySession(
            run=run,
            cells=self.cells,
            sampler=self.sampler,
            facts=partial(self._logs.get, (topic, origin, partition)),
            keep=self._keep_delivery,
            offset=offset,
        )

    def log_advanced(
        self,
        kind: LedgerKind,
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        from_offset: int,
        to_offset: int,
        now_ns: int,
        home: int = 0,
        entries: Sequence[CommittedEntry] = (),
    ) -> None:
        """Count offsets [from_offset, to_offset) of a stream as committed, replicated or expired.

        Args:
            home: number of the stream's home region; the clock of `append_us`.
            entries: what was committed, for the latencies of it; may be left out.
        """
        if to_offset <= from_offset:
            return
        key = (topic, origin, partition)
        log = self._log_of(key)
        self._run_of(log, kind, key).extend(epoch, from_offset, to_offset, now_ns)
        if kind is LedgerKind.EXPIRED:
            return
        log.is_home = kind is LedgerKind.COMMIT
        log.commits.note(from_offset, to_offset, now_ns)
        if not entries:
            return
        if log.is_home:
            self._count_commits(log, topic, entries, now_ns)
        else:
            self._count_replications(log, topic, home, entries, now_ns)
        for first, end in log.transactions.committed(entries):
            self._run_of(log, LedgerKind.ABORTED, key).extend(epoch, first, end, now_ns)

    def named_late(
        self,
        kind: LedgerKind,
        ranges: Iterable[LateRange],
        *,
        topic: str,
        origin: int,
        partition: int,
        now_ns: int,
    ) -> LeftOut:
        """Name committed ranges at their append time, because nobody knows when they committed.

        They may have been named before. So no latency is counted of them; and each is a row, which grows no more: the
        newest LATE_AT_ONCE at once, the others as they are drained.

        Args:
            ranges: in the order of the log.

        Returns:
            What is not named because it is older than LATE_NS_MAX.
        """
        oldest_ns = now_ns - LATE_NS_MAX
        waiting: list[LateRange] = []
        left_out: list[LateRange] = []
        for late in ranges:
            (waiting if late.first_us * 1_000 >= oldest_ns else left_out).append(late)
        run = self._new_run(kind, (topic, origin, partition))
        for _ in range(min(LATE_AT_ONCE, len(waiting))):
            self._name_late(run, waiting.pop(), noted_ns=now_ns)
        if waiting:
            self.late_unnoted += len(waiting)
            self._late.append((run, waiting))
        return LeftOut(
            records=sum(late.to_offset - late.from_offset for late in left_out),
            oldest_us=min((late.first_us for late in left_out), default=0),
        )

    def aborted_late(
        self,
        entries: Iterable[CommittedEntry],
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        is_named: bool,
        now_ns: int,
    ) -> None:
        """Follow the transactions of entries that are named late; what a marker of them aborted is named likewise.

        Args:
            is_named: what their markers aborted was named before: they are followed only. So are those that are older
                than LATE_NS_MAX.
        """
        key = (topic, origin, partition)
        log = self._log_of(key)
        for entry in entries:
            at_ns = entry.header().append_us * 1_000
            for aborted in log.transactions.committed((entry,)):
                if not is_named and at_ns >= now_ns - LATE_NS_MAX:
                    run = self._new_run(LedgerKind.ABORTED, key)
                    self._keep_late(run, epoch, aborted, (at_ns, at_ns), noted_ns=now_ns)

    def left(self, *, topic: str, origin: int, partition: int) -> None:
        """Forget the open transactions of a stream that this broker leads no longer: others see how they end."""
        log = self._logs.get((topic, origin, partition))
        if log is not None:
            log.transactions = OpenTransactions()

    def _log_of(self, key: tuple[str, int, int]) -> _Log:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = _Log()
        return log

    def _run_of(self, log: _Log, kind: LedgerKind, key: tuple[str, int, int]) -> OffsetRun:
        run = log.runs.get(kind)
        if run is None:
            run = log.runs[kind] = self._new_run(kind, key)
        return run

    def _new_run(self, kind: LedgerKind, key: tuple[str, int, int]) -> OffsetRun:
        topic, origin, partition = key
        return OffsetRun(
            opened=self._open_runs.append,
            close=self._close_run,
            kind=kind,
            topic=topic,
            origin=origin,
            partition=partition,
            journal=self._journal,
        )

    def _count_commits(self, log: _Log, topic: str, entries: Sequence[CommittedEntry], now_ns: int) -> None:
        for entry in entries:
            header = entry.header()
            second, origin = header.received_ns // NS_PER_S, header.entry_region
            cell = log.commit_cell
            if cell is None or cell.second != second or cell.origin != origin or not cell.is_open:
                cell = log.commit_cell = self.cells.cell(second, origin, topic, "", Stage.COMMIT)
            self.cells.add(cell, (now_ns - header.received_ns) // 1_000, entry.record_count)

    def _count_replications(
        self, log: _Log, topic: str, home: int, entries: Sequence[CommittedEntry], now_ns: int
    ) -> None:
        for entry in entries:
            append_us = entry.header().append_us
            if append_us < self._started_us:
                continue  # history that this region is given when it joins waited for nothing
            second = append_us // 1_000_000
            cell = log.commit_cell
            if cell is None or cell.second != second or cell.origin != home or not cell.is_open:
                cell = log.commit_cell = self.cells.cell(second, home, topic, "", Stage.REPLICATE)
            self.cells.add(cell, now_ns // 1_000 - append_us, entry.record_count)

    def keep(self, kind: TraceKind, row: Row) -> None:
        """Take a finished row of a trace kind."""
        rows = self._rows[kind]
        limit = ROWS_WAITING_MAX if kind in COMPLETE_KINDS else TRACE_ROWS_WAITING_MAX
        if len(rows) >= limit:
            self._dropped[kind] = self._dropped.get(kind, 0) + 1
            return
        rows.append(row)

    def _keep_delivery(self, row: Row) -> None:
        self.keep(TraceKind.DELIVERY, row)

    def _close_run(self, run: OffsetRun) -> None:
        """Make a ledger row of an open run."""
        if run.place:
            self._noted.append((run.place, run.first_ns))
        self.keep(
            TraceKind.LEDGER,
            (
                run.kind.value,
                self._region,
                self._broker,
                self._region_name(run.origin) if run.origin else "",
                run.topic,
                run.partition,
                run.epoch,
                run.group or None,
                run.from_offset,
                run.to_offset,
                run.first_ns,
                run.last_ns,
                run.attempt,
                run.session_epoch,
                run.sequence,
                None,
            ),
        )

    def _name_late(self, run: OffsetRun, late: LateRange, *, noted_ns: int | None) -> None:
        times_ns = (late.first_us * 1_000, late.last_us * 1_000)
        self._keep_late(run, late.epoch, (late.from_offset, late.to_offset), times_ns, noted_ns=noted_ns)

    def _keep_late(
        self,
        run: OffsetRun,
        epoch: int,
        offsets: tuple[int, int],
        times_ns: tuple[int, int],
        *,
        noted_ns: int | None,
    ) -> None:
        """Make a ledger row that is complete of a run that is not open.

        Args:
            noted_ns: the journal has it until it is spooled, among the rows of this moment; None: it is not told of it.
        """
        run.epoch = epoch
        run.from_offset, run.to_offset = offsets
        run.first_ns, run.last_ns = times_ns
        run.place = 0
        if self._journal is not None and noted_ns is not None:
            run.second = noted_ns // NS_PER_S
            run.place = self._journal.begun(run)
        self._close_run(run)

    def _name_waiting(self, *, final: bool) -> None:
        """Make rows of the late ranges that wait, RUNS_PER_DRAIN at a time, of each stream the newest first."""
        room = RUNS_PER_DRAIN
        while self._late and (final or room > 0):
            run, waiting = self._late[0]
            count = len(waiting) if final else min(room, len(waiting))
            for _ in range(count):
                self._name_late(run, waiting.pop(), noted_ns=None)
            room -= count
            if not waiting:
                self._late.popleft()

    def _keep_refusal(self, stream: RefusedStream, count: RefusedCount) -> None:
        self.keep(
            TraceKind.LEDGER,
            (
                stream.kind.value,
                self._region,
                self._broker,
                self._region_name(stream.origin) if stream.origin else "",
                stream.topic,
                stream.partition,
                0,
                None,
                0,
                0,
                count.first_ns,
                count.last_ns,
                1,
                0,
                0,
                count.records,
            ),
        )

    def drain(self, now_ns: int, *, final: bool = False) -> Drained:
        """Return what is complete at `now_ns`: the rows of seconds before it, all of them when `final`."""
        this_second = now_ns // NS_PER_S
        if self._turned != this_second:
            self._turned = this_second
            self.sampler.turn()
        self._close_runs(this_second, final=final)
        self._name_waiting(final=final)
        self._forget_quiet_logs(now_ns)
        for stream, count in self.refusals.take(this_second, rows_max=RUNS_PER_DRAIN, final=final):
            self._keep_refusal(stream, count)
        given_up = self.refusals.take_dropped(this_second, final=final)
        if given_up:
            self._dropped[TraceKind.LEDGER] = self._dropped.get(TraceKind.LEDGER, 0) + given_up
        over = self.sampler.take_dropped()
        if over:
            self._dropped[TraceKind.DELIVERY] = self._dropped.get(TraceKind.DELIVERY, 0) + over
        drained = Drained(
            rows={kind: rows for kind, rows in self._rows.items() if rows},
            cells=self.cells.close(this_second, final=final),
            dropped=self._dropped,
            has_more=self._left_to_see > 0 or bool(self._late) or self.refusals.are_left(this_second),
            noted=self._noted,
            region=self._region,
            broker=self._broker,
            region_name=self._region_name,
        )
        self._rows = {kind: [] for kind in TraceKind}
        self._dropped = {}
        self._noted = []
        return drained

    def _close_runs(self, this_second: int, *, final: bool) -> None:
        """Close the runs of earlier seconds, RUNS_PER_DRAIN at a time; what is quiet for a second is forgotten."""
        runs = self._open_runs
        if not self._left_to_see:
            self._left_to_see = len(runs)
        looked_at = self._left_to_see if final else min(self._left_to_see, RUNS_PER_DRAIN)
        self._left_to_see -= looked_at
        for _ in range(looked_at):
            run = runs.popleft()
            if run.second == this_second and not final:
                runs.append(run)
                continue
            self._close_run(run)
            run.is_open = False

    def _forget_quiet_logs(self, now_ns: int) -> None:
        """Drop what is known of streams without news, some at a time."""
        if not self._to_sweep:
            self._to_sweep = list(self._logs)
        for key in self._to_sweep[-LOGS_PER_DRAIN:]:
            log = self._logs.get(key)
            if log is not None and log.is_quiet(now_ns):
                del self._logs[key]
        del self._to_sweep[-LOGS_PER_DRAIN:]
