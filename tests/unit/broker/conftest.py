"""A whole broker in this process: one region of one, real sockets on loopback, a file system that can fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import GeorelayError
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from mesh.replication.publish import Publish
from region.api.reading import StreamReader
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import Homes, TopicSpec
from region.log.filesystem import OsFileSystem
from tests.conditions import until
from tests.free_ports import free_addresses


class FailingFileSystem(OsFileSystem):
    """The operating system's, until a sync is told to fail."""

    def __init__(self) -> None:
        self.fails = False
        self.flowing = threading.Event()  # closed: syncs wait
        self.flowing.set()

    def fdatasync(self, handle: int) -> None:
        self.flowing.wait()
        if self.fails:
            raise OSError(5, "Input/output error")
        super().fdatasync(handle)


NAMES = ("kafka", "grpc", "peers", "link", "admin")


def config_of(directory: Path) -> dict[str, Any]:
    listen = free_addresses(NAMES)
    return {
        "mesh_id": "test",
        "region": "us",
        "broker": 1,
        "data_dir": str(directory / "data"),
        "definitions_home": "us",
        "tick_ms": 10,
        "listen": listen,
        "regions": [
            {
                "name": "us",
                "number": 1,
                "brokers": [{"number": 1, "peers": listen["peers"], "link": listen["link"]}],
            }
        ],
    }


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: config_of(tmp_path)


@pytest.fixture(name="until")
def until_fixture() -> Any:
    return until


@pytest.fixture
def disk() -> FailingFileSystem:
    return FailingFileSystem()


@pytest.fixture
async def broker(tmp_path: Path, disk: FailingFileSystem) -> AsyncIterator[Broker]:
    made = Broker(BrokerConfig.model_validate(config_of(tmp_path)), file_system=disk)
    await made.start()
    await until(made.cluster.ready)
    yield made
    await made.stop()


class Mesh:
    """Brokers of some regions in this process; `at` says where each of them listens now."""

    def __init__(self, directory: Path, regions: dict[str, int]) -> None:
        self._directory = directory
        self._regions = regions
        self.running: dict[tuple[str, int], Broker] = {}
        self.at: dict[tuple[str, int], dict[str, str]] = {}
        self.move()

    def move(self) -> None:
        """Give every broker addresses that nobody had."""
        for name, brokers in self._regions.items():
            for number in range(1, brokers + 1):
                self.at[name, number] = free_addresses(NAMES)

    def swap(self) -> None:
        """Give every broker the addresses that another one had."""
        rows = list(self.at.values())
        self.at = dict(zip(self.at, [*rows[1:], rows[0]], strict=True))

    def config(self, region: str, number: int) -> BrokerConfig:
        return BrokerConfig.model_validate(
            {
                "mesh_id": "test",
                "region": region,
                "broker": number,
                "data_dir": str(self._directory / f"{region}-{number}"),
                "definitions_home": next(iter(self._regions)),
                "tick_ms": 20,
                "listen": self.at[region, number],
                "regions": [
                    {
                        "name": name,
                        "number": place,
                        "brokers": [
                            {"number": n, "peers": self.at[name, n]["peers"], "link": self.at[name, n]["link"]}
                            for n in range(1, brokers + 1)
                        ],
                    }
                    for place, (name, brokers) in enumerate(self._regions.items(), start=1)
                ],
            }
        )

    async def start(self) -> None:
        """Start whoever does not run; return when all are ready."""
        missing = [key for key in self.at if key not in self.running]
        self.running |= {key: Broker(self.config(*key)) for key in missing}
        await asyncio.gather(*(self.running[key].start() for key in missing))
        await until(lambda: all(broker.cluster.ready() for broker in self.running.values()))

    async def stop(self) -> None:
        brokers, self.running = list(self.running.values()), {}
        await asyncio.gather(*(broker.stop() for broker in brokers))

    async def again(self, action: Callable[[], Any]) -> Any:
        """Do it until it is not refused: leaders of topics and links come a moment after a broker is ready."""
        async with asyncio.timeout(15):
            while True:
                try:
                    return await action()
                except GeorelayError:
                    await asyncio.sleep(0.02)

    async def create_topic(self) -> None:
        """Create "orders" with its home in the first region."""
        first = next(iter(self.running.values()))
        spec = TopicSpec(name="orders", homes=Homes.ONE, home=first.config.region)
        await self.again(lambda: first.cluster.create_topic(spec))

    async def publish(self, value: bytes) -> None:
        """Publish at the last broker of the last region."""
        broker = list(self.running.values())[-1]
        batch = build_batch([RecordDraft(value)], timestamps_ms=1)
        await self.again(
            lambda: broker.cluster.publish(
                "orders", 0, Publish.built(batch, received_ns=1, entry_region=broker.config.region_number, lane="test")
            )
        )

    async def has_everywhere(self, *values: bytes) -> None:
        for broker in self.running.values():
            found: list[bytes | None] = []
            async with asyncio.timeout(15):
                while len(found) < len(values):
                    reader = StreamReader(broker.cluster)
                    answer = await self.again(lambda: reader.read("orders", 0, 0, max_bytes=1 << 20, wait_ms=100))  # noqa: B023
                    records = [record for entry in answer.entries for record in iterate_records(entry.payload)]
                    found = list(dict.fromkeys(record.value for record in records))  # `again` may have doubled one
            assert found == list(values)

    def control_has_moved(self) -> bool:
        """Return whether mesh control has every voter where it is now."""
        at = {int(broker.config.broker_id): broker.config.listen.link for broker in self.running.values()}
        rows: Any = next(iter(self.running.values())).core.control.status()["replicas"]
        return len(rows) == len(self._regions) and all(row["address"] == at[row["broker"]] for row in rows)


@pytest.fixture
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, request.param)
    yield made
    await made.stop()
