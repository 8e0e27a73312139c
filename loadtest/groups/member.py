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
from collections.abc import Callable, Iterable, Iterator, Sequence
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

Taken = dict[int, list[int]]  # offsets by partition


class Member:
    """A member of the group until SIGTERM: what it takes is written down, and then committed.

    Args:
        options: who it is.
        events: where it is written down.
    """

    def __init__(self, options: argparse.Namespace, events: EventWriter) -> None:
        self.options, self._events = options, events
        self._is_asked_to_leave = False
        self._committed_at = time.monotonic()
        signal.signal(signal.SIGTERM, self._leave)

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        """Note what it holds now."""
        self._events.assigned(member, partitions)

    def turns(self) -> Iterator[None]:
        """Go on until it is to leave."""
        while not self._is_asked_to_leave:
            yield

    def took(self, member: str, taken: Taken, *, commits_always: bool = False) -> bool:
        """Note records that were processed; return whether to commit now."""
        for partition, offsets in taken.items():
            self._events.read(member, partition, offsets)
        is_due = bool(taken) or (commits_always and time.monotonic() - self._committed_at > COMMIT_SECONDS)
        self._committed_at = time.monotonic() if is_due else self._committed_at
        return is_due

    def _leave(self, *_: object) -> None:
        self._is_asked_to_leave = True


def _by_partition(rows: Iterable[tuple[int, int]]) -> Taken:
    taken: Taken = {}
    for partition, offset in rows:
        taken.setdefault(partition, []).append(offset)
    return taken


def confluent_member(member: Member) -> None:
    """Consume with confluent-kafka (librdkafka)."""
    from confluent_kafka import Consumer, KafkaException

    options = member.options
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
        member.assigned(consumer.memberid() or "", held)

    def revoked(_: Any, partitions: Any) -> None:
        held.difference_update(row.partition for row in partitions)

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    for _ in member.turns():
        records = [record for record in consumer.consume(BATCH, timeout=0.1) if record.error() is None]
        taken = _by_partition((record.partition(), record.offset()) for record in records)
        if member.took(consumer.memberid() or "", taken, commits_always=True):
            with contextlib.suppress(KafkaException):  # a rebalance: whoever comes next reads from the last commit
                consumer.commit(asynchronous=False)
    consumer.close()


def _python_settings(options: argparse.Namespace, library: str) -> dict[str, Any]:
    """Return what kafka-python and aiokafka, which began as one, are told alike."""
    words = {"range": "RangePartitionAssignor", "roundrobin": "RoundRobinPartitionAssignor"}
    assignors = importlib.import_module(f"{library}.coordinator.assignors.{options.assignor}")
    return {
        "bootstrap_servers": options.bootstrap.split(","),
        "group_id": options.group,
        "client_id": options.name,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "partition_assignment_strategy": [getattr(assignors, words[options.assignor])],
    }


def _offsets(found: Any) -> Taken:
    return {place.partition: [record.offset for record in records] for place, records in found.items()}


def kafka_python_member(member: Member) -> None:
    """Consume with kafka-python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kafka = importlib.import_module("kafka")
    consumer = kafka.KafkaConsumer(**_python_settings(member.options, "kafka"), max_poll_interval_ms=20_000)

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[name-defined, misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            """Nothing: what is not committed is read again by the next owner."""

        def on_partitions_assigned(self, _: Any) -> None:
            member.assigned(member_id(), (row.partition for row in consumer.assignment()))

    def member_id() -> str:
        return str(consumer._coordinator._generation.member_id)

    consumer.subscribe([member.options.topic], listener=Listener())
    for _ in member.turns():
        if member.took(member_id(), _offsets(consumer.poll(timeout_ms=100, max_records=BATCH))):
            with contextlib.suppress(kafka.errors.KafkaError):
                consumer.commit()
    consumer.close()


async def _aiokafka(member: Member) -> None:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(**_python_settings(member.options, "aiokafka"), retry_backoff_ms=100)

    member_id, told = "", None  # with which it was assigned what it has: expelled, it goes on with what it fetched

    def tell() -> None:
        """Note an assignment, by its listener or by its first records: those may come before the listener is asked."""
        nonlocal member_id, told
        now = (str(consumer._coordinator.member_id), frozenset(row.partition for row in consumer.assignment()))
        if now != told and all(now):
            member_id, told = now[0], now
            member.assigned(*now)

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            """Nothing: what is not committed is read again by the next owner."""

        async def on_partitions_assigned(self, _: Any) -> None:
            nonlocal told
            told = None  # a new generation, perhaps with what it had before
            tell()

    await consumer.start()
    consumer.subscribe([member.options.topic], listener=Listener())
    for _ in member.turns():
        records = _offsets(await consumer.getmany(timeout_ms=100, max_records=BATCH))
        if records:
            tell()
        if member.took(member_id, records):
            with contextlib.suppress(aiokafka.errors.KafkaError):
                await consumer.commit()
    await consumer.stop()


async def _sdk(member: Member) -> None:
    options, member_id = member.options, ""

    def assigned(places: list[Place]) -> None:
        nonlocal member_id
        _, member_id, _, _ = consumer.group_offsets()
        member.assigned(member_id, (place.partition for place in places))

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
            for _ in member.turns():
                records = await consumer.get_many(max_records=BATCH, timeout_s=0.1)
                if member.took(member_id, _by_partition((record.partition, record.offset) for record in records)):
                    with contextlib.suppress(GeorelayError):
                        await consumer.commit()


MEMBERS: Final[dict[str, Callable[[Member], None]]] = {
    "confluent-kafka": confluent_member,
    "aiokafka": lambda member: asyncio.run(_aiokafka(member)),
    "kafka-python": kafka_python_member,
    "sdk": lambda member: asyncio.run(_sdk(member)),
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
    MEMBERS[options.client](Member(options, EventWriter(options.events)))


if __name__ == "__main__":
    main(sys.argv[1:])
