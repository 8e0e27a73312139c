"""A client as a member of a group, in a process of its own.

`python -m loadtest.groups.member CLIENT BOOTSTRAP GROUP TOPIC EVENTS [--assignor NAME]`

CLIENT is confluent-kafka, aiokafka, kafka-python or sdk, whose BOOTSTRAP is a URL for georelay.connect. What was
processed is in EVENTS before it is committed. SIGTERM lets it leave the group; nothing is done about SIGKILL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import georelay
from georelay.errors import GeorelayError
from georelay.positions import Place, Start
from loadtest.groups.events import EventWriter

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 500
BATCH: Final = 200
COMMIT_SECONDS: Final = 0.2

Member = Callable[[argparse.Namespace, EventWriter], None]


class Stop:
    """Whether the process was asked to leave."""

    def __init__(self) -> None:
        self.wanted = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.wanted = True


def confluent_member(options: argparse.Namespace, events: EventWriter) -> None:
    """Consume with confluent-kafka (librdkafka)."""
    from confluent_kafka import Consumer, KafkaException

    stop = Stop()
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "client.id": options.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": options.assignor,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
    )
    held: set[int] = set()

    def assigned(_: Any, partitions: Any) -> None:
        held.update(row.partition for row in partitions)
        events.assigned(consumer.memberid() or "", held)

    def revoked(_: Any, partitions: Any) -> None:
        held.difference_update(row.partition for row in partitions)

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    committed_at = time.monotonic()
    while not stop.wanted:
        batch: dict[int, list[int]] = {}
        for record in consumer.consume(BATCH, timeout=0.1):
            if record.error() is None:
                batch.setdefault(record.partition(), []).append(record.offset())
        for partition, offsets in batch.items():
            events.read(consumer.memberid() or "", partition, offsets)
        if batch or time.monotonic() - committed_at > COMMIT_SECONDS:
            committed_at = time.monotonic()
            with contextlib.suppress(KafkaException):  # a rebalance: whoever comes next reads from the last commit
                consumer.commit(asynchronous=False)
    consumer.close()


def kafka_python_member(options: argparse.Namespace, events: EventWriter) -> None:
    """Consume with kafka-python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kafka = importlib.import_module("kafka")
    stop = Stop()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","),
        group_id=options.group,
        client_id=options.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_interval_ms=20_000,
        partition_assignment_strategy=[_kafka_python_assignor(options.assignor)],
    )

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[name-defined, misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            """Nothing: what is not committed is read again by the next owner."""

        def on_partitions_assigned(self, _: Any) -> None:
            events.assigned(member_id(), (row.partition for row in consumer.assignment()))

    def member_id() -> str:
        return str(consumer._coordinator._generation.member_id)

    consumer.subscribe([options.topic], listener=Listener())
    while not stop.wanted:
        found = consumer.poll(timeout_ms=100, max_records=BATCH)
        for place, records in found.items():
            events.read(member_id(), place.partition, [record.offset for record in records])
        if found:
            with contextlib.suppress(kafka.errors.KafkaError):
                consumer.commit()
    consumer.close()


def _kafka_python_assignor(name: str) -> Any:
    modules = {
        "range": ("kafka.coordinator.assignors.range", "RangePartitionAssignor"),
        "roundrobin": ("kafka.coordinator.assignors.roundrobin", "RoundRobinPartitionAssignor"),
    }
    module, kind = modules[name]
    return getattr(importlib.import_module(module), kind)


def aiokafka_member(options: argparse.Namespace, events: EventWriter) -> None:
    """Consume with aiokafka."""
    asyncio.run(_aiokafka(options, events))


async def _aiokafka(options: argparse.Namespace, events: EventWriter) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    stop = Stop()
    assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[options.assignor]
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        client_id=options.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[assignor],
        retry_backoff_ms=100,
    )

    def member_id() -> str:
        return str(consumer._coordinator.member_id)

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            """Nothing: what is not committed is read again by the next owner."""

        async def on_partitions_assigned(self, _: Any) -> None:
            events.assigned(member_id(), (row.partition for row in consumer.assignment()))

    await consumer.start()
    consumer.subscribe([options.topic], listener=Listener())
    while not stop.wanted:
        found = await consumer.getmany(timeout_ms=100, max_records=BATCH)
        for place, records in found.items():
            events.read(member_id(), place.partition, [record.offset for record in records])
        if found:
            with contextlib.suppress(aiokafka.errors.KafkaError):
                await consumer.commit()
    await consumer.stop()


def sdk_member(options: argparse.Namespace, events: EventWriter) -> None:
    """Consume with the SDK."""
    asyncio.run(_sdk(options, events))


async def _sdk(options: argparse.Namespace, events: EventWriter) -> None:
    stop = Stop()
    member_id = ""

    def assigned(places: list[Place]) -> None:
        nonlocal member_id
        _, member_id, _, _ = consumer.group_offsets()
        events.assigned(member_id, (place.partition for place in places))

    async with georelay.connect(options.bootstrap) as mesh:
        consumer = mesh.consumer(
            [options.topic],
            group=options.group,
            start=Start.EARLIEST,
            client_id=options.name,
            assignors=(options.assignor,),
            session_timeout_s=SESSION_MS / 1000,
            auto_commit_s=None,
            on_assigned=assigned,
        )
        async with consumer:
            while not stop.wanted:
                batch: dict[int, list[int]] = {}
                for record in await consumer.get_many(max_records=BATCH, timeout_s=0.1):
                    batch.setdefault(record.partition, []).append(record.offset)
                for partition, offsets in batch.items():
                    events.read(member_id, partition, offsets)
                if batch:
                    with contextlib.suppress(GeorelayError):
                        await consumer.commit()


MEMBERS: Final[dict[str, Member]] = {
    "confluent-kafka": confluent_member,
    "aiokafka": aiokafka_member,
    "kafka-python": kafka_python_member,
    "sdk": sdk_member,
}


def main(arguments: Sequence[str]) -> None:
    """Run one member until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.groups.member", description=__doc__)
    parser.add_argument("client", choices=MEMBERS)
    parser.add_argument("bootstrap")
    parser.add_argument("group")
    parser.add_argument("topic")
    parser.add_argument("events", type=Path)
    parser.add_argument("--name", default="member", help="the client id")
    parser.add_argument("--assignor", default="range")
    options = parser.parse_args(arguments)
    MEMBERS[options.client](options, EventWriter(options.events))


if __name__ == "__main__":
    main(sys.argv[1:])
