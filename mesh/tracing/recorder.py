"""The recorder of a broker: the pure core, a one-second timer on the event loop, and the writer's thread.

Everything but the writer runs on the event-loop thread; nothing on the path of a record awaits or raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from georelay.trace.schema import LedgerKind
from mesh.tracing.recorder_core import DeliverySession, Drained, RecorderCore
from mesh.tracing.writer import TraceWriter

DRAIN_PERIOD_S: Final = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """How traces are kept.

    Args:
        directory: where the files go, shared by all brokers of a mesh on one host; None writes nothing.
        roll_period_s: a crash loses at most so much of the traces. 10 suits a development mesh; 300 makes files
            of a good size for a mesh that runs for months.
        clock_error_us: bound of the difference between any two brokers' clocks. 0 only when all of them read the
            same clock (one host). None, the honest default, makes the report call latencies between clocks undecidable.
    """

    directory: Path | None = None
    roll_period_s: float = 10.0
    clock_error_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStats:
    """Running counts since the start; `negative_latencies` are records that seem to arrive before they were sent."""

    rows_written: int
    rows_dropped: int
    files_written: int
    write_failures: int
    negative_latencies: int


class Recorder:
    """Records what this broker commits, replicates and delivers.

    Args:
        region: name of this broker's region.
        broker: mesh-wide broker id.
        boot_id: names this run of the process, [0-9a-z]{1,32}.
        region_name: region number -> name, for entry regions and origins.
        settings: see TraceSettings.
        clock_ns: wall clock, ns since 1970.
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
    ) -> None:
        self._clock_ns = clock_ns
        self._core = RecorderCore(
            region=region,
            broker=broker,
            first_session=clock_ns(),
            region_name=region_name,
            clock_error_us=settings.clock_error_us,
        )
        self._writer: TraceWriter | None = None
        if settings.directory is not None:
            self._writer = TraceWriter(
                directory=settings.directory,
                region=region,
                broker=broker,
                boot_id=boot_id,
                clock_ns=clock_ns,
                roll_period_s=settings.roll_period_s,
            )
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._rows_refused = {"latency_hist": 0, "ledger": 0}  # not yet told to the writer
        self._rows_refused_total = 0

    def start(self) -> None:
        """Start the timer on the running loop, and the writer's thread."""
        if self._writer is not None:
            self._writer.start()
        self._timer = asyncio.get_running_loop().call_later(DRAIN_PERIOD_S, self._on_timer)

    async def close(self) -> None:
        """Write what is left and stop. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over(self._core.drain(self._clock_ns(), final=True))
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)

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
        self, *, topic: str, origin: int, partition: int, epoch: int, from_offset: int, to_offset: int, now_ns: int
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
        )

    def replicated(
        self, *, topic: str, origin: int, partition: int, epoch: int, from_offset: int, to_offset: int, now_ns: int
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
        )

    @property
    def stats(self) -> RecorderStats:
        """Return the running counts."""
        writer = self._writer.stats if self._writer is not None else None
        return RecorderStats(
            rows_written=writer.rows_written if writer else 0,
            rows_dropped=(writer.rows_dropped if writer else 0) + self._rows_refused_total,
            files_written=writer.files_written if writer else 0,
            write_failures=writer.write_failures if writer else 0,
            negative_latencies=self._core.negative_latencies,
        )

    def _on_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DRAIN_PERIOD_S, self._on_timer)
        self._hand_over(self._core.drain(self._clock_ns()))

    def _hand_over(self, drained: Drained) -> None:
        """Give rows to the writer; rows it refuses are dropped, and told to it with the next ones."""
        if self._writer is None:
            return
        refused = self._rows_refused
        told = Drained(
            latency_hist=drained.latency_hist,
            ledger=drained.ledger,
            latency_hist_dropped=drained.latency_hist_dropped + refused["latency_hist"],
            ledger_dropped=drained.ledger_dropped + refused["ledger"],
        )
        if self._writer.submit(told):
            self._rows_refused_total -= (
                refused["latency_hist"] + refused["ledger"]
            )  # the writer counts them from here on
            refused["latency_hist"] = refused["ledger"] = 0
            return
        newly_hist = len(drained.latency_hist) + drained.latency_hist_dropped
        newly_ledger = len(drained.ledger) + drained.ledger_dropped
        refused["latency_hist"] += newly_hist
        refused["ledger"] += newly_ledger
        self._rows_refused_total += newly_hist + newly_ledger
        log.warning("trace.rows_dropped", rows=newly_hist + newly_ledger, reason="the writer stands still")
