"""A foreign consume-transform-produce pipeline: confluent-kafka, in a process that may be killed at any moment.

`python -m loadtest.load.transformer BOOTSTRAP GROUP INPUT OUTPUT`

Reads committed numbers of INPUT as a static member of GROUP, writes each to OUTPUT and commits the offsets, in one
transaction for up to BATCH records. It runs until it is ended. Exit code 3: start it again; nothing of the open
transaction counts.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from loadtest.load.transactional_writer import ANSWER_S, START_AGAIN, TIMEOUT_MS, until_ended

BATCH: Final = 20


def transform(producer: Producer, consumer: Consumer, output: str, records: list[Any]) -> None:
    """Move records in one transaction. Raises KafkaException: nothing of it counts."""
    producer.begin_transaction()
    for record in records:
        producer.produce(output, value=b"<" + record.value() + b">", key=record.key())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), ANSWER_S)
    until_ended(producer.commit_transaction)


def main() -> int:
    """Run it."""
    bootstrap, group, source, output = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": f"{group}-1",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    settings = {"transactional.id": group, "transaction.timeout.ms": TIMEOUT_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([source])
    try:
        producer.init_transactions(ANSWER_S)
        while not ended:
            records = [record for record in consumer.consume(BATCH, 0.2) if record.error() is None]
            if records:
                transform(producer, consumer, output, records)
    except KafkaException as failure:
        sys.stderr.write(f"{group}: {failure}\n")
        return START_AGAIN
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
