"""Publishing: records become idempotent batches, one lane per partition, resent until their outcome is known.

Rule 1: a record is stored exactly once, or its future says why not. A batch whose outcome is unknown is sent again
        with its producer id and sequence, which streams recognise; a record is never sent under a second identity
        while it may be stored under the first.
Rule 2: records of one producer for one partition are stored in the order in which they were sent.
Rule 3: memory is bounded: `send` waits while `buffer_bytes` are on their way.
Rule 4: batches go to the partition's leader while it is known; any broker passes on what is not in a transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.durability import Durability, Stored
from georelay.errors import (
    BadRequest,
    DurabilityPending,
    GeorelayError,
    NotHome,
    NotLeader,
    Outcome,
    OutcomeUnknown,
    Retry,
    TooLarge,
    UnknownTopic,
)
from georelay.lane import NewRecord, RecordChunk, RecordLane, new_chunk, split_records
from georelay.lane_core import LaneBatch, LaneLimits
from georelay.library_log import log
from georelay.limits import KIB, MIB
from georelay.publish_stream import PublishStream
from georelay.refusals import error_of
from georelay.region_map import RegionMap, Route
from georelay.wire.compression import Compression
from georelay.wire.murmur2 import partition_for_key
from georelay.wire.records import build_batch

if TYPE_CHECKING:
    from georelay.transaction import Transaction

INIT_TIMEOUT_S: Final = 30.0
ALLOCATE_RETRY_S: Final = 0.2
STICKY_BYTES: Final = 16 * KIB  # records without a key stay with one partition for so long: larger batches

Headers = Iterable[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer works.

    Args:
        durability: asked of every publish. What is stored and not there by `deadline_s` fails with DurabilityPending,
            which says where it is.
        deadline_s: for a geo durability, of one attempt, 0.001..300; 0: `request_timeout_s`.
        linger_ms: how long records wait for others while a batch is out; an idle partition sends at once.
        batch_bytes: of one batch before compression, 1 KiB..1 MiB or so; a larger record travels alone.
        compression: of batches: none, gzip, snappy, lz4, zstd (the last three with `georelay[codecs]`).
        delivery_timeout_s: after it a record's future fails, however often it was tried.
        request_timeout_s: of one attempt.
        buffer_bytes: records on their way, beyond which `send` waits.
        transactional_id: of a producer for transactions; one producer at a time may have it.
        transaction_timeout_s: after it the coordinator aborts.
    """

    durability: Durability = Durability.REGION
    deadline_s: float = 0.0
    linger_ms: float = 2.0
    batch_bytes: int = 256 * KIB
    batch_records: int = 10_000
    compression: Compression = Compression.NONE
    delivery_timeout_s: float = 120.0
    request_timeout_s: float = 10.0
    buffer_bytes: int = 32 * MIB
    transactional_id: str = ""
    transaction_timeout_s: float = 60.0

    @property
    def deadline_ms(self) -> int:
        """Return how long a broker may take to answer one publish, in milliseconds."""
        seconds = self.deadline_s if self.durability.is_geo and self.deadline_s else self.request_timeout_s
        return int(seconds * 1000)

    def lane_limits(self) -> LaneLimits:
        """Return the bounds of each partition's lane."""
        return LaneLimits(
            linger_ns=int(self.linger_ms * 1e6),
            batch_bytes=self.batch_bytes,
            batch_records=self.batch_records,
            queue_bytes=self.buffer_bytes,
            deadline_ns=int(self.delivery_timeout_s * 1e9),
        )


@dataclass(slots=True, kw_only=True)
class ProducerIdentity:
    """A producer id and its epoch; epochs count for transactions only."""

    producer_id: int
    producer_epoch: int = 0


@dataclass(slots=True)
class _Turn:
    """Which partition records of a topic without a key go to now."""

    partition: int = -1
    bytes_left: int = 0


@dataclass(slots=True)
class ProducerCounters:
    """What a producer has done since it was made."""

    records_sent: int = 0
    records_stored: int = 0
    records_failed: int = 0
    batches_sent: int = 0
    batches_failed: int = 0  # attempts; most are sent again


