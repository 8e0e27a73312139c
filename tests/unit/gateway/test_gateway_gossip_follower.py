"""The gateway follows a pool: a fake one, whose brokers tell a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from gateway.routing import gossip_follower
from gateway.routing.endpoints import RegionEndpoints
from gateway.routing.gossip_follower import GossipFollower
from gateway.routing.known_brokers_core import KnownBrokers
from georelay.ids import BrokerId
from mesh.gossip.agent_answers import QueryReport
from mesh.gossip.directory_core import answer
from mesh.gossip.view import MemberChange, MemberStatus, MemberView, OnMember


def member(broker: int, region: str, status: MemberStatus = MemberStatus.ALIVE, role: str = "broker") -> MemberView:
    tags = {"cl": "shop", "rg": region, "id": str(broker), "role": role}
    tags |= {name: f"127.0.0.1:{broker + place}" for place, name in enumerate(("kafka", "grpc", "admin"))}
    return MemberView(name=str(broker), address=("127.0.0.1", broker), status=status, tags=tags, rtt_s=0.001)


class FakePool:
    """`own`: members of the pool; `mesh`: what its brokers know of all; `mute`: names that do not answer."""

    def __init__(self) -> None:
        self.own = [member(1001, "us"), member(9999, "us", role="gateway")]
        self.mesh = [*self.own, member(2001, "eu")]
        self.mute: set[str] = set()
        self.garbage = b""
        self.asked: list[str] = []
        self.told: OnMember = lambda _change, _member: None

    def members(self) -> Sequence[MemberView]:
        return self.own

    def subscribe(self, on_member: OnMember) -> None:
        self.told = on_member

    async def query(
        self, name: str, payload: bytes = b"", *, filters: Sequence[bytes] = (), timeout_s: float = 0.0
    ) -> QueryReport:
        await asyncio.sleep(0)
        meant = next(each.name for each in self.own if each.name.encode() in filters[0])
        self.asked.append(meant)
        page = self.garbage or answer(payload, {"wan": self.mesh}, mesh="shop")
        assert page is not None
        return QueryReport(acknowledged=(), answers={} if meant in self.mute else {meant: page})


class Seen:
    """What the routing was told."""

    def __init__(self) -> None:
        self.regions: dict[str, list[int]] = {}
        self.estimates: Mapping[BrokerId, int] = {}

    def apply(self, regions: Sequence[RegionEndpoints], estimates_ns: Mapping[BrokerId, int]) -> None:
        self.regions = {region.name: [int(broker.id) for broker in region.brokers] for region in regions}
        self.estimates = estimates_ns


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    monkeypatch.setattr(gossip_follower, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(gossip_follower, "ASK_SOON_S", 0.01)
    return FakePool()


async def until(seen: Seen, wanted: dict[str, list[int]]) -> None:
    async with asyncio.timeout(5):
        while seen.regions != wanted:
            await asyncio.sleep(0.005)


def follow(pool: FakePool, seen: Seen, *, now: Sequence[float] = (0.0,)) -> GossipFollower:
    known = KnownBrokers((), may_dial=lambda _: True)
    return GossipFollower(
        pool, mesh="shop", known=known, apply=seen.apply, monotonic_s=lambda: now[0], rng=random.Random(1)
    )


async def test_one_pool_is_enough_for_the_brokers_of_all_regions_also_of_one_that_joins_later(pool: FakePool) -> None:
    seen = Seen()
    follower = follow(pool, seen)
    follower.start()
    assert seen.regions == {"us": [1001]}
    assert not follower.is_settled
    await until(seen, {"us": [1001], "eu": [2001]})
    assert follower.is_settled
    assert seen.estimates == {1001: 1_000_000, 2001: 2_000_000}
    pool.mesh.append(member(4001, "sa"))
    await until(seen, {"us": [1001], "eu": [2001], "sa": [4001]})
    pool.own = [member(1001, "us", MemberStatus.LEFT), member(1002, "us")]
    pool.told(MemberChange.LEFT, pool.own[0])
    assert seen.regions["us"] == [1002]
    await follower.close()


async def test_brokers_are_asked_in_turn_so_a_mute_one_costs_one_turn(pool: FakePool) -> None:
    pool.own = [member(1001, "us"), member(1002, "us", MemberStatus.FAILED), member(1003, "us")]
    pool.mute = {"1001"}
    seen = Seen()
    follower = follow(pool, seen)
    follower.start()
    await until(seen, {"us": [1001, 1002, 1003], "eu": [2001]})
    assert pool.asked[:2] == ["1001", "1003"]
    await follower.close()


async def test_an_answer_that_is_no_directory_changes_nothing(pool: FakePool) -> None:
    pool.garbage = b"\x00"
    seen = Seen()
    follower = follow(pool, seen)
    follower.start()
    async with asyncio.timeout(5):
        while len(pool.asked) < 3:
            await asyncio.sleep(0.005)
    assert seen.regions == {"us": [1001]}
    pool.garbage = b""
    await until(seen, {"us": [1001], "eu": [2001]})
    await follower.close()


async def test_without_any_directory_the_own_region_must_do_after_a_while(pool: FakePool) -> None:
    pool.mute = {"1001"}
    now = [0.0]
    follower = follow(pool, Seen(), now=now)
    follower.start()
    assert not follower.is_settled
    now[0] = gossip_follower.SETTLE_S + 0.1
    assert follower.is_settled
    await follower.close()
