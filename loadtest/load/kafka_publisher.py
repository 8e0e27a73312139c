"""A publisher of the Kafka protocol (librdkafka)."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from loadtest.load.campaign import Users
from loadtest.load.engine_values import REFUSED, Plan, WallClock
from loadtest.load.publisher import Outgoing, Publisher, first_thread

REQUEST_TIMEOUT_MS: Final = 1_000
ONCE_TIMEOUT_MS: Final = 20_000
# What a broker answers and has surely not stored, the numbers are Kafka's; then what it refuses because of its state,
# and where it sends the client elsewhere.
REFUSALS: Final = frozenset({2, 3, 10, 17, 18, 19, 29, 44, 87})
REDIRECTS: Final = frozenset({5, 6, 74, 75})
POLL_S: Final = 0.05
KNOWN_S_MAX: Final = 20.0
LOST_TRACK: Final = "the client of this producer has lost track of what it had sent, for good"


class KafkaPublisher(Publisher):
    """Answers come in a thread of the producer's own."""

    def __init__(self, plan: Plan, row: int, region: str, clock: WallClock) -> None:
        """Connect. Raises KafkaException: a topic cannot be had there."""
        super().__init__(plan, row, region, clock)
        self._history = self.writer(self.name)
        self._has_lost_track = False
        self._pending: dict[int, Outgoing] = {}  # by the number of the operation
        self._producer = Producer(settings_of(self.users, plan.bootstrap(region)) | dict(plan.settings))
        for topic in self.topics:
            self._until_known(topic.name)
        self._ended = threading.Event()
        self._poller = first_thread(self._poll)
        self._poller.start()

    def offer(self, records: list[Outgoing]) -> None:
        """Put records on their way."""
        for record in records:
            number = self.begin(self._history, record)
            place = {"partition": record.partition, "on_delivery": partial(self._answer, number, record)}
            self._pending[number] = record
            try:
                self._producer.produce(record.topic, record.value, record.key, **place)
            except (BufferError, KafkaException) as error:  # its queue is full, or it lost track for good
                self._has_lost_track |= isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL
                del self._pending[number]
                self.failed(self._history, number, record, str(error), is_sure=True)

    def settle(self, seconds: float) -> int:
        """Wait for the last answers, and let everything go; return how many did not come."""
        self._producer.flush(0 if self._has_lost_track else seconds)
        self._ended.set()
        self._poller.join()
        if self._has_lost_track:  # it sends nothing again and answers nothing: nobody knows what of it is stored
            for number, record in self._pending.items():
                self.failed(self._history, number, record, LOST_TRACK, is_sure=False)
            self._pending.clear()
        self._history.close()
        return len(self._pending)

    def _answer(self, number: int, record: Outgoing, error: KafkaError | None, message: Message) -> None:
        del self._pending[number]
        if error is not None and not self.users.sends_again and error.code() in REFUSALS | REDIRECTS:
            why = f"{REFUSED}: {error}" if error.code() in REFUSALS else str(error)
            self.failed(self._history, number, record, why, is_sure=True)
        elif error is not None:  # a record that timed out may have been stored, and so may one that was sent before
            self.failed(self._history, number, record, str(error), is_sure=False)
        else:
            self.stored(self._history, number, record, message.offset())

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


def settings_of(users: Users, bootstrap: str) -> dict[str, Any]:
    """Return the settings of librdkafka. Who sends again gives nothing up.

    When a record's time is over, an idempotent producer goes on under a new epoch, and sends again what has no answer:
    brokers cannot know that it is stored, and store it twice. What is not answered at the end makes a run INVALID.
    """
    again = {"enable.idempotence": True, "message.timeout.ms": 0}
    again |= {"request.timeout.ms": REQUEST_TIMEOUT_MS, "socket.timeout.ms": REQUEST_TIMEOUT_MS}
    once = {"enable.idempotence": False, "retries": 0, "message.timeout.ms": ONCE_TIMEOUT_MS}
    return {
        **(again if users.sends_again else once),
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": users.batch_ms,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,  # lost connections are the point of a campaign
    }
