"""A client at the edge of a gateway bed that publishes and reads, or only follows its gateway; it writes down when.

`python -m loadtest.wan.moving_client`, with a Task as JSON on its input. One line an event, times on the monotonic
clock, which all processes of the machine share: {"kind", "what": "acked" | "failed" | "read" | "region", "at_ns",
"value"}. It publishes until its input ends, and reads on for REST_S.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import georelay
import georelay.sync
from loadtest.login import Login

TOPIC: Final = "orders"
NAMED: Final = 2  # gateways that a Kafka client knows
REQUEST_MS: Final = 1_000  # for how long an answer may be away before a client looks elsewhere
FETCH_MS: Final = 100
REST_S: Final = 5.0
SILENT_S: Final = 1.5  # after so long without anything an aiokafka client is made anew
AGAIN_S: Final = 0.1  # where nobody was reached
LOOK_S: Final = 0.25
JAVA_SOURCE: Final = Path(__file__).with_name("MovingClient.java")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Login):
    """What a client does.

    Args:
        kind: one of KINDS; "followers" are `count` connections of the SDK that wait.
        gateways: the HTTP and the Kafka address of each, the nearest first. hosts: region by host of its brokers.
        jars: folder with those of Kafka, for Java.
    """

    kind: str
    gateways: Sequence[tuple[str, str]]
    hosts: dict[str, str]
    rate: float = 0.0
    count: int = 0
    jars: str = ""

    @property
    def kafka(self) -> str:
        """Return the bootstrap servers: each that is lost, or too far for a timeout of a second, costs one."""
        return ",".join(kafka for _, kafka in self.gateways[:NAMED])


class Diary:
    """Writes lines, also for threads."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._region = ""
        self._lock = threading.Lock()

    def write(self, what: str, value: str, at_ns: int = 0) -> None:
        """Write down what happened, now where nothing else is said."""
        row = {"kind": self._kind, "what": what, "at_ns": at_ns or time.monotonic_ns(), "value": value}
        with self._lock:
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()

    def region(self, name: str) -> None:
        """Write down where the client is, when that has changed."""
        if name and name != self._region:
            self._region = name
            self.write("region", name)


@dataclass(frozen=True, slots=True)
class Over:
    """What is over: publishing, and later all of it."""

    publishing: threading.Event
    reading: threading.Event


async def values(task: Task, over: Over) -> AsyncIterator[str]:
    """Yield what to publish, each when it is due, until that is over."""
    began, number = time.monotonic(), 0
    while not over.publishing.is_set():
        ahead_s = began + number / task.rate - time.monotonic()
        await asyncio.sleep(max(ahead_s, 0))
        yield f"{task.kind} {number}"
        number += 1


async def confluent(task: Task, diary: Diary, over: Over) -> None:
    """librdkafka, with settings alone: it bootstraps again when no broker answers."""
    settings: dict[str, Any] = {
        "bootstrap.servers": task.kafka,
        **task.rdkafka,
        "client.id": "edge-confluent",
        "socket.timeout.ms": REQUEST_MS,
        "socket.connection.setup.timeout.ms": 1_000,
        "reconnect.backoff.max.ms": 500,
        "metadata.recovery.strategy": "rebootstrap",
        "metadata.recovery.rebootstrap.trigger.ms": REQUEST_MS,
    }
    producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 5, "request.timeout.ms": REQUEST_MS})
    reader = Consumer({**settings, "group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": FETCH_MS})
    reader.assign([TopicPartition(TOPIC, 0, 0)])

    def acked(error: Any, message: Any) -> None:
        diary.write("failed" if error else "acked", message.value().decode())

    def read() -> None:
        while not over.reading.is_set():
            for message in reader.consume(100, timeout=0.1):
                if not message.error():
                    diary.write("read", message.value().decode())
        reader.close()

    def look() -> None:
        while not over.reading.is_set():
            time.sleep(LOOK_S)
            producer.poll(0)
            if known := [task.hosts.get(each.host, "") for each in _brokers(producer)]:
                diary.region(known[0])

    ends = [asyncio.to_thread(read), asyncio.to_thread(look)]
    works = asyncio.gather(*ends)
    async for value in values(task, over):
        producer.produce(TOPIC, value, partition=0, on_delivery=acked)
        producer.poll(0)
    await works
    await asyncio.to_thread(producer.flush, 30)


def _brokers(producer: Producer) -> list[Any]:
    """Return the brokers of the newest metadata, none while nobody answers."""
    try:
        return list(producer.list_topics(TOPIC, timeout=1).brokers.values())
    except KafkaException:  # it is cut off: the next look finds it elsewhere
        return []


