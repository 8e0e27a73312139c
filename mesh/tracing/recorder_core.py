"""What a broker remembers of its deliveries and commits until the next second: pure, all times are arguments.

Rule 1: a histogram counts only records that were received after their session had reached the high watermark:
        whoever reads the past waits for nothing.
Rule 2: ranges of one session and second that touch are one ledger row; a jump either way starts a new row, so
        every gap, overlap and reordering stays visible to the report. Nothing is judged here.
Rule 3: a row never spans two seconds, and a second's row is complete unless records of it are still under way.
Rule 4: memory is bounded; a row that finds no room is dropped and counted.

A session is one consumer position on one connection. A seek, a rewind or a repeated fetch is a new session: only
what one session was handed twice is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from georelay.trace.histogram import GRID, LatencyHistogram
from georelay.trace.schema import LedgerKind, Stage

NS_PER_S: Final = 1_000_000_000
ROWS_WAITING_MAX: Final = 100_000  # per kind: closed rows between two drains
CELLS_OPEN_MAX: Final = 100_000  # histograms of the seconds that are still open

Row = tuple[Any, ...]  # values in the order of the kind's schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Rows that are complete. `*_dropped` counts rows given up since the last drain."""

    latency_hist: list[Row]
    ledger: list[Row]
    latency_hist_dropped: int
    ledger_dropped: int


class _Cell:
    """The histogram of one (second of publish, entry region, topic, group)."""

    __slots__ = ("entry_region", "group", "histogram", "is_open", "second", "topic")

    def __init__(self, second: int, entry_region: int, topic: str, group: str, histogram: LatencyHistogram) -> None:
        self.second = second
        self.entry_region = entry_region
        self.topic = topic
        self.group = group
        self.histogram = histogram
        self.is_open = True


