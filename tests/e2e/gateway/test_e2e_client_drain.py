"""Connected Kafka clients while their region is drained for clients, and while it is drained no more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from loadtest.bench.mesh_asks import metric
from loadtest.mesh_process import MeshProcess
from mesh.distance.spread_core import client_key, hash_share
from tests.closing_clients import started

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

PARTITIONS: Final = 3
PER_SECOND: Final = 100  # of each of two producers
PATIENCE_S: Final = 90.0
MOVED_RECORDS: Final = 300  # of each producer, before the drain, during it and after it


def early(prefix: str) -> str:
    """Return the name of a client whose turn to leave us comes in the first seconds of the minute."""
    names = (f"{prefix}-{number}" for number in range(10_000))
    return next(name for name in names if hash_share(client_key(name, "127.0.0.1"), "us") < 0.05)


class Clients:
    """An idempotent producer of librdkafka, one of aiokafka, and a group of two members that share the topic."""

    def __init__(self, mesh: MeshProcess) -> None:
        self.bootstrap = mesh.endpoints["gateway"]["kafka"][0]
        self.errors: list[Any] = []
        self.acknowledged: list[str] = []
        self.read: Counter[tuple[int, int]] = Counter()  # by (partition, offset)
        self.sent = Counter[str]()
        self.is_over = False  # of publishing
        self.is_acknowledged = False  # all of it
        self.is_given_up = False  # the test has failed

    def _settings(self, name: str) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "client.id": early(name), "error_cb": self.errors.append}

    def publish(self) -> None:
        """Publish at PER_SECOND until it is over; in a thread."""
        producer = Producer({**self._settings("publisher"), "enable.idempotence": True, "linger.ms": 5})

        def done(error: Any, message: Any) -> None:
            self.errors.extend([error] if error else [])
            self.acknowledged.append(message.value().decode())

        while not self.is_over:
            number = self.sent["rdkafka"]
            producer.produce("orders", f"rdkafka {number}", partition=number % PARTITIONS, on_delivery=done)
            self.sent["rdkafka"] += 1
            producer.poll(0)
            time.sleep(1 / PER_SECOND)
        assert producer.flush(0 if self.is_given_up else PATIENCE_S) == 0

    async def publish_too(self) -> None:
        """Do the same with aiokafka."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, client_id=early("other-publisher"), enable_idempotence=True
        )
        async with started(producer):
            while not self.is_over:
                number = self.sent["aiokafka"]
                self.sent["aiokafka"] += 1
                value = f"aiokafka {number}"
                try:
                    await producer.send_and_wait("orders", value.encode(), partition=number % PARTITIONS)
                except Exception as error:
                    self.errors.append(error)
                    raise
                self.acknowledged.append(value)
                await asyncio.sleep(1 / PER_SECOND)

    def consume(self, name: str) -> None:
        """Read as a member of the group until everything acknowledged was read; in a thread."""
        member = Consumer(
            {
                **self._settings(name),
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        member.subscribe(["orders"])
        until = 0.0
        while not self.is_given_up and (not self.is_acknowledged or len(self.read) < len(self.acknowledged)):
            message = member.poll(0.2)
            if message is not None and message.error():
                self.errors.append(message.error())
            elif message is not None:
                self.read[message.partition(), message.offset()] += 1
            until = until or (time.monotonic() + PATIENCE_S if self.is_acknowledged else 0.0)
            assert not until or time.monotonic() < until, f"{len(self.read)} of {len(self.acknowledged)} read"
        if not self.is_given_up:  # with no mesh that answers it would wait for ever
            member.close()


def stored(bootstrap: str, count: int) -> list[str]:
    """Return the values in a region from the begin to the end, and read on for a moment for what is too much."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    reader.assign([TopicPartition("orders", number, 0) for number in range(PARTITIONS)])
    found: list[str] = []
    ends = sum(reader.get_watermark_offsets(TopicPartition("orders", n), timeout=30)[1] for n in range(PARTITIONS))
    assert ends >= count
    while len(found) < ends:
        message = reader.poll(PATIENCE_S)
        assert message is not None and not message.error()
        found.append(message.value().decode())
    reader.close()
    return found


async def until(holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < began + PATIENCE_S, what
        await asyncio.sleep(0.2)
    print(f"{time.monotonic() - began:6.1f} s: {what}")


async def done(mesh: MeshProcess, *arguments: str) -> None:
    command = [sys.executable, "-m", "georelay.cli", *arguments, "--gateway", mesh.gateway]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


async def test_clients_of_a_drained_region_and_their_group_go_on_in_the_other_one_and_nothing_is_lost_or_comes_twice(
    tmp_path: Path,
) -> None:
    async with MeshProcess(tmp_path, regions="us,eu", brokers_per_region=1) as mesh:
        await done(mesh, "topics", "create", "orders", "--partitions", str(PARTITIONS), "--home", "us")
        await done(mesh, "route", "pin", "127.0.0.0/24", "us")  # or eu may be as near, on this machine
        clients = Clients(mesh)
        working = [
            asyncio.create_task(asyncio.to_thread(clients.publish)),
            asyncio.create_task(clients.publish_too()),
            *(asyncio.create_task(asyncio.to_thread(clients.consume, name)) for name in ("member", "other-member")),
        ]

        def taken(region: str) -> float:
            return sum(metric(mesh, region, "georelay_kafka_records_in_total"))

        async def more() -> None:
            wanted = {name: clients.sent[name] + MOVED_RECORDS for name in ("rdkafka", "aiokafka")}
            await until(lambda: all(clients.sent[n] >= count for n, count in wanted.items()), f"{wanted} are sent")
            assert not [task for task in working if task.done()], clients.errors

        try:
            await until(lambda: len(clients.read) > 0, "the group reads")
            await more()
            assert taken("eu") == 0

            await done(mesh, "home", "move", "--groups-of", "us", "--to", "eu")
            await done(mesh, "route", "drain", "us")
            us = [0.0, -1.0]

            def takes_no_more() -> bool:
                us.append(taken("us"))
                return us[-1] == us[-2] and taken("eu") > 0

            await until(takes_no_more, "us takes no records any more, eu does")
            await more()
            assert taken("us") == us[-1]

            await done(mesh, "route", "keep", "us")
            await done(mesh, "home", "move", "--groups-of", "us", "--to", "us")
            await more()
            clients.is_over = True
            await asyncio.gather(*working[:2])
            clients.is_acknowledged = True
            await asyncio.gather(*working)
        finally:
            clients.is_over = clients.is_given_up = True
        sent = [f"{name} {number}" for name, count in clients.sent.items() for number in range(count)]
        again = sum(clients.read.values()) - len(clients.read)
        print(f"{len(sent)} records, {taken('us'):.0f} by us and {taken('eu'):.0f} by eu; the group read {again} again")
        assert clients.errors == []
        assert sorted(clients.acknowledged) == sorted(sent)
        for region in ("us", "eu"):
            bootstrap = mesh.endpoints["regions"][region]["kafka"][0]
            await until(
                lambda bootstrap=bootstrap: sorted(stored(bootstrap, len(sent))) == sorted(sent),  # type: ignore[misc]
                f"{region} has every record once",
            )
        assert len(clients.read) == len(sent)
