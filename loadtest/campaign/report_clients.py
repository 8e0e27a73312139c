"""Foreign clients (librdkafka) that keep books for `python -m loadtest.campaign report`.

`python -m loadtest.campaign.report_clients publish PLAN` and `... consume PLAN`; PLAN is a JSON file:
    {"seconds": 20, "rate_per_s": 300, "flush_s": 60,
     "streams": [{"name": "us", "topic": "one-us", "bootstrap": "host:port", "is_retrying": true}, ...]}
    {"readers": [{"region": "eu", "bootstrap": "host:port", "topics": {"us": "one-us", ...}}, ...]}
How they sign in is in their environment (loadtest.bench.client_settings). Both print JSON lines; a reader reads from
offset 0 of every stream until its standard input is closed, and says each second how much it has.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from georelay.trace.histogram import LatencyHistogram
from loadtest.bench.client_settings import from_environment
from loadtest.campaign.offset_ranges_core import OffsetRanges

SENT_CHARS: Final = 20
PADDING: Final = b"x" * 80
LOG_LEVEL: Final = 2  # a broker that is away is no news here
PROGRESS_S: Final = 1.0
# What a broker answers and has surely not stored; the numbers are Kafka's.
NOT_STORED: Final = frozenset({2, 3, 10, 17, 18, 19, 29, 44, 87})
REDIRECTED: Final = frozenset({5, 6, 74, 75})


class _Book:
    """What one stream's producer knows."""

    def __init__(self) -> None:
        self.sent = self.refused = self.redirected = self.unknown = 0
        self.acked = OffsetRanges()
        self.errors: dict[str, int] = {}

    def answered(self, error: KafkaError | None, message: Message) -> None:
        """Take an answer in."""
        if error is None:
            self.acked.add(int(message.offset() or 0))
            return
        self.errors[error.name()] = self.errors.get(error.name(), 0) + 1
        if error.code() in NOT_STORED:
            self.refused += 1
        elif error.code() in REDIRECTED:
            self.redirected += 1
        else:
            self.unknown += 1

    def told(self) -> dict[str, Any]:
        """Return the book."""
        return {
            "sent": self.sent,
            "refused": self.refused,
            "redirected": self.redirected,
            "unknown": self.unknown,
            "errors": self.errors,
            "acked": self.acked.ranges,
        }


def publish(plan: dict[str, Any]) -> dict[str, Any]:
    """Publish round robin over the streams at a steady rate; return each stream's book."""
    streams = plan["streams"]
    books = [_Book() for _ in streams]
    producers = [_producer(stream) for stream in streams]
    for producer, stream in zip(producers, streams, strict=True):
        producer.list_topics(stream["topic"], timeout=10)
    ended = threading.Event()
    for producer in producers:
        threading.Thread(target=_poll, args=(producer, ended), daemon=True).start()
    began = time.monotonic_ns()
    say({"began_ns": began})
    rate = plan["rate_per_s"]
    lag_ns = 0
    for number in range(int(rate * plan["seconds"])):
        ahead_ns = began + number * 1_000_000_000 // rate - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9)
        lag_ns = max(lag_ns, -ahead_ns)
        index = number % len(streams)
        book = books[index]
        book.sent += 1
        value = b"%0*d" % (SENT_CHARS, time.monotonic_ns()) + PADDING
        while True:
            try:
                producers[index].produce(streams[index]["topic"], value, partition=0, on_delivery=book.answered)
                break
            except BufferError:  # the queue of a producer whose broker is away
                time.sleep(0.01)
    took_s = (time.monotonic_ns() - began) / 1e9
    left = sum(producer.flush(plan["flush_s"]) for producer in producers)
    ended.set()
    return {
        "books": {stream["name"]: book.told() for stream, book in zip(streams, books, strict=True)},
        "unanswered": left,
        "seconds": took_s,
        "lag_ms": lag_ns / 1e6,
    }


def _producer(stream: dict[str, Any]) -> Producer:
    retrying = {"enable.idempotence": True, "message.timeout.ms": 120_000}
    once = {"enable.idempotence": False, "retries": 0, "message.timeout.ms": 20_000}
    settings = {"acks": "all", "linger.ms": 5, "log_level": LOG_LEVEL, **(retrying if stream["is_retrying"] else once)}
    return Producer({"bootstrap.servers": stream["bootstrap"], **settings, **from_environment()})


def _poll(producer: Producer, ended: threading.Event) -> None:
    while not ended.is_set():
        producer.poll(0.05)


class _Reader:
    """One region's reader of every stream."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.region: str = plan["region"]
        self._topics: dict[str, str] = {topic: name for name, topic in plan["topics"].items()}
        self._bootstrap: str = plan["bootstrap"]
        self.read = {name: OffsetRanges() for name in plan["topics"]}
        self.latency = {name: LatencyHistogram() for name in plan["topics"]}
        self.count = 0

    def run(self, ended: threading.Event) -> None:
        """Read until `ended`."""
        settings = {
            "log_level": LOG_LEVEL,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,  # by itself ten seconds: longer than anybody waits for a reader here
            "enable.auto.commit": False,
        }
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "books", **settings, **from_environment()}
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._topics])
        while not ended.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self._take(message, time.monotonic_ns())
        consumer.close()

    def _take(self, message: Message, now_ns: int) -> None:
        name = self._topics[str(message.topic())]
        self.read[name].add(int(message.offset() or 0))
        value = message.value()
        assert value is not None  # they are ours
        self.latency[name].add(max(0, now_ns - int(value[:SENT_CHARS])) // 1_000)
        self.count += 1

    def told(self) -> dict[str, Any]:
        """Return what was read."""
        return {
            name: {
                "ranges": read.ranges,
                "again": read.again,
                "n": self.latency[name].n,
                "n_good": self.latency[name].n_good,
                "mean_us": self.latency[name].lat_sum_us // max(1, self.latency[name].n),
                "buckets": sorted(self.latency[name].buckets.items()),
            }
            for name, read in self.read.items()
        }


def consume(plan: dict[str, Any]) -> dict[str, Any]:
    """Read everything from the beginning until standard input ends; return what each region got."""
    readers = [_Reader(reader) for reader in plan["readers"]]
    ended = threading.Event()
    threads = [threading.Thread(target=reader.run, args=(ended,)) for reader in readers]
    for thread in threads:
        thread.start()
    closing = threading.Thread(target=sys.stdin.buffer.read, daemon=True)
    closing.start()
    try:
        while closing.is_alive():
            closing.join(PROGRESS_S)
            say({"read": {reader.region: reader.count for reader in readers}})
    finally:  # nobody listens any more: the readers must not outlive it
        ended.set()
    for thread in threads:
        thread.join()
    return {"regions": {reader.region: reader.told() for reader in readers}}


def say(document: dict[str, Any]) -> None:
    """Print one JSON line at once."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the client named by the first argument."""
    role = {"publish": publish, "consume": consume}[sys.argv[1]]
    say(role(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
