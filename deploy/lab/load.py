"""`python -m deploy.lab.load`: an unmodified Kafka producer and consumer, from the first step to the last.

Rule 1: whoever says that a record is lost or doubled is a client: what the producer was told is compared with what the
        consumer read, by the records' own numbers.
Rule 2: clients name gateways only; they find brokers as any client does.
Rule 3: both are made anew when the file of the authorities changes, as an application that is given another one starts
        again: librdkafka reads it once. What was sent is told and what was read is kept.
Rule 4: the end is a line on standard input. Then nothing more is sent, what was sent is awaited, and what was
        acknowledged is read to its end.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

PARTITIONS: Final = 3
DRAIN_S: Final = 120
FLUSH_S: Final = 5
LOOK_S: Final = 1  # at the authorities
RECORD_BYTES: Final = 100


@dataclass
class Books:
    """What the clients were told: acknowledged numbers with their times, and how often each number was read."""

    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> (partition, offset)
    acknowledged_at: array[float] = field(default_factory=lambda: array("d"))  # seconds since 1970, in order
    refused: list[str] = field(default_factory=list)
    read: Counter[int] = field(default_factory=Counter)
    moved: int = 0  # read at another place than the producer was told
    backwards: int = 0
    last: dict[int, int] = field(default_factory=dict)  # partition -> last number that was read there

    def note_delivery(self, number: int, error: KafkaError | None, message: Any) -> None:
        """Note what the producer is told of one record."""
        if error is not None:
            self.refused.append(str(error))
            return
        self.acknowledged_at.append(time.time())
        self.acknowledged[number] = (message.partition(), message.offset())

    def note_read(self, message: Any) -> None:
        """Note one record that the consumer was handed."""
        number = int(message.value()[:12])
        self.read[number] += 1
        told = self.acknowledged.get(number)
        self.moved += told is not None and told != (message.partition(), message.offset())
        self.backwards += number < self.last.get(message.partition(), -1)
        self.last[message.partition()] = number

    @property
    def unread(self) -> int:
        """Return how many acknowledged records were not read yet."""
        return sum(1 for number in self.acknowledged if not self.read[number])

    def verdict(self) -> dict[str, Any]:
        """Return the counts as JSON may have them."""
        return {
            "acknowledged": len(self.acknowledged),
            "refused": len(self.refused),
            "why_refused": self.refused[:3],
            "read": sum(self.read.values()),
            "lost": self.unread,
            "duplicated": sum(count - 1 for count in self.read.values()),
            "moved": self.moved,
            "backwards": self.backwards,
        }


class Clients:
    """One producer and one consumer.

    Args:
        settings: of librdkafka, for both.
        make_producer, make_consumer: others only in tests.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        topic: str,
        *,
        make_producer: Callable[[dict[str, Any]], Any] = Producer,
        make_consumer: Callable[[dict[str, Any]], Any] = Consumer,
    ) -> None:
        self._settings = settings
        self._places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        self._make_producer = make_producer
        self._make_consumer = make_consumer
        self._begin()

    def _begin(self) -> None:
        self._trusted = self._authorities()
        self.producer = self._make_producer(
            {**self._settings, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 300_000}
        )
        self.consumer = self._make_consumer(
            {**self._settings, "group.id": "lab", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
        self.consumer.assign(self._places)

    def _authorities(self) -> bytes:
        return Path(self._settings["ssl.ca.location"]).read_bytes()

    def renew(self) -> None:
        """Begin anew when there are other authorities, as soon as nothing is on its way."""
        if self._authorities() == self._trusted or self.producer.flush(FLUSH_S):
            return
        read = [place.offset for place in self.consumer.position(self._places)]
        for place, offset in zip(self._places, read, strict=True):
            place.offset = max(place.offset, offset)  # below 0: nothing was read since
        self.consumer.close()
        self._begin()


def main() -> int:
    """Send and read until a line comes in, then print the verdict as JSON; the times go to the file --times."""
    parser = argparse.ArgumentParser(prog="deploy.lab.load")
    parser.add_argument("--settings", type=Path, required=True, help="JSON: settings of librdkafka for both clients")
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--times", type=Path, required=True, help="written at the end: doubles, seconds since 1970")
    options = parser.parse_args()
    settings = json.loads(options.settings.read_text())
    books = Books()
    clients = Clients(settings, options.topic)
    _send(clients, books, topic=options.topic, rate=options.rate, times=options.times)
    clients.producer.flush(DRAIN_S)
    deadline = time.monotonic() + DRAIN_S
    while books.unread and time.monotonic() < deadline:
        _read(clients.consumer, books, 1.0)
    _read(clients.consumer, books, 2.0)  # what nobody expects
    clients.consumer.close()
    print(json.dumps(books.verdict()), flush=True)
    return 0


def _send(clients: Clients, books: Books, *, topic: str, rate: int, times: Path) -> None:
    begun, number, written = time.monotonic(), 0, 0
    looked = begun
    print("sending", flush=True)
    with times.open("wb") as file:
        while not select.select([sys.stdin], (), (), 0)[0]:
            if time.monotonic() - looked > LOOK_S:
                clients.renew()
                looked = time.monotonic()
            due = int((time.monotonic() - begun) * rate)
            while number < due:
                value = f"{number:012d}".ljust(RECORD_BYTES, ".").encode()

                def told(error: KafkaError | None, message: Any, number: int = number) -> None:
                    books.note_delivery(number, error, message)

                try:
                    clients.producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=told)
                except BufferError:  # a long pause: what is due waits
                    break
                number += 1
            clients.producer.poll(0)
            _read(clients.consumer, books, 0.01)
            books.acknowledged_at[written:].tofile(file)
            file.flush()
            written = len(books.acknowledged_at)
        sys.stdin.readline()


def _read(consumer: Consumer, books: Books, timeout_s: float) -> None:
    for message in consumer.consume(500, timeout_s):
        if message.error() is None:
            books.note_read(message)


if __name__ == "__main__":
    sys.exit(main())
