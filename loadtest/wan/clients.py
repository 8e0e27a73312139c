"""Foreign clients (librdkafka) of the WAN benchmarks: one process that publishes everywhere, one that reads everywhere.

`python -m loadtest.wan.clients publish PLAN` and `... consume PLAN`; PLAN is a JSON file:
    {"seconds": 20, "rate_per_s": 300, "flush_s": 60, "is_idempotent": true,
     "streams": [{"topic": "one-us", "bootstrap": "host:port"}, ...],                 publish: round robin over these
     "readers": [{"region": "eu", "bootstrap": "host:port", "topics": ["one-us", ...]}, ...]}
How they sign in is in their environment (loadtest.bench.client_settings). Latency counts from the time at which a
record should have been sent, so that a producer that waits hides nothing. Each prints JSON lines:
    publish: first {"began_ns": n}
             then {"rows": [[stream, number, due_ns, acknowledged_ns or 0], ...], "failed": n, "lag_p99_ms": x}
    consume: {"rows": {"eu": [[topic, number, due_ns, at_ns], ...]}}
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition

from loadtest.bench.client_settings import from_environment
from loadtest.quantile_core import quantile

NUMBER_CHARS: Final = 10
DUE_CHARS: Final = 20
PADDING: Final = b"x" * 70
WAIT_MS: Final = 100
Row = list[Any]


def publish(plan: dict[str, Any]) -> dict[str, Any]:
    """Publish at a steady rate; record `number` goes to stream `number` modulo their count; acks=all, no linger."""
    streams = plan["streams"]
    rows: list[Row] = []
    failed = 0

    def delivered(row: Row, error: KafkaError | None, _: Message) -> None:
        nonlocal failed
        if error is None:
            row[3] = time.monotonic_ns()
        else:
            failed += 1

    # With idempotence librdkafka has five requests in flight and polls without a pause while a sixth waits, which
    # takes a whole core from whoever is measured.
    settings = {"acks": "all", "linger.ms": 0, "enable.idempotence": plan["is_idempotent"], **from_environment()}
    producers = [Producer({"bootstrap.servers": stream["bootstrap"], **settings}) for stream in streams]
    for producer, stream in zip(producers, streams, strict=True):
        producer.list_topics(stream["topic"], timeout=10)
    polled = threading.Event()
    pollers = [threading.Thread(target=_poll, args=(producer, polled), daemon=True) for producer in producers]
    for poller in pollers:
        poller.start()
    lags_ms = []
    began = time.monotonic_ns()
    say({"began_ns": began})
    rate = plan["rate_per_s"]
    for number in range(int(rate * plan["seconds"])):
        due = began + number * 1_000_000_000 // rate
        ahead_ns = due - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9)
        lags_ms.append((time.monotonic_ns() - due) / 1e6)
        index = number % len(streams)
        row: Row = [index, number // len(streams), due, 0]
        rows.append(row)
        value = b"%0*d%0*d" % (NUMBER_CHARS, row[1], DUE_CHARS, due) + PADDING
        producers[index].produce(
            streams[index]["topic"],
            value,
            partition=0,
            on_delivery=lambda error, message, row=row: delivered(row, error, message),
        )
    for producer in producers:
        producer.flush(plan["flush_s"])
    polled.set()
    return {"rows": rows, "failed": failed, "lag_p99_ms": quantile(lags_ms, 0.99)}


def _poll(producer: Producer, ended: threading.Event) -> None:
    while not ended.is_set():
        producer.poll(0.05)


def consume(plan: dict[str, Any]) -> dict[str, Any]:
    """Read every topic of every reader from its end, and say how records came."""
    rows: dict[str, list[Row]] = {}
    threads = []
    for reader in plan["readers"]:
        found = rows[reader["region"]] = []
        threads.append(threading.Thread(target=_read, args=(reader, plan["seconds"], found)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"rows": rows}


def _read(reader: dict[str, Any], seconds: float, rows: list[Row]) -> None:
    waits = {"fetch.wait.max.ms": WAIT_MS, "fetch.error.backoff.ms": 50, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": reader["bootstrap"], "group.id": "bench", **waits, **from_environment()})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END) for topic in reader["topics"]])
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            at_ns, value = time.monotonic_ns(), message.value()
            number, due = value[:NUMBER_CHARS], value[NUMBER_CHARS : NUMBER_CHARS + DUE_CHARS]
            rows.append([message.topic(), int(number), int(due), at_ns])
    consumer.close()


def main() -> None:
    """Run the client named by the first argument."""
    role = {"publish": publish, "consume": consume}[sys.argv[1]]
    say(role(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))


def say(document: dict[str, Any]) -> None:
    """Print one JSON line at once."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
