"""Producer and consumer of AMQP 0-9-1 for RabbitMQ: pika. A topic is a quorum queue of its name.

With the setting "exchange" a topic is a routing key of that exchange, with two queues in each region: one of its name
for readers that stay, and one with MOVING behind it for a consumer that moves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from loadtest.bench.ledger_core import Deliveries, Ledger
from loadtest.bench.schedule_core import Load
from loadtest.login import from_environment
from loadtest.peers import paced

PREFETCH: Final = 1_000
ACK_EVERY_S: Final = 0.05  # several deliveries with one acknowledgement: what costs RabbitMQ least
PERSISTENT: Final = 2
MOVING: Final = "-moving"


def produce(servers: str, load: Load, end_ns: int) -> Ledger:
    """Send a load and wait for the publisher confirms until `end_ns` at most."""
    return paced.run(_produce(servers, load, end_ns))


async def _produce(servers: str, load: Load, end_ns: int) -> Ledger:
    channel, exchange = await _channel(servers), from_environment().get("exchange", "")
    ledger = Ledger(load.retry_ns)
    confirms = Confirms(ledger)
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    selected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.confirm_delivery(confirms.answered, callback=selected.set_result)
    await selected

    async def publish(number: int, due_ns: int) -> None:
        ledger.sent(number, time.monotonic_ns())
        if channel.is_open:  # else its broker is gone, and nobody will answer
            confirms.sent(number)
            channel.basic_publish(exchange, load.topic(number), load.value(due_ns, number), properties)

    await paced.send(load, ledger, publish, end_ns)
    await _closed(channel)
    return ledger


class Confirms:
    """Publisher confirms of a channel: which record a delivery tag means."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._number_of: dict[int, int] = {}
        self._tags = 0
        self._oldest = 1

    def sent(self, number: int) -> None:
        """Note the record that goes out next."""
        self._tags += 1
        self._number_of[self._tags] = number

    def answered(self, frame: Any) -> None:
        """Take Basic.Ack or Basic.Nack, of one tag or of all up to it."""
        method = frame.method
        tags = range(self._oldest, method.delivery_tag + 1) if method.multiple else (method.delivery_tag,)
        for tag in tags:
            number = self._number_of.pop(tag, None)
            if number is None:
                continue
            if method.NAME == "Basic.Ack":
                self._ledger.answered(number)
            else:
                self._ledger.refused(number, time.monotonic_ns())
        if method.multiple:
            self._oldest = method.delivery_tag + 1


def consume(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries) -> None:
    """Read the queues while the book wants more."""
    asyncio.run(_consume(servers, topics, ready, book))


async def _consume(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries) -> None:
    channel = await _channel(servers)
    newest = acknowledged = 0

    def delivered(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        nonlocal newest
        book.add(body, time.monotonic_ns())
        newest = method.delivery_tag

    channel.basic_qos(prefetch_count=PREFETCH)
    started = [asyncio.get_running_loop().create_future() for _ in topics]
    for topic, future in zip(topics, started, strict=True):
        channel.basic_consume(topic, delivered, callback=future.set_result)
    await asyncio.gather(*started)
    ready()
    while book.more(time.monotonic_ns()):
        await asyncio.sleep(ACK_EVERY_S)
        if newest > acknowledged and channel.is_open:
            acknowledged = newest
            channel.basic_ack(acknowledged, multiple=True)
    if newest > acknowledged and channel.is_open:
        channel.basic_ack(newest, multiple=True)
    await _closed(channel)


def member(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries, **_: object) -> None:
    """Read as the consumer that moves."""
    consume(servers, [topic + MOVING for topic in topics], ready, book)


def create(servers: str, topics: list[str], settings: dict[str, str]) -> None:
    """Declare quorum queues, their leaders spread over the nodes, and the exchange, where there is one."""

    async def done(declare: Callable[..., Any], *words: str, **more: object) -> None:
        declared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        declare(*words, callback=declared.set_result, **more)
        await declared

    async def declare() -> None:
        channel, exchange = await _channel(servers), from_environment().get("exchange", "")
        arguments = {"x-queue-type": "quorum", "x-queue-leader-locator": "balanced", **settings}
        if exchange:
            await done(channel.exchange_declare, exchange, durable=True)
        for topic in topics:
            for queue in (topic, topic + MOVING) if exchange else (topic,):
                await done(channel.queue_declare, queue, durable=True, arguments=arguments)
                if exchange:
                    await done(channel.queue_bind, queue, exchange, routing_key=topic)
        await _closed(channel)

    asyncio.run(declare())


async def _closed(channel: Any) -> None:
    if not channel.connection.is_open:
        return
    closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.connection.add_on_close_callback(lambda *_: closed.set_result(None))
    channel.connection.close()
    await closed


async def _channel(servers: str) -> Any:
    """Connect to the first server and open a channel. Raises RuntimeError when the connection is refused."""
    host, _, port = servers.partition(",")[0].partition(":")
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def refused(_connection: Any, error: object) -> None:
        if not opened.done():
            opened.set_exception(RuntimeError(f"{servers}: {error!r}"))

    AsyncioConnection(
        pika.ConnectionParameters(host, int(port)),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened.set_result),
        on_open_error_callback=refused,
    )
    return await opened
