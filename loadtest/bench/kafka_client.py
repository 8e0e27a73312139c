"""Producer and readers of the Kafka protocol: librdkafka, for Apache Kafka and for georelay alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from loadtest.bench.ledger_core import Deliveries, Ledger
from loadtest.bench.schedule_core import FAULT_RETRY_NS, NS_PER_S, Load
from loadtest.login import from_environment

POLL_EVERY_RECORDS: Final = 20
BURST_RECORDS: Final = 200  # of a load in batches: between looks at the clock
NS_PER_MS: Final = 1_000_000
ASK_S: Final = 30
AGAIN_S: Final = 0.1
COUNTED_PER_CALL: Final = 10_000
ANY_PARTITION: Final = -1
# A consumer asks again somewhere else when a broker is silent for as long as a producer waits in front of a fault.
CONSUMER_WAITS: Final = {
    "socket.timeout.ms": FAULT_RETRY_NS // NS_PER_MS + 500,
    "reconnect.backoff.max.ms": 500,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 32_768,
}

KEPT: Final[list[Consumer]] = []  # open to the end of the process: also their destructor waits for the broker


def produce(servers: str, load: Load, end_ns: int) -> Ledger:
    """Send a load with acks=all and wait for the answers until `end_ns` at most."""
    ledger = Ledger(load.retry_ns)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": load.exactly_once,
            "request.timeout.ms": load.retry_ns // NS_PER_MS,
            "socket.timeout.ms": load.retry_ns // NS_PER_MS + 500,
            "reconnect.backoff.max.ms": 500,
            "linger.ms": load.linger_ms if load.window else 0,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000 if load.window else 10_000,
            "queue.buffering.max.messages": load.window or 100_000,
            **from_environment(),
        }
    )
    producer.list_topics(timeout=10)
    (_in_batches if load.window else _one_by_one)(producer, load, ledger)
    while ledger.open and time.monotonic_ns() < end_ns:
        producer.poll(0.05)
    producer.purge()
    producer.flush(1)
    return ledger


def _one_by_one(producer: Producer, load: Load, ledger: Ledger) -> None:
    began_ns = time.monotonic_ns()
    for number in range(load.count):
        due_ns = load.due_ns(began_ns, number)
        _sleep_until(due_ns)  # polling instead would take a core from the brokers
        now_ns = time.monotonic_ns()
        ledger.lags_ns.append(now_ns - due_ns)
        ledger.sent(number, now_ns)
        place = {"partition": load.partition(number), "on_delivery": _noting(ledger, number)}
        producer.produce(load.topic(number), load.value(due_ns, number), **place)
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)


def _in_batches(producer: Producer, load: Load, ledger: Ledger) -> None:
    """Send in bursts, at a rate or as fast as it goes; of several partitions the client fills one at a time."""
    began_ns = time.monotonic_ns()
    end_ns = began_ns + round(load.seconds * NS_PER_S)
    partition, value = 0 if load.partitions == 1 else ANY_PARTITION, load.value(end_ns, 0)
    number = answered = 0

    def noted(error: object, _: object) -> None:
        nonlocal answered
        answered += error is None

    while number < load.count if load.rate_per_s else time.monotonic_ns() < end_ns:
        if load.rate_per_s:
            _sleep_until(load.due_ns(began_ns, number))
        for each in range(number, number + BURST_RECORDS):
            while True:
                try:
                    producer.produce(load.topic(each), value, partition=partition, on_delivery=noted)
                    break
                except BufferError:
                    producer.poll(0.005)
        number += BURST_RECORDS
        producer.poll(0)
    producer.flush(ASK_S)
    ledger.acknowledged.extend(range(answered))
    for each in range(answered, number):
        ledger.sent(each, end_ns)


def _sleep_until(due_ns: int) -> None:
    time.sleep(max(0, due_ns - time.monotonic_ns()) / NS_PER_S)


def _noting(ledger: Ledger, number: int) -> Callable[[object, object], None]:
    def noted(error: object, _: object) -> None:
        if error is None:
            ledger.answered(number)

    return noted


def consume(
    servers: str,
    topics: list[str],
    ready: Callable[[], None],
    book: Deliveries,
    *,
    partitions: int = 1,
    share: int = 0,
    of: int = 1,
) -> None:
    """Read from the end of the topics while the book wants more; of `of` such readers what falls to number `share`."""
    with _assigned(servers, topics, partitions, share, of) as consumer:
        ready()
        _read(consumer, book)


def member(
    servers: str,
    topics: list[str],
    ready: Callable[[], None],
    book: Deliveries,
    *,
    group: str,
    commit_ms: int,
    reset: str = "latest",
    leaves: bool = True,
) -> None:
    """Read as a member of a group, with automatic commits; `leaves`: in order, for which its broker must be there."""
    settings = {"group.id": group, "auto.commit.interval.ms": commit_ms, "auto.offset.reset": reset}
    consumer = Consumer(_settings(servers) | settings)
    consumer.subscribe(topics, on_assign=lambda *_: ready())
    _read(consumer, book)
    if leaves:
        consumer.close()
    else:
        KEPT.append(consumer)


def count(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries, *, partitions: int = 1) -> None:
    """Keep up with a load in batches: count its records and look at none."""
    with _assigned(servers, topics, partitions, 0, 1) as consumer:
        ready()
        while book.more(time.monotonic_ns()):
            found = sum(message.error() is None for message in consumer.consume(COUNTED_PER_CALL, 0.1))
            book.counted(found, time.monotonic_ns())


def _read(consumer: Consumer, book: Deliveries) -> None:
    while book.more(time.monotonic_ns()):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            book.add(message.value(), time.monotonic_ns())


def _assigned(servers: str, topics: Sequence[str], partitions: int, share: int, of: int) -> Consumer:
    """Return a consumer whose next record is the first behind what is there now."""
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(partitions)][share::of]
    consumer = Consumer(_settings(servers) | {"group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, end) for (topic, partition), end in _ends(servers, places)])
    return consumer


def _ends(servers: str, places: Sequence[TopicPartition]) -> Iterable[tuple[tuple[str, int], int]]:
    """Return where partitions end, all of them asked for at once, and again where a leader has just moved."""
    admin, deadline = AdminClient({"bootstrap.servers": servers, **from_environment()}), time.monotonic() + ASK_S
    ends: dict[tuple[str, int], int] = {}
    while left := [at for at in places if (at.topic, at.partition) not in ends]:
        for at, told in admin.list_offsets(dict.fromkeys(left, OffsetSpec.latest()), request_timeout=ASK_S).items():
            try:
                ends[at.topic, at.partition] = told.result(ASK_S).offset
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
        time.sleep(AGAIN_S)
    return ends.items()


def _settings(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, **CONSUMER_WAITS, **from_environment()}


def create(servers: str, topics: list[str], settings: dict[str, str]) -> None:
    """Make topics of one partition and the brokers' replicas with such settings; wait until each has a leader."""
    admin = AdminClient({"bootstrap.servers": servers, **from_environment()})
    made = admin.create_topics([NewTopic(topic, 1, config=settings) for topic in topics], operation_timeout=30)
    for future in made.values():
        future.result(60)
    while "" in leaders(servers, topics):
        time.sleep(0.1)


def leaders(servers: str, topics: list[str]) -> list[str]:
    """Return the address of the broker that leads each topic, "" where there is none."""
    known = AdminClient({"bootstrap.servers": servers, **from_environment()}).list_topics(timeout=10)
    found = []
    for topic in topics:
        partitions = known.topics[topic].partitions if topic in known.topics else {}
        broker = known.brokers.get(partitions[0].leader) if partitions else None
        found.append(f"{broker.host}:{broker.port}" if broker else "")
    return found
