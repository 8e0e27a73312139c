"""Where readers take records from: Kafka's consumers, also in groups, the SDK, its queues, REST, WebSocket, text.

Rule 1: `open` begins at the positions that it is given; those of a group or a queue are kept by the brokers, so a
        record may come again there.
Rule 2: a source that breaks raises one of FAILURES; its reader closes it and opens it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

import georelay
from georelay.errors import GeorelayError, QueueExists
from georelay.positions import Position
from loadtest.load.engine_values import Plan
from loadtest.load.wires import http_of, said, socket_of, text_of

BATCH_RECORDS_MAX: Final = 500
WAIT_S: Final = 0.1
ASK_S: Final = 5.0
REST_WAIT_MS: Final = 500
CREDIT_BYTES: Final = 1 << 20
FAILURES: Final = (GeorelayError, KafkaException, OSError, TimeoutError, aiohttp.ClientError, ValueError)
Spot = tuple[str, int]  # topic, partition


class Taken(NamedTuple):
    """A record as it came."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Source(ABC):
    """One consumer in one region. `reached`: positions behind which no record was, such as behind a marker."""

    def __init__(self, plan: Plan, region: str, shared: str) -> None:
        """Take who it is.

        Args:
            shared: name of the group or queue, "" for those who read everything.
        """
        self.plan = plan
        self.region = region
        self.shared = shared
        self.reached: dict[Spot, int] = {}

    @abstractmethod
    def open(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""

    @abstractmethod
    def take(self) -> list[Taken]:
        """Return what has come, after WAIT_S at most."""

    @abstractmethod
    def finish(self) -> None:
        """Say that everything that was taken is done."""

    @abstractmethod
    def close(self) -> None:
        """Let everything go."""


class KafkaSource(Source):
    """librdkafka, every partition."""

    def open(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        settings = kafka_settings(self.plan.bootstrap(self.region), self.shared)
        self._consumer = Consumer(settings | dict(self.plan.settings))
        self.begin(positions)

    def begin(self, positions: Mapping[Spot, int]) -> None:
        """Choose what is read."""
        rows = [TopicPartition(*spot, offset or OFFSET_BEGINNING) for spot, offset in positions.items()]
        self._consumer.assign(rows)

    def take(self) -> list[Taken]:
        """Return what has come."""
        first = self._consumer.poll(WAIT_S)  # consume(n, s) would wait for n, and records with it
        if first is None:
            return []
        taken = []
        for message in (first, *self._consumer.consume(BATCH_RECORDS_MAX, 0)):
            error = message.error()
            if error is None:
                taken.append(Taken(message.topic(), message.partition(), message.offset(), message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.reached[message.topic(), message.partition()] = message.offset()
        return taken

    def finish(self) -> None:
        """Nothing: its positions are its own."""

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class GroupSource(KafkaSource):
    """librdkafka as a member of a group."""

    def begin(self, positions: Mapping[Spot, int]) -> None:
        """Choose what is read."""
        self._consumer.subscribe(sorted({topic for topic, _ in positions}))

    def finish(self) -> None:
        """Commit."""
        with contextlib.suppress(KafkaException):  # a rebalance: whoever comes next reads from the last commit
            self._consumer.commit(asynchronous=False)


class LoopSource(Source):
    """One that lives in an event loop of its own, which runs while something is asked of it."""

    def open(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        self._runner = asyncio.Runner()
        self._coming: asyncio.Task[Any] | None = None
        self._stack = contextlib.AsyncExitStack()
        try:
            self._run(self.begin(positions))
        except BaseException:
            self.close()
            raise

    def take(self) -> list[Taken]:
        """Return what has come."""
        taken: list[Taken] = self._run(self.next())
        return taken

    def finish(self) -> None:
        """Say that everything that was taken is done."""
        self._run(self.settle())

    def close(self) -> None:
        """Let everything go."""
        try:
            self._run(self._stack.aclose())
        finally:
            self._runner.close()

    @abstractmethod
    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""

    @abstractmethod
    async def next(self) -> list[Taken]:
        """Return what has come."""

    async def settle(self) -> None:
        """Do nothing where positions are its own."""

    async def came(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what is asked for, None while it has not come: the wait goes on beyond this call, to lose nothing."""
        self._coming = self._coming or asyncio.ensure_future(ask())
        await asyncio.wait((self._coming,), timeout=WAIT_S)
        if not self._coming.done():
            return None
        came, self._coming = self._coming.result(), None
        return came

    def pick(self, listener: str) -> str:
        """Return the address of one of the region's brokers, another one each time."""
        return str(random.choice(self.plan.addresses(self.region, listener)))

    async def connected(self) -> Any:
        """Return a connection of the SDK."""
        return await self._stack.enter_async_context(georelay.connect(**self.plan.connect(self.region)))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)


class NativeSource(LoopSource):
    """The SDK's consumer."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        starts = {spot: Position(offset) for spot, offset in positions.items()}
        mesh = await self.connected()
        self._consumer = await self._stack.enter_async_context(mesh.consumer(positions=starts))

    async def next(self) -> list[Taken]:
        """Return what has come."""
        rows = await self._consumer.get_many(max_records=BATCH_RECORDS_MAX, timeout_s=WAIT_S)
        return [Taken(row.stream, row.partition, row.offset, row.value or b"") for row in rows]


class QueueSource(LoopSource):
    """The SDK's consumer of a queue, which is made by whoever comes first."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        self._topic = next(iter(positions))[0]
        self._leased: list[Any] = []
        mesh = await self.connected()
        with contextlib.suppress(QueueExists):
            await mesh.admin.create_queue(self.shared, self._topic)
        self._queue = await self._stack.enter_async_context(mesh.queue(self.shared))

    async def next(self) -> list[Taken]:
        """Return what was leased."""
        if (row := await self.came(self._queue.__anext__)) is None:
            return []
        self._leased.append(row)
        return [Taken(self._topic, row.partition, row.offset, row.value or b"")]

    async def settle(self) -> None:
        """Acknowledge."""
        leased, self._leased = self._leased, []
        for row in leased:
            with contextlib.suppress(GeorelayError):  # too late, or the broker is gone: it comes again
                await row.acknowledge()


class RestSource(LoopSource):
    """HTTP, a long poll for each partition."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        http = await self._stack.enter_async_context(http_of(self.plan, self.pick("admin")))
        self._came: asyncio.Queue[tuple[Spot, int, list[Taken]] | Exception] = asyncio.Queue()
        for (topic, partition), offset in positions.items():
            query = {"partition": str(partition), "wait_ms": str(REST_WAIT_MS), "max": str(BATCH_RECORDS_MAX)}
            asking = self._ask(http, query, (topic, partition), offset)
            self._stack.callback(asyncio.ensure_future(asking).cancel)

    async def next(self) -> list[Taken]:
        """Return what has come."""
        try:
            async with asyncio.timeout(WAIT_S):
                came = await self._came.get()
        except TimeoutError:
            return []
        if isinstance(came, Exception):
            raise came
        spot, following, taken = came
        self.reached[spot] = following
        return taken

    async def _ask(self, http: aiohttp.ClientSession, query: dict[str, str], spot: Spot, offset: int) -> None:
        """Ask again and again, until an error."""
        try:
            while True:
                query["offset"] = str(offset)
                async with http.get(f"/v1/topics/{spot[0]}/records", params=query) as answer:
                    answer.raise_for_status()
                    told = await answer.json()
                offset = int(told["next_offset"])
                rows = [Taken(*spot, row["offset"], _value_of(row)) for row in told["records"]]
                self._came.put_nowait((spot, offset, rows))
        except Exception as error:  # noqa: BLE001 - `next` raises it, whatever it is
            self._came.put_nowait(error)


class SocketSource(LoopSource):
    """A WebSocket with a subscription to each topic, and credit for as much as was worked on."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        self._socket = await self._stack.enter_async_context(socket_of(self.plan, self.pick("admin")))
        self._topics = list(dict.fromkeys(topic for topic, _ in positions))
        self._owed: Counter[int] = Counter()  # by the number of the subscription
        for number, topic in enumerate(self._topics):
            starts = {str(partition): offset for (name, partition), offset in positions.items() if name == topic}
            what = {"topic": topic, "from": starts, "credit_bytes": CREDIT_BYTES}
            await self._socket.send_json({"type": "subscribe", "id": number, **what})

    async def next(self) -> list[Taken]:
        """Return what has come."""
        message = await self.came(self._socket.receive)
        if message is None or (told := said(message))["type"] != "records":
            return []
        self._owed[told["id"]] += told["size_bytes"]
        topic = self._topics[told["id"]]
        return [Taken(topic, row["partition"], row["offset"], _value_of(row)) for row in told["records"]]

    async def settle(self) -> None:
        """Give back what it cost."""
        owed, self._owed = self._owed, Counter()
        for number, size_bytes in owed.items():
            await self._socket.send_json({"type": "credit", "id": number, "bytes": size_bytes})


class TextSource(LoopSource):
    """Lines over TCP; a subscription without a group begins at the log start, and what was read before is left out."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        self._in, out = await text_of(self.plan, self.pick("text"))
        self._stack.callback(out.close)
        self._positions = dict(positions)
        lines = [f"AUTH {' '.join(user)}"] if (user := self.plan.login.user) else []
        lines += [f"SUBS {topic} -" for topic in dict.fromkeys(topic for topic, _ in positions)]
        out.write("".join(f"{line}\n" for line in lines).encode())

    async def next(self) -> list[Taken]:
        """Return what has come."""
        line: bytes | None = await self.came(self._in.readline)
        if line is None:
            return []
        if not line or line.startswith(b"ERR"):
            raise ConnectionError(line.decode().strip() or "the broker closed the connection")
        if not line.startswith(b"REC "):
            return []
        _, topic, where, offset, record = line.decode().split(" ", 4)
        spot = (topic, int(where.partition(".")[2]))
        if int(offset) < self._positions[spot]:
            return []
        return [Taken(*spot, int(offset), str(json.loads(record)["Body"]).encode())]


class AiokafkaSource(LoopSource):
    """aiokafka, every partition. What is asked of brokers that are down ends in an error, and it begins anew."""

    async def begin(self, positions: Mapping[Spot, int]) -> None:
        """Begin."""
        from aiokafka import AIOKafkaConsumer, TopicPartition  # only where a campaign wants it

        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.plan.bootstrap(self.region).split(","),
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=int(WAIT_S * 1000),
            request_timeout_ms=1_000,
            metadata_max_age_ms=1_000,
            **self.plan.login.aiokafka,
        )
        self._stack.push_async_callback(self._consumer.stop)
        await _translated(self._consumer.start())
        self._consumer.assign([TopicPartition(*spot) for spot in positions])
        for spot, offset in positions.items():
            self._consumer.seek(TopicPartition(*spot), offset)

    async def next(self) -> list[Taken]:
        """Return what has come."""
        found = await _translated(self._consumer.getmany(timeout_ms=int(WAIT_S * 1000), max_records=BATCH_RECORDS_MAX))
        return [
            Taken(row.topic, row.partition, row.offset, row.value or b"") for rows in found.values() for row in rows
        ]


def _value_of(row: dict[str, Any]) -> bytes:
    """Return the value of a record in JSON; one that is no text is none of ours."""
    return str(row.get("value") or "").encode()


async def _translated(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what aiokafka returns; its errors, which are nobody else's, become ours."""
    from aiokafka.errors import KafkaError as AiokafkaError

    try:
        return await work
    except AiokafkaError as error:
        raise ConnectionError(str(error)) from error


SOURCES: Final[dict[str, type[Source]]] = {
    "kafka": KafkaSource,
    "aiokafka": AiokafkaSource,
    "group": GroupSource,
    "native": NativeSource,
    "queue": QueueSource,
    "rest": RestSource,
    "websocket": SocketSource,
    "text": TextSource,
}


def kafka_settings(bootstrap: str, group: str = "") -> dict[str, Any]:
    """Return settings of a consumer of librdkafka that hears of everything soon."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group or "georelay-load",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "log_level": 0,
    }


def ends_of(bootstraps: list[str], settings: Mapping[str, str], spots: list[Spot]) -> dict[Spot, int]:
    """Return the highest end that any region tells of each partition; one of which none tells anything is not there."""
    found: dict[Spot, int] = {}
    for bootstrap in bootstraps:
        consumer = Consumer(kafka_settings(bootstrap) | dict(settings))
        try:
            for topic, partition in spots:
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S)
                found[topic, partition] = max(found.get((topic, partition), 0), end)
        except KafkaException:
            continue  # a region that is lost: the others tell, or the partition is missed
        finally:
            consumer.close()
    return found
