"""What one consumer session was handed: ledger, latencies and sampled rows of its deliveries. Pure.

A session is one consumer position on one connection. A seek, a rewind or a repeated fetch is a new session: only
what one session was handed twice is a duplicate.

Rule: latencies count only records that were received after the session had reached the high watermark: whoever reads
the past waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from georelay.trace.kinds import Stage
from mesh.tracing.latency_cells_core import Cell, LatencyCells, Row
from mesh.tracing.offset_run_core import NS_PER_S, OffsetRun
from mesh.tracing.sampling_core import LATE_US, Sampler, SampleReason, stream_seed

ATTEMPT_MAX: Final = 32_767  # the column has 16 bits


class StreamFacts(Protocol):
    """What is known here of the stream that is read."""

    @property
    def is_home(self) -> bool:
        """Whether this region is its home."""

    def committed_at(self, offset: int) -> int | None:
        """When an offset became readable at this broker, None unknown."""


class DeliverySession:
    """Made by `RecorderCore.open_session`; dropped without ceremony.

    Attributes:
        next_offset: end of the last delivery. A consumer that asks for another offset needs a new session.
        live_since_ns: when it first had nothing left to read; None before.
    """

    __slots__ = (
        "_cell",
        "_cells",
        "_deliver_cell",
        "_facts",
        "_keep",
        "_reach",
        "_run",
        "_sampler",
        "_seed",
        "live_since_ns",
        "next_offset",
        "start_offset",
    )

    def __init__(
        self,
        *,
        run: OffsetRun,
        cells: LatencyCells,
        sampler: Sampler,
        facts: Callable[[], StreamFacts | None],
        keep: Callable[[Row], None],
        offset: int,
    ) -> None:
        self._run = run
        self._cells = cells
        self._sampler = sampler
        self._facts = facts
        self._keep = keep
        self._seed = 0  # made when it is first needed
        self._cell: Cell | None = None
        self._deliver_cell: Cell | None = None
        self._reach = offset  # end of the highest delivery
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
        self,
        *,
        epoch: int,
        base_offset: int,
        record_count: int,
        entry_region: int,
        received_ns: int,
        delivered_ns: int,
        size_bytes: int = 0,
        attempt: int = 1,
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
            size_bytes: of the batch, 0 unknown.
            attempt: 1 for the first time; more when a queue hands it out again, >= 1. A queue may do so without end:
                from ATTEMPT_MAX on all are that.
        """
        attempt = min(attempt, ATTEMPT_MAX)
        to_offset = base_offset + record_count
        if base_offset < self.start_offset:
            base_offset = self.start_offset
            if to_offset <= base_offset:
                return
        is_again = base_offset < self._reach and attempt == 1
        sequence = self._run.extend(epoch, base_offset, to_offset, delivered_ns, attempt)
        self.next_offset = to_offset
        if to_offset > self._reach:
            self._reach = to_offset
        count = to_offset - base_offset
        latency_us = (delivered_ns - received_ns) // 1_000
        facts = self._facts()
        committed_ns = None if facts is None else facts.committed_at(base_offset)
        live_since_ns = self.live_since_ns
        is_late = False
        if live_since_ns is not None and received_ns >= live_since_ns and attempt == 1:
            latency_us = self._count(received_ns // NS_PER_S, entry_region, latency_us, count)
            is_late = latency_us > LATE_US
            if committed_ns is not None:
                self._count_deliver((delivered_ns - committed_ns) // 1_000, count)
        sampler = self._sampler
        if not sampler.is_on:
            return
        if is_late or is_again or attempt > 1:
            reason = SampleReason.LATE
            if attempt > 1 or is_again:
                reason = SampleReason.RETRIED if attempt > 1 else SampleReason.DUPLICATE
            if not sampler.has_room():
                return
            weight = 1.0
        else:
            reason, weight = SampleReason.SAMPLED, sampler.weight
            if not sampler.keeps(self._named(), epoch, base_offset):
                return
        is_home = facts is not None and facts.is_home
        run = self._run
        row: tuple[Any, ...] = (
            entry_region,  # a number: the writer's thread names it
            None,
            None,
            None,
            run.topic,
            run.partition,
            epoch,
            run.group or None,
            run.session_epoch,
            base_offset,
            count,
            size_bytes,
            received_ns,
            received_ns,
            committed_ns if is_home else None,
            None if is_home else committed_ns,
            delivered_ns,
            delivered_ns,
            None,
            max(0, latency_us),
            attempt,
            sequence,
            weight,
            reason.value,
            None,
        )
        self._keep(row)

    def _count(self, second: int, entry_region: int, latency_us: int, count: int) -> int:
        cell = self._cell
        if cell is None or cell.second != second or cell.origin != entry_region or not cell.is_open:
            run = self._run
            cell = self._cell = self._cells.cell(second, entry_region, run.topic, run.group, Stage.TOTAL)
            self._deliver_cell = None
        return self._cells.add(cell, latency_us, count)

    def _count_deliver(self, latency_us: int, count: int) -> None:
        cell = self._deliver_cell
        if cell is None or not cell.is_open:
            total, run = self._cell, self._run
            assert total is not None  # counted just before
            cell = self._cells.cell(total.second, total.origin, run.topic, run.group, Stage.DELIVER)
            self._deliver_cell = cell
        self._cells.add(cell, latency_us, count)

    def _named(self) -> int:
        if not self._seed and self._sampler.shift:
            run = self._run
            self._seed = stream_seed(origin=run.origin, topic=run.topic, partition=run.partition)
        return self._seed
