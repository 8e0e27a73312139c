"""Everybody's addresses change while everybody is down, as in containers: the disks' brokers find each other again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import GeorelayError
from georelay.wire.batch import RecordDraft, build_batch, iterate_records, validate
from region.api.reading import StreamReader
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import Homes, TopicSpec

NAMES = ("kafka", "grpc", "peers", "link", "admin")
TOPIC = "orders"


def free_addresses() -> list[str]:
    sockets = [socket.socket() for _ in NAMES]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


class Mesh:
    """Brokers of some regions in this process; `at` says where each of them listens now."""

    def __init__(self, directory: Path, regions: dict[str, int], until: Any) -> None:
        self._directory = directory
        self._regions = regions
        self._until = until
        self.running: dict[tuple[str, int], Broker] = {}
        self.at: dict[tuple[str, int], dict[str, str]] = {}
        self.move()

    def move(self) -> None:
        """Give every broker addresses that nobody had."""
        for name, brokers in self._regions.items():
            for number in range(1, brokers + 1):
                self.at[name, number] = dict(zip(NAMES, free_addresses(), strict=True))

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
        for key in self.at:
            self.running[key] = Broker(self.config(*key))
        await asyncio.gather(*(broker.start() for broker in self.running.values()))
        await self._until(lambda: all(broker.cluster.ready() for broker in self.running.values()))

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

    async def publish(self, value: bytes) -> None:
        """Publish at the last broker of the last region."""
        broker = list(self.running.values())[-1]
        batch = build_batch([RecordDraft(value)], timestamps_ms=1)
        await self.again(
            lambda: broker.cluster.publish(
                TOPIC,
                0,
                validate(batch, from_client=True),
                bytearray(batch),
                received_ns=1,
                entry_region=broker.config.region_number,
                lane="test",
            )
        )

    async def has_everywhere(self, *values: bytes) -> None:
        for broker in self.running.values():
            found: list[bytes | None] = []
            async with asyncio.timeout(15):
                while len(found) < len(values):
                    reader = StreamReader(broker.cluster)
                    answer = await self.again(lambda: reader.read(TOPIC, 0, 0, max_bytes=1 << 20, wait_ms=100))  # noqa: B023
                    records = [record for entry in answer.entries for record in iterate_records(entry.payload)]
                    found = list(dict.fromkeys(record.value for record in records))  # `again` may have doubled one
            assert found == list(values)

    def control_has_moved(self) -> bool:
        """Return whether mesh control has every voter where it is now."""
        at = {int(broker.config.broker_id): broker.config.listen.link for broker in self.running.values()}
        rows: Any = next(iter(self.running.values())).core.control.status()["replicas"]
        return len(rows) == len(self._regions) and all(row["address"] == at[row["broker"]] for row in rows)


@pytest.fixture
async def mesh(request: pytest.FixtureRequest, tmp_path: Path, until: Any) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, request.param, until)
    yield made
    await made.stop()


@pytest.mark.parametrize("mesh", [{"us": 3}, {"us": 1, "eu": 1, "ap": 1}], ids=["region", "mesh"], indirect=True)
async def test_brokers_whose_addresses_all_changed_find_each_other_and_all_records(mesh: Mesh, until: Any) -> None:
    await mesh.start()
    first = next(iter(mesh.running.values()))
    home = first.config.region
    await mesh.again(lambda: first.cluster.create_topic(TopicSpec(name=TOPIC, homes=Homes.ONE, home=home)))
    values = (b"before", b"elsewhere", b"where another one was")
    await mesh.publish(values[0])
    await mesh.has_everywhere(values[0])
    for stored, change in ((2, mesh.move), (3, mesh.swap)):
        await mesh.stop()
        change()
        await mesh.start()
        await mesh.publish(values[stored - 1])
        await mesh.has_everywhere(*islice(values, stored))
    await until(mesh.control_has_moved)
