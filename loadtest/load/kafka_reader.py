"""A reader of every partition in one region: what it got is in its history, and how long it took is counted.

Rule: deliver latency is from when the record was DUE at its publisher until it is here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.campaign import Topic
from loadtest.load.engine_values import WallClock, name_of, origin_of, parts_of

BATCH_RECORDS_MAX: Final = 500
WAIT_S: Final = 0.1
ASK_S: Final = 5.0
SAME_ENDS_S: Final = 2.0


class KafkaReader:
    """One region's reader, in a thread of its own from `start` on."""

    def __init__(
        self,
        name: str,
        region: str,
        topics: list[Topic],
        *,
        bootstrap: str,
        settings: Mapping[str, str],
        folder: Path,
        clock: WallClock,
        is_final: bool = False,
    ) -> None:
        """Take what is read; nothing is read yet.

        Args:
            is_final: a complete read after everything else, which the checker holds acknowledgements against.
        """
        self.region = region
        self.done: deque[tuple[str, float]] = deque()  # (region of the publisher, latency in ms)
        self.next: dict[tuple[str, int], int] = {
            (topic.name, partition): 0 for topic in topics for partition in range(topic.partitions)
        }
        self._is_final = is_final
        self._clock = clock
        self._history = HistoryWriter(folder / f"{name}.history", name)
        self._settings = _settings(bootstrap) | dict(settings)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Read from the first record on."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._ended.set()
        self._thread.join()
        self._history.close()

    def has(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Return whether everything below these ends was read."""
        return all(self.next[place] >= end for place, end in ends.items() if place in self.next)

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in self.next])
        while not self._ended.is_set():
            began_ns = time.monotonic_ns()
            first = consumer.poll(WAIT_S)  # consume(n, s) would wait for n, and records with it
            if first is None:
                continue
            messages = [first, *consumer.consume(BATCH_RECORDS_MAX, 0)]
            self._take([message for message in messages if message.error() is None], began_ns)
        consumer.close()

    def _take(self, messages: list[Any], began_ns: int) -> None:
        now_ns = self._clock.now_ns()
        batches: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for message in messages:
            value = message.value() or b""
            place = (message.topic(), message.partition())
            batches.setdefault(place, []).append((message.offset(), name_of(value)))
            try:
                name, _, due_ns = parts_of(value)
            except ValueError:
                continue  # the checker says what it thinks of that
            self.done.append((origin_of(name), (now_ns - due_ns) / 1e6))
        for (topic, partition), records in batches.items():
            before = self.next[topic, partition]
            position = None if before else 0
            number = self._history.invoke(
                Kind.FETCH,
                f"{topic}/{partition}",
                site=self.region,
                position=position,
                final=self._is_final,
                at_ns=began_ns,
            )
            self._history.fetched(number, records)
            self.next[topic, partition] = max(before, records[-1][0] + 1)


def ends_of(
    bootstraps: list[str], settings: Mapping[str, str], places: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the highest end of each partition that any region knows; regions that do not answer are left out."""
    found = dict.fromkeys(places, 0)
    for bootstrap in bootstraps:
        consumer = Consumer(_settings(bootstrap) | dict(settings))
        try:
            for topic, partition in places:
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S)
                found[topic, partition] = max(found[topic, partition], end)
        except KafkaException:
            continue
        finally:
            consumer.close()
    return found


def _settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "georelay-load",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,
    }
