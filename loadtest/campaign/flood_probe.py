"""The client that a flood must not hurt: 200 records a second written and read, each with the time it was sent.

`python -m loadtest.campaign.flood_probe BOOTSTRAP TOPIC RATE CA FILE`: writes one line per record to FILE, "sent_s
latency_ms" on the monotonic clock, until SIGTERM. CA "" is plain text. At the end one JSON line: sent, failed and
received.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from georelay.process_guard import die_with_parent
from loadtest.campaign.flooder import PARENT_VARIABLE

FLUSH_SECONDS_MAX = 20
DRAIN_SECONDS = 2.0


def configuration(bootstrap: str, ca: str) -> dict[str, Any]:
    """Return what both clients share."""
    tls = {"security.protocol": "ssl", "ssl.ca.location": ca} if ca else {}
    return {"bootstrap.servers": bootstrap, **tls}


def read(consumer: Consumer, path: Path, stopped: threading.Event, received: list[int]) -> None:
    """Note the latency of every record until told to stop."""
    with path.open("w", encoding="ascii") as file:
        while not stopped.is_set():
            record = consumer.poll(0.1)
            if record is None or record.error() is not None:
                continue
            now_ns, sent_ns = time.monotonic_ns(), int(record.value())
            received[0] += 1
            file.write(f"{sent_ns / 1e9:.3f} {(now_ns - sent_ns) / 1e6:.3f}\n")
    consumer.close()


def main(bootstrap: str, topic: str, rate: float, ca: str, path: Path) -> int:
    """Run until SIGTERM."""
    die_with_parent(int(os.environ.get(PARENT_VARIABLE, os.getppid())))
    ended, drained = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    shared = configuration(bootstrap, ca)
    consumer = Consumer({**shared, "group.id": f"probe-{os.getpid()}", "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(topic, 0, 0)])
    received, sent, failed = [0], 0, [0]
    reader = threading.Thread(target=read, args=(consumer, path, drained, received))
    reader.start()
    producer = Producer({**shared, "acks": "all", "linger.ms": 0})

    def told(error: object, _: object) -> None:
        failed[0] += error is not None

    began = time.monotonic()
    while not ended.is_set():
        producer.produce(topic, str(time.monotonic_ns()).encode(), partition=0, on_delivery=told)
        sent += 1
        producer.poll(0)
        ended.wait(max(0.0, began + sent / rate - time.monotonic()))
    producer.flush(FLUSH_SECONDS_MAX)
    time.sleep(DRAIN_SECONDS)
    drained.set()
    reader.join()
    sys.stdout.write(json.dumps({"sent": sent, "failed": failed[0], "received": received[0]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], Path(sys.argv[5])))
