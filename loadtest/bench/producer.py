"""One producer process of the batched benchmark.

`python -m loadtest.bench.producer BOOTSTRAP TOPIC RECORDS IDEMPOTENT [RATE LINGER_MS]`: IDEMPOTENT is 1 or 0, RATE
records per second (0, the default: as fast as it can), LINGER_MS how long a batch waits for more records (5). How it
connects is in its environment (loadtest.bench.client_settings).

Prints one JSON line: seconds from the first record to the last acknowledgement, and how many were acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Producer

from loadtest.bench.client_settings import from_environment

VALUE = b"x" * 100
FLUSH_SECONDS_MAX = 120
POLL_EVERY_RECORDS = 2_000
PACE_EVERY_RECORDS = 200
LINGER_MS = 5


def produce(
    bootstrap: str, topic: str, records: int, *, idempotent: bool, rate_per_second: int = 0, linger_ms: int = LINGER_MS
) -> dict[str, Any]:
    """Publish `records` records of 100 bytes; acks=all, batch 1 MiB."""
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
            "enable.idempotence": idempotent,
            "queue.buffering.max.messages": 1_000_000,
            **from_environment(),
        }
    )
    producer.list_topics(topic, timeout=10)
    began = time.monotonic()
    for number in range(records):
        if rate_per_second and number % PACE_EVERY_RECORDS == 0:
            ahead = began + number / rate_per_second - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
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
    bootstrap, topic, *numbers = sys.argv[1:]
    records, idempotent, *paced = map(int, numbers)
    rate_per_second, linger_ms = paced or (0, LINGER_MS)
    outcome = produce(
        bootstrap,
        topic,
        records,
        idempotent=bool(idempotent),
        rate_per_second=rate_per_second,
        linger_ms=linger_ms,
    )
    sys.stdout.write(json.dumps(outcome) + "\n")
