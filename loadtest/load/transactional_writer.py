"""A foreign writer of transactions: confluent-kafka, in a process that may be killed at any moment.

`python -m loadtest.load.transactional_writer BOOTSTRAP ID NAME PARTITIONS TOPICS HISTORY`

Each transaction writes one record, of the same name, to every topic; every seventh is aborted on purpose. HISTORY has
each record before it is sent, and what became of its transaction. It writes until SIGTERM. Exit code 3: it was fenced
or cannot go on, start it again, with the same ID and another NAME.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.engine_values import value_of

ABORTED_EVERY: Final = 7
VALUE_BYTES: Final = 100
ANSWER_S: Final = 30.0
TIMEOUT_MS: Final = 20_000  # after which the broker aborts what a killed writer left open
START_AGAIN: Final = 3


class Writer:
    """One producer and its history."""

    def __init__(self, bootstrap: str, identity: str, name: str, partitions: int, history: HistoryWriter) -> None:
        self._name, self._partitions, self._history = name, partitions, history
        settings = {"transactional.id": identity, "transaction.timeout.ms": TIMEOUT_MS, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings})
        self._producer.init_transactions(ANSWER_S)

    def write(self, number: int, topics: list[str]) -> None:
        """Write one transaction. Raises KafkaException: the producer cannot go on."""
        partition, offsets = number % self._partitions, dict[str, int]()
        value = value_of(self._name, number, time.time_ns(), VALUE_BYTES)
        named = f"{self._name}:{number}"
        begun = {topic: self._history.invoke(Kind.PRODUCE, f"{topic}/{partition}", value=named) for topic in topics}
        try:
            is_kept = self._is_kept(number, value, partition, topics, offsets)
        except KafkaException as failure:
            for operation in begun.values():
                self._history.unknown(operation, str(failure))
            raise
        for topic, operation in begun.items():
            if is_kept:
                self._history.produced(operation, offsets.get(topic))
            else:
                self._history.failed(operation, "aborted")

    def _is_kept(self, number: int, value: bytes, partition: int, topics: list[str], offsets: dict[str, int]) -> bool:
        def stored(topic: str, error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets[topic] = message.offset()

        self._producer.begin_transaction()
        try:
            for topic in topics:
                self._producer.produce(topic, value, partition=partition, on_delivery=partial(stored, topic))
            if number % ABORTED_EVERY:
                until_ended(self._producer.commit_transaction)
                return True
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
        until_ended(self._producer.abort_transaction)
        return False


def until_ended(end: Callable[[float], None]) -> None:
    """Commit or abort a transaction, again while that helps. Raises KafkaException."""
    while True:
        try:
            end(ANSWER_S)
        except KafkaException as failure:
            if failure.args[0].retriable():
                continue
            raise
        return


def main() -> int:
    """Run it."""
    bootstrap, identity, name, partitions, topics, path = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    history, number = HistoryWriter(Path(path), Path(path).stem), 0
    try:
        writer = Writer(bootstrap, identity, name, int(partitions), history)
        while not ended:
            number += 1
            writer.write(number, topics.split(","))
    except KafkaException as failure:
        sys.stderr.write(f"{name}: {failure}\n")
        return START_AGAIN
    finally:
        history.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