class OffsetRun:
    """The open ledger row of one stream (or of one session): a range that may still grow."""

    __slots__ = (
        "_core",
        "epoch",
        "first_ns",
        "from_offset",
        "group",
        "is_open",
        "kind",
        "last_ns",
        "next_sequence",
        "origin",
        "partition",
        "second",
        "sequence",
        "session_epoch",
        "to_offset",
        "topic",
    )

    def __init__(
        self, core: RecorderCore, *, kind: LedgerKind, topic: str, origin: int, partition: int, group: str, session: int
    ) -> None:
        self._core = core
        self.is_open = False  # among the core's open runs
        self.kind = kind
        self.topic = topic
        self.origin = origin
        self.partition = partition
        self.group = group
        self.session_epoch = session
        self.next_sequence = 0
        self.sequence = 0  # of the first range merged into the row
        self.epoch = 0
        self.from_offset = 0
        self.to_offset = 0
        self.first_ns = 0
        self.last_ns = 0
        self.second = 0

    def extend(self, epoch: int, from_offset: int, to_offset: int, now_ns: int) -> None:
        """Take [from_offset, to_offset) in: into the open row when it touches, else as a new row."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        second = now_ns // NS_PER_S
        if self.is_open:
            if from_offset == self.to_offset and second == self.second and epoch == self.epoch:
                self.to_offset = to_offset
                self.last_ns = now_ns
                return
            self._core.close_run(self)
        else:
            self.is_open = True
            self._core.open_runs.append(self)
        self.sequence = sequence
        self.epoch = epoch
        self.from_offset = from_offset
        self.to_offset = to_offset
        self.first_ns = self.last_ns = now_ns
        self.second = second


class DeliverySession:
    """What one consumer session was handed. Made by `open_session`; dropped without ceremony.

    Attributes:
        next_offset: end of the last delivery. A consumer that asks for another offset needs a new session.
        live_since_ns: when it first had nothing left to read; None before.
    """

    __slots__ = ("_cell", "_core", "_run", "live_since_ns", "next_offset", "start_offset")

    def __init__(self, core: RecorderCore, run: OffsetRun, offset: int) -> None:
        self._core = core
        self._run = run
        self._cell: _Cell | None = None
        self.start_offset = offset
        self.next_offset = offset
        self.live_since_ns: int | None = None

    @property
    def session_epoch(self) -> int:
        """Return the number that names this session in the ledger, unique for the broker across restarts."""
        return self._run.session_epoch

    def caught_up(self, now_ns: int) -> None:
        """Note that the consumer stands at the high watermark; only the first time counts."""
        if self.live_since_ns is None:
            self.live_since_ns = now_ns

    def delivered(
        self, *, epoch: int, base_offset: int, record_count: int, entry_region: int, received_ns: int, delivered_ns: int
    ) -> None:
        """Count one batch that was handed to the consumer's socket.

        Args:
            epoch: home epoch of the batch.
            base_offset: its first offset; what lies below the session's start is not counted (a consumer that
                starts inside a batch gets it whole and skips the rest).
            record_count: offsets it owns, >= 1.
            entry_region: number of the region whose broker received it first.
            received_ns: wall clock of that broker when it did.
            delivered_ns: wall clock here and now.
        """
        to_offset = base_offset + record_count
        if base_offset < self.start_offset:
            base_offset = self.start_offset
            if to_offset <= base_offset:
                return
        self._run.extend(epoch, base_offset, to_offset, delivered_ns)
        self.next_offset = to_offset
        live_since_ns = self.live_since_ns
        if live_since_ns is None or received_ns < live_since_ns:
            return
        second = received_ns // NS_PER_S
        cell = self._cell
        if cell is None or cell.second != second or cell.entry_region != entry_region or not cell.is_open:
            cell = self._cell = self._core.open_cell(second, entry_region, self._run.topic, self._run.group)
            if cell is None:
                return
        latency_us = (delivered_ns - received_ns) // 1_000
        if latency_us < 0:
            latency_us = 0
            self._core.negative_latencies += to_offset - base_offset
        cell.histogram.add(latency_us, to_offset - base_offset)


class RecorderCore:
    """All open rows of one broker.

    Args:
        region: name of this broker's region.
        broker: mesh-wide broker id.
        first_session: number of the first session; larger than any of an earlier run (such as the start time in ns).
        region_name: region number -> name; asked once per number and drain.
        clock_error_us: bound of the clock error against any broker of the mesh; None when unknown.
    """

    def __init__(
        self,
        *,
        region: str,
        broker: int,
        first_session: int,
        region_name: Callable[[int], str],
        clock_error_us: int | None,
    ) -> None:
        self._region = region
        self._broker = str(broker)
        self._next_session = first_session
        self._region_name = region_name
        self._clock_error_us = clock_error_us
        self._cells: dict[tuple[int, int, str, str], _Cell] = {}
        self._log_runs: dict[tuple[LedgerKind, str, int, int], OffsetRun] = {}
        self._rows: list[Row] = []
        self._hist_dropped = 0
        self._ledger_dropped = 0
        self.open_runs: list[OffsetRun] = []
        self.negative_latencies = 0  # records that arrived before they were sent: clock skew

    def open_session(self, *, topic: str, origin: int, partition: int, offset: int, group: str = "") -> DeliverySession:
        """Return a new session of a consumer that asks for `offset` first."""
        number = self._next_session
        self._next_session = number + 1
        run = OffsetRun(
            self,
            kind=LedgerKind.DELIVERED,
            topic=topic,
            origin=origin,
            partition=partition,
            group=group,
            session=number,
        )
        return DeliverySession(self, run, offset)

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
    ) -> None:
        """Count offsets [from_offset, to_offset) of a stream as committed or replicated."""
        if to_offset <= from_offset:
            return
        key = (kind, topic, origin, partition)
        run = self._log_runs.get(key)
        if run is None:
            run = self._log_runs[key] = OffsetRun(
                self, kind=kind, topic=topic, origin=origin, partition=partition, group="", session=0
            )
        run.extend(epoch, from_offset, to_offset, now_ns)

    def open_cell(self, second: int, entry_region: int, topic: str, group: str) -> _Cell | None:
        """Return the open histogram of a second, None when there is no room (counted)."""
        key = (second, entry_region, topic, group)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= CELLS_OPEN_MAX:
                self._hist_dropped += 1
                return None
            histogram = LatencyHistogram(clock_error_us=self._clock_error_us)
            cell = self._cells[key] = _Cell(second, entry_region, topic, group, histogram)
        return cell

    def close_run(self, run: OffsetRun) -> None:
        """Make a ledger row of an open run."""
        if len(self._rows) >= ROWS_WAITING_MAX:
            self._ledger_dropped += 1
            return
        self._rows.append(
            (
                run.kind.value,
                self._region,
                self._broker,
                self._name(run.origin),
                run.topic,
                run.partition,
                run.epoch,
                run.group or None,
                run.from_offset,
                run.to_offset,
                run.first_ns,
                run.last_ns,
                1,
                run.session_epoch,
                run.sequence,
            )
        )

    def drain(self, now_ns: int, *, final: bool = False) -> Drained:
        """Return the rows that are complete at `now_ns`: those of seconds before it, all of them when `final`."""
        this_second = now_ns // NS_PER_S
        kept: list[OffsetRun] = []
        for run in self.open_runs:
            if run.second == this_second and not final:
                kept.append(run)
            else:
                self.close_run(run)
                run.is_open = False
        self.open_runs = kept
        # A stream that has been quiet is forgotten; its next range starts a row anyway.
        self._log_runs = {key: run for key, run in self._log_runs.items() if run.is_open}
        cells = [cell for cell in self._cells.values() if cell.second != this_second or final]
        for cell in cells:
            cell.is_open = False
            del self._cells[cell.second, cell.entry_region, cell.topic, cell.group]
        drained = Drained(
            latency_hist=[self._histogram_row(cell) for cell in cells],
            ledger=self._rows,
            latency_hist_dropped=self._hist_dropped,
            ledger_dropped=self._ledger_dropped,
        )
        self._rows = []
        self._hist_dropped = self._ledger_dropped = 0
        return drained

    def _histogram_row(self, cell: _Cell) -> Row:
        histogram = cell.histogram
        error_us = self._clock_error_us
        return (
            cell.second,
            self._name(cell.entry_region),
            self._region,
            cell.topic,
            cell.group,
            GRID,
            histogram.n,
            histogram.n_good,
            histogram.lat_sum_us,
            histogram.lat_max_us,
            [{"b": index, "n": count} for index, count in sorted(histogram.buckets.items())],
            Stage.TOTAL.value,
            None if error_us is None else histogram.n_good_lo,
            None if error_us is None else histogram.n_good_hi,
            None if error_us is None else 0,
            error_us,
        )

    def _name(self, region: int) -> str:
        return self._region_name(region) if region else ""