async def aiokafka(task: Task, diary: Diary, over: Over) -> None:
    """aiokafka, made anew when nothing came for a while: it asks the brokers that it knows only.

    It would ask one gateway after the other, a second each; so there is a client for each gateway, and the first stays.
    """
    servers = task.kafka.split(",")
    shared: dict[str, Any] = {
        **task.aiokafka,
        "client_id": "edge-aiokafka",
        "request_timeout_ms": REQUEST_MS,
        "metadata_max_age_ms": 5_000,
    }
    position = 0
    newest_s = {"read": time.monotonic(), "acked": time.monotonic()}

    def region(client: Any) -> None:
        diary.region(next((task.hosts.get(each.host, "") for each in client.cluster.brokers()), ""))

    async def read() -> None:
        nonlocal position
        while not over.reading.is_set():
            some = [AIOKafkaConsumer(bootstrap_servers=each, **shared, enable_auto_commit=False) for each in servers]
            async with _first_of(some) as consumer:
                place = AioPartition(TOPIC, 0)
                consumer.assign([place])
                consumer.seek(place, position)
                newest_s["read"] = time.monotonic()
                while not over.reading.is_set() and time.monotonic() - newest_s["read"] < SILENT_S:
                    found = await consumer.getmany(timeout_ms=100)
                    for record in found.get(place, ()):
                        diary.write("read", record.value.decode())
                        position, newest_s["read"] = record.offset + 1, time.monotonic()
                    region(consumer._client)

    async def publish() -> None:
        due = values(task, over)
        while not over.publishing.is_set():
            some = [AIOKafkaProducer(bootstrap_servers=each, **shared, enable_idempotence=True) for each in servers]
            async with _first_of(some) as producer:
                newest_s["acked"] = time.monotonic()

                def done(value: str, sent: asyncio.Future[Any]) -> None:
                    failed = sent.cancelled() or sent.exception() is not None
                    diary.write("failed" if failed else "acked", value)
                    newest_s["acked"] = newest_s["acked"] if failed else time.monotonic()

                async for value in due:
                    async with asyncio.timeout(SILENT_S):
                        sent = await producer.send(TOPIC, value.encode(), partition=0)
                    sent.add_done_callback(partial(done, value))
                    if time.monotonic() - newest_s["acked"] > SILENT_S:
                        break

    await asyncio.gather(read(), publish())


@asynccontextmanager
async def _first_of(clients: Sequence[Any]) -> AsyncIterator[Any]:
    """Start clients until one of them reaches somebody; what is not done a moment after its end is given up."""
    starts: dict[asyncio.Task[None], Any] = {}
    found: list[Any] = []
    while not found:
        starts = {asyncio.create_task(_started(client)): client for client in clients}
        while starts and not found:
            done, _ = await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
            found = [starts[start] for start in done if start.exception() is None]
            starts = {start: client for start, client in starts.items() if start not in done}
        await asyncio.sleep(0 if found else AGAIN_S)
    for start in starts:
        start.cancel()
    others = [asyncio.create_task(client.stop()) for client in clients if client is not found[0]]
    try:
        yield found[0]
    except (OSError, TimeoutError, KafkaError) as error:
        print(f"made anew: {error!r}", file=sys.stderr)
    finally:
        await asyncio.wait([*others, asyncio.create_task(found[0].stop())], timeout=0.2)


async def _started(client: Any) -> None:
    async with asyncio.timeout(2 * SILENT_S):
        await client.start()


