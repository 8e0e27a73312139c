"""The public gRPC contract `broker.Broker` (proto/broker.proto): Publish one record, Subscribe to topics.

Rule 1: `body` is a record's value, verbatim; a record published here has no key, see region.api.partitioning.
Rule 2: an id is "<stream>/<partition>/<offset>", stream being the topic's local name (qualified for a topic that
        every region is home of): it names the same record in every region.
Rule 3: a timestamp is the append time at the home in microseconds; it never goes back within a topic's partition.
        Where streams of several origins are merged, a record that arrives late shows the newest timestamp shown.
Rule 4: a slow subscriber is waited for: per stream one batch is held, not more.
Rule 5: a publish asks for more than its home with the metadata georelay-durability (geo:2, geo:majority, geo:all) and
        georelay-deadline-ms. What it got stands in the trailing metadata; not reached in time is DEADLINE_EXCEEDED with
        the code DURABILITY_PENDING and the record's id, and it is stored.
Unsubscribing is cancelling the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import grpc
import structlog

from georelay import errors
from georelay.durability import Durability
from georelay.errors import BadRequest, DurabilityPending, GeorelayError, OffsetOutOfRange, Retry
from georelay.limits import ADMIN_BODY_BYTES_MAX, KIB
from mesh.listening.bounded_messages import reader_of
from mesh.replication.level import DEADLINE_MS, DEADLINE_MS_MAX, REGION_LEVEL, AskedLevel
from region.api._pb import broker_pb2
from region.api.answer_room import AnswerRoom, CallMemory, read_with_room
from region.api.coalescer import NewRecord
from region.api.grpc_calls import GrpcCalls
from region.api.metrics import BrokerMetrics
from region.api.permits import check_topic
from region.api.publishing import Asker, RecordPlace, RecordPublisher, require_topic
from region.api.reading import EARLIEST, StreamReader
from region.api.unfolding import Unreadable, readable_chunks
from region.coordination.shares_core import NOBODY
from region.kafka.ports import Cluster, EntryLike, TraceRecorder, TraceSession
from region.kafka.services import plain_name
from region.security.access import Operation, Principal, Resource

log = structlog.get_logger()

SERVICE: Final = "broker.Broker"
DURABILITY_METADATA: Final = "georelay-durability"
DEADLINE_METADATA: Final = "georelay-deadline-ms"
TOPICS_PER_SUBSCRIPTION_MAX: Final = 1_000
STREAMS_PER_SUBSCRIPTION_MAX: Final = 10_000
READ_BYTES: Final = 256 * KIB
READ_WAIT_MS: Final = 10_000
RECHECK_S: Final = 0.5  # of the sign-in and the rights of an open subscription
RETRY_S: Final = 0.2  # after a leader change and the like


class BrokerService:
    """Both methods; `handler` registers them on a grpc.aio server."""

    name: Final = SERVICE

    def __init__(
        self,
        *,
        cluster: Cluster,
        publisher: RecordPublisher,
        reader: StreamReader,
        calls: GrpcCalls,
        recorder: TraceRecorder,
        metrics: BrokerMetrics,
        wall_ns: Callable[[], int],
        region_name: Callable[[int], str] = str,
    ) -> None:
        self._region_name = region_name
        self._cluster = cluster
        self._publisher = publisher
        self._reader = reader
        self._calls = calls
        self._recorder = recorder
        self._wall_ns = wall_ns
        self._records_out = metrics.edge_records.labels("grpc", "out")
        self._records_in = metrics.edge_records.labels("grpc", "in")
        self._seconds = metrics.edge_seconds.labels("grpc", "publish")

    def handler(self) -> Any:
        """Return the generic RPC handler of the service."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Publish": self.publish_handler(),
                "Subscribe": grpc.unary_stream_rpc_method_handler(
                    self.subscribe,
                    request_deserializer=reader_of(broker_pb2.SubscribeRequest, bytes_max=ADMIN_BODY_BYTES_MAX),
                    response_serializer=broker_pb2.MessageResponse.SerializeToString,
                ),
            },
        )

    def publish_handler(self) -> Any:
        """Return the handler of one method, for those who carry its calls in other ones."""
        return grpc.unary_unary_rpc_method_handler(
            self.publish,
            request_deserializer=reader_of(broker_pb2.PublishRequest),
            response_serializer=broker_pb2.PublishResponse.SerializeToString,
        )

    async def publish(self, request: broker_pb2.PublishRequest, context: Any) -> broker_pb2.PublishResponse:
        """Publish one record and answer when it is committed at its home."""
        with self._seconds.time():
            try:
                principal = await self._calls.sign_in(context)
                if not request.topic:
                    raise BadRequest("topic: must not be empty")
                check_topic(self._calls.access, self._cluster, principal, Operation.WRITE, request.topic)
                level = asked_level(context.invocation_metadata())
                (place,) = await self._publisher.publish(
                    request.topic,
                    [(NewRecord(request.body), None)],
                    level,
                    asker=Asker(access=self._calls.access, principal=principal),
                )
                await self._calls.pause(self._calls.quotas.produce(principal, len(request.body)))
            except GeorelayError as error:
                await self._calls.refuse(context, "publish", error)
            except Exception:  # noqa: BLE001 - logged there; the caller gets INTERNAL instead of its text
                await self._calls.refuse_defect(context, "publish")
        self._calls.served("publish")
        self._records_in.inc()
        identity = f"{self._written_name(request.topic)}/{place.partition}/{place.offset}"
        if level.is_geo:
            await self._tell_level(context, place, identity)
        return broker_pb2.PublishResponse(id=identity)

    async def _tell_level(self, context: Any, place: RecordPlace, identity: str) -> None:
        """Say in the trailing metadata what a publish got; end the call when that is less than it asked for."""
        regions = tuple(self._region_name(region) for region in place.regions)
        told = (
            ("georelay-id", identity),
            ("georelay-epoch", str(place.epoch)),
            ("georelay-offset", str(place.offset)),
            ("georelay-regions", ",".join(regions)),
            ("georelay-commit-us", str(place.append_us)),
        )
        if not place.is_pending:
            context.set_trailing_metadata(told)
            return
        topic = identity.split("/", 1)[0]
        pending = DurabilityPending.at(topic, place.partition, epoch=place.epoch, offset=place.offset, regions=regions)
        await self._calls.refuse(context, "publish", pending, told)

    async def subscribe(
        self, request: broker_pb2.SubscribeRequest, context: Any
    ) -> AsyncIterator[broker_pb2.MessageResponse]:
        """Deliver records of all partitions of the topics, from the given timestamps on, until cancelled."""
        try:
            principal = await self._calls.sign_in(context)
            for topic in request.topics:
                if topic:
                    check_topic(self._calls.access, self._cluster, principal, Operation.READ, topic)
            subscription = await self._open(request, Asker(access=self._calls.access, principal=principal))
            subscription.watch(partial(self._check_rights, principal, tuple(request.topics)))
        except GeorelayError as error:
            await self._calls.refuse(context, "subscribe", error)
        self._calls.served("subscribe")
        try:
            async for message in subscription.messages():
                self._check_rights(principal, (message.topic,))
                await self._calls.pause(self._calls.quotas.fetch(principal, len(message.body)))
                self._records_out.inc()
                yield message
        except GeorelayError as error:
            await self._calls.refuse(context, "subscribe", error)
        except Exception:  # noqa: BLE001 - as above
            await self._calls.refuse_defect(context, "subscribe")
        finally:
            await subscription.close()

    def _check_rights(self, principal: Principal, topics: Iterable[str]) -> None:
        self._calls.check_still_valid(principal)
        for topic in topics:
            self._calls.access.check(principal, Operation.READ, Resource.TOPIC, topic)

    async def _open(self, request: broker_pb2.SubscribeRequest, asker: Asker) -> Subscription:
        if not request.topics:
            raise BadRequest("topics: at least one topic must be named")
        if len(request.topics) > TOPICS_PER_SUBSCRIPTION_MAX:
            raise BadRequest(f"topics: {len(request.topics)} are over {TOPICS_PER_SUBSCRIPTION_MAX} per subscription")
        subscription = Subscription(self._reader, wall_ns=self._wall_ns)
        sources: list[Source] = []
        for topic, since_us in request.topics.items():
            if not topic:
                raise BadRequest("topics: a topic name is empty")
            view = await require_topic(self._cluster, topic, asker)
            for name in self._cluster.stream_names(topic):
                stream_view = self._cluster.topic(name) or view
                for partition in range(view.partitions):
                    sources.append(
                        Source(
                            topic=topic,
                            name=name,
                            partition=partition,
                            since_us=since_us,
                            plain=plain_name(view),
                            origin=stream_view.origin,
                            recorder=self._recorder,
                        )
                    )
        if len(sources) > STREAMS_PER_SUBSCRIPTION_MAX:
            raise BadRequest(f"topics: {len(sources)} partitions are over {STREAMS_PER_SUBSCRIPTION_MAX}")
        subscription.start(sources)
        return subscription

    def _written_name(self, topic: str) -> str:
        """Return the local name of the stream that a publish to `topic` went to (as Subscribe would name it)."""
        view = self._cluster.topic(topic)
        names = self._cluster.stream_names(topic)
        own = f"{self._cluster.region}.{topic}"
        return own if view is not None and len(names) > 1 and own in names else topic


