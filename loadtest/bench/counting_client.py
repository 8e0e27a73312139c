"""A consumer that keeps up with a batched load: it counts records and looks at none.

`python -m loadtest.bench.counting_client BOOTSTRAP TOPIC PARTITIONS RECORDS SECONDS` reads by assignment from the end,
prints "ready", and ends with one JSON line when it has RECORDS records or SECONDS have gone by.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

RECORDS_PER_CALL = 10_000
POLL_S = 0.1
POSITIONED_S = 2.0  # the first fetch asks where the end is


def count(bootstrap: str, topic: str, partitions: int, records: int, seconds: int) -> int:
    """Return how many records were read."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench-count", "enable.auto.commit": False}
    consumer = Consumer(settings | {"fetch.wait.max.ms": 100, "queued.max.messages.kbytes": 32_768})
    consumer.assign([TopicPartition(topic, partition, OFFSET_END) for partition in range(partitions)])
    found = _read(consumer, records, time.monotonic() + POSITIONED_S)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    found += _read(consumer, records - found, time.monotonic() + seconds)
    consumer.close()
    return found


def _read(consumer: Consumer, records: int, deadline: float) -> int:
    found = 0
    while found < records and time.monotonic() < deadline:
        found += sum(message.error() is None for message in consumer.consume(RECORDS_PER_CALL, POLL_S))
    return found


if __name__ == "__main__":
    bootstrap, topic, *numbers = sys.argv[1:]
    partitions, records, seconds = map(int, numbers)
    sys.stdout.write(json.dumps({"records": count(bootstrap, topic, partitions, records, seconds)}) + "\n")
