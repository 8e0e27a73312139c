"""A foreign writer of transactions: confluent-kafka, in a process that may be killed at any moment.

`python -m loadtest.campaign.transactional_writer BOOTSTRAP NAME TOPICS COUNT JOURNAL`

Transaction N writes one record "NAME:N" to every topic; every seventh is aborted on purpose. JOURNAL has "begin N"
before its first record and "committed N" or "aborted N" after the answer, each written and synced before the next
thing happens. A process that is started again goes on after the newest number in it. Exit code 3: this writer was
fenced or cannot go on, start it again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from loadtest.campaign.transactions_verdict_core import read_journal

ABORTED_EVERY: Final = 7
ANSWER_SECONDS: Final = 30.0
TIMEOUT_MS: Final = 20_000  # after which the broker aborts what a killed writer left open
START_AGAIN: Final = 3


class JournalFile:
    """Lines that survive a kill."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: str) -> None:
        """Write one line."""
        self._file.write(f"{line}\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def commit(producer: Producer) -> str:
    """Commit the open transaction; return what became of it. Raises KafkaException: the producer cannot go on."""
    while True:
        try:
            producer.commit_transaction(ANSWER_SECONDS)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.retriable():
                continue
            if error.txn_requires_abort():
                return abort(producer)
            raise
        return "committed"


def abort(producer: Producer) -> str:
    """Abort the open transaction. Raises KafkaException: the producer cannot go on."""
    while True:
        try:
            producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException as failure:
            if failure.args[0].retriable():
                continue
            raise
        return "aborted"


def write_one(producer: Producer, name: str, number: int, topics: list[str]) -> str:
    """Write one transaction; return what became of it. Raises KafkaException."""
    producer.begin_transaction()
    try:
        for topic in topics:
            producer.produce(topic, value=f"{name}:{number}", key=str(number))
        if number % ABORTED_EVERY == ABORTED_EVERY - 1:
            return abort(producer)
    except KafkaException as failure:
        if failure.args[0].txn_requires_abort():
            return abort(producer)
        raise
    return commit(producer)


def main() -> int:
    """Run it."""
    bootstrap, name, topics, count, path = sys.argv[1:]
    journal_path = Path(path)
    known = read_journal(journal_path.read_text(encoding="utf-8")) if journal_path.exists() else read_journal("")
    journal = JournalFile(journal_path)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    try:
        producer.init_transactions(ANSWER_SECONDS)
        for number in range(known.following, int(count)):
            journal.write(f"begin {number}")
            journal.write(f"{write_one(producer, name, number, topics.split(','))} {number}")
    except KafkaException as failure:
        sys.stderr.write(f"{name}: {failure}\n")
        return START_AGAIN
    return 0


if __name__ == "__main__":
    sys.exit(main())
