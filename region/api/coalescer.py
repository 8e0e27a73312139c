"""Records of gRPC and REST callers become idempotent batches: the shell around `coalescer_core`.

Rule 1: one lane per (topic, partition) with a producer id of its own, so a resend after a leader change or a lost
        answer is recognised by the stream and never stored twice.
Rule 2: no task per record or batch: answers arrive by future callbacks, waiting is one timer per lane.
Rule 3: everything is bounded: bytes per lane, bytes of all lanes, number of lanes, time until a caller is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from georelay.errors import Busy, GeorelayError, OutcomeUnknown, TooLarge, Unavailable
from georelay.ids import Offset
from georelay.limits import MIB, RECORD_BATCH_BYTES_MAX
from georelay.wire.batch import BatchHeader, build_batch, parse_header
from region.api.coalescer_core import GivenUp, Lane, LaneBatch, LaneLimits, LaneState
from region.kafka.ports import Published

log = structlog.get_logger()

LANES_MAX: Final = 20_000
ALL_LANES_BYTES_MAX: Final = 128 * MIB  # waiting and in flight together
RECORD_OVERHEAD_BYTES: Final = 32  # varints and deltas of one record, rounded up
HEADER_OVERHEAD_BYTES: Final = 10
RECORD_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX - 1024  # a record must fit a batch of its own
ALLOCATE_RETRY_S: Final = 0.1


class Publisher(Protocol):
    """The two methods of the cluster that the coalescer calls (region.kafka.ports.Cluster)."""

    async def allocate_producer_id(self) -> int:
        """Return a fresh producer id."""

    def publish(
        self,
        name: str,
        partition: int,
        header: BatchHeader,
        raw: bytes | bytearray,
        *,
        received_ns: int,
        entry_region: int,
        lane: object,
    ) -> asyncio.Future[Published]:
        """Publish one batch."""


class NewRecord(NamedTuple):
    """A record to publish. `timestamp_ms` None: the time of arrival."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return an upper estimate of the bytes inside a batch."""
        size = RECORD_OVERHEAD_BYTES + len(self.value or b"") + len(self.key or b"")
        return size + sum(HEADER_OVERHEAD_BYTES + 4 * len(name) + len(value or b"") for name, value in self.headers)


@dataclass(frozen=True, slots=True, eq=False)
class RecordChunk:
    """Records of one caller for one partition that travel in one batch."""

    records: Sequence[NewRecord]
    size_bytes: int
    received_ns: int
    done: asyncio.Future[Published]  # base_offset is that of the chunk's first record

    @property
    def record_count(self) -> int:
        """Return the number of records."""
        return len(self.records)


