"""Finding a region and leaving it: over channels that answer, refuse or say nothing, as a test wants it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from georelay._pb import streams_pb2 as pb
from georelay.channels import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from georelay.errors import OutcomeUnknown, Unauthenticated, Unavailable
from georelay.racing import Way, race
from georelay.ranking import Ranking, RegionAddresses
from georelay.region_follower import FAILED_TTL_S, RegionFollower
from georelay.region_map import OTHERS_AFTER_S, RegionMap

pytestmark = pytest.mark.timeout(20)


class World:
    """Regions us and eu of two brokers each. `silent`, `refusing`: addresses; it stands for channels and resolver."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.order = ["us", "eu"]
        self.spread_s = 0.0
        self.asked: list[str] = []
        self.resolved = 0
        self.is_away = False
        self.on_disk: Ranking | None = None
        self.observed: list[Any] = []
        self.told: list[str] = []
        self.estimates: dict[str, float] = {}

    def ranking(self) -> Ranking:
        rows = [
            RegionAddresses(
                name=name, grpc=(f"{name}-1", f"{name}-2"), estimate_ms=self.estimates.get(name, 1.0), error_ms=0.0
            )
            for name in self.order
        ]
        return Ranking(regions=tuple(rows), spread_s=self.spread_s)

    async def resolve(self, observed: Any = (), *, here: str = "") -> Ranking:
        self.resolved += 1
        self.told.append(here)
        if self.is_away:
            raise Unavailable("the gateway is away")
        self.observed += observed
        return self.ranking()

    async def kept(self) -> Ranking | None:
        return self.on_disk

    async def ask(self, address: str, path: str, request: Any, answer: Any, *, timeout_s: float) -> Any:
        self.asked.append(address)
        if address in self.silent:
            await asyncio.sleep(timeout_s)
        if address in self.silent or address in self.refusing:
            raise Unavailable(f"{address} is not there")
        region = address[:2]
        rows = [pb.BrokerAddress(id=n, grpc=f"{region}-{n}", alive=True) for n in (1, 2)]
        return pb.LocateResponse(region=region, brokers=rows)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def region(world: World) -> RegionMap:
    return RegionMap(world, world, direct=True)  # type: ignore[arg-type]


async def test_the_first_region_that_answers_is_worked_with(world: World, region: RegionMap) -> None:
    await region.locate()
    assert (region.region, set(region.candidates())) == ("us", {"us-1", "us-2"})
    assert world.asked == ["us-1"]


async def test_a_region_that_says_nothing_costs_no_timeout(world: World, region: RegionMap) -> None:
    world.silent = {"us-1", "us-2"}
    async with asyncio.timeout(1):  # an attempt may take five seconds
        await region.locate()
    assert region.region == "eu"


async def test_a_region_that_works_is_not_left_for_a_quicker_answer(world: World, region: RegionMap) -> None:
    await region.locate()
    world.asked.clear()
    await region.locate()
    assert len(world.asked) == 1
    assert world.asked[0].startswith("us")


async def test_calls_in_a_region_that_is_lost_go_on_in_the_next_one_at_once(world: World, region: RegionMap) -> None:
    await region.locate()
    world.silent = {"us-1", "us-2"}
    called: list[str] = []

    async def call(address: str, left_s: float) -> str:
        called.append(address)
        if address in world.silent:
            await asyncio.sleep(left_s)
        return address

    async with asyncio.timeout(2):
        waiting = asyncio.create_task(region.until_answered(call, timeout_s=15))
        await asyncio.sleep(0)
        region.suspect("us-1")  # what a stream says whose keep-alive was not answered
        assert (await waiting).startswith("eu")
    assert region.region == "eu"
    await region.close()


