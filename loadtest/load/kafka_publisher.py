"""A publisher of the Kafka protocol (librdkafka): what it sent and was told is in its history, as it happens."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.arrivals import Arrivals
from loadtest.load.campaign import Topic, Users
from loadtest.load.engine_values import WallClock, value_of
from loadtest.load.keys import Keys

GIVE_UP_MS: Final = 120_000  # longer than any fault of a campaign lasts
REQUEST_TIMEOUT_MS: Final = 1_000
POLL_S: Final = 0.05
KNOWN_S_MAX: Final = 20.0
Done = tuple[str, float | None]  # (topic, latency in ms; None: it failed)


class KafkaPublisher:
    """One kind of user in one region.

    Rule 1: `send` runs in the thread that watches the clock, answers come in a thread of the producer's own; each
            counts its own, and what is done goes through `done`.
    """

    def __init__(
        self,
        name: str,
        users: Users,
        topics: dict[str, Topic],
        *,
        bootstrap: str,
        settings: dict[str, str],
        folder: Path,
        rng: random.Random,
        clock: WallClock,
    ) -> None:
        """Connect. Raises KafkaException: a topic cannot be had there."""
        self.name = name
        self.arrivals = Arrivals(rng, poisson=users.arrival == "poisson")
        self.done: deque[Done] = deque()
        self.sent = self.answered = 0
        self._users = users
        self._topics = [topics[topic] for topic in users.topics]
        self._rng = rng
        self._clock = clock
        self._keys = Keys(users.keys, users.key_count, rng)
        self._history = HistoryWriter(folder / f"{name}.history", name)
        self._producer = Producer(_settings(users, bootstrap) | settings)
        for topic in self._topics:
            self._until_known(topic.name)
        self._ended = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()

    @property
    def in_flight(self) -> int:
        """Return how many records were not answered yet."""
        return self.sent - self.answered

    def send(self, due_ns: int, *, in_flight_max: int) -> None:
        """Send the record that is due; one that there is no room for has failed."""
        topic = self._rng.choice(self._topics)
        if self.in_flight >= in_flight_max:
            self.done.append((topic.name, None))
            return
        key = self._keys.draw()
        partition = key % topic.partitions
        number = self._history.invoke(Kind.PRODUCE, f"{topic.name}/{partition}", value=f"{self.name}:{self.sent}")
        value = value_of(self.name, self.sent, due_ns, self._users.payload_bytes)
        self.sent += 1
        answered = partial(self._answer, number, topic.name, due_ns)
        try:
            self._producer.produce(topic.name, value, str(key).encode(), partition=partition, on_delivery=answered)
        except (BufferError, KafkaException) as error:  # its queue is full, or it lost track for good
            self.answered += 1
            self._history.failed(number, str(error))
            self.done.append((topic.name, None))

    def finish(self, seconds: float) -> int:
        """Wait for the last answers; return how many did not come."""
        left = int(self._producer.flush(seconds))
        self._ended.set()
        self._poller.join()
        self._history.close()
        return left

    def _answer(self, number: int, topic: str, due_ns: int, error: KafkaError | None, message: Message) -> None:
        self.answered += 1
        if error is not None:
            self._history.unknown(number, str(error))  # a record that timed out may have been stored
            self.done.append((topic, None))
            return
        self._history.produced(number, message.offset())
        self.done.append((topic, (self._clock.now_ns() - due_ns) / 1e6))

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(POLL_S)

    def _until_known(self, topic: str) -> None:
        deadline = time.monotonic() + KNOWN_S_MAX
        while True:
            found = self._producer.list_topics(topic, timeout=10).topics[topic]
            if found.error is None:
                return
            if time.monotonic() > deadline:
                raise KafkaException(found.error)
            time.sleep(0.2)


def _settings(users: Users, bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": users.batch_ms,
        "message.timeout.ms": GIVE_UP_MS,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "socket.timeout.ms": REQUEST_TIMEOUT_MS,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,  # lost connections are the point of a campaign
    }
