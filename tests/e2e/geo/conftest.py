"""Three real regions of one broker each, one of which can be cut off."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import georelay
from georelay import Durability
from loadtest.mesh_process import MeshProcess

REGIONS = ("us", "eu", "ap")
READY_S = 60
NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class GeoMesh:
    """A mesh whose regions can be frozen: links to them are dead after 1.5 s."""

    process: MeshProcess

    def connect(self, region: str = "us") -> georelay.Connection:
        return georelay.connect(self.process.gateway, region=region)

    def kafka(self, region: str) -> str:
        return str(self.process.endpoints["regions"][region]["kafka"][0])

    async def create(self, topic: str, **settings: str) -> None:
        """Create a topic homed in us and wait until all regions take part."""
        async with self.connect() as mesh:
            await mesh.admin.create_topic(topic, home="us", settings=settings)
            async with mesh.producer(durability=Durability.ALL, deadline_s=2) as producer:
                deadline = time.monotonic() + READY_S
                while True:
                    try:
                        await producer.publish(topic, b"first")
                        return
                    except georelay.GeorelayError:
                        assert time.monotonic() < deadline, "the regions did not come together"
                        await asyncio.sleep(0.2)

    @contextmanager
    def frozen(self, region: str) -> Any:
        """Let a region say nothing for a while."""
        pid = self.process.pid_of(f"{region}-1")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def geo_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GeoMesh]:
    """One mesh for all tests; a broker that ends is started again."""
    process = MeshProcess(
        tmp_path_factory.mktemp("geo"), regions=",".join(REGIONS), brokers_per_region=1, arguments=("--restart",)
    )
    asyncio.run(process.__aenter__())
    try:
        yield GeoMesh(process)
    finally:
        process.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"orders-{next(NUMBERS)}"
