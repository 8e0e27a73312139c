"""Records of gRPC and REST callers become idempotent batches: a `RecordLane` for each partition.

Rule 1: one lane per (topic, partition, asked level) with a producer id of its own, which no client may use, so a
        resend after a leader change or a lost answer is recognised by the stream and never stored twice. Deadlines of
        nearly the same length are one level: a caller who makes up a new one for each record gets no lane and no
        producer id for it.
Rule 2: no task per record or batch: answers arrive by future callbacks, waiting is one timer per lane.
Rule 3: everything is bounded: bytes per lane, bytes of all lanes, number of lanes, time until a caller is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from georelay.errors import Busy, GeorelayError, Unavailable
from georelay.ids import brokers_own
from georelay.lane import NewRecord, RecordChunk, RecordLane, new_chunk, split_records
from georelay.lane_core import LaneBatch, LaneLimits
from georelay.limits import MIB, RECORD_BATCH_BYTES_MAX
from georelay.wire.batch import HEADER_BYTES, build_batch
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.kafka.ports import Publish, Published
from region.kafka.refused_publishes import NoteRefused, nobody_notes

log = structlog.get_logger()

LANES_MAX: Final = 20_000
ALL_LANES_BYTES_MAX: Final = 128 * MIB  # waiting and in flight together
ALLOCATE_RETRY_S: Final = 0.1
PACE_NS: Final = 5_000_000  # between two batches of a lane in which callers wait for each other
OUTAGE_NS: Final = 5_000_000_000  # without a leader: longer than an election on a busy machine

__all__ = ["Coalescer", "NewRecord", "Publisher"]

_Lane: TypeAlias = RecordLane[Published]
_Place: TypeAlias = tuple[str, int, AskedLevel]


class Publisher(Protocol):
    """The two methods of the cluster that the coalescer calls (region.kafka.ports.Cluster)."""

    async def allocate_producer_id(self) -> int:
        """Return a fresh producer id."""

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Publish one batch."""


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
        refused: NoteRefused = nobody_notes,
    ) -> None:
        """`refused` is told of the records of callers that end with an error."""
        self._cluster = cluster
        self._refused = refused
        self._entry_region = entry_region
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._limits = limits or LaneLimits(pace_ns=PACE_NS, patience_ns=OUTAGE_NS)
        self._lanes: dict[_Place, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._told = ""  # why the last producer id was refused, until one is given out
        self._closed = False

    @property
    def pending_bytes(self) -> int:
        """Return the bytes that wait or are in flight."""
        return self._bytes

    def publish(
        self,
        topic: str,
        partition: int,
        records: Sequence[NewRecord],
        level: AskedLevel = REGION_LEVEL,
        *,
        batch_bytes_max: int = RECORD_BATCH_BYTES_MAX,
    ) -> list[asyncio.Future[Published]]:
        """Queue records of one caller in order; one future per chunk, in order, with the chunk's base offset.

        Args:
            batch_bytes_max: what the topic allows for a batch, in bytes (max.message.bytes).

        Records of one call stay together unless they exceed the bytes or count of one batch (see `split`). Records of
        different levels go different ways: their order among each other is not kept.

        Raises:
            TooLarge: a record does not fit a batch. Busy: a queue is full. Unavailable: closing. Nothing was queued.
        """
        try:
            return self._publish(topic, partition, records, level, batch_bytes_max)
        except GeorelayError as error:
            self._refused(topic, partition, len(records), error)
            raise

    def note_refused(self, topic: str, partition: int, records: int, error: GeorelayError) -> None:
        """Tell of records that are not even offered here, because others of their caller were refused."""
        self._refused(topic, partition, records, error)

    def _publish(
        self, topic: str, partition: int, records: Sequence[NewRecord], level: AskedLevel, batch_bytes_max: int
    ) -> list[asyncio.Future[Published]]:
        if self._closed:
            raise Unavailable("this broker is shutting down")
        chunks = [new_chunk(part, self._wall_ns(), Published) for part in self.split(records, batch_bytes_max)]
        total = sum(chunk.size_bytes for chunk in chunks)
        if self._bytes and self._bytes + total > ALL_LANES_BYTES_MAX:
            raise Busy(f"{self._bytes} bytes wait to be published on this broker, the limit is {ALL_LANES_BYTES_MAX}")
        lane = self._lane(topic, partition, level)
        lane.limit_batches(self._batch_bytes(batch_bytes_max))
        lane.offer(chunks)
        self._bytes += total
        for chunk in chunks:
            chunk.done.add_done_callback(
                partial(self._chunk_done, topic, partition, chunk.record_count, chunk.size_bytes)
            )
        return [chunk.done for chunk in chunks]

    def split(
        self, records: Sequence[NewRecord], batch_bytes_max: int = RECORD_BATCH_BYTES_MAX
    ) -> list[Sequence[NewRecord]]:
        """Return `records` cut into parts that each fit one batch of the lane's limits and of the topic's."""
        return split_records(
            records,
            self._limits,
            batch_bytes=self._batch_bytes(batch_bytes_max),
            record_bytes_max=batch_bytes_max - HEADER_BYTES,
        )

    def _batch_bytes(self, batch_bytes_max: int) -> int:
        """Return how many bytes of records travel in one batch: what a lane gathers, or what the topic allows."""
        return min(self._limits.batch_bytes, batch_bytes_max - HEADER_BYTES)

    async def close(self) -> None:
        """Fail what waits, stop the timers, end the tasks."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _chunk_done(
        self, topic: str, partition: int, records: int, size_bytes: int, done: asyncio.Future[Published]
    ) -> None:
        self._bytes -= size_bytes
        if done.cancelled():
            return
        error = done.exception()  # a caller that went away must not leave "exception was never retrieved"
        if error is not None:
            self._refused(topic, partition, records, error)

    def _lane(self, topic: str, partition: int, level: AskedLevel) -> _Lane:
        level = level.shared
        place = (topic, partition, level)
        lane = self._lanes.get(place)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._drop_idle_lane()
            lane = _Lane(
                topic,
                partition,
                limits=self._limits if not level.is_geo else _patient(self._limits, level),
                monotonic_ns=self._monotonic_ns,
                send=partial(self._send, level),
                allocate=self._allocate,
            )
            self._lanes[place] = lane
        return lane

    def _drop_idle_lane(self) -> None:
        for key, lane in self._lanes.items():
            if lane.idle:
                lane.close()
                del self._lanes[key]
                return
        raise Busy(f"records wait for {LANES_MAX} partitions on this broker already")

    def _send(
        self, level: AskedLevel, lane: _Lane, batch: LaneBatch[RecordChunk[Published]]
    ) -> asyncio.Future[Published]:
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
        received_ns = batch.chunks[0].received_ns
        publish = Publish.built(raw, received_ns=received_ns, entry_region=self._entry_region, lane=lane, level=level)
        return self._cluster.publish(lane.topic, lane.partition, publish)

    def _allocate(self, lane: _Lane) -> None:
        task = asyncio.get_running_loop().create_task(self._assign_producer(lane), name=f"producer-id {lane.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _assign_producer(self, lane: _Lane) -> None:
        """Ask until there is an id or nobody waits any more (callers have a deadline)."""
        try:
            while not lane.idle:
                try:
                    producer_id = await self._cluster.allocate_producer_id()
                except GeorelayError as error:
                    if str(error) != self._told:
                        self._told = str(error)
                        log.warning("producer_id.refused", topic=lane.topic, partition=lane.partition, error=self._told)
                    lane.producer_refused(
                        Unavailable(
                            f"no producer id: {error}; nothing was stored; `georelay status` shows what is down"
                        )
                    )
                    await asyncio.sleep(ALLOCATE_RETRY_S)
                else:
                    self._told = ""
                    lane.producer_assigned(brokers_own(producer_id))
                    return
        finally:
            lane.allocation_ended()


def _patient(limits: LaneLimits, level: AskedLevel) -> LaneLimits:
    """Return limits under which a batch may wait for its level, and be sent again before that."""
    return replace(limits, deadline_ns=limits.deadline_ns + level.deadline_ms * 1_000_000)
