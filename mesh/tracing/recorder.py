"""The recorder of a broker: the pure core, a one-second timer on the event loop, and the writer's thread.

Everything but the writer runs on the event-loop thread; nothing on the path of a record awaits or raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from georelay.cadence import pause_s
from georelay.trace.kinds import LedgerKind, Operation, TraceKind
from mesh.tracing.aborted_core import CommittedEntry
from mesh.tracing.latency_cells_core import UNKNOWN_CLOCK, Correction
from mesh.tracing.offset_run_core import NS_PER_S, LateRange
from mesh.tracing.open_rows import OpenRows
from mesh.tracing.outcome_core import OutcomeCore, Totals
from mesh.tracing.recorder_core import ROWS_PER_S_MAX, DeliverySession, Drained, RecorderCore, Row
from mesh.tracing.refusals_core import RefusedStream
from mesh.tracing.retention import AGE_MS_MAX, SIZE_BYTES_MAX
from mesh.tracing.written import Identity, WriterStats

if TYPE_CHECKING:
    from mesh.tracing.writer import TraceWriter

DRAIN_PERIOD_S: Final = 1.0
DRAIN_AGAIN_S: Final = 0.002  # a drain that was cut short goes on after other callbacks had their turn

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """How traces are kept.

    Args:
        directory: where the files go, shared by all brokers of a mesh on one host; None writes nothing.
        roll_period_s: age at which a spool becomes a file. 10 suits a development mesh; 300 makes files of a good
            size for a mesh that runs for months. A crash loses none of what was spooled, whatever it is.
        rows_per_s_max: delivery rows per second before batches are sampled; 0 keeps none.
        retention_ms, retention_bytes: of this broker's files; -1 keeps everything.
    """

    directory: Path | None = None
    roll_period_s: float = 10.0
    rows_per_s_max: int = ROWS_PER_S_MAX
    retention_ms: int = AGE_MS_MAX
    retention_bytes: int = SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStats:
    """Running counts since the start.

    Attributes:
        rows_dropped: by kind, refused by the writer's queue included.
        negative_latencies: records that seem to arrive before they were sent; impossible_latencies: by more than
            what is known of the clocks allows.
        sample_shift: batches are sampled with probability 2**-shift.
        drain_ns_max: longest time that one drain held the event loop.
        rows_unkept: ledger rows that a kill would have taken before they were spooled, see OpenRows and
            RecorderCore.late_unnoted.
    """

    writer: WriterStats
    rows_dropped: Mapping[TraceKind, int] = field(default_factory=dict)
    negative_latencies: int = 0
    impossible_latencies: int = 0
    sample_shift: int = 0
    drain_ns_max: int = 0
    rows_unkept: int = 0

    @property
    def rows_written(self) -> int:
        """Return the rows of all kinds."""
        return sum(self.writer.rows_written.values())


class Recorder:
    """Records what this broker commits, replicates and delivers.

    Args:
        region: name of this broker's region.
        broker: mesh-wide broker id.
        boot_id: names this run of the process, [0-9a-z]{1,32}.
        region_name: region number -> name; asked in the writer's thread, too.
        settings: see TraceSettings.
        clock_ns: wall clock, ns since 1970.
        correction: region number -> what to add to a latency that began on one of its clocks.
    """

    def __init__(
        self,
        *,
        region: str,
        broker: int,
        boot_id: str,
        region_name: Callable[[int], str],
        settings: TraceSettings,
        clock_ns: Callable[[], int] = time.time_ns,
        correction: Callable[[int], Correction] = lambda _region: UNKNOWN_CLOCK,
    ) -> None:
        self._clock_ns = clock_ns
        self._open_rows: OpenRows | None = None
        if settings.directory is not None:
            self._open_rows = OpenRows(
                settings.directory, region=region, broker=broker, boot_id=boot_id, region_name=region_name
            )
        self._core = RecorderCore(
            region=region,
            broker=broker,
            first_session=clock_ns(),
            region_name=region_name,
            correction=correction,
            rows_per_s_max=0 if settings.directory is None else settings.rows_per_s_max,
            journal=self._open_rows,
        )
        self._writer: TraceWriter | None = None
        if settings.directory is not None:
            from mesh.tracing.writer import TraceWriter  # Arrow: 40 MiB that a broker without traces has no use for

            self._writer = TraceWriter(
                directory=settings.directory,
                identity=Identity(region=region, broker=broker, boot_id=boot_id),
                clock_ns=clock_ns,
                roll_period_s=settings.roll_period_s,
                age_ms_max=settings.retention_ms,
                size_bytes_max=settings.retention_bytes,
                open_rows=self._open_rows,
            )
        self._outcomes = OutcomeCore(region=region)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._refused: dict[TraceKind, int] = {}  # rows not yet told to the writer
        self._drain_ns_max = 0
        self.region = region
        self.broker = broker
        self.outcome_totals: Callable[[], Mapping[Operation, Totals]] | None = None  # set by who counts requests

    @property
    def is_writing(self) -> bool:
        """Return whether rows go anywhere."""
        return self._writer is not None

    def start(self) -> None:
        """Start the timer on the running loop, and the writer's thread."""
        if self._writer is not None:
            if self._open_rows is not None:
                self._open_rows.open()
            self._writer.start()
        self._timer = asyncio.get_running_loop().call_later(pause_s(DRAIN_PERIOD_S), self._on_timer)

    async def close(self) -> None:
        """Write what is left and stop. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._take_outcomes()
        self._hand_over(self._core.drain(self._clock_ns(), final=True))
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        if self._open_rows is not None:
            self._open_rows.close()

    def open_session(self, *, topic: str, origin: int, partition: int, offset: int, group: str = "") -> DeliverySession:
        """Return a session for a consumer that asks for `offset` first.

        Args:
            topic: plain name of the definition, the same in every region (no region qualifier).
            origin: region number of the stream's origin, 0 for homes=one.
            partition: 0-based.
            offset: first offset asked for.
            group: consumer group, empty without.
        """
        return self._core.open_session(topic=topic, origin=origin, partition=partition, offset=offset, group=group)

    def committed(
        self,
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
        """Note that [from_offset, to_offset) committed in the home region; called by its group's leader."""
        self._core.log_advanced(
            LedgerKind.COMMIT,
            topic=topic,
            origin=origin,
            partition=partition,
            epoch=epoch,
            from_offset=from_offset,
            to_offset=to_offset,
            now_ns=now_ns,
            home=home,
            entries=entries,
        )

    def replicated(
        self,
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
        """Note that [from_offset, to_offset) committed in this mirror region; called by the leader of its group."""
        self._core.log_advanced(
            LedgerKind.REPLICATED,
            topic=topic,
            origin=origin,
            partition=partition,
            epoch=epoch,
            from_offset=from_offset,
            to_offset=to_offset,
            now_ns=now_ns,
            home=home,
            entries=entries,
        )

    def named_late(
        self,
        kind: LedgerKind,
        ranges: Sequence[LateRange],
        *,
        topic: str,
        origin: int,
        partition: int,
    ) -> None:
        """Note ranges that committed when nobody who leads was there to say so; called by who leads their group now.

        Args:
            kind: COMMIT where they were sequenced, REPLICATED in a mirror.
            ranges: each of one second and epoch, in the order of the log. They may have been named before. What is
                older than LATE_NS_MAX is left out, and logged.
        """
        if self._writer is None:  # thousands of rows for nobody would hold the loop
            return
        now_ns = self._clock_ns()
        left_out = self._core.named_late(kind, ranges, topic=topic, origin=origin, partition=partition, now_ns=now_ns)
        if left_out.records:
            log.warning(
                "trace.late_rows_left_out",
                kind=kind.value,
                topic=topic,
                origin=origin,
                partition=partition,
                records=left_out.records,
                oldest_age_s=now_ns // NS_PER_S - left_out.oldest_us // 1_000_000,
            )

    def aborted_late(
        self,
        entries: Sequence[CommittedEntry],
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        is_named: bool,
    ) -> None:
        """Follow the transactions in entries of which `named_late` is told, or that were named before.

        Args:
            is_named: what their markers aborted was named before, too.
        """
        self._core.aborted_late(
            entries,
            topic=topic,
            origin=origin,
            partition=partition,
            epoch=epoch,
            is_named=is_named,
            now_ns=self._clock_ns(),
        )

    def left(self, *, topic: str, origin: int, partition: int) -> None:
        """Note that this broker leads the group of a stream no longer."""
        self._core.left(topic=topic, origin=origin, partition=partition)

    def expired(self, *, topic: str, origin: int, partition: int, epoch: int, from_offset: int, to_offset: int) -> None:
        """Note that [from_offset, to_offset) is below the log start now; called by the leader of its group."""
        self._core.log_advanced(
            LedgerKind.EXPIRED,
            topic=topic,
            origin=origin,
            partition=partition,
            epoch=epoch,
            from_offset=from_offset,
            to_offset=to_offset,
            now_ns=self._clock_ns(),
        )

    def refused(self, *, topic: str, origin: int, partition: int, records: int, is_decided: bool) -> None:
        """Note records of a publish that was answered with an error by this broker.

        Args:
            topic, origin, partition: the stream as in `open_session`; it exists.
            records: how many; 0 counts nothing.
            is_decided: none of them is stored; else nobody here knows.
        """
        kind = LedgerKind.REFUSED if is_decided else LedgerKind.UNDECIDED
        self._core.refusals.add(RefusedStream(kind, topic, origin, partition), records, self._clock_ns())

    def keep(self, kind: TraceKind, row: Row) -> None:
        """Take a row of a kind that somebody else makes (probe, clock), in the order of its recorded columns."""
        if self._writer is not None:
            self._core.keep(kind, row)

    @property
    def stats(self) -> RecorderStats:
        """Return the running counts."""
        writer = WriterStats() if self._writer is None else self._writer.stats
        dropped = {kind: count + self._refused.get(kind, 0) for kind, count in writer.rows_dropped.items()}
        return RecorderStats(
            writer=writer,
            rows_dropped=dropped,
            negative_latencies=self._core.cells.negative_latencies,
            impossible_latencies=self._core.cells.impossible_latencies,
            sample_shift=self._core.sampler.shift,
            drain_ns_max=self._drain_ns_max,
            rows_unkept=0 if self._open_rows is None else self._open_rows.unnoted + self._core.late_unnoted,
        )

    def _on_timer(self) -> None:
        began_ns = time.perf_counter_ns()
        now_ns = self._clock_ns()
        self._take_outcomes()
        drained = self._core.drain(now_ns)
        self._hand_over(drained)
        self._drain_ns_max = max(self._drain_ns_max, time.perf_counter_ns() - began_ns)
        period_s = DRAIN_AGAIN_S if drained.has_more else DRAIN_PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(pause_s(period_s), self._on_timer)

    def _take_outcomes(self) -> None:
        second = self._clock_ns() // NS_PER_S - 1
        if self.outcome_totals is None or not self._outcomes.is_due(second):
            return
        for row in self._outcomes.take(second, self.outcome_totals()):
            self.keep(TraceKind.OUTCOME, row)

    def _hand_over(self, drained: Drained) -> None:
        """Give rows to the writer; rows it refuses are dropped, and told to it with the next ones."""
        if self._writer is None:
            return
        for kind, count in self._refused.items():
            drained.dropped[kind] = drained.dropped.get(kind, 0) + count
        if self._writer.submit(drained):
            self._refused = {}  # the writer counts them from here on
            return
        if self._open_rows is not None:
            self._open_rows.spooled(drained.noted)  # given up and counted: the next run must not find them
        before = sum(self._refused.values())
        self._refused = {kind: count for kind, count in drained.counts().items() if count}
        lost = sum(self._refused.values()) - before
        log.warning("trace.rows_dropped", rows=lost, reason="the writer stands still")
