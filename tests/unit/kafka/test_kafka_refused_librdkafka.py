"""An idempotent librdkafka whose leader dies with what it stored and has not acknowledged.

A batch for another partition is refused for a moment meanwhile: every record is stored once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from georelay.errors import Busy, GeorelayError, NotLeader, OutcomeUnknown, StorageFailed, Unavailable
from georelay.wire.batch import iterate_records
from region.kafka.ports import BrokerInfo
from tests.unit.kafka.conftest import KafkaBed
from tests.unit.kafka.stream_in_memory import FakeStream
from tests.unit.kafka.test_kafka_produce_fetch import wait_until

RECORDS = [b"%d" % number for number in range(5)]  # of each partition, as many as a producer has in flight
pytestmark = pytest.mark.slow  # librdkafka takes a second to begin


def librdkafka(port: int) -> tuple[Callable[[int, bytes], None], Callable[[], list[str]]]:
    """Return how to publish a record, and how to wait for all and get what failed."""
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "message.timeout.ms": 20_000,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "log_level": 0,
        }
    )

    def publish(partition: int, value: bytes) -> None:
        producer.produce(
            "orders",
            value,
            partition=partition,
            on_delivery=lambda error, _: failed.extend([str(error)] if error else []),
        )

    def flush() -> list[str]:
        left = producer.flush(20)
        return failed + ["no answer"] * left

    return publish, flush


def stored(stream: FakeStream) -> list[bytes | None]:
    return [record.value for entry in stream.entries for record in iterate_records(entry.payload)]


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param([NotLeader()], id="NOT_LEADER_OR_FOLLOWER"),
        pytest.param([NotLeader(), NotLeader()], id="leaders move twice"),
        pytest.param([Busy("full")], id="NOT_ENOUGH_REPLICAS"),
        pytest.param([Unavailable("elections")], id="LEADER_NOT_AVAILABLE"),
        pytest.param([OutcomeUnknown("lost")], id="REQUEST_TIMED_OUT"),
        pytest.param([StorageFailed("disk")], id="KAFKA_STORAGE_ERROR"),
    ],
)
async def test_what_a_leader_stored_that_died_is_stored_once_when_another_partition_refuses_a_batch_for_a_moment(
    bed: Any, beds: Any, errors: list[GeorelayError]
) -> None:
    other = await beds()
    moved, dying = (bed.cluster.stream("orders", number) for number in range(2))
    moved.publish_errors = list(errors)
    dying.auto_commit = False
    publish, flush = await asyncio.to_thread(librdkafka, bed.cluster.kafka_port)

    def publish_all() -> None:
        for value in RECORDS:
            publish(1, value)
            publish(0, value)

    await asyncio.to_thread(publish_all)
    done = asyncio.create_task(asyncio.to_thread(flush))
    answers = bed.services.counters.publish_errors
    await wait_until(lambda: dying.entries and not moved.publish_errors and sum(answers.values()) > len(errors))
    dying.auto_commit = True
    bed.cluster.leaders["orders", 1] = 1001
    bed.cluster.metadata_epoch += 1
    await other.close()
    assert await done == []
    assert stored(moved) == stored(dying) == RECORDS
    epochs = {entry.header().producer_epoch for stream in (moved, dying) for entry in stream.entries}
    assert epochs == {0}, "a new one is begun for a gap, and all that has no answer is sent as new"


@pytest.fixture
async def beds(bed: Any) -> AsyncIterator[Any]:
    """Return what starts 1001, and 1002 with the same streams, which leads orders/1; and closes 1002."""
    other = KafkaBed()

    async def start() -> KafkaBed:
        bed.cluster.add_topic("orders", partitions=2)
        bed.cluster.leaders["orders", 1] = 1002
        both: dict[int, Any] = {1001: bed, 1002: other}
        for number, one in both.items():
            one.cluster.broker_id = number
            await one.listen()
        rows = [
            BrokerInfo(id=number, kafka_host="127.0.0.1", kafka_port=both[number].cluster.kafka_port) for number in both
        ]
        for one in both.values():
            one.cluster.brokers = lambda: rows
            one.cluster.epoch_of = lambda name, partition: 2 - (bed.cluster.leader_of(name, partition) - 1001)
            for shared in ("views", "streams", "leaders"):
                setattr(one.cluster, shared, getattr(bed.cluster, shared))
        return other

    yield start
    await other.close()