def asked_level(metadata: Iterable[tuple[str, str | bytes]] | None) -> AskedLevel:
    """Return what the metadata of a call asks of its home (BadRequest: an unknown level, or a bad deadline)."""
    given = {name: str(value) for name, value in metadata or () if name in (DURABILITY_METADATA, DEADLINE_METADATA)}
    if not given:
        return REGION_LEVEL
    durability = Durability.parse(given.get(DURABILITY_METADATA, "region"))
    text = given.get(DEADLINE_METADATA, str(DEADLINE_MS))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= DEADLINE_MS_MAX):
        raise BadRequest(f"{DEADLINE_METADATA}: {text[:20]!r} is not in 1..{DEADLINE_MS_MAX}")
    return AskedLevel(durability=durability, deadline_ms=int(text)) if durability.is_geo else REGION_LEVEL


class Source:
    """One stream's partition inside a subscription."""

    __slots__ = ("name", "next_offset", "origin", "partition", "plain", "recorder", "since_us", "topic")

    def __init__(
        self,
        *,
        topic: str,
        name: str,
        partition: int,
        since_us: int,
        plain: str,
        origin: int,
        recorder: TraceRecorder,
    ) -> None:
        self.topic = topic
        self.name = name
        self.partition = partition
        self.since_us = since_us
        self.plain = plain
        self.origin = origin
        self.recorder = recorder
        self.next_offset = EARLIEST

    def trace(self, offset: int) -> TraceSession:
        """Open the delivery session that starts at `offset`."""
        return self.recorder.open_session(topic=self.plain, origin=self.origin, partition=self.partition, offset=offset)