async def test_who_moves_by_choice_takes_along_only_what_follows(world: World, region: RegionMap) -> None:
    await region.locate()
    told: list[tuple[Collection[str], bool]] = []
    region.on_left.append(lambda left, is_lost: told.append((left, is_lost)))
    stay = asyncio.Event()

    async def call(address: str, _: float) -> str:
        if address.startswith("us"):
            await stay.wait()
        return address

    staying = asyncio.create_task(region.until_answered(call, timeout_s=15))
    following = asyncio.create_task(region.until_answered(call, timeout_s=15, follows=True))
    await asyncio.sleep(0)
    assert await region.move_to("eu")
    assert (await following).startswith("eu")
    stay.set()
    assert (await staying).startswith("us")
    assert told == [({"us-1", "us-2"}, False)]
    await region.close()


async def test_a_region_that_does_not_answer_is_not_moved_to(world: World, region: RegionMap) -> None:
    await region.locate()
    world.refusing = {"eu-1", "eu-2"}
    assert not await region.move_to("eu")
    assert region.region == "us"


async def test_a_start_without_gateway_uses_what_was_kept_and_asks_when_that_is_outdated(
    world: World, region: RegionMap
) -> None:
    world.on_disk, world.is_away = world.ranking(), True
    await region.locate()
    assert (region.region, region.is_cached, world.resolved) == ("us", True, 0)
    gone = RegionMap(world, world, direct=True)  # type: ignore[arg-type]
    world.on_disk = Ranking(regions=(RegionAddresses(name="ap", grpc=("ap-9",)),))
    world.refusing, world.is_away = {"ap-9"}, False
    await gone.locate()
    assert (gone.region, gone.is_cached) == ("us", False)


async def test_what_no_other_address_would_help_with_ends_a_race() -> None:
    tried: list[str] = []

    async def ask(address: str) -> str:
        tried.append(address)
        raise Unauthenticated("no") if address == "b" else Unavailable("gone")

    with pytest.raises(Unauthenticated):
        await race([Way(0, "a"), Way(9, "b"), Way(9, "c")], ask, failed=lambda *_: None)
    assert tried == ["a", "b"]  # a failure is not waited out
    with pytest.raises(Unavailable):
        await race([], ask, failed=lambda *_: None)


# --- following the gateway ---------------------------------------------------------------------------


def follower(world: World, region: RegionMap, pinged: list[str]) -> RegionFollower:
    async def ping(address: str) -> None:
        pinged.append(address)
        if address.startswith("ap"):
            raise OutcomeUnknown("gone")

    return RegionFollower(region, world, ping=ping, rng=random.Random(1))  # type: ignore[arg-type]


def test_a_client_whose_region_is_lost_without_a_word_is_elsewhere_within_three_seconds() -> None:
    noticed_s = (KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000
    connected_s = 10 * 0.04  # round trips of TCP, TLS and the calls, to a region that is 40 ms away
    assert noticed_s + max(OTHERS_AFTER_S) + connected_s <= 3.0


async def test_a_client_moves_when_the_gateway_says_so_and_not_while_it_has_to_stay(
    world: World, region: RegionMap
) -> None:
    await region.locate()
    followed = follower(world, region, [])
    assert await followed.follow() == 30.0
    assert region.region == "us"
    world.order = ["eu", "us"]
    region.stays = True
    await followed.follow()
    assert region.region == "us"
    region.stays = False
    await followed.follow()
    assert region.region == "eu"
    world.is_away = True
    assert await followed.follow() == FAILED_TTL_S
    assert region.region == "eu"
    assert world.told == ["", "us", "us", "us", "eu"], "the gateway knows where the client is, once that is anywhere"


async def test_a_client_tells_what_it_measured_of_regions_that_could_be_better(world: World, region: RegionMap) -> None:
    await region.locate()
    pinged: list[str] = []
    followed = follower(world, region, pinged)
    await followed.follow()
    assert (pinged, world.observed) == ([], [])
    world.order, world.estimates = ["us", "eu", "ap"], {"us": 40.0, "eu": 20.0, "ap": 20.0}
    await followed.follow()
    await followed.follow()
    assert Counter(pinged) == {"us-1": 4, "eu-1": 4, "ap-1": 1}
    assert [row["region"] for row in world.observed] == ["us", "eu"]
    assert all(row["samples"] == 3 and row["rtt_us"] >= 1 for row in world.observed)