class Coalescer:
    """Owner of the lanes; `close` fails what is still waiting."""

    def __init__(
        self,
        cluster: Publisher,
        *,
        entry_region: int,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        limits: LaneLimits | None = None,
    ) -> None:
        self._cluster = cluster
        self._entry_region = entry_region
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._limits = limits or LaneLimits()
        self._lanes: dict[tuple[str, int], _LaneShell] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._closed = False

    @property
    def pending_bytes(self) -> int:
        """Return the bytes that wait or are in flight."""
        return self._bytes

    def publish(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[asyncio.Future[Published]]:
        """Queue records of one caller in order; one future per chunk, in order, with the chunk's base offset.

        Records of one call stay together unless they exceed the bytes or count of one batch (see `split`).

        Raises:
            TooLarge: a record does not fit a batch. Busy: a queue is full. Unavailable: closing. Nothing was queued.
        """
        if self._closed:
            raise Unavailable("this broker is shutting down")
        chunks = [self._chunk(part) for part in self.split(records)]
        total = sum(chunk.size_bytes for chunk in chunks)
        if self._bytes and self._bytes + total > ALL_LANES_BYTES_MAX:
            raise Busy(f"{self._bytes} bytes wait to be published on this broker, the limit is {ALL_LANES_BYTES_MAX}")
        self._lane(topic, partition).offer(chunks)
        self._bytes += total
        for chunk in chunks:
            chunk.done.add_done_callback(partial(self._chunk_done, chunk.size_bytes))
        return [chunk.done for chunk in chunks]

    def split(self, records: Sequence[NewRecord]) -> list[Sequence[NewRecord]]:
        """Return `records` cut into parts that each fit one batch of the lane's limits."""
        parts: list[Sequence[NewRecord]] = []
        start = size = 0
        for position, record in enumerate(records):
            record_bytes = record.size_bytes
            if record_bytes > RECORD_BYTES_MAX:
                raise TooLarge(f"record {position} of {record_bytes} bytes is over the {RECORD_BYTES_MAX} of a record")
            full = size + record_bytes > self._limits.batch_bytes or position - start >= self._limits.batch_records
            if position > start and full:
                parts.append(records[start:position])
                start, size = position, 0
            size += record_bytes
        parts.append(records[start:])
        return parts

    async def close(self) -> None:
        """Fail what waits, stop the timers, end the tasks."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _chunk(self, records: Sequence[NewRecord]) -> RecordChunk:
        done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        return RecordChunk(records, sum(record.size_bytes for record in records), self._wall_ns(), done)

    def _chunk_done(self, size_bytes: int, done: asyncio.Future[Published]) -> None:
        self._bytes -= size_bytes
        if not done.cancelled():
            done.exception()  # a caller that went away must not leave "exception was never retrieved"

    def _lane(self, topic: str, partition: int) -> _LaneShell:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._drop_idle_lane()
            lane = _LaneShell(
                topic,
                partition,
                limits=self._limits,
                monotonic_ns=self._monotonic_ns,
                send=self._send,
                allocate=self._allocate,
            )
            self._lanes[topic, partition] = lane
        return lane

    def _drop_idle_lane(self) -> None:
        for key, lane in self._lanes.items():
            if lane.idle:
                lane.close()
                del self._lanes[key]
                return
        raise Busy(f"records wait for {LANES_MAX} partitions on this broker already")

    def _send(self, lane: _LaneShell, batch: LaneBatch[RecordChunk]) -> asyncio.Future[Published]:
        records = [record for chunk in batch.chunks for record in chunk.records]
        arrival_ms = [chunk.received_ns // 1_000_000 for chunk in batch.chunks for _ in chunk.records]
        raw = build_batch(
            [(record.value, record.key, record.headers) for record in records],
            timestamps_ms=[
                at if record.timestamp_ms is None else record.timestamp_ms
                for record, at in zip(records, arrival_ms, strict=True)
            ],
            producer_id=batch.producer_id,
            producer_epoch=0,
            base_sequence=batch.sequence,
        )
        return self._cluster.publish(
            lane.topic,
            lane.partition,
            parse_header(raw),
            bytearray(raw),
            received_ns=batch.chunks[0].received_ns,
            entry_region=self._entry_region,
            lane=lane,
        )

    def _allocate(self, lane: _LaneShell) -> None:
        task = asyncio.get_running_loop().create_task(self._assign_producer(lane), name=f"producer-id {lane.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _assign_producer(self, lane: _LaneShell) -> None:
        """Ask until there is an id or nobody waits any more (callers have a deadline)."""
        try:
            while not lane.idle:
                try:
                    producer_id = await self._cluster.allocate_producer_id()
                except GeorelayError as error:
                    log.warning("producer_id.refused", topic=lane.topic, partition=lane.partition, error=str(error))
                    await asyncio.sleep(ALLOCATE_RETRY_S)
                else:
                    lane.producer_assigned(producer_id)
                    return
        finally:
            lane.allocation_ended()


class _LaneShell:
    """One lane's timer, futures and calls; all decisions are the core's."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        limits: LaneLimits,
        monotonic_ns: Callable[[], int],
        send: Callable[[_LaneShell, LaneBatch[RecordChunk]], asyncio.Future[Published]],
        allocate: Callable[[_LaneShell], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._core: Lane[RecordChunk] = Lane(limits=limits)
        self._monotonic_ns = monotonic_ns
        self._send = send
        self._allocate = allocate
        self._allocating = False
        self._closed = False
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._open_chunks: set[RecordChunk] = set()

    @property
    def idle(self) -> bool:
        return self._core.idle

    def offer(self, chunks: Sequence[RecordChunk]) -> None:
        now_ns = self._monotonic_ns()
        for position, chunk in enumerate(chunks):
            try:
                self._core.offer(now_ns, chunk)
            except Busy as busy:
                if position == 0:
                    raise
                # The first chunks are on their way; the caller learns of the rest through their futures.
                for rest in chunks[position:]:
                    rest.done.set_exception(busy)
                break
            self._open_chunks.add(chunk)
        if not self._pump_scheduled:  # once per loop turn, so that offers of one turn travel together
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def producer_assigned(self, producer_id: int) -> None:
        self._allocating = False
        if not self._closed:
            self._core.producer_assigned(producer_id)
            self._pump()

    def allocation_ended(self) -> None:
        self._allocating = False

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for chunk in self._open_chunks:
            if not chunk.done.done():
                chunk.done.set_exception(OutcomeUnknown("this broker is shutting down; the records may be stored"))
        self._open_chunks.clear()

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        now_ns = self._monotonic_ns()
        self._tell(self._core.expire(now_ns))
        while (batch := self._core.next_batch(now_ns)) is not None:
            self._start(batch, now_ns)
        if self._core.state is LaneState.NEEDS_PRODUCER and not self._core.idle and not self._allocating:
            self._allocating = True
            self._allocate(self)
        self._set_timer(now_ns)

    def _start(self, batch: LaneBatch[RecordChunk], now_ns: int) -> None:
        try:
            future = self._send(self, batch)
        except GeorelayError as error:
            self._tell(self._core.failed(batch, error, now_ns))
        else:
            future.add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: LaneBatch[RecordChunk], future: asyncio.Future[Published]) -> None:
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        error = OutcomeUnknown("the publish was cancelled") if future.cancelled() else future.exception()
        if error is None:
            if self._core.acked(batch):
                self._deliver(batch, future.result())
        elif isinstance(error, GeorelayError):
            self._tell(self._core.failed(batch, error, self._monotonic_ns()))
        else:
            log.error("publish.broke", topic=self.topic, partition=self.partition, error=repr(error))
            unknown = OutcomeUnknown("the broker failed while it published; the records may be stored")
            self._tell(self._core.failed(batch, unknown, self._monotonic_ns()))
        self._pump()

    def _deliver(self, batch: LaneBatch[RecordChunk], published: Published) -> None:
        offset = published.base_offset
        for chunk in batch.chunks:
            self._open_chunks.discard(chunk)
            if not chunk.done.done():
                chunk.done.set_result(
                    Published(
                        epoch=published.epoch,
                        base_offset=offset,
                        append_us=published.append_us,
                        log_start=published.log_start,
                    )
                )
            offset = Offset(offset + chunk.record_count)

    def _tell(self, given_up: Sequence[GivenUp[RecordChunk]]) -> None:
        for lost in given_up:
            log.warning(
                "batch.given_up", topic=self.topic, partition=self.partition, code=lost.error.code,
                records=lost.batch.record_count,
            )  # fmt: skip
            for chunk in lost.batch.chunks:
                self._open_chunks.discard(chunk)
                if not chunk.done.done():
                    chunk.done.set_exception(lost.error)

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = self._core.wake_at_ns()
        if wake_ns is not None:
            delay_s = max(0, wake_ns - now_ns) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)
