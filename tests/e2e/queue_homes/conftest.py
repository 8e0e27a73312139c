"""Three regions of one broker each, one of which dies and comes back, and what its queues and bindings are asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import georelay
from loadtest.mesh_process import MeshProcess

REGIONS = ("us", "eu", "ap")
SECONDS = 45.0


class QueueMesh:
    """The mesh, and its region us as a process that can be killed and started again."""

    def __init__(self, process: MeshProcess, http: aiohttp.ClientSession) -> None:
        self.process = process
        self._http = http
        self._back: subprocess.Popen[bytes] | None = None

    async def create_topic(self, name: str, home: str, **settings: str) -> None:
        async with georelay.connect(self.process.gateway, region=home) as mesh:
            await mesh.admin.create_topic(name, home=home, partitions=2, settings=settings)
        for region in REGIONS:  # each is asked once it has joined
            await self.ask("GET", f"/v1/topics/{name}", region)

    async def ask(self, method: str, path: str, region: str, body: Any = None, **query: str) -> Any:
        """Ask the broker of a region, again for as long as it refuses."""
        url = f"http://{self.process.endpoints['regions'][region]['admin'][0]}{path}"
        until = time.monotonic() + SECONDS
        said = ""
        while time.monotonic() < until:
            try:
                async with self._http.request(method, url, json=body, params=query) as answer:
                    if answer.status < 300:
                        return await answer.json()
                    said = f"{answer.status} {await answer.text()}"
            except aiohttp.ClientError as error:
                said = str(error)
            await asyncio.sleep(0.2)
        raise AssertionError(f"{method} {path} in {region}: {said}")

    async def publish(self, topic: str, numbers: Iterable[int], region: str) -> None:
        rows = [{"value": str(number), "partition": number % 2} for number in numbers]
        await self.ask("POST", f"/v1/topics/{topic}/records", region, rows)

    async def receive(self, region: str, count: int, *, queue: str = "jobs", wait_ms: int = 1000) -> list[Any]:
        """Return leased records: `count`, or what there is when nothing more comes."""
        rows: list[Any] = []
        until = time.monotonic() + SECONDS
        while len(rows) < count and time.monotonic() < until:
            query = {"consumer": region, "max": str(count - len(rows)), "wait_ms": str(wait_ms)}
            rows += (await self.ask("POST", f"/v1/queues/{queue}/records", region, **query))["records"]
        return rows

    async def nothing(self, region: str, *, queue: str = "jobs") -> bool:
        """Return whether a receive of a second brings nothing."""
        query = {"consumer": region, "max": "100", "wait_ms": "1000"}
        return not (await self.ask("POST", f"/v1/queues/{queue}/records", region, **query))["records"]

    async def settle(self, region: str, action: str, rows: Sequence[Any], *, queue: str = "jobs") -> list[Any]:
        """Return what is said of each lease."""
        body = {"action": action, "leases": [row["lease"] for row in rows]}
        results: list[Any] = (await self.ask("POST", f"/v1/queues/{queue}/leases", region, body))["results"]
        return results

    async def values(self, topic: str, region: str, count: int) -> list[int]:
        """Return the values of all partitions of a topic, once there are so many; a second later for those beyond."""
        until = time.monotonic() + SECONDS
        while True:
            found = await self._values(topic, region)
            if len(found) >= count:
                await asyncio.sleep(1)
                return await self._values(topic, region)
            assert time.monotonic() < until, f"{len(found)} of {count} in {topic}"
            await asyncio.sleep(0.2)

    async def _values(self, topic: str, region: str) -> list[int]:
        found = []
        for partition in range(2):
            offset = "0"
            while True:
                query = {"partition": str(partition), "offset": offset, "max": "1000"}
                answer = await self.ask("GET", f"/v1/topics/{topic}/records", region, **query)
                found += [int(row["value"]) for row in answer["records"]]
                offset = str(answer["next_offset"])
                if not answer["records"]:
                    break
        return found

    async def done(self, *arguments: str) -> str:
        """Run a command until it succeeds; return what it said."""
        command = [sys.executable, "-m", "georelay.cli", *arguments, "--gateway", self.process.gateway]
        until = time.monotonic() + SECONDS
        while True:
            ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
            if not ended.returncode:
                return ended.stdout
            assert time.monotonic() < until, ended.stdout + ended.stderr
            await asyncio.sleep(0.3)

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
        if self._back is not None:
            self._back.kill()
            await asyncio.to_thread(self._back.wait)


@pytest.fixture
async def queue_mesh(tmp_path: Path) -> AsyncIterator[QueueMesh]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
        MeshProcess(tmp_path, regions=",".join(REGIONS), brokers_per_region=1) as process,
    ):
        mesh = QueueMesh(process, http)
        try:
            yield mesh
        finally:
            await mesh.close()
