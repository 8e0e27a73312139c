"""A mesh of brokers in this process: real links and disks on loopback, no listeners of clients."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import NotLeader
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.broker.core import BrokerCore
from region.config import BrokerConfig
from region.log.filesystem import OsFileSystem
from tests.free_ports import free_ports

SECONDS = 30.0


class NoRecorder:
    """Nobody looks at what was delivered."""

    def committed(self, **_: Any) -> None:
        """Forget it."""

    def replicated(self, **_: Any) -> None:
        """Forget it."""

    def named_late(self, *_: Any, **__: Any) -> None:
        """Forget it."""

    def aborted_late(self, *_: Any, **__: Any) -> None:
        """Forget it."""

    def left(self, **_: Any) -> None:
        """Forget it."""


class Mesh:
    """Regions by name, brokers as (region, number); every broker has its directory and its ports for good."""

    def __init__(self, directory: Path, **regions: int) -> None:
        self.directory = directory
        self.sizes = regions
        self.numbers = {name: number for number, name in enumerate(regions, start=1)}
        self.cores: dict[tuple[str, int], BrokerCore] = {}
        self._ports: dict[tuple[str, int], dict[str, int]] = {}
        for name, size in regions.items():
            for number in range(1, size + 1):
                self.add_ports(name, number)

    def add_ports(self, region: str, number: int) -> None:
        names = ("kafka", "grpc", "peers", "link", "admin")
        self._ports[region, number] = dict(zip(names, free_ports(len(names)), strict=True))

    def add_region(self, name: str) -> str:
        """Let a region of one broker exist; return its seed."""
        self.sizes[name], self.numbers[name] = 1, len(self.numbers) + 1
        self.add_ports(name, 1)
        return self.seed(name)

    def seed(self, name: str) -> str:
        return f"{self.numbers[name] * 1000 + 1}@127.0.0.1:{self._ports[name, 1]['link']}"

    def config(self, region: str, number: int, known: list[str], **changes: Any) -> BrokerConfig:
        def section(name: str) -> dict[str, Any]:
            rows = []
            for each in range(1, self.sizes[name] + 1):
                ports = self._ports[name, each]
                rows.append(
                    {"number": each, "peers": f"127.0.0.1:{ports['peers']}", "link": f"127.0.0.1:{ports['link']}"}
                )
            witness = name in changes.get("witnesses", ())
            return {"name": name, "number": self.numbers[name], "brokers": rows, "witness": witness}

        listen = {name: f"127.0.0.1:{port}" for name, port in self._ports[region, number].items()}
        raw: dict[str, Any] = {
            "mesh_id": "mesh",
            "region": region,
            "broker": number,
            "data_dir": str(self.directory / f"{region}-{number}"),
            "definitions_home": next(iter(self.sizes)),
            "listen": listen,
            "tick_ms": 20,
            "disk_reserve_bytes": 0,
            "regions": [section(name) for name in known],
            "control": {"election_ms": 300},
        }
        changed = {name: value for name, value in changes.items() if name != "witnesses"}
        return BrokerConfig.model_validate(raw | changed)

    async def start(
        self, region: str, number: int = 1, *, known: list[str] | None = None, **changes: Any
    ) -> BrokerCore:
        core = BrokerCore(
            self.config(region, number, known or list(self.sizes), **changes),
            clock=SystemClock(),
            rng=random.Random(),
            file_system=OsFileSystem(),
            executor=ThreadPoolExecutor(2),
            recorder=NoRecorder(),
        )
        self.cores[region, number] = core
        await core.start()
        return core

    async def stop(self, region: str, number: int = 1) -> None:
        core = self.cores.pop((region, number))
        await core.stop()
        core._executor.shutdown(wait=True)
        core.close_files()

    async def start_all(self, **changes: Any) -> list[BrokerCore]:
        for region, number in list(self._ports):
            await self.start(region, number, **changes)
        return list(self.cores.values())

    async def stop_all(self) -> None:
        for region, number in list(self.cores):
            await self.stop(region, number)

    async def power_cut(self) -> None:
        """End every broker without a last word: what a clean stop writes is not on the disks."""
        kept = self.directory / "kept"
        shutil.copytree(
            self.directory, kept, ignore=shutil.ignore_patterns("kept", "*.tmp")
        )  # a *.tmp goes while it is copied
        await self.stop_all()
        for region, number in self._ports:
            name = f"{region}-{number}"
            if (kept / name).exists():
                shutil.rmtree(self.directory / name)
                (kept / name).rename(self.directory / name)
        shutil.rmtree(kept)

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            await asyncio.sleep(0.01)
        states = {name: core.control.status() for name, core in self.cores.items()}
        raise AssertionError(f"{what} did not come true: {states}")

    async def voters(self, count: int) -> BrokerCore:
        """Wait until control has so many voters and nobody else on the way; return the broker that leads."""

        def settled() -> BrokerCore | None:
            leader = next((core for core in self.cores.values() if core.control.is_leader), None)
            if leader is None:
                return None
            members = leader.control.state.members
            return leader if len(members.voters) == count and members.targets()[0] == members.voters else None

        found = await self.until(settled, f"{count} voters")
        assert isinstance(found, BrokerCore)
        return found

    async def known(self, topic: str) -> None:
        """Wait until every broker knows a topic."""
        await self.until(
            lambda: all(core.controller.catalog.topic(topic) for core in self.cores.values()), f"topic {topic}"
        )

    async def publish(self, core: BrokerCore, topic: str, value: bytes) -> int:
        """Publish one record; return its offset."""
        raw = build_batch([RecordDraft(value)], timestamps_ms=1)
        publish = Publish.built(raw, received_ns=1, entry_region=core.config.region_number, lane=1)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                stored = await core.cluster.publish(topic, 0, publish)
            except NotLeader:  # a topic that was just made
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)
            else:
                return int(stored.base_offset)


@pytest.fixture
async def make_mesh(tmp_path: Path) -> AsyncIterator[Callable[..., Mesh]]:
    made: list[Mesh] = []

    def make(**regions: int) -> Mesh:
        made.append(Mesh(tmp_path, **regions))
        return made[-1]

    yield make
    for mesh in made:
        await mesh.stop_all()
