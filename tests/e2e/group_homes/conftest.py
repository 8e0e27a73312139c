"""Three regions of one broker each, one of which dies and comes back, and Kafka consumers that commit by hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

import georelay
from loadtest.mesh_process import MeshProcess

REGIONS = ("us", "eu", "ap")
PARTITIONS = 3
SECONDS = 60.0
# What a member is told whose session ended on a busy machine, or whose group rebalances.
NO_MEMBER_NOW = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


class Member:
    """A consumer of a group; every record is committed before the next one, unless it is told otherwise."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.consumer.subscribe(["orders"])
        self.read: list[int] = []

    async def reads(self, count: int, *, commits: bool = True) -> list[int]:
        """Return the next `count` records."""
        return await asyncio.to_thread(self._reads, count, commits)

    def _reads(self, count: int, commits: bool) -> list[int]:
        found: list[int] = []
        until = time.monotonic() + SECONDS
        while len(found) < count:
            assert time.monotonic() < until, f"{found} and nothing more: {self.consumer.assignment()}"
            message = self.consumer.poll(0.2)
            if message is None or message.error():
                continue
            found.append(int(message.value()))
            if commits:
                self._commit(message)
        self.read += found
        return found

    def _commit(self, message: Any) -> None:
        """Commit one record; while the client itself looks for the coordinator, it did not ask anybody yet."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                self.consumer.commit(message, asynchronous=False)
                return
            except KafkaException as refused:
                if refused.args[0].code() != KafkaError._WAIT_COORD or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    async def reads_until(self, total: int, other: Member) -> list[int]:
        """Read and commit until this one and `other` have read `total` records since they were made."""
        mine = len(self.read)

        def read() -> None:
            until = time.monotonic() + SECONDS
            while len(self.read) + len(other.read) < total:
                assert time.monotonic() < until, f"{self.read[mine:]} here"
                message = self.consumer.poll(0.2)
                if message is None or message.error():
                    continue
                try:
                    self._commit(message)
                except KafkaException as refused:
                    if refused.args[0].code() not in NO_MEMBER_NOW:
                        raise
                    continue  # not processed: it comes again, to whoever has the partition then
                self.read.append(int(message.value()))

        await asyncio.to_thread(read)
        return self.read[mine:]

    async def idles(self, seconds: float) -> list[int]:
        """Poll for a while; return what came."""

        def poll() -> list[int]:
            until = time.monotonic() + seconds
            messages = [self.consumer.poll(0.2) for _ in iter(lambda: time.monotonic() < until, False)]
            return [int(message.value()) for message in messages if message is not None and not message.error()]

        return await asyncio.to_thread(poll)


class LosableMesh:
    """The mesh, and its region us as a process that can be killed and started again."""

    def __init__(self, process: MeshProcess) -> None:
        self.process = process
        self._back: subprocess.Popen[bytes] | None = None
        self._members: list[Member] = []

    def member(self, region: str, group: str = "billing") -> Member:
        member = Member(self.process.endpoints["regions"][region]["kafka"][0], group)
        self._members.append(member)
        return member

    async def create_topic(self, home: str, **settings: str) -> None:
        async with georelay.connect(self.process.gateway, region="us") as mesh:
            await mesh.admin.create_topic("orders", home=home, partitions=PARTITIONS, settings=settings)
        for region in REGIONS:  # each is asked once it has joined
            await self.done("groups", "list", "--region", region)

    async def publish(self, numbers: Iterable[int], region: str = "eu") -> None:
        def publish() -> None:
            bootstrap = self.process.endpoints["regions"][region]["kafka"][0]
            producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
            for number in numbers:
                producer.produce("orders", str(number).encode(), partition=number % PARTITIONS)
            assert producer.flush(30) == 0

        await asyncio.to_thread(publish)

    async def georelay(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "georelay.cli", *arguments, "--gateway", self.process.gateway]
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)

    async def done(self, *arguments: str) -> str:
        """Run a command until it succeeds; return what it said."""
        until = time.monotonic() + SECONDS
        while (ended := await self.georelay(*arguments)).returncode:
            assert time.monotonic() < until, ended.stdout + ended.stderr
            await asyncio.sleep(0.3)
        return ended.stdout

    def kill_us(self) -> None:
        self.process.kill("us-1")

    async def start_us(self) -> None:
        """Start it again, as nobody's child but ours."""
        directory = self.process.directory
        lines = (directory / "mesh" / "config" / "us-1.toml").read_text().splitlines()
        config = directory / "us-again.toml"
        config.write_text("\n".join(line for line in lines if not line.startswith("die_with_parent")))
        with (directory / "us-again.log").open("wb") as output:
            argv = [sys.executable, "-P", "-m", "region", "--config", str(config)]
            self._back = subprocess.Popen(argv, stdout=output, stderr=output)

    async def close(self) -> None:
        for member in self._members:
            await asyncio.to_thread(member.consumer.close)
        if self._back is not None:
            self._back.kill()
            await asyncio.to_thread(self._back.wait)


@pytest.fixture
async def losable_mesh(tmp_path: Path) -> AsyncIterator[LosableMesh]:
    async with MeshProcess(tmp_path, regions=",".join(REGIONS), brokers_per_region=1) as process:
        mesh = LosableMesh(process)
        try:
            yield mesh
        finally:
            await mesh.close()
