"""The foreign producer of a campaign: confluent-kafka, idempotent, in a process of its own.

`python -m loadtest.campaign.producer BOOTSTRAP TOPIC NAME RATE SECONDS HISTORY`

Rule: what was sent and every acknowledgement is in HISTORY (loadtest.history.history_file) before the next record is
sent, so what a campaign demands back is never more than what this process was told, and never less.

The value of a record is "NAME:NUMBER:" and filling; "NAME:NUMBER" is its name in the history. Record NUMBER goes to
partition NUMBER modulo PARTITIONS. SIGTERM ends the sending early. At the end one JSON line is printed: records sent,
acknowledged and given up.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind

VALUE_BYTES: Final = 100
GIVE_UP_SECONDS: Final = 120  # longer than any fault of a campaign lasts
BURST_SECONDS: Final = 0.005  # records that became due meanwhile are sent together
SHOWN_BYTES_MAX: Final = 64


@dataclass(slots=True)
class Sent:
    """What happened to the records so far."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    last_error: str = ""
    stopped: bool = False


def value_of(name: str, number: int) -> bytes:
    """Return the value of one record."""
    return f"{name}:{number}:".encode().ljust(VALUE_BYTES, b".")


def number_of(value: bytes) -> tuple[str, int]:
    """Return (producer name, number) of a value. Raises ValueError."""
    name, number, _ = value.split(b":", 2)
    return name.decode(), int(number)


def name_of(value: bytes) -> str:
    """Return the name of a record from its value, or its bytes in hex when it is not one of ours, byte for byte."""
    try:
        name, number = number_of(value)
    except ValueError:
        return f"bytes:{value[:SHOWN_BYTES_MAX].hex()}"
    if value != value_of(name, number):
        return f"bytes:{value[:SHOWN_BYTES_MAX].hex()}"
    return f"{name}:{number}"


def key_of(topic: str, partition: int) -> str:
    """Return the key of a partition in the history."""
    return f"{topic}/{partition}"


def _delivered(writer: HistoryWriter, sent: Sent, number: int, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        sent.failed += 1
        sent.last_error = str(error)
        writer.unknown(number, str(error))  # a record that timed out may have been stored
        return
    writer.produced(number, message.offset())
    sent.acknowledged += 1


def produce(options: argparse.Namespace, writer: HistoryWriter, sent: Sent) -> None:
    """Send at a steady rate, then wait for the last acknowledgement."""
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "message.timeout.ms": GIVE_UP_SECONDS * 1000,
        "log_level": 0,  # lost connections are the point of a campaign
    }
    if options.request_timeout_ms:
        settings |= {
            "request.timeout.ms": options.request_timeout_ms,
            "socket.timeout.ms": options.request_timeout_ms,
            "socket.connection.setup.timeout.ms": max(1_000, options.request_timeout_ms),
            "reconnect.backoff.max.ms": max(100, options.request_timeout_ms),  # not the client's 10 s
        }
    producer = Producer(settings)
    producer.list_topics(options.topic, timeout=10)
    try:
        _send_all(producer, options, writer, sent)
    except KafkaException as error:
        # An idempotent producer that lost track (a record went missing, or came twice) refuses to go on. What it has
        # sent and was not told of stays without an end in the history: unknown.
        sent.failed += 1
        sent.last_error = str(error)


def _send_all(producer: Any, options: argparse.Namespace, writer: HistoryWriter, sent: Sent) -> None:
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < options.seconds and not sent.stopped:
        while sent.sent < elapsed * options.rate:
            producer.poll(0)
            partition, value = sent.sent % options.partitions, value_of(options.name, sent.sent)
            number = writer.invoke(Kind.PRODUCE, key_of(options.topic, partition), value=name_of(value))
            delivered = partial(_delivered, writer, sent, number)
            producer.produce(options.topic, value, partition=partition, on_delivery=delivered)
            sent.sent += 1
        producer.poll(BURST_SECONDS)
    producer.flush(GIVE_UP_SECONDS)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.campaign.producer", description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("name")
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("history", type=Path)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--request-timeout-ms", type=int, default=0, help="0: the client's own default")
    return parser


def main() -> int:
    """Run it."""
    options = parser().parse_args()
    sent = Sent()
    signal.signal(signal.SIGTERM, lambda *_: setattr(sent, "stopped", True))
    writer = HistoryWriter(options.history, options.name)
    try:
        produce(options, writer, sent)
    finally:
        writer.close()
    row = {"sent": sent.sent, "acked": sent.acknowledged, "failed": sent.failed, "error": sent.last_error}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
