"""The clients of the single-record benchmark, each a process of its own so that they do not wait for each other.

`python -m loadtest.bench.single_client produce BOOTSTRAP TOPICS PARTITIONS RATE SECONDS` sends one record at a time,
each with its intended send time (monotonic ns, one clock for all processes of a host) in front of the value.
`python -m loadtest.bench.single_client consume BOOTSTRAP TOPICS PARTITIONS SECONDS [SHARE OF]` reads by assignment from
the end and counts latency from the intended send time, so a slow broker cannot hide behind a waiting producer. Of OF
such clients it reads what falls to number SHARE.
`python -m loadtest.bench.single_client member BOOTSTRAP TOPICS PARTITIONS SECONDS GROUP` is a member of the group
"bench-GROUP" instead, which commits once per second.
PARTITIONS is of each topic; the records go round all of them. How they connect is in their environment
(loadtest.bench.client_settings). Each prints one JSON line.
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

STAMP_CHARS = 20
PADDING = b"x" * 80
FLUSH_SECONDS_MAX = 30
POLL_EVERY_RECORDS = 20
COMMIT_MS = 1_000


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
        ahead_ns = due - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9)  # polling instead would take a core from the brokers
        lags_ns.append(time.monotonic_ns() - due)
        topic, partition = places[number % len(places)]
        producer.produce(topic, b"%020d" % due + PADDING, partition=partition, on_delivery=delivered)
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
    left = producer.flush(FLUSH_SECONDS_MAX)
    return {"sent": count, "failed": failed + left, "lag_p99_ms": quantile(lags_ns, 0.99, none=0) / 1e6}


def consume(
    bootstrap: str, topics: list[str], partitions: int, seconds: int, share: int = 0, of: int = 1
) -> dict[str, Any]:
    """Read by assignment for `seconds` and return the latencies in ns, with the intended send time of each record."""
    consumer = Consumer(_consumer_settings(bootstrap) | {"group.id": "bench", "enable.auto.commit": False})
    places = [(topic, partition) for topic in topics for partition in range(partitions)]
    consumer.assign([TopicPartition(topic, partition, OFFSET_END) for topic, partition in places[share::of]])
    return _read(consumer, seconds)


def member(bootstrap: str, topics: list[str], partitions: int, seconds: int, group: int) -> dict[str, Any]:
    """Read as a member of a group, with automatic commits; return as `consume`."""
    del partitions  # what it reads is the group's business
    settings = {"group.id": f"bench-{group}", "auto.commit.interval.ms": COMMIT_MS, "auto.offset.reset": "latest"}
    consumer = Consumer(_consumer_settings(bootstrap) | settings)
    consumer.subscribe(topics)
    return _read(consumer, seconds)


def _consumer_settings(bootstrap: str) -> dict[str, Any]:
    waits = {"fetch.wait.max.ms": 100, "fetch.error.backoff.ms": 50}
    return {"bootstrap.servers": bootstrap, **waits, **from_environment()}


def _read(consumer: Consumer, seconds: int) -> dict[str, Any]:
    rows = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            due = int(message.value()[:STAMP_CHARS])
            rows.append((due, time.monotonic_ns() - due))
    consumer.close()
    return {"rows": rows}


ROLES: Final[dict[str, Callable[..., dict[str, Any]]]] = {"produce": produce, "consume": consume, "member": member}


def main() -> None:
    """Run the client named by the first argument."""
    role, bootstrap, topics, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(ROLES[role](bootstrap, topics.split(","), *map(int, numbers))) + "\n")


if __name__ == "__main__":
    main()
