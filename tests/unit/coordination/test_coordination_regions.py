"""Two regions: each has coordinators of its own, and follows the other's commands without serving them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from region.app import Broker
from region.config import BrokerConfig
from region.coordination.coordinator_stream import CoordinatorStream
from region.coordination.coordinators import INTERNAL_TOPIC
from region.coordination.part import Part
from tests.free_ports import free_addresses

NAMES = ("kafka", "grpc", "peers", "link", "admin")
REGIONS = ("us", "eu")


def configs(directory: Path) -> list[BrokerConfig]:
    listen = [free_addresses(NAMES) for _ in range(2)]
    regions = [
        {
            "name": name,
            "number": at + 1,
            "brokers": [{"number": 1, "peers": listen[at]["peers"], "link": listen[at]["link"]}],
        }
        for at, name in enumerate(REGIONS)
    ]
    return [
        BrokerConfig.model_validate(
            {
                "mesh_id": "test",
                "region": name,
                "broker": 1,
                "data_dir": str(directory / name),
                "definitions_home": "us",
                "tick_ms": 20,
                "listen": listen[at],
                "regions": regions,
            }
        )
        for at, name in enumerate(REGIONS)
    ]


@pytest.fixture
async def brokers(tmp_path: Path, make_notes: Any, until: Any) -> AsyncIterator[list[Broker]]:
    running = [Broker(config) for config in configs(tmp_path)]
    for broker in running:
        broker.core.coordinators._makes.clear()
        broker.core.coordinators.register(Part.GROUPS, make_notes)
        await broker.start()
    await until(lambda: all(broker.cluster.ready() for broker in running))
    yield running
    for broker in running:
        await broker.stop()


async def test_each_region_has_its_own_coordinators_and_follows_the_others_commands(
    brokers: list[Broker], until: Any
) -> None:
    us, eu = brokers
    answers = {}
    for broker, name in zip(brokers, REGIONS, strict=True):
        coordinators = broker.core.coordinators
        answers[name] = await coordinators.call(Part.GROUPS, "k", "add", {"command": name}, timeout_s=30)
    partition = answers["us"]["partition"]
    assert answers["eu"]["partition"] == partition
    for broker, name in zip(brokers, REGIONS, strict=True):
        listed = await broker.core.coordinators.call(Part.GROUPS, "k", "list", {})
        assert listed["commands"] == [name]
    for broker, other in ((us, "eu"), (eu, "us")):
        mirrored = broker.cluster.stream(f"{other}.{INTERNAL_TOPIC}", partition)
        assert isinstance(mirrored, CoordinatorStream)
        await until(lambda: mirrored.high_watermark == 1)  # noqa: B023
        copied: Any = mirrored.parts[Part.GROUPS]
        assert copied.commands == [other] and not mirrored.is_elected
        assert isinstance(broker.cluster.stream(INTERNAL_TOPIC, partition), CoordinatorStream)
