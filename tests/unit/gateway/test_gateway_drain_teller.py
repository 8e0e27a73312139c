"""A gateway tells the brokers of its region where clients go while operators drain it."""

from __future__ import annotations

from gateway.routing.broker_health import Probe
from gateway.routing.drain_teller import DrainTeller
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router
from gateway.routing.rules_core import Kind
from georelay.ids import BrokerId, RegionNumber, broker_id

FAR_MS = {"us": 1, "eu": 40, "ap": 90}


class Told:
    """A gateway of us before three ready regions, and what it tells."""

    def __init__(self) -> None:
        self.view = RegionView([self._region(name, number) for number, name in enumerate(FAR_MS, start=1)])
        self.router = Router(self.view, monotonic_ns=lambda: 0)
        self.tags: list[dict[str, str]] = []
        for number, rtt_ms in enumerate(FAR_MS.values(), start=1):
            for _ in range(6):
                broker = broker_id(RegionNumber(number), 1)
                self.view.on_probe(broker, Probe.OK, now_ns=0, rtt_ns=rtt_ms * 1_000_000, warm=True)
        self.teller = DrainTeller(self.router, region="us", set_tags=self._set_tags)

    @staticmethod
    def _region(name: str, number: int) -> RegionEndpoints:
        broker = BrokerEndpoints(id=broker_id(RegionNumber(number), 1), kafka=f"{name}:1", grpc="", admin="")
        return RegionEndpoints(name=name, number=RegionNumber(number), brokers=(broker,))

    async def _set_tags(self, **tags: str) -> None:
        self.tags.append(tags)

    def drains(self, region: str, *, kept: bool = False) -> None:
        self.router.rules.make(Kind.DRAIN, region, "" if kept else "clients", now_us=1, now_s=0, by="ann")


async def test_a_drain_is_told_once_with_the_next_region_and_taken_back_with_the_decision() -> None:
    told = Told()
    await told.teller.look()
    assert told.tags == []
    told.drains("us")
    await told.teller.look()
    await told.teller.look()
    told.drains("us", kept=True)
    await told.teller.look()
    assert told.tags == [{"dr": "eu"}, {"dr": ""}]


async def test_a_region_that_drains_or_is_lost_takes_nobody_and_without_another_one_clients_stay() -> None:
    told = Told()
    told.drains("us")
    told.drains("eu")
    await told.teller.look()
    told.view.on_probe(BrokerId(3001), Probe.REFUSED, now_ns=0)
    await told.teller.look()
    assert told.tags == [{"dr": "ap"}, {"dr": ""}]


async def test_the_drain_of_another_region_is_not_told_to_this_one() -> None:
    told = Told()
    told.drains("eu")
    await told.teller.look()
    assert told.tags == []
