"""Producer and consumer of the Kafka protocol: librdkafka, for Apache Kafka and for georelay alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from loadtest.peers.ledger_core import Deliveries, Ledger
from loadtest.peers.schedule_core import FAULT_RETRY_NS, NS_PER_S, Load

POLL_EVERY_RECORDS: Final = 20
BULK_POLL_EVERY_RECORDS: Final = 1_000
PARTITION: Final = 0
NS_PER_MS: Final = 1_000_000
# A consumer asks again somewhere else when a broker is silent for as long as a producer waits in front of a fault.
CONSUMER_WAITS: Final = {"socket.timeout.ms": FAULT_RETRY_NS // NS_PER_MS + 500, "reconnect.backoff.max.ms": 500}


def produce(servers: str, load: Load, end_ns: int) -> Ledger:
    """Send a load with acks=all and wait for the answers until `end_ns` at most."""
    ledger = Ledger(load.retry_ns)
    bulk = load.rate_per_s == 0
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": load.exactly_once,
            "request.timeout.ms": load.retry_ns // NS_PER_MS,
            "socket.timeout.ms": load.retry_ns // NS_PER_MS + 500,
            "reconnect.backoff.max.ms": 500,
            "linger.ms": 5 if bulk else 0,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000 if bulk else 10_000,
            "queue.buffering.max.messages": load.window if bulk else 100_000,
        }
    )
    producer.list_topics(timeout=10)
    (_as_fast_as_it_can if bulk else _at_a_rate)(producer, load, ledger)
    while ledger.open and time.monotonic_ns() < end_ns:
        producer.poll(0.05)
    producer.purge()
    producer.flush(1)
    return ledger


def _at_a_rate(producer: Producer, load: Load, ledger: Ledger) -> None:
    began_ns = time.monotonic_ns()
    for number in range(load.count):
        due_ns = load.due_ns(began_ns, number)
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / NS_PER_S)  # polling instead would take a core from the brokers
        now_ns = time.monotonic_ns()
        ledger.lags_ns.append(now_ns - due_ns)
        ledger.sent(number, now_ns)
        value = load.value(due_ns, number)
        producer.produce(load.topic(number), value, partition=PARTITION, on_delivery=_noting(ledger, number))
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)


def _as_fast_as_it_can(producer: Producer, load: Load, ledger: Ledger) -> None:
    end_ns = time.monotonic_ns() + round(load.seconds * NS_PER_S)
    value = load.value(end_ns, 0)
    answered = 0

    def noted(error: object, _: object) -> None:
        nonlocal answered
        answered += error is None

    number = 0
    while number % BULK_POLL_EVERY_RECORDS or time.monotonic_ns() < end_ns:
        try:
            producer.produce(load.topic(number), value, partition=PARTITION, on_delivery=noted)
        except BufferError:
            producer.poll(0.005)
            continue
        number += 1
        if number % BULK_POLL_EVERY_RECORDS == 0:
            producer.poll(0)
    producer.flush(30)
    ledger.acknowledged.extend(range(answered))


def _noting(ledger: Ledger, number: int) -> Callable[[object, object], None]:
    def noted(error: object, _: object) -> None:
        if error is None:
            ledger.answered(number)

    return noted


def consume(servers: str, topics: list[str], ready: Callable[[], None], book: Deliveries) -> None:
    """Read from the end of the topics while the book wants more."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "peers", "enable.auto.commit": False, **CONSUMER_WAITS}
    )
    places = []
    for topic in topics:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, PARTITION), timeout=10)
        places.append(TopicPartition(topic, PARTITION, end))
    consumer.assign(places)
    ready()
    while book.more(time.monotonic_ns()):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            book.add(message.value(), time.monotonic_ns())
    consumer.close()


def create(servers: str, topics: list[str], settings: dict[str, str]) -> None:
    """Make topics of one partition and three replicas with such settings, and wait until each has a leader."""
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(topic, 1, 3, config=settings) for topic in topics], operation_timeout=30)
    for future in made.values():
        future.result(60)
    while "" in leaders(servers, topics):
        time.sleep(0.1)


def leaders(servers: str, topics: list[str]) -> list[str]:
    """Return the address of the broker that leads each topic, "" where there is none."""
    known = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10)
    found = []
    for topic in topics:
        partitions = known.topics[topic].partitions if topic in known.topics else {}
        broker = known.brokers.get(partitions[PARTITION].leader) if partitions else None
        found.append(f"{broker.host}:{broker.port}" if broker else "")
    return found
