"""Real foreign clients behind one form: kcat, confluent-kafka, aiokafka and kafka-python produce and read."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any, Protocol

import aiokafka
import confluent_kafka

from tests.closing_clients import kafka, started
from tests.interop.running_mesh import CLIENT_SECONDS_MAX
from tests.interop.sign_in import SignIn

Sent = tuple[str, str]  # key, value
Received = tuple[int, int, str, str]  # partition, offset, key, value


class ForeignClient(Protocol):
    """One client library: produces in order, reads by assignment from offset 0."""

    name: str

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        """Return when every record is acknowledged."""

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        """Return `count` records, in the order of their arrival."""


class Kcat:
    """The command line tool, idempotent producer on."""

    name = "kcat"

    def run(self, *arguments: str, stdin: str = "", sign_in: SignIn | None = None) -> subprocess.CompletedProcess[str]:
        signing = [] if sign_in is None else [f"-X{name}={value}" for name, value in sign_in.librdkafka.items()]
        return subprocess.run(
            ["kcat", *arguments, *signing],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS_MAX,
            check=False,
        )

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        lines = "".join(f"{key}:{value}\n" for key, value in records)
        settings = ("-Xenable.idempotence=true", "-Xacks=all", "-Xlinger.ms=5", "-Xpartitioner=murmur2_random")
        produced = self.run(
            *("-P", "-b", bootstrap, "-t", topic, "-K:", "-z", compression, *settings), stdin=lines, sign_in=sign_in
        )
        assert (produced.returncode, produced.stderr) == (0, ""), produced

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        """Read to the end: kcat stops there by itself, so the records must be there."""
        read = self.run(
            *("-C", "-b", brokers, "-t", topic, "-o", "beginning", "-e", "-q", "-Xcheck.crcs=true"),
            *("-Xfetch.wait.max.ms=10", "-f", "%p %o %k %s\n"),
            sign_in=sign_in,
        )
        assert read.returncode == 0, read.stderr
        rows = (line.split(" ", 3) for line in read.stdout.splitlines())
        return [(int(partition), int(offset), key, value) for partition, offset, key, value in rows]


class Confluent:
    """confluent-kafka (librdkafka), idempotent producer on."""

    name = "confluent-kafka"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": compression,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                **(sign_in.librdkafka if sign_in else {}),
            }
        )
        errors: list[str] = []
        acknowledged = 0

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal acknowledged
            if error is None:
                acknowledged += 1
            else:
                errors.append(str(error))

        for key, value in records:
            producer.produce(topic, key=key, value=value, on_delivery=on_delivery)
            producer.poll(0)
        assert producer.flush(CLIENT_SECONDS_MAX) == 0
        assert (errors[:3], acknowledged) == ([], len(records))

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                **(sign_in.librdkafka if sign_in else {}),
            }
        )
        received: list[Received] = []
        deadline = time.monotonic() + CLIENT_SECONDS_MAX
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
            while len(received) < count and time.monotonic() < deadline:
                for record in consumer.consume(1000, timeout=0.2):
                    assert record.error() is None, record.error()
                    place = (record.partition(), record.offset())
                    received.append((*place, record.key().decode(), record.value().decode()))
        finally:
            consumer.close()
        return received


class Aiokafka:
    """aiokafka, idempotent producer on."""

    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        asyncio.run(self._produce(bootstrap, topic, records, compression, sign_in))

    async def _produce(
        self, bootstrap: str, topic: str, records: list[Sent], compression: str, sign_in: SignIn | None
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=compression,
            linger_ms=5,
            **(sign_in.python_clients if sign_in else {}),
        )
        async with started(producer), asyncio.timeout(CLIENT_SECONDS_MAX):
            waiting = [await producer.send(topic, key=key.encode(), value=value.encode()) for key, value in records]
            await asyncio.gather(*waiting)

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        return asyncio.run(self._consume(brokers, topic, partitions, count, sign_in))

    async def _consume(
        self, brokers: str, topic: str, partitions: int, count: int, sign_in: SignIn | None
    ) -> list[Received]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=brokers,
            group_id=None,
            auto_offset_reset="none",
            check_crcs=True,
            **(sign_in.python_clients if sign_in else {}),
        )
        received: list[Received] = []
        async with started(consumer):
            places = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            deadline = time.monotonic() + CLIENT_SECONDS_MAX
            while len(received) < count and time.monotonic() < deadline:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    received += [(r.partition, r.offset, r.key.decode(), r.value.decode()) for r in batch]
        return received


class KafkaPython:
    """kafka-python, idempotent producer on."""

    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=compression,
            linger_ms=5,
            **(sign_in.python_clients if sign_in else {}),
        )
        try:
            waiting = [producer.send(topic, key=key.encode(), value=value.encode()) for key, value in records]
            producer.flush(CLIENT_SECONDS_MAX)
            for future in waiting:
                future.get(0)
        finally:
            producer.close()

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=brokers.split(","),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=True,
            **(sign_in.python_clients if sign_in else {}),
        )
        received: list[Received] = []
        try:
            places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            deadline = time.monotonic() + CLIENT_SECONDS_MAX
            while len(received) < count and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=200).values():
                    received += [(r.partition, r.offset, r.key.decode(), r.value.decode()) for r in batch]
        finally:
            consumer.close()
        return received


CLIENTS: tuple[ForeignClient, ...] = (Kcat(), Confluent(), Aiokafka(), KafkaPython())
