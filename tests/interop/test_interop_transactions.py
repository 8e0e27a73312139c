"""Transactions of foreign clients: what commits is read whole in every region by every client, what aborts by none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from tests.closing_clients import kafka, started

PARTITIONS = 2
SECONDS = 30.0
Write = tuple[list[tuple[str, int, bytes]], bool]  # (topic, partition, value) of each record, whether it commits


def write_with_confluent(bootstrap: str, name: str, transactions: list[Write]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    for records, commits in transactions:
        producer.begin_transaction()
        for topic, partition, value in records:
            producer.produce(topic, value=value, partition=partition)
        producer.flush(SECONDS)
        if commits:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)


def write_with_aiokafka(bootstrap: str, name: str, transactions: list[Write]) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        async with started(producer):
            for records, commits in transactions:
                await producer.begin_transaction()
                sent = [await producer.send(topic, value, partition=row) for topic, row, value in records]
                await asyncio.gather(*sent)
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    asyncio.run(run())


def write_with_kafka_python(bootstrap: str, name: str, transactions: list[Write]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    try:
        producer.init_transactions()
        for records, commits in transactions:
            producer.begin_transaction()
            for topic, partition, value in records:
                producer.send(topic, value, partition=partition)
            producer.flush(SECONDS)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()


WRITERS: dict[str, Callable[[str, str, list[Write]], None]] = {
    "confluent-kafka": write_with_confluent,
    "aiokafka": write_with_aiokafka,
    "kafka-python": write_with_kafka_python,
}


def read_with_confluent(bootstrap: str, topic: str, count: int, level: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": level,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, row, 0) for row in range(PARTITIONS)])
    found: list[bytes] = []
    end = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < end:
        found += [row.value() for row in consumer.consume(100, 0.2) if row.error() is None]
    found += [row.value() for row in consumer.consume(100, 0.5) if row.error() is None]  # nothing may follow
    consumer.close()
    return found


def read_with_aiokafka(bootstrap: str, topic: str, count: int, level: str) -> list[bytes]:
    async def run() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=level, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        found: list[bytes] = []
        async with started(consumer):
            consumer.assign([aiokafka.TopicPartition(topic, row) for row in range(PARTITIONS)])
            end = time.monotonic() + SECONDS
            while len(found) < count and time.monotonic() < end:
                for rows in (await consumer.getmany(timeout_ms=200)).values():
                    found += [row.value for row in rows]
            for rows in (await consumer.getmany(timeout_ms=500)).values():
                found += [row.value for row in rows]
        return found

    return asyncio.run(run())


READERS: dict[str, Callable[[str, str, int, str], list[bytes]]] = {
    "confluent-kafka": read_with_confluent,
    "aiokafka": read_with_aiokafka,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_commits_is_read_in_every_region_and_what_aborts_in_none(mesh: Any, writer: str) -> None:
    topics = [mesh.new_topic(f"txn-{writer}", partitions=PARTITIONS) for _ in range(2)]
    transactions: list[Write] = [
        ([(topic, row % PARTITIONS, b"%d-%d" % (number, row)) for topic in topics for row in range(4)], number != 1)
        for number in range(3)
    ]
    WRITERS[writer](mesh.kafka("us"), mesh.new_name("writer"), transactions)
    wanted = sorted(b"%d-%d" % (number, row) for number in (0, 2) for row in range(4))
    with ThreadPoolExecutor(len(mesh.regions) * len(READERS) * len(topics)) as readers:  # each waits for what follows
        found = {
            (region, name, topic): readers.submit(read, mesh.kafka(region), topic, 8, "read_committed")
            for region in mesh.regions
            for name, read in READERS.items()
            for topic in topics
        }
    assert {place: sorted(read.result()) for place, read in found.items()} == dict.fromkeys(found, wanted)
    assert len(read_with_confluent(mesh.kafka("eu"), topics[0], 12, "read_uncommitted")) == 12
    for region in mesh.regions:
        shown = [
            row["value"]
            for partition in range(PARTITIONS)
            for row in mesh.read(topics[0], region=region, partition=partition).document["records"]
        ]
        assert len(shown) == 8
        assert not any("1-" in str(value)[:2] for value in shown)


def test_readers_wait_for_an_open_transaction_and_only_those_of_committed_records(mesh: Any) -> None:
    topic = mesh.new_topic("txn-open", partitions=PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": mesh.kafka("us"), "transactional.id": topic})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    producer.flush(SECONDS)
    write_with_confluent(mesh.kafka("us"), f"{topic}-other", [([(topic, 0, b"other")], True)])
    assert sorted(read_with_confluent(mesh.kafka("us"), topic, 2, "read_uncommitted")) == [b"open", b"other"]
    assert mesh.read(topic, region="us").document["records"] == []
    producer.commit_transaction(SECONDS)
    assert sorted(read_with_confluent(mesh.kafka("us"), topic, 2, "read_committed")) == [b"open", b"other"]


def test_a_producer_that_was_replaced_can_neither_write_nor_commit(mesh: Any) -> None:
    topic = mesh.new_topic("txn-fenced", partitions=PARTITIONS)
    settings = {"bootstrap.servers": mesh.kafka("us"), "transactional.id": topic, "log_level": 0}
    old = confluent_kafka.Producer(settings)
    old.init_transactions(SECONDS)
    old.begin_transaction()
    old.produce(topic, value=b"zombie", partition=0)
    old.flush(SECONDS)
    new = confluent_kafka.Producer(settings)
    new.init_transactions(SECONDS)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        old.commit_transaction(SECONDS)
    assert refused.value.args[0].code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    )
    new.begin_transaction()
    new.produce(topic, value=b"new", partition=0)
    new.commit_transaction(SECONDS)
    assert read_with_confluent(mesh.kafka("us"), topic, 1, "read_committed") == [b"new"]


def test_offsets_and_records_of_a_pipeline_commit_together(mesh: Any) -> None:
    source, output = (mesh.new_topic(name, partitions=PARTITIONS) for name in ("txn-in", "txn-out"))
    write_with_confluent(mesh.kafka("us"), f"{source}-w", [([(source, 0, b"%d" % row) for row in range(6)], True)])
    group = mesh.new_name("pipeline")

    def run(*, commits: bool, wanted: int) -> int:
        """Move everything there is in one transaction, `wanted` records at least; return how many that was."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": mesh.kafka("us"), "transactional.id": group, "log_level": 0}
        )
        producer.init_transactions(SECONDS)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": mesh.kafka("us"),
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.subscribe([source])
        records: list[Any] = []
        at_end: set[int] = set()
        end = time.monotonic() + SECONDS
        while (len(records) < wanted or len(at_end) < PARTITIONS) and time.monotonic() < end:
            for row in consumer.consume(1, 0.2):
                if row.error() is None:
                    records.append(row)
                    at_end.discard(row.partition())
                elif row.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    at_end.add(row.partition())
        assert len(at_end) == PARTITIONS
        producer.begin_transaction()
        for record in records:
            producer.produce(output, value=record.value(), partition=0)
        if records:
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
        producer.flush(SECONDS)
        if commits:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)
        consumer.close()
        return len(records)

    assert run(commits=False, wanted=6) == 6
    assert run(commits=True, wanted=6) == 6
    assert run(commits=True, wanted=0) == 0
    assert len(read_with_confluent(mesh.kafka("us"), output, 6, "read_committed")) == 6


def test_a_partition_whose_home_is_another_region_is_refused_with_a_reason(mesh: Any) -> None:
    topic = mesh.new_topic("txn-far", partitions=PARTITIONS, home="eu")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": mesh.kafka("us"), "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value=b"x", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.commit_transaction(SECONDS)
    error = refused.value.args[0]
    assert error.txn_requires_abort() or error.fatal()
    assert mesh.read(topic, region="eu").document["high_watermark"] == 0
