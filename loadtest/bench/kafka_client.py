"""The Kafka clients of benchmarks (librdkafka), each a process of its own so that they do not wait for each other.

`python -m loadtest.bench.kafka_client ROLE BOOTSTRAP TOPICS NUMBERS`; each prints one JSON line at its end. How they
connect is in their environment (loadtest.bench.client_settings). A reader reads from the end on, by assignment.

`bulk ... RECORDS IDEMPOTENT RATE LINGER_MS BYTES` publishes records of so many bytes to one topic; IDEMPOTENT is 1 or
0, RATE records per second (0: as fast as it can).
`produce ... PARTITIONS RATE SECONDS` sends one record at a time, round all partitions of the topics, each with its
intended send time (monotonic ns, one clock for all processes of a host) in front of the value.
`consume ... PARTITIONS SECONDS [SHARE OF]` counts latency from that time, so a slow broker cannot hide behind a waiting
producer. Of OF such clients it reads what falls to number SHARE.
`member ... PARTITIONS SECONDS GROUP` is a member of the group "bench-GROUP" instead, which commits once per second.
`count ... PARTITIONS RECORDS SECONDS` counts records and looks at none: it prints "ready", and ends when it has RECORDS
records or SECONDS have gone by.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from loadtest.bench.client_settings import from_environment
from loadtest.quantile_core import quantile

STAMP_CHARS: Final = 20
PADDING: Final = b"x" * 80
FLUSH_S: Final = 120
POLL_EVERY: Final = {"bulk": 2_000, "produce": 20}
PACE_EVERY_RECORDS: Final = 200
COMMIT_MS: Final = 1_000
COUNTED_PER_CALL: Final = 10_000
POLL_S: Final = 0.1
POSITIONED_S: Final = 2.0  # the first fetch asks where the end is


def bulk(
    bootstrap: str,
    topics: list[str],
    records: int,
    idempotent: int,
    rate_per_second: int,
    linger_ms: int,
    value_bytes: int,
) -> dict[str, Any]:
    """Publish so many records; acks=all, batch 1 MiB."""
    outcome = {"acknowledged": 0, "failed": 0}

    def delivered(error: object, _: object) -> None:
        outcome["failed" if error else "acknowledged"] += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "linger.ms": linger_ms,
            "enable.idempotence": bool(idempotent),
            "queue.buffering.max.messages": 1_000_000,
            **from_environment(),
        }
    )
    (topic,) = topics
    value = b"x" * value_bytes
    producer.list_topics(topic, timeout=10)
    began = time.monotonic()
    for number in range(records):
        if rate_per_second and number % PACE_EVERY_RECORDS == 0:
            time.sleep(max(0.0, began + number / rate_per_second - time.monotonic()))
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.005)
        if number % POLL_EVERY["bulk"] == 0:
            producer.poll(0)
    producer.flush(FLUSH_S)
    return {"seconds": time.monotonic() - began, **outcome}


def produce(bootstrap: str, topics: list[str], partitions: int, rate_per_second: int, seconds: int) -> dict[str, Any]:
    """Publish at a steady rate, round robin over the partitions of the topics; acks=all, no linger."""
    failed = 0

    def delivered(error: object, _: object) -> None:
        nonlocal failed
        failed += error is not None

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **from_environment()})
    producer.list_topics(timeout=10)
    places = [(topic, partition) for partition in range(partitions) for topic in topics]
    lags_ns = []
    began = time.monotonic_ns()
    count = rate_per_second * seconds
    for number in range(count):
        due = began + number * 1_000_000_000 // rate_per_second
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)  # polling instead would take a core from the brokers
        lags_ns.append(time.monotonic_ns() - due)
        topic, partition = places[number % len(places)]
        producer.produce(topic, b"%020d" % due + PADDING, partition=partition, on_delivery=delivered)
        if number % POLL_EVERY["produce"] == 0:
            producer.poll(0)
    left = producer.flush(FLUSH_S)
    return {"sent": count, "failed": failed + left, "lag_p99_ms": quantile(lags_ns, 0.99, none=0) / 1e6}


def consume(
    bootstrap: str, topics: list[str], partitions: int, seconds: int, share: int = 0, of: int = 1
) -> dict[str, Any]:
    """Read for `seconds`; return the latencies in ns, with the intended send time of each record."""
    return _latencies(_assigned(bootstrap, topics, partitions, share, of), seconds)


def member(bootstrap: str, topics: list[str], partitions: int, seconds: int, group: int) -> dict[str, Any]:
    """Read as a member of a group, with automatic commits; return as `consume`."""
    del partitions  # what it reads is the group's business
    settings = {"group.id": f"bench-{group}", "auto.commit.interval.ms": COMMIT_MS, "auto.offset.reset": "latest"}
    consumer = Consumer(_consumer_settings(bootstrap) | settings)
    consumer.subscribe(topics)
    return _latencies(consumer, seconds)


def count(bootstrap: str, topics: list[str], partitions: int, records: int, seconds: int) -> dict[str, Any]:
    """Keep up with a batched load; return how many records were read."""
    consumer = _assigned(bootstrap, topics, partitions)
    found = _counted(consumer, records, time.monotonic() + POSITIONED_S)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    found += _counted(consumer, records - found, time.monotonic() + seconds)
    consumer.close()
    return {"records": found}


def _consumer_settings(bootstrap: str) -> dict[str, Any]:
    waits = {"fetch.wait.max.ms": 100, "fetch.error.backoff.ms": 50, "queued.max.messages.kbytes": 32_768}
    return {"bootstrap.servers": bootstrap, **waits, **from_environment()}


def _assigned(bootstrap: str, topics: list[str], partitions: int, share: int = 0, of: int = 1) -> Consumer:
    consumer = Consumer(_consumer_settings(bootstrap) | {"group.id": "bench", "enable.auto.commit": False})
    places = [(topic, partition) for topic in topics for partition in range(partitions)]
    consumer.assign([TopicPartition(topic, partition, OFFSET_END) for topic, partition in places[share::of]])
    return consumer


def _latencies(consumer: Consumer, seconds: int) -> dict[str, Any]:
    rows = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            due = int(message.value()[:STAMP_CHARS])
            rows.append((due, time.monotonic_ns() - due))
    consumer.close()
    return {"rows": rows}


def _counted(consumer: Consumer, records: int, deadline: float) -> int:
    found = 0
    while found < records and time.monotonic() < deadline:
        found += sum(message.error() is None for message in consumer.consume(COUNTED_PER_CALL, POLL_S))
    return found


ROLES: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    each.__name__: each for each in (bulk, produce, consume, member, count)
}


def main() -> None:
    """Run the client named by the first argument."""
    role, bootstrap, topics, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(ROLES[role](bootstrap, topics.split(","), *map(int, numbers))) + "\n")


if __name__ == "__main__":
    main()
