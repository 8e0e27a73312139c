"""Trace rows of kind `outcome`, once per second: counters are read on the event loop, a thread writes.

Rule 1: nothing is done per request; a second without one has rows of zeros, which say that this gateway was there.
Rule 2: what the writer does not take is dropped and counted; requests never wait for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import zlib
from pathlib import Path
from typing import Final

import structlog

from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.outcomes import GatewayOutcomes
from georelay.trace.files import GATEWAY_WRITER_FIRST, GATEWAY_WRITERS
from georelay.trace.kinds import TraceKind
from mesh.tracing.outcome_core import OutcomeCore
from mesh.tracing.pages_http import TracePages
from mesh.tracing.recorder_core import Drained
from mesh.tracing.written import Identity

ROWS_PERIOD_S: Final = 1.0
NS_PER_S: Final = 1_000_000_000

log = structlog.get_logger()


def writer_number(name: str) -> int:
    """Return the number that stands for a gateway where trace files have a broker's id: above all of those."""
    return GATEWAY_WRITER_FIRST + zlib.crc32(name.encode()) % GATEWAY_WRITERS


def trace_pages(config: GatewayConfig, traces: GatewayTraces | None) -> TracePages:
    """Return what serves /v1/traces of a gateway; without traces it says so."""
    name = config.own_name
    writer = {"region": config.region, "broker": writer_number(name), "gateway": name}
    return TracePages(None if traces is None else traces.shelf, writer=writer, kinds=(TraceKind.OUTCOME,))


class GatewayTraces:
    """The outcomes of one gateway, written down from `start` to `close`."""

    def __init__(self, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        from mesh.tracing.shelf import TraceShelf  # Arrow: 40 MiB that a gateway without traces has no use for
        from mesh.tracing.writer import TraceWriter

        name = config.own_name
        self._outcomes = GatewayOutcomes(metrics)
        self._core = OutcomeCore(region=config.region, gateway=name)
        self._writer = TraceWriter(
            directory=Path(config.trace_dir),
            identity=Identity(region=config.region, broker=writer_number(name), boot_id=uuid.uuid4().hex[:12]),
            clock_ns=time.time_ns,
            roll_period_s=0.0,
            age_ms_max=config.trace_retention_ms,
            size_bytes_max=config.trace_retention_bytes,
        )
        self.shelf = TraceShelf(Path(config.trace_dir), region=config.region, broker=writer_number(name))
        self._refused = 0  # rows that the writer is told of with the next ones
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the writer's thread and the timer."""
        self._writer.start()
        self._timer = asyncio.get_running_loop().call_later(ROWS_PERIOD_S, self._on_timer)

    async def close(self) -> None:
        """Write what is left and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._take(time.time_ns() // NS_PER_S)  # the second that is not over: nobody else will write it
        await asyncio.to_thread(self._writer.close)

    def _on_timer(self) -> None:
        self._take(time.time_ns() // NS_PER_S - 1)
        self._timer = asyncio.get_running_loop().call_later(ROWS_PERIOD_S, self._on_timer)

    def _take(self, second: int) -> None:
        if not self._core.is_due(second):
            return
        rows = self._core.take(second, self._outcomes.totals())
        drained = Drained(rows={TraceKind.OUTCOME: rows}, dropped={TraceKind.OUTCOME: self._refused})
        if self._writer.submit(drained):
            self._refused = 0
            return
        self._refused += len(rows)
        log.warning("trace.rows_dropped", rows=len(rows), reason="the writer stands still")
