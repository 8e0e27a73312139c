"""Producer and consumer of NATS JetStream: nats-py. A topic is a stream of one subject, both with its name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy, ExternalStream, StorageType, StreamConfig, StreamSource
from nats.js.errors import APIError

from loadtest.bench.ledger_core import Deliveries, Ledger
from loadtest.bench.schedule_core import Load
from loadtest.peers import paced

IDLE_HEARTBEAT_S: Final = 1.0  # an ordered consumer is made anew after two that did not come; the default is 5
PENDING_MAX: Final = 100_000
NO_PEERS_YET: Final = 10_005  # its leader has not heard of enough of the servers yet
PEERS_S_MAX: Final = 30.0


def produce(servers: str, load: Load, end_ns: int) -> Ledger:
    """Send a load and wait for the answers of JetStream until `end_ns` at most."""
    return paced.run(_produce(servers, load, end_ns))


async def _produce(servers: str, load: Load, end_ns: int) -> Ledger:
    connection = await _connected(servers)
    stream = connection.jetstream(publish_async_max_pending=PENDING_MAX)
    ledger = Ledger(load.retry_ns)
    run = time.monotonic_ns()

    async def publish(number: int, due_ns: int) -> None:
        headers = {"Nats-Msg-Id": f"{run}-{number}"} if load.exactly_once else None
        ledger.sent(number, time.monotonic_ns())
        future = await stream.publish_async(load.topic(number), load.value(due_ns, number), headers=headers)
        future.add_done_callback(lambda done: _note(ledger, number, done))

    await paced.send(load, ledger, publish, end_ns)
    await _closed(connection)
    return ledger


def _note(ledger: Ledger, number: int, done: asyncio.Future[Any]) -> None:
    if done.cancelled():
        return
    if done.exception() is None:
        ledger.answered(number)
    else:
        ledger.refused(number, time.monotonic_ns())


def consume(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries) -> None:
    """Read from the end of the streams while the book wants more."""
    asyncio.run(_consume(servers, topics, ready, book))


async def _consume(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries) -> None:
    connection = await _connected(servers)
    stream = connection.jetstream()

    async def delivered(message: Any) -> None:
        book.add(message.data, time.monotonic_ns())

    for topic in topics:
        await stream.subscribe(
            topic,
            cb=delivered,
            stream=topic,
            ordered_consumer=True,
            idle_heartbeat=IDLE_HEARTBEAT_S,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
        )
    ready()
    while book.more(time.monotonic_ns()):
        await asyncio.sleep(0.05)
    await _closed(connection)


def member(
    servers: str,
    topics: list[str],
    ready: Callable[[], None],
    book: Deliveries,
    *,
    group: str,
    **_: object,
) -> None:
    """Read with durable consumers of the group's name, which begin where the streams do; acknowledge each record."""
    asyncio.run(_member(servers, topics, ready, book, group))


async def _member(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries, group: str) -> None:
    connection = await _connected(servers)

    async def delivered(message: Any) -> None:
        book.add(message.data, time.monotonic_ns())
        await message.ack()

    for topic in topics:
        await connection.jetstream().subscribe(topic, stream=topic, durable=group, cb=delivered, manual_ack=True)
    ready()
    while book.more(time.monotonic_ns()):
        await asyncio.sleep(0.05)
    await _closed(connection)


def create(servers: str, topics: list[str], settings: dict[str, str]) -> None:
    """Make a stream in files for each topic, or change the one that is there.

    Settings: "replicas", three by default; "mirror_of" a domain, whose stream of the same name is copied.
    """

    async def add() -> None:
        connection = await _connected(servers)
        stream = connection.jetstream()
        known = {found.config.name for found in await stream.streams_info()}
        for topic in topics:
            config = StreamConfig(
                name=topic, num_replicas=int(settings.get("replicas", "3")), storage=StorageType.FILE, subjects=[topic]
            )
            if domain := settings.get("mirror_of"):
                origin = StreamSource(name=topic, external=ExternalStream(api=f"$JS.{domain}.API"))
                config = config.evolve(subjects=None, mirror=origin)
            await _with_peers(stream.update_stream if topic in known else stream.add_stream, config)
        await connection.close()

    asyncio.run(add())


async def _with_peers(change: Callable[[StreamConfig], Awaitable[object]], config: StreamConfig) -> None:
    """Make a stream as soon as its servers know each other: having a leader does not mean that yet."""
    deadline = time.monotonic() + PEERS_S_MAX
    while True:
        try:
            await change(config)
        except APIError as error:
            if error.err_code != NO_PEERS_YET or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


def leaders(servers: str, topics: list[str]) -> list[str]:
    """Return the name of the server that leads each stream."""

    async def ask() -> list[str]:
        connection = await _connected(servers)
        found = [(await connection.jetstream().stream_info(topic)).cluster.leader for topic in topics]
        await connection.close()
        return found

    return asyncio.run(ask())


async def _connected(servers: str) -> Any:
    return await nats.connect([f"nats://{server}" for server in servers.split(",")], max_reconnect_attempts=-1)


async def _closed(connection: Any) -> None:
    with contextlib.suppress(OSError):  # its server is gone
        await connection.close()
