"""One producer process of the batched benchmark.

`python -m loadtest.bench.producer BOOTSTRAP TOPIC RECORDS IDEMPOTENT` (1 or 0).

Prints one JSON line: seconds from the first record to the last acknowledgement, and how many were acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Producer

VALUE = b"x" * 100
FLUSH_SECONDS_MAX = 120
POLL_EVERY_RECORDS = 2_000


def produce(bootstrap: str, topic: str, records: int, *, idempotent: bool) -> dict[str, Any]:
    """Publish `records` records of 100 bytes; acks=all, batch 1 MiB, linger 5 ms."""
    outcome = {"acknowledged": 0, "failed": 0}

    def delivered(error: object, _: object) -> None:
        outcome["failed" if error else "acknowledged"] += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "linger.ms": 5,
            "enable.idempotence": idempotent,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic, timeout=10)
    began = time.monotonic()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.005)
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
    producer.flush(FLUSH_SECONDS_MAX)
    return {"seconds": time.monotonic() - began, **outcome}


if __name__ == "__main__":
    bootstrap, topic, records, idempotent = sys.argv[1:5]
    sys.stdout.write(json.dumps(produce(bootstrap, topic, int(records), idempotent=idempotent == "1")) + "\n")
