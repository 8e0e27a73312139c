"""The client without asyncio: the same names, each method waits for its result.

    with georelay.sync.connect("http://127.0.0.1:8080") as mesh:
        with mesh.producer() as producer:
            producer.publish("orders", b"one")

One thread with an event loop of its own serves a connection and everything opened from it; the objects here may be
used from several threads. Callbacks of a consumer run in that thread: they must not call methods of this module.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from georelay import connection as asynchronous
from georelay.admin import GroupState, StreamOffsets, Topic
from georelay.consumed import ConsumedRecord
from georelay.consumer import Consumer as AsyncConsumer
from georelay.durability import Resolution, Stored
from georelay.lane import NewRecord
from georelay.positions import Place, Position, Since, Start
from georelay.producer import Producer as AsyncProducer
from georelay.queue_consumer import QueueConsumer as AsyncQueueConsumer
from georelay.queue_consumer import QueuedRecord as AsyncQueuedRecord
from georelay.transaction import Transaction as AsyncTransaction

T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="georelay", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait; an interrupted wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End loop and thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Connection:
    """See georelay.connection.Connection."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._thread = _LoopThread()
        try:
            self._connection = self._thread.run(_made(url, settings))
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def region(self) -> str:
        """Return the name of the region that answers."""
        return self._connection.region

    @property
    def admin(self) -> Admin:
        """Return the administration."""
        return Admin(self._connection, self._thread)

    def producer(self, **settings: Any) -> Producer:
        """Return a producer; arguments as georelay.producer.ProducerSettings."""
        return Producer(self._thread.run(_called(self._connection.producer, **settings)), self._thread)

    def consumer(self, topics: Iterable[str] = (), **settings: Any) -> Consumer:
        """Return a consumer that is reading; arguments as georelay.connection.Connection.consumer."""
        return Consumer(self._thread.run(_opened(self._connection, tuple(topics), settings)), self._thread)

    def queue(self, queue: str, **settings: Any) -> QueueConsumer:
        """Return a consumer of a queue; arguments as georelay.connection.Connection.queue."""
        return QueueConsumer(self._thread.run(_called(self._connection.queue, queue=queue, **settings)), self._thread)

    def resolve(self, topic: str, partition: int, **settings: Any) -> Resolution:
        """Return what became of a record; arguments and errors as georelay.connection.Connection.resolve."""
        return self._thread.run(self._connection.resolve(topic, partition, **settings))

    def close(self) -> None:
        """Let everything go."""
        self._thread.run(self._connection.close())
        self._thread.stop()


def connect(url: str, **settings: Any) -> Connection:
    """Connect to a mesh; arguments and errors as georelay.connect."""
    return Connection(url, **settings)


class Delivery:
    """A record on its way."""

    def __init__(self, future: concurrent.futures.Future[Stored]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Return whether its outcome is known."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Stored:
        """Wait for its place (GeorelayError; TimeoutError: not known yet)."""
        return self._future.result(timeout_s)


class Producer:
    """See georelay.producer.Producer."""

    def __init__(self, producer: AsyncProducer, thread: _LoopThread) -> None:
        self._producer = producer
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, topic: str, value: bytes | None, **settings: Any) -> Delivery:
        """Put a record on its way; waits only while the buffer is full."""
        return self._delivery(self._producer.send(topic, value, **settings))

    def send_many(self, topic: str, records: Sequence[NewRecord], *, partition: int | None = None) -> Delivery:
        """Put records on their way in one batch."""
        return self._delivery(self._producer.send_many(topic, records, partition=partition))

    def publish(self, topic: str, value: bytes | None, **settings: Any) -> Stored:
        """Send a record and wait until it is stored."""
        return self._thread.run(self._producer.publish(topic, value, **settings))

    def flush(self) -> None:
        """Wait until everything that was sent has its outcome."""
        self._thread.run(self._producer.flush())

    def transaction(self) -> Transaction:
        """Return a transaction, to be used in a `with` block."""
        return Transaction(self._producer.transaction(), self._thread)

    def close(self) -> None:
        """Flush, then let everything go."""
        self._thread.run(self._producer.close())

    def _delivery(self, sending: Coroutine[Any, Any, asyncio.Future[Stored]]) -> Delivery:
        outcome: concurrent.futures.Future[Stored] = concurrent.futures.Future()
        future = self._thread.run(sending)
        self._thread.run(_copied(future, outcome))
        return Delivery(outcome)