async def java(task: Task, diary: Diary, over: Over) -> None:
    """Kafka's own client, with settings alone, as librdkafka.

    It goes back to its gateways while the one broker that it knows is in its backoff, so that must not be a short one;
    and after a trigger, which has to leave time for an answer that does not come, and for two gateways.
    """
    settings = {
        "bootstrap.servers": task.kafka,
        "client.id": "edge-java",
        "request.timeout.ms": REQUEST_MS,
        "socket.connection.setup.timeout.ms": 1_000,
        "socket.connection.setup.timeout.max.ms": 1_000,
        "reconnect.backoff.ms": 500,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.max.ms": 200,
        "metadata.recovery.strategy": "rebootstrap",
        "metadata.recovery.rebootstrap.trigger.ms": 3_000,
    }
    with task.java_file(settings) as file:
        words = ["-Xmx200m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{task.jars}/*", str(JAVA_SOURCE)]
        arguments = [file, TOPIC, str(task.rate), str(REST_S)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("java", *words, *arguments, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        ending = asyncio.create_task(asyncio.to_thread(over.publishing.wait))
        ending.add_done_callback(lambda _: process.stdin.close() if process.stdin is not None else None)
        async for line in process.stdout:
            what, at_ns, value = line.decode().rstrip().split(" ", 2)
            if what == "region":
                diary.region(task.hosts.get(value, ""))
            else:
                diary.write(what, value, int(at_ns))
        if code := await process.wait():
            raise RuntimeError(f"java ended with {code}")


async def sdk(task: Task, diary: Diary, over: Over) -> None:
    """The SDK: nothing but the gateway's URL."""
    async with (
        georelay.connect(task.gateways[0][0], **task.sdk, client="edge-sdk") as mesh,
        mesh.producer() as producer,
        mesh.consumer([TOPIC], start=georelay.Start.EARLIEST) as consumer,
    ):

        def done(value: str, sent: asyncio.Future[Any]) -> None:
            diary.write("failed" if sent.cancelled() or sent.exception() else "acked", value)

        async def publish() -> None:
            async for value in values(task, over):
                sent = await producer.send(TOPIC, value.encode(), partition=0)
                sent.add_done_callback(partial(done, value))

        async def read() -> None:
            while not over.reading.is_set():
                for record in await consumer.get_many(timeout_s=0.1):
                    diary.write("read", (record.value or b"").decode())
                diary.region(mesh.region)

        await asyncio.gather(publish(), read())
        await producer.flush()


async def sdk_sync(task: Task, diary: Diary, over: Over) -> None:
    """The SDK without asyncio, one thread for each thing that waits."""
    await asyncio.to_thread(_sdk_sync, task, diary, over)


def _sdk_sync(task: Task, diary: Diary, over: Over) -> None:
    sent: queue.SimpleQueue[tuple[str, georelay.sync.Delivery] | None] = queue.SimpleQueue()

    def tell() -> None:
        while (row := sent.get()) is not None:
            value, delivery = row
            try:
                delivery.result()
            except georelay.GeorelayError:
                diary.write("failed", value)
            else:
                diary.write("acked", value)

    def read(mesh: georelay.sync.Connection, consumer: georelay.sync.Consumer) -> None:
        while not over.reading.is_set():
            for record in consumer.get_many(timeout_s=0.1):
                diary.write("read", (record.value or b"").decode())
            diary.region(mesh.region)

    with (
        georelay.sync.connect(task.gateways[0][0], **task.sdk, client="edge-sync") as mesh,
        mesh.producer() as producer,
        mesh.consumer([TOPIC], start=georelay.Start.EARLIEST) as consumer,
        ThreadPoolExecutor(2) as threads,
    ):
        works = [threads.submit(tell), threads.submit(read, mesh, consumer)]
        began, number = time.monotonic(), 0
        while not over.publishing.wait(max(began + number / task.rate - time.monotonic(), 0)):
            value = f"{task.kind} {number}"
            sent.put((value, producer.send(TOPIC, value.encode(), partition=0)))
            number += 1
        sent.put(None)
        for work in works:
            work.result()


async def followers(task: Task, diary: Diary, over: Over) -> None:
    """Connections that read a topic in which nothing comes: who does nothing at all need not notice a loss."""
    async with AsyncExitStack() as stack:
        names = [f"follower-{number}" for number in range(task.count)]
        connections = {
            name: await stack.enter_async_context(georelay.connect(task.gateways[0][0], **task.sdk, client=name))
            for name in names
        }
        for connection in connections.values():
            await stack.enter_async_context(connection.consumer([TOPIC]))
        known: dict[str, str] = {}
        while not over.reading.is_set():
            for name, connection in connections.items():
                if connection.region != known.get(name):
                    known[name] = connection.region
                    diary.write("region", f"{name} {connection.region}")
            await asyncio.sleep(LOOK_S)


KINDS: Final[dict[str, Callable[..., Any]]] = {
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
    "Java": java,
    "SDK": sdk,
    "SDK-sync": sdk_sync,
    "followers": followers,
}


def main() -> None:
    """Work until the input ends."""
    task = Task(**json.loads(sys.stdin.readline()))
    over = Over(threading.Event(), threading.Event())
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of every try to connect

    def wait_for_end() -> None:
        sys.stdin.read()
        over.publishing.set()
        time.sleep(REST_S)
        over.reading.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    asyncio.run(KINDS[task.kind](task, Diary(task.kind), over))


if __name__ == "__main__":
    main()
