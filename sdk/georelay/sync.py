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
from georelay.admin import StreamOffsets, Topic
from georelay.consumed import ConsumedRecord
from georelay.consumer import Consumer as AsyncConsumer
from georelay.durability import Stored
from georelay.lane import NewRecord
from georelay.positions import Place, Position, Since, Start
from georelay.producer import Producer as AsyncProducer
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

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit for the group."""
        self._thread.run(self.wrapped.commit(offsets))

    def seek(self, places: Mapping[tuple[str, int], Position | Start | Since]) -> None:
        """Read partitions from elsewhere on."""
        self._thread.run(self.wrapped.seek(places))

    def positions(self) -> dict[Place, Position]:
        """Return where each partition's next record is."""
        return self._thread.run(_called(self.wrapped.positions))

    def close(self) -> None:
        """Leave."""
        self._thread.run(self.wrapped.close())


class Admin:
    """The part of georelay.admin.Admin that most programs need; `run` waits for any other of its methods."""

    def __init__(self, connection: asynchronous.Connection, thread: _LoopThread) -> None:
        self._admin = connection.admin
        self._thread = thread

    def create_topic(self, name: str, **settings: Any) -> Topic:
        """Create a topic."""
        return self._thread.run(self._admin.create_topic(name, **settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, for ever."""
        self._thread.run(self._admin.delete_topic(name))

    def describe_topic(self, name: str) -> Topic:
        """Return a topic with its partitions."""
        return self._thread.run(self._admin.describe_topic(name))

    def list_topics(self) -> list[Topic]:
        """Return all names of the region."""
        return self._thread.run(self._admin.list_topics())

    def offsets(self, places: Sequence[tuple[str, int]], *, since_us: int | None = None) -> dict[Place, StreamOffsets]:
        """Return the offsets of partitions."""
        return self._thread.run(self._admin.offsets(places, since_us=since_us))

    def run(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call the method of georelay.admin.Admin of that name and wait."""
        return self._thread.run(getattr(self._admin, method)(*arguments, **settings))


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