class Subscription:
    """Readers of all sources, one task each, into one bounded queue that the caller drains.

    What they have read meanwhile has room in the memory of the call.
    """

    def __init__(self, reader: StreamReader, *, wall_ns: Callable[[], int]) -> None:
        self._reader = reader
        self._wall_ns = wall_ns
        self._queue: asyncio.Queue[tuple[Source, EntryLike, TraceSession] | GeorelayError] = asyncio.Queue(maxsize=1)
        self._memory = CallMemory()
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest_us: dict[tuple[str, int], int] = {}

    def start(self, sources: list[Source]) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        for source in sources:
            task = loop.create_task(self._guarded_pump(source), name=f"subscribe {source.name}/{source.partition}")
            self._tasks.add(task)

    def watch(self, check: Callable[[], None]) -> None:
        """End it when `check` raises, records or not."""
        self._tasks.add(asyncio.get_running_loop().create_task(self._watch(check), name="subscription rights"))

    async def _watch(self, check: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            try:
                check()
                self._memory.check()
            except GeorelayError as error:
                for task in self._tasks:  # what they hold is for others, whether or not the client hears this
                    if task is not asyncio.current_task():
                        task.cancel()
                await self._queue.put(error)
                return

    async def messages(self) -> AsyncIterator[broker_pb2.MessageResponse]:
        """Yield records as they are committed.

        Raises:
            GeorelayError: a topic was deleted, or a batch cannot be read.
        """
        while True:
            item = await self._queue.get()
            if isinstance(item, GeorelayError):
                raise item
            source, entry, session = item
            header = entry.header()
            place = (source.topic, source.partition)
            stamp_us = self._newest_us[place] = max(self._newest_us.get(place, 0), header.append_us)
            async with aclosing(readable_chunks(entry, f"{source.name}/{source.partition}")) as chunks:
                async for chunk in chunks:
                    for record in () if isinstance(chunk, Unreadable) else chunk:
                        yield broker_pb2.MessageResponse(
                            id=f"{source.name}/{source.partition}/{record.offset}",
                            timestamp=stamp_us,
                            topic=source.topic,
                            body=record.value or b"",
                        )
            session.delivered(
                epoch=header.epoch,
                base_offset=entry.base_offset,
                record_count=entry.record_count,
                entry_region=header.entry_region,
                received_ns=header.received_ns,
                delivered_ns=self._wall_ns(),
                size_bytes=len(entry.payload),
            )

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded_pump(self, source: Source) -> None:
        """A reader that breaks must end the subscription, never leave it silent."""
        room = AnswerRoom(NOBODY, self._memory)
        try:
            await self._pump(source, room)
        except Exception:
            log.exception("subscription.broke", stream=source.name, partition=source.partition)
            await self._queue.put(GeorelayError("internal error; the broker's log has the cause"))
        finally:
            room.end()

    async def _pump(self, source: Source, room: AnswerRoom) -> None:
        """Read one stream for ever; what passes by itself is waited for, anything else ends the subscription."""
        session: TraceSession | None = None
        while True:
            room.end()
            try:
                if source.next_offset == EARLIEST:
                    source.next_offset = await self._first_offset(source)
                if session is None:
                    session = source.trace(source.next_offset)
                read = partial(self._reader.read, source.name, source.partition, source.next_offset)
                answer = await read_with_room(partial(read, max_bytes=READ_BYTES, wait_ms=READ_WAIT_MS), room)
            except OffsetOutOfRange as error:  # retention overtook a slow subscriber
                log.warning("subscription.overtaken", stream=source.name, partition=source.partition, error=str(error))
                source.since_us, source.next_offset, session = 0, EARLIEST, None
                await asyncio.sleep(RETRY_S)
                continue
            except GeorelayError as error:
                if error.retry is not Retry.LATER and not isinstance(error, errors.NotLeader | errors.NotHome):
                    await self._queue.put(error)
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if source.next_offset >= answer.end:
                session.caught_up(self._wall_ns())
            for entry in answer.entries:
                if entry.header().append_us >= source.since_us:
                    await self._queue.put((source, entry, session))
                source.next_offset = entry.base_offset + entry.record_count
            source.next_offset = max(source.next_offset, answer.next_offset)
            if source.next_offset >= answer.end:
                session.caught_up(self._wall_ns())

    async def _first_offset(self, source: Source) -> int:
        if source.since_us > 0:
            return await self._reader.first_offset_since(source.name, source.partition, source.since_us)
        answer = await self._reader.read(source.name, source.partition, EARLIEST, max_bytes=1, wait_ms=0)
        return answer.log_start