class Producer:
    """Made by `Connection.producer`; use as an async context manager, or call `close`."""

    def __init__(self, channels: Channels, region: RegionMap, settings: ProducerSettings) -> None:
        self.settings = settings
        self.counters = ProducerCounters()
        self._channels = channels
        self._region = region
        self._limits = settings.lane_limits()
        self._lanes: dict[tuple[str, int], RecordLane[Stored]] = {}
        self._turns: dict[str, _Turn] = {}
        self._streams: dict[Route, PublishStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._identity: ProducerIdentity | None = None
        self._identity_lock = asyncio.Lock()
        self._maybe_in: dict[RecordLane[Stored], str] = {}  # region of the newest unknown outcome
        self._used: dict[RecordLane[Stored], int] = {}  # lane -> the producer id that it has had
        self._bytes = 0
        self._room = asyncio.Event()  # something was answered
        self._closed = False
        self._transaction: Transaction | None = None
        self._left: set[PublishStream] = set()  # of regions that were left, until what they sent is answered
        region.on_left.append(self._region_left)
        if settings.transactional_id:
            region.stays = True  # all partitions of a transaction have their home where the client works

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- publishing --------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Stored]:
        """Put a record on its way and return the future of its place; waits only while the buffer is full.

        Raises:
            UnknownTopic, TooLarge, BadRequest: it was not put on its way.
        The future raises GeorelayError; its `outcome` says whether the record may be stored.
        """
        record = NewRecord(value, key, tuple(headers), timestamp_ms)
        return await self.send_many(topic, [record], partition=partition)

    async def send_many(
        self, topic: str, records: Sequence[NewRecord], *, partition: int | None = None
    ) -> asyncio.Future[Stored]:
        """Put records on their way in one batch for one partition: that of the first one's key, or the next in turn.

        Raises:
            TooLarge: they do not fit one batch. Others as `send`.
        """
        if self._closed:
            raise BadRequest("the producer is closed")
        if not records:
            raise BadRequest("no records to send")
        if len(split_records(records, self._limits)) > 1:
            raise TooLarge(f"{len(records)} records do not fit a batch of {self._limits.batch_bytes} bytes")
        chunk = new_chunk(records, time.time_ns(), Stored)
        partition = await self._choose(topic, records[0].key, partition, chunk.size_bytes)
        if self._transaction is not None:
            await self._transaction.include(topic, partition)
        elif self.settings.transactional_id:
            raise BadRequest("a producer with a transactional id publishes inside `async with producer.transaction()`")
        await self._wait_for_room(chunk.size_bytes)
        self._lane(topic, partition).offer([chunk])
        self.counters.records_sent += len(records)
        chunk.done.add_done_callback(lambda done: self._finished(chunk, done))
        return chunk.done

    async def publish(self, topic: str, value: bytes | None, **settings: Any) -> Stored:
        """Send a record and wait until it is stored; arguments and errors as `send`."""
        return await (await self.send(topic, value, **settings))

    async def flush(self) -> None:
        """Return when everything that was sent has its outcome; failures are in the records' futures."""
        while open_futures := [future for lane in self._lanes.values() for future in lane.open_futures]:
            await asyncio.wait(open_futures)

    async def close(self) -> None:
        """Flush, then let everything go."""
        if self._closed:
            return
        self._closed = True
        await self.flush()
        self._drop_lanes(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._region.on_left.remove(self._region_left)
        await asyncio.gather(*(stream.close() for stream in (*self._streams.values(), *self._left)))
        self._streams.clear()

    def transaction(self) -> Transaction:
        """Return a transaction: `async with producer.transaction() as transaction:` (see georelay.transaction).

        Raises:
            BadRequest: no transactional id, or one is open.
        """
        from georelay.transaction import Transaction

        if not self.settings.transactional_id:
            raise BadRequest("transactions need a producer with a transactional_id")
        if self._transaction is not None:
            raise BadRequest("this producer's transaction is still open")
        return Transaction(self, self._region)

    # --- partitions --------------------------------------------------------------------------------

    async def _choose(self, topic: str, key: bytes | None, wanted: int | None, size_bytes: int) -> int:
        places = self._region.known_places(topic) or await self._region.places(topic)
        count = len(places.leaders)
        if wanted is not None:
            if not 0 <= wanted < count:
                raise UnknownTopic(f"topic {topic!r} has partitions 0..{count - 1}, not {wanted}")
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        turn = self._turns.setdefault(topic, _Turn())
        if turn.bytes_left <= 0 or turn.partition >= count:
            turn.partition, turn.bytes_left = (turn.partition + 1) % count, STICKY_BYTES
        turn.bytes_left -= size_bytes
        return turn.partition

    async def _wait_for_room(self, size_bytes: int) -> None:
        while self._bytes and self._bytes + size_bytes > self.settings.buffer_bytes:
            self._room.clear()
            await self._room.wait()
        self._bytes += size_bytes

    def _finished(self, chunk: RecordChunk[Stored], done: asyncio.Future[Stored]) -> None:
        self._bytes -= chunk.size_bytes
        if not done.cancelled() and done.exception() is None:
            self.counters.records_stored += chunk.record_count
        else:
            self.counters.records_failed += chunk.record_count
        self._room.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- batches -----------------------------------------------------------------------------------

    def _lane(self, topic: str, partition: int) -> RecordLane[Stored]:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = RecordLane(
                topic,
                partition,
                limits=self._limits,
                monotonic_ns=time.monotonic_ns,
                send=self._send_batch,
                allocate=lambda lane: self._spawn(self._assign(lane)),
                settle=_settle_chunk,
            )
        return lane

    def _send_batch(self, lane: RecordLane[Stored], batch: LaneBatch[RecordChunk[Stored]]) -> asyncio.Future[Stored]:
        assert self._identity is not None
        is_transactional = bool(self.settings.transactional_id)
        raw = build_batch(
            [(record.value, record.key, record.headers) for chunk in batch.chunks for record in chunk.records],
            timestamps_ms=[
                chunk.received_ns // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
                for chunk in batch.chunks
                for record in chunk.records
            ],
            compression=self.settings.compression,
            producer_id=batch.producer_id,
            producer_epoch=self._identity.producer_epoch if is_transactional else 0,
            base_sequence=batch.sequence,
            is_transactional=is_transactional,
        )
        publish = pb.Publish(
            topic=lane.topic,
            partition=lane.partition,
            batch=raw,
            level=self.settings.durability.level,
            regions=self.settings.durability.regions,
            deadline_ms=self.settings.deadline_ms,
            transactional_id=self.settings.transactional_id,
        )
        route = self._region.route_to(lane.topic, lane.partition)
        self.counters.batches_sent += 1
        stream = self._stream(route)
        answered = stream.publish(publish, only_in=self._only_region(lane) if batch.maybe_stored else "")
        stored: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda done: self._settle(lane, stream, done, stored))
        return stored

    def _only_region(self, lane: RecordLane[Stored]) -> str:
        """Return where alone a batch that may be stored is sent again.

        Where every region is home of a stream of its own, another region would store it a second time (rule 1).
        """
        places = self._region.known_places(lane.topic)
        return "" if places is None or places.home else self._maybe_in.get(lane, "")

    def _settle(
        self,
        lane: RecordLane[Stored],
        stream: PublishStream,
        answered: asyncio.Future[pb.Acknowledgement],
        stored: asyncio.Future[Stored],
    ) -> None:
        if stored.done():
            return
        error: BaseException | None = answered.exception()
        if error is None:
            answer = answered.result()
            if answer.outcome in (pb.OUTCOME_STORED, pb.OUTCOME_PENDING):
                stored.set_result(_stored(lane, answer))
                return
            error = _error_of(answer)
        self.counters.batches_failed += 1
        if isinstance(error, GeorelayError) and error.outcome is Outcome.UNKNOWN:
            self._maybe_in[lane] = stream.region
        if isinstance(error, NotLeader | NotHome) or (
            isinstance(error, GeorelayError) and error.retry is Retry.REFRESH
        ):
            self._region.refresh_soon()
        stored.set_exception(error)

    def _stream(self, route: Route) -> PublishStream:
        stream = self._streams.get(route)
        if stream is None or stream.is_over:
            stream = self._streams[route] = PublishStream(self._channels, route, lost=self._stream_lost)
        return stream

    def _stream_lost(self, stream: PublishStream, error: GeorelayError) -> None:
        if stream in self._left:
            self._left.remove(stream)
            return
        log.info("publish_stream.lost", address=stream.address, error=str(error))
        if self._streams.get(stream.route) is stream:
            del self._streams[stream.route]
        self._region.suspect(stream.address)

    def _region_left(self, addresses: Collection[str], _: bool) -> None:
        """Publish over the new region from now on; what is out keeps its stream until it is answered."""
        for route, stream in list(self._streams.items()):
            if stream.address in addresses:
                del self._streams[route]
                stream.leave()
                if not stream.is_over:
                    self._left.add(stream)

    # --- identity ----------------------------------------------------------------------------------

    async def _assign(self, lane: RecordLane[Stored]) -> None:
        """Get a lane its producer id: the shared one at first, later one that it has not had."""
        try:
            while not lane.idle:
                try:
                    identity = await self.identity()
                    if self._used.get(lane) == identity.producer_id:
                        if self.settings.transactional_id:  # a gap in a transaction: it can only be aborted
                            self._drop_lane(lane)
                            return
                        identity = await self.renew(identity)
                except GeorelayError as error:
                    if error.retry not in (Retry.LATER, Retry.REFRESH):
                        self._drop_lane(lane, error)
                        return
                    await asyncio.sleep(ALLOCATE_RETRY_S)
                else:
                    self._used[lane] = identity.producer_id
                    lane.producer_assigned(identity.producer_id)
                    return
        finally:
            lane.allocation_ended()

    async def identity(self) -> ProducerIdentity:
        """Return the producer id in use, asked for once."""
        async with self._identity_lock:
            if self._identity is None:
                self._identity = await self._init(None)
            return self._identity

    async def renew(self, old: ProducerIdentity) -> ProducerIdentity:
        """Return a newer identity than `old`: another id, or for transactions the next epoch."""
        async with self._identity_lock:
            if self._identity is None or self._identity is old:
                self._identity = await self._init(old)
                if self.settings.transactional_id:
                    self._drop_lanes(OutcomeUnknown("the transaction was given up"))  # their sequences begin anew
            return self._identity

    async def _init(self, old: ProducerIdentity | None) -> ProducerIdentity:
        request = pb.InitProducerRequest(
            transactional_id=self.settings.transactional_id,
            transaction_timeout_ms=int(self.settings.transaction_timeout_s * 1000),
        )
        if old is not None and self.settings.transactional_id:
            request.producer_id, request.producer_epoch = old.producer_id, old.producer_epoch
        answer = await self._region.ask("InitProducer", request, pb.InitProducerResponse, timeout_s=INIT_TIMEOUT_S)
        return ProducerIdentity(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)

    def _drop_lane(self, lane: RecordLane[Stored], error: GeorelayError | None = None) -> None:
        self._used.pop(lane, None)
        self._maybe_in.pop(lane, None)
        if self._lanes.get((lane.topic, lane.partition)) is lane:
            del self._lanes[lane.topic, lane.partition]
        lane.close(error)

    def _drop_lanes(self, error: GeorelayError | None) -> None:
        for lane in list(self._lanes.values()):
            self._drop_lane(lane, error)

    # --- transactions ------------------------------------------------------------------------------

    def enter(self, transaction: Transaction | None) -> None:
        """Let records belong to a transaction from now on; None: to none. For georelay.transaction only."""
        self._transaction = transaction


