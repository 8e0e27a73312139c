"""Clocks over real links on loopback: two brokers whose clocks are wrong find out by how much."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from georelay.ids import BrokerId, RegionNumber
from mesh.clock.book_core import ClockBook
from mesh.clock.exchanger import ClockExchanger, NoHostClock
from mesh.replication.frames import ClockAnswer, ClockAsk
from mesh.replication.mesh_links import BrokerAddress, MeshIdentity, MeshLinks
from tests.free_ports import free_ports

MESH = "clock-test"


class WrongClock:
    """The real clocks, the wall clock moved by a constant."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ns = ahead_ms * 1_000_000

    def wall_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class Broker:
    """Links, clock and book of one broker alone in its region."""

    def __init__(self, region: int, ahead_ms: int, ports: dict[int, int]) -> None:
        number, me = RegionNumber(region), BrokerId(region * 1000 + 1)
        self.clock = WrongClock(ahead_ms)
        self.exchanges = 0
        nobody: Any = None
        self.links = MeshLinks(
            identity=MeshIdentity(mesh_id=MESH, region=f"r{region}", region_number=number, broker_id=me),
            brokers={
                RegionNumber(other): [BrokerAddress(broker_id=BrokerId(other * 1000 + 1), address=f"127.0.0.1:{port}")]
                for other, port in ports.items()
            },
            directory=nobody,
            publisher=nobody,
            requests=nobody,
            clock=self.clock,
        )
        self.book = ClockBook(region=number, broker=me)
        self.heard = asyncio.Event()
        self.exchanger = ClockExchanger(
            self.book,
            links=self.links,
            regions=lambda: [RegionNumber(other) for other in ports],
            own=number,
            clock=self.clock,
            host=NoHostClock(),
            on_exchange=lambda _broker, _exchange: self.heard.set(),
        )
        self.links.serve_clocks(self._answer, self._answered)

    def _answer(self, ask: ClockAsk) -> ClockAnswer:
        return ClockAnswer(*self.exchanger.answer(ask.t1_ns))

    def _answered(self, broker: BrokerId, answer: ClockAnswer) -> None:
        self.exchanger.answered(
            broker,
            t1_ns=answer.t1_ns,
            t2_ns=answer.t2_ns,
            t3_ns=answer.t3_ns,
            host_error_us=answer.host_error_us,
            spread_us=answer.spread_us,
        )


@pytest.fixture
def ports() -> dict[int, int]:
    return dict(enumerate(free_ports(2), start=1))


async def test_two_brokers_learn_how_wrong_their_clocks_are(ports: dict[int, int]) -> None:
    us, eu = Broker(1, -80, ports), Broker(2, +80, ports)
    try:
        await us.links.start(f"127.0.0.1:{ports[1]}")
        await eu.links.start(f"127.0.0.1:{ports[2]}")
        async with asyncio.timeout(20):
            while not (us.heard.is_set() and eu.heard.is_set()):
                us.exchanger.tick()
                eu.exchanger.tick()
                await asyncio.sleep(0.02)
        for broker, other, truth_us in ((us, 2, 160_000), (eu, 1, -160_000)):
            broker.book.move_to(wall_ns=broker.clock.wall_ns(), monotonic_ns=broker.clock.monotonic_ns())
            found = broker.book.offset_to(RegionNumber(other))
            assert found is not None
            assert abs(found.offset_us - truth_us) <= found.error_us < 500_000
    finally:
        await us.links.stop()
        await eu.links.stop()


async def test_a_peer_of_version_1_is_never_asked(ports: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from mesh.replication import mesh_links

    monkeypatch.setattr(mesh_links, "CLOCK_VERSION", 99)
    us, eu = Broker(1, 0, ports), Broker(2, 0, ports)
    try:
        await us.links.start(f"127.0.0.1:{ports[1]}")
        await eu.links.start(f"127.0.0.1:{ports[2]}")
        us.exchanger.tick()
        async with asyncio.timeout(20):
            while not us.links.is_linked(RegionNumber(2)):
                await asyncio.sleep(0.02)
        assert us.links.ask_clock(BrokerId(2001), 1, dial=True) is False
    finally:
        await us.links.stop()
        await eu.links.stop()