class Transaction:
    """See georelay.transaction.Transaction."""

    def __init__(self, transaction: AsyncTransaction, thread: _LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    def __enter__(self) -> Self:
        self._thread.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))

    def commit_positions(self, consumer: Consumer | str, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit a group's positions with the transaction."""
        of = consumer if isinstance(consumer, str) else consumer.wrapped
        self._thread.run(self._transaction.commit_positions(of, offsets))


class Consumer:
    """See georelay.consumer.Consumer."""

    def __init__(self, consumer: AsyncConsumer, thread: _LoopThread) -> None:
        self.wrapped = consumer
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self.wrapped.close(commit=error is None))

    def __iter__(self) -> Iterator[ConsumedRecord]:
        return self

    def __next__(self) -> ConsumedRecord:
        return self._thread.run(self.wrapped.__anext__())

    def get_many(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[ConsumedRecord]:
        """Return up to `max_records`, [] when none arrives in time."""
        return self._thread.run(self.wrapped.get_many(max_records=max_records, timeout_s=timeout_s))

    def until_assigned(self, timeout_s: float = 60.0) -> list[Place]:
        """Wait for the first assignment."""
        return self._thread.run(self.wrapped.until_assigned(timeout_s))

    @property
    def assignment(self) -> list[Place]:
        """Return the partitions that are read now."""
        return self._thread.run(_called(lambda: self.wrapped.assignment))

    def lag(self) -> dict[Place, int]:
        """Return how many records each partition has that were not handed out, as far as is known."""
        return self._thread.run(_called(self.wrapped.lag))

    def pause(self, places: Iterable[tuple[str, int]]) -> None:
        """Hand out no records of these partitions until `resume`."""
        self._thread.run(self.wrapped.pause(places))

    def resume(self, places: Iterable[tuple[str, int]]) -> None:
        """Go on with partitions that were paused."""
        self._thread.run(self.wrapped.resume(places))

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit for the group."""
        self._thread.run(self.wrapped.commit(offsets))

    def seek(self, places: Mapping[tuple[str, int], Position | Start | Since]) -> None:
        """Read partitions from elsewhere on."""
        self._thread.run(self.wrapped.seek(places))

    def positions(self) -> dict[Place, Position]:
        """Return where each partition's next record is."""
        return self._thread.run(_called(self.wrapped.positions))

    def close(self, *, commit: bool = True) -> None:
        """Leave; with automatic commits what is done is committed first."""
        self._thread.run(self.wrapped.close(commit=commit))


class QueuedRecord:
    """A leased record. See georelay.queue_consumer.QueuedRecord."""

    def __init__(self, record: AsyncQueuedRecord, thread: _LoopThread) -> None:
        self._record = record
        self._thread = thread
        self.lease = record.lease
        self.partition, self.offset = record.partition, record.offset
        self.deliveries, self.leased_until_ms = record.deliveries, record.leased_until_ms
        self.timestamp_ms = record.timestamp_ms
        self.key, self.value, self.headers = record.key, record.value, record.headers

    def acknowledge(self) -> None:
        """Be done with it (LeaseExpired: too late, it comes again; OutcomeUnknown: not answered)."""
        self._thread.run(self._record.acknowledge())

    def reject(self, *, delay_s: float = 0.0) -> None:
        """Have it delivered again, after a delay."""
        self._thread.run(self._record.reject(delay_s=delay_s))

    def dead_letter(self, reason: str = "") -> None:
        """Move it to the queue's dead-letter topic."""
        self._thread.run(self._record.dead_letter(reason))

    def extend(self, seconds: float) -> None:
        """Let the lease last `seconds` from now on."""
        self._thread.run(self._record.extend(seconds))


class QueueConsumer:
    """See georelay.queue_consumer.QueueConsumer."""

    def __init__(self, consumer: AsyncQueueConsumer, thread: _LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    def __enter__(self) -> Self:
        self._thread.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[QueuedRecord]:
        return self

    def __next__(self) -> QueuedRecord:
        return QueuedRecord(self._thread.run(self._consumer.__anext__()), self._thread)


class Admin:
    """See georelay.admin.Admin."""

    def __init__(self, connection: asynchronous.Connection, thread: _LoopThread) -> None:
        self._admin = connection.admin
        self._thread = thread

    def create_topic(self, name: str, **settings: Any) -> Topic:
        """Create a topic."""
        return self._thread.run(self._admin.create_topic(name, **settings))

    def alter_topic(self, name: str, **settings: Any) -> Topic:
        """Change the settings that are given, in every region."""
        return self._thread.run(self._admin.alter_topic(name, **settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, for ever."""
        self._thread.run(self._admin.delete_topic(name))

    def delete_records(self, name: str, partition: int, before: int | None = None) -> int:
        """Delete the records below an offset (None: all that are committed), for ever; return the log start."""
        return self._thread.run(self._admin.delete_records(name, partition, before))

    def describe_topic(self, name: str) -> Topic:
        """Return a topic with its partitions."""
        return self._thread.run(self._admin.describe_topic(name))

    def list_topics(self) -> list[Topic]:
        """Return all names of the region."""
        return self._thread.run(self._admin.list_topics())

    def offsets(self, places: Sequence[tuple[str, int]], *, since_us: int | None = None) -> dict[Place, StreamOffsets]:
        """Return the offsets of partitions."""
        return self._thread.run(self._admin.offsets(places, since_us=since_us))

    def brokers(self) -> Mapping[int, str]:
        """Return the states of the region's brokers by id."""
        return self._thread.run(self._admin.brokers())

    def list_groups(self) -> list[GroupState]:
        """Return the consumer groups of the region."""
        return self._thread.run(self._admin.list_groups())

    def describe_group(self, name: str) -> GroupState:
        """Return a group with its members and lag."""
        return self._thread.run(self._admin.describe_group(name))

    def delete_group(self, name: str) -> None:
        """Delete a group without members."""
        self._thread.run(self._admin.delete_group(name))

    def set_group_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the next offsets of a group without members, (topic, partition) -> offset."""
        self._thread.run(self._admin.set_group_offsets(name, offsets))

    def create_queue(self, name: str, topic: str, **settings: Any) -> None:
        """Make a queue."""
        self._thread.run(self._admin.create_queue(name, topic, **settings))

    def list_queues(self) -> list[str]:
        """Return the names of the region's queues."""
        return self._thread.run(self._admin.list_queues())

    def delete_queue(self, name: str) -> None:
        """Delete a queue, not the records of its topic."""
        self._thread.run(self._admin.delete_queue(name))


async def _made(url: str, settings: Mapping[str, Any]) -> asynchronous.Connection:
    return await asynchronous.connect(url, **settings).__aenter__()


async def _opened(
    connection: asynchronous.Connection, topics: tuple[str, ...], settings: Mapping[str, Any]
) -> AsyncConsumer:
    consumer = connection.consumer(topics, **settings)
    consumer.open()
    return consumer


async def _called(function: Any, **settings: Any) -> Any:
    return function(**settings)


async def _copied(future: asyncio.Future[Stored], outcome: concurrent.futures.Future[Stored]) -> None:
    """Hand the outcome of a loop's future over to one that any thread may wait for."""

    def copy(done: asyncio.Future[Stored]) -> None:
        if done.cancelled():
            outcome.cancel()
        elif (error := done.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())

    future.add_done_callback(copy)
