"""kill -9 of the broker that leads a coordinator, again and again, and of all: no acknowledged command is lost, none is
applied twice, and every replica tells the same story.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_addresses

pytestmark = pytest.mark.slow

ROUNDS = 3
ADDED = 100  # commands acknowledged before each kill
SCRIPT = Path(__file__).with_name("coordinator_broker.py")
NAMES = ("kafka", "grpc", "peers", "link", "admin")
PAYLOAD = "." * 200  # so that segments fill and manifests are made


class BrokerProcess:
    """One broker, which is asked line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        with self.path.with_suffix(".log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(SCRIPT),
                str(self.path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=1 << 22,
            )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            future = self.waiting.pop(said["id"], None)
            if future is not None and not future.done():
                future.set_result(said)
        for future in self.waiting.values():
            if not future.done():
                future.set_result({"error": "KILLED"})
        self.waiting.clear()

    async def ask(self, number: int, **asked: Any) -> dict[str, Any]:
        """Return the answer; {"error": "KILLED"} when the broker ended before."""
        if self.process is None or self.process.returncode is not None:
            return {"error": "KILLED"}
        assert self.process.stdin is not None
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.waiting[number] = future
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps({"id": number, **asked}).encode() + b"\n")
            await self.process.stdin.drain()
        async with asyncio.timeout(60):
            return await future

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._reading is not None:
            await self._reading


class KilledRegion:
    """Three broker processes; every command is sent once and has its own text."""

    def __init__(self, directory: Path) -> None:
        listen = [free_addresses(NAMES) for _ in range(3)]
        rows = [{"number": at + 1, "peers": listen[at]["peers"], "link": listen[at]["link"]} for at in range(3)]
        self.brokers = []
        for at in range(3):
            path = directory / f"broker-{at + 1}.json"
            path.write_text(
                json.dumps(
                    {
                        "mesh_id": "test",
                        "region": "us",
                        "broker": at + 1,
                        "data_dir": str(directory / str(at + 1)),
                        "definitions_home": "us",
                        "tick_ms": 20,
                        "listen": listen[at],
                        "regions": [{"name": "us", "number": 1, "brokers": rows}],
                    }
                )
            )
            self.brokers.append(BrokerProcess(path))
        self.numbers = itertools.count()
        self.acknowledged: list[str] = []
        self.unknown = 0

    async def start(self) -> None:
        await asyncio.gather(*(broker.start() for broker in self.brokers))

    async def add(self, at: int) -> bool:
        number = next(self.numbers)
        said = await self.brokers[at % 3].ask(number, add=f"{number} {PAYLOAD}")
        if "error" in said:
            self.unknown += said["error"] in ("KILLED", "OUTCOME_UNKNOWN")
            return False
        self.acknowledged.append(f"{number} {PAYLOAD}")
        return True

    async def add_for_ever(self, lane: int) -> None:
        for turn in itertools.count(lane):
            await self.add(turn)

    async def acknowledges(self, count: int) -> None:
        """Wait until so many more commands are acknowledged: then the coordinator is led and busy."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.02)

    async def listed(self) -> tuple[list[str], int]:
        """Return what the coordinator has, and the place of its leader among the brokers."""
        for turn in range(100):
            said = await self.brokers[turn % 3].ask(next(self.numbers), list=True)
            if "commands" in said:
                return said["commands"], said["leader"] - 1001
            await asyncio.sleep(0.2)
        raise AssertionError("no broker could list what the coordinator has")


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[KilledRegion]:
    made = KilledRegion(tmp_path)
    await made.start()
    yield made
    await asyncio.gather(*(broker.kill() for broker in made.brokers))


async def test_kill_9_of_coordinators_loses_and_doubles_nothing_that_was_acknowledged(region: KilledRegion) -> None:
    await region.listed()
    lanes = [asyncio.create_task(region.add_for_ever(lane)) for lane in range(12)]
    for _ in range(ROUNDS):
        _, leader = await region.listed()
        await region.acknowledges(ADDED)
        await region.brokers[leader].kill()
        _, new = await region.listed()
        assert new != leader
        await region.brokers[leader].start()
    for lane in lanes:
        lane.cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    check(region, (await region.listed())[0])
    await asyncio.gather(*(broker.kill() for broker in region.brokers))
    await region.start()
    check(region, (await region.listed())[0])


def check(region: KilledRegion, commands: list[str]) -> None:
    assert len(commands) == len(set(commands)), "a command was applied twice"
    missing = set(region.acknowledged) - set(commands)
    assert not missing, f"{len(missing)} of {len(region.acknowledged)} acknowledged commands are lost"
    assert len(region.acknowledged) > 200
