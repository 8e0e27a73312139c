"""Producer and consumer of NATS JetStream: nats-py. A topic is a stream of one subject, both with its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from loadtest.bench.ledger_core import Deliveries, Ledger
from loadtest.bench.schedule_core import Load
from loadtest.peers import paced

IDLE_HEARTBEAT_S: Final = 1.0  # an ordered consumer is made anew after two that did not come; the default is 5
PENDING_MAX: Final = 100_000


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
    await connection.close()
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
    await connection.close()


def create(servers: str, topics: list[str], settings: dict[str, str]) -> None:
    """Make a stream of three replicas in files for each topic, `settings` beside that."""

    async def add() -> None:
        connection = await _connected(servers)
        for topic in topics:
            config = StreamConfig(name=topic, subjects=[topic], num_replicas=3, storage=StorageType.FILE)
            await connection.jetstream().add_stream(config, **settings)
        await connection.close()

    asyncio.run(add())


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