def _stored(lane: RecordLane[Stored], answer: pb.Acknowledgement) -> Stored:
    return Stored(
        topic=lane.topic,
        partition=lane.partition,
        epoch=answer.epoch,
        base_offset=answer.base_offset,
        commit_us=answer.commit_us,
        durability=Durability.REGION if answer.level == pb.LEVEL_REGION else Durability(max(1, len(answer.regions))),
        regions=tuple(answer.regions),
        is_pending=answer.outcome == pb.OUTCOME_PENDING,
    )


def _settle_chunk(done: asyncio.Future[Stored], stored: Stored) -> None:
    """Answer who sent a record: with its place, or with the error that it has not reached its durability."""
    if not stored.is_pending:
        done.set_result(stored)
        return
    pending = DurabilityPending.at(
        stored.topic, stored.partition, epoch=stored.epoch, offset=stored.offset, regions=stored.regions
    )
    done.set_exception(pending)


def _error_of(answer: pb.Acknowledgement) -> GeorelayError:
    """Return the error of an acknowledgement of what is not stored, or perhaps."""
    error = error_of(answer.refusal)
    if answer.outcome == pb.OUTCOME_UNKNOWN and error.outcome is not Outcome.UNKNOWN:
        return OutcomeUnknown(str(error))
    return error
