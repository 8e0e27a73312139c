"""A topic that is deleted while mesh control is being founded: the founder leads before its books are filled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import Unavailable
from region.app import Broker
from region.config import BrokerConfig
from region.control.calls import PREFIX
from region.control.mesh_control import MeshControl
from region.control.region_duties import RegionDuties
from region.controller.definition_orders import ALTER, DELETE
from region.controller.topic import Homes, TopicSpec


class Steps:
    """Holds the founder of mesh control before two of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cede, self.begin, self.led = asyncio.Event(), asyncio.Event(), asyncio.Event()
        cedes, begins = RegionDuties._cede, MeshControl._begin

        async def cede(duties: RegionDuties) -> None:
            await self.cede.wait()
            await cedes(duties)

        async def begin(control: MeshControl, snapshot: Callable[[], bytes]) -> None:
            await control._here().led_once.wait()
            self.led.set()
            await self.begin.wait()
            await begins(control, snapshot)

        monkeypatch.setattr(RegionDuties, "_cede", cede)
        monkeypatch.setattr(MeshControl, "_begin", begin)


async def test_a_founder_whose_books_are_empty_yet_does_not_say_that_a_topic_is_unknown(
    monkeypatch: pytest.MonkeyPatch, make_config: Any, until: Any
) -> None:
    steps = Steps(monkeypatch)
    broker = Broker(BrokerConfig.model_validate(make_config()))
    await broker.start()
    try:
        await until(broker.cluster.ready)
        await broker.cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us"))
        steps.cede.set()
        await steps.led.wait()
        control = broker.core.control
        wish = {"name": "orders", "settings": {}, "defaults": [], "partitions": 2}
        asked = {"generation": 0, "control_id": "", "body": wish}
        for method in (DELETE, ALTER):
            with pytest.raises(Unavailable, match="being founded"):
                await control.handle(PREFIX + method, asked, from_broker=control.me)
        steps.begin.set()
        await broker.cluster.delete_topic("orders")
        assert broker.core.controller.catalog.topic("orders") is None
    finally:
        await broker.stop()
