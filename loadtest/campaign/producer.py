"""The foreign producer of a campaign: confluent-kafka, idempotent, in a process of its own.

`python -m loadtest.campaign.producer BOOTSTRAP TOPIC NAME RATE SECONDS LOG`

Rule: every acknowledgement is in LOG before the next record is sent, so what the campaign demands back is never more
than what this process was told, and never less. A line of LOG is "NUMBER OFFSET MONOTONIC_NS". The value of a record
is "NAME:NUMBER:" and filling. At the end one JSON line is printed: records sent, acknowledged and given up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

VALUE_BYTES: Final = 100
GIVE_UP_SECONDS: Final = 120  # longer than any fault of a campaign lasts
BURST_SECONDS: Final = 0.005  # records that became due meanwhile are sent together


@dataclass(slots=True)
class Sent:
    """What happened to the records so far."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    last_error: str = ""


def value_of(name: str, number: int) -> bytes:
    """Return the value of one record."""
    return f"{name}:{number}:".encode().ljust(VALUE_BYTES, b".")


def number_of(value: bytes) -> tuple[str, int]:
    """Return (producer name, number) of a value. Raises ValueError."""
    name, number, _ = value.split(b":", 2)
    return name.decode(), int(number)


def _delivered(log: int, sent: Sent, number: int, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        sent.failed += 1
        sent.last_error = str(error)
        return
    os.write(log, f"{number} {message.offset()} {time.monotonic_ns()}\n".encode())
    sent.acknowledged += 1


def produce(bootstrap: str, topic: str, name: str, *, per_second: float, seconds: float, log_path: Path) -> Sent:
    """Send at a steady rate, then wait for the last acknowledgement."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "message.timeout.ms": GIVE_UP_SECONDS * 1000,
        "log_level": 0,  # lost connections are the point of a campaign
    }
    producer = Producer(settings)
    producer.list_topics(topic, timeout=10)
    sent = Sent()
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            while sent.sent < elapsed * per_second:
                producer.poll(0)
                producer.produce(
                    topic,
                    value_of(name, sent.sent),
                    partition=0,
                    on_delivery=partial(_delivered, log, sent, sent.sent),
                )
                sent.sent += 1
            producer.poll(BURST_SECONDS)
        producer.flush(GIVE_UP_SECONDS)
    finally:
        os.close(log)
    return sent


def main() -> int:
    """Run it."""
    bootstrap, topic, name, per_second, seconds, log = sys.argv[1:7]
    sent = produce(bootstrap, topic, name, per_second=float(per_second), seconds=float(seconds), log_path=Path(log))
    row = {"sent": sent.sent, "acked": sent.acknowledged, "failed": sent.failed, "error": sent.last_error}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
