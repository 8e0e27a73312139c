"""Whose coordinators answer for a name when coordinators have moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from georelay.errors import CoordinatorLoading, HomeUnreachable
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow
from region.controller.topic import TopicView
from region.coordination.domains import Domains
from region.coordination.lookups import Lookups
from region.coordination.part import IN_USE, Part

US, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)
TOPIC_ID = bytes(16)
VIEW = cast("TopicView", type("View", (), {"topic_id": TOPIC_ID}))


class Claims:
    """A part that knows names."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def claim(self, name: str) -> int:
        return self.names.get(name, 0)


class Replica:
    """A coordinator's stream on this broker."""

    def __init__(self) -> None:
        self.claims = Claims()
        self.parts = {Part.GROUPS: self.claims, Part.QUEUES: self.claims}
        self.is_home, self.epoch, self.decided = False, 2, 0


class Scene:
    """What a broker in eu knows of partition 0 of three regions' coordinators."""

    def __init__(self) -> None:
        self.replicas = {origin: Replica() for origin in (US, EU, AP)}
        self.homes: dict[RegionNumber, HomeRow] = {}
        self.silent: set[RegionNumber] = set()
        self.left: set[RegionNumber] = set()
        self.asked: list[str] = []
        self.told: Callable[[], int] = lambda: 0
        self.domains = Domains(
            region=EU,
            home_row=lambda key: self.homes.get(key.origin),
            origins=lambda: [US, EU, AP],
            has_left=lambda region: region in self.left,
            stream=lambda key: cast("Any", self.replicas.get(key.origin)),
            ask_claim=self.ask_claim,
            ping=self.ping,
        )

    async def ask_claim(self, key: StreamKey, part: Part, name: str) -> int:
        self.asked.append(name)
        return self.told()

    async def ping(self, region: RegionNumber) -> None:
        if region in self.silent:
            raise HomeUnreachable("silence")

    def knows(self, origin: RegionNumber, name: str, claim: int = 5) -> None:
        self.replicas[origin].claims.names[name] = claim

    def move(self, origin: RegionNumber, *homes: RegionNumber) -> None:
        """Let the home of a domain have moved to one region after the other."""
        epochs = tuple((Epoch(at + 2), home) for at, home in enumerate(homes))
        first = HomeRow.first(TOPIC_ID, 0, home=origin, regions=(US, EU, AP), digest=bytes(16), origin=origin)
        self.homes[origin] = replace(
            first,
            home=homes[-1],
            epoch=epochs[-1][0],
            table=(*first.table, *((epoch, Offset(0)) for epoch, _ in epochs)),
            homes=(*first.homes, *epochs),
            last_epoch=epochs[-1][0],
            index=1,
        )

    def find(self, name: str = "g", part: Part = Part.GROUPS) -> RegionNumber:
        return self.domains.find(VIEW, 0, part, name).origin

    async def found(self, name: str = "g") -> RegionNumber:
        """Ask again where somebody else has to be asked first."""
        for _ in range(5):
            try:
                return self.find(name)
            except CoordinatorLoading:
                await asyncio.sleep(0)
        return self.find(name)


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_without_a_move_a_name_is_of_the_own_region_also_when_another_one_uses_it(scene: Scene) -> None:
    scene.knows(US, "g", IN_USE)
    assert await scene.found() == EU


async def test_a_name_of_a_region_that_does_not_answer_is_nobodys(scene: Scene) -> None:
    scene.knows(US, "g")
    scene.silent.add(US)
    with pytest.raises(CoordinatorLoading, match="does not answer"):
        await scene.found()
    assert await scene.found("another") == EU
    scene.knows(EU, "g", 1)
    assert await scene.found() == EU, "the own region's group goes on whoever is silent"


async def test_a_name_that_a_removed_region_took_along_begins_anew(scene: Scene) -> None:
    scene.knows(US, "g")
    scene.silent.add(US)
    scene.left.add(US)
    assert scene.find() == EU


async def test_a_domain_that_was_taken_over_keeps_its_names_and_gets_no_others(scene: Scene) -> None:
    scene.move(US, EU)
    scene.knows(US, "g")
    assert (scene.find("g"), scene.find("new")) == (US, EU)
    scene.left.add(US)
    assert scene.find("g") == US


async def test_of_two_groups_of_one_name_the_one_that_was_used_last_goes_on(scene: Scene) -> None:
    scene.move(US, EU)
    scene.knows(US, "g", 5)
    scene.knows(EU, "g", 6)
    assert scene.find() == EU
    scene.knows(US, "g", 7)
    assert scene.find() == US
    scene.knows(EU, "g", IN_USE)
    assert scene.find() == EU
    scene.knows(US, "g", IN_USE)
    assert scene.find() == EU, "both have members: each region's clients stay with their own"


async def test_a_name_follows_its_domain_home_again(scene: Scene) -> None:
    scene.move(US, EU, US)
    scene.knows(US, "g")
    assert scene.domains.home_of(scene.domains.find(VIEW, 0, Part.GROUPS, "g")) == US
    scene.knows(EU, "g", 1)
    assert scene.find() == EU


async def test_a_new_home_says_nothing_before_its_epoch_has_begun(scene: Scene) -> None:
    scene.move(US, EU)
    us = scene.replicas[US]
    us.is_home, us.epoch, us.decided = True, 1, 2
    with pytest.raises(CoordinatorLoading, match="epoch 2"):
        scene.find()


async def test_clients_of_a_region_whose_domain_is_elsewhere_are_led_there(scene: Scene) -> None:
    scene.move(EU, AP)
    own = scene.domains.find(VIEW, 0, Part.GROUPS, "new")
    assert (own.origin, scene.domains.home_of(own)) == (EU, AP)


async def test_a_name_that_is_expected_begins_in_the_domain_of_the_client_that_is_led_here(scene: Scene) -> None:
    scene.move(US, EU)
    us = StreamKey(TOPIC_ID, US, 0)
    scene.domains.expect(us, Part.GROUPS, "theirs")
    assert (scene.find("theirs"), scene.find("ours")) == (US, EU)


async def test_queues_are_found_where_groups_are(scene: Scene) -> None:
    scene.move(US, EU)
    scene.knows(US, "q", 1)
    assert scene.find("q", Part.QUEUES) == US
    scene.knows(EU, "q", 1)
    assert scene.find("q", Part.QUEUES) == EU, "of two queues of one name each region's clients keep theirs"
    assert [key.origin for key in scene.domains.here(VIEW, 0)] == [EU, US]


async def test_what_is_kept_about_a_stream_is_where_the_stream_began(scene: Scene) -> None:
    assert scene.domains.begun_in(VIEW, 0, US).origin == US
    scene.move(US, AP)
    assert scene.domains.home_of(scene.domains.begun_in(VIEW, 0, US)) == AP
    scene.left |= {US, AP}
    assert scene.domains.begun_in(VIEW, 0, US).origin == US, "it was given away before the region left"
    assert scene.domains.begun_in(VIEW, 0, AP).origin == EU, "this one went with its region"


async def test_a_domain_without_a_replica_here_is_asked_once_for_a_while(scene: Scene) -> None:
    scene.move(US, EU)
    del scene.replicas[US]
    scene.told = lambda: 5
    with pytest.raises(CoordinatorLoading):
        scene.find()
    assert await scene.found() == US
    for _ in range(10):
        scene.find()
    assert scene.asked == ["g"]
    scene.domains.close()


async def test_an_answer_is_given_once_more_while_it_is_asked_for_anew() -> None:
    answers = iter([1, 2])
    lookups = Lookups[str](lambda _question: _next(answers), kept_max=2, kept_s=0.01)
    with pytest.raises(CoordinatorLoading):
        lookups.find("a")
    await asyncio.sleep(0)
    assert lookups.find("a") == 1
    await asyncio.sleep(0.02)
    assert lookups.find("a") == 1
    await asyncio.sleep(0)
    assert lookups.find("a") == 2
    lookups.close()


async def _next(answers: Any) -> int:
    return cast("int", next(answers))


async def test_no_more_answers_are_kept_than_there_is_room_for() -> None:
    async def one(_question: int) -> int:
        return 1

    lookups = Lookups[int](one, kept_max=2, kept_s=60.0)
    for number in range(3):
        with pytest.raises(CoordinatorLoading):
            lookups.find(number)
        await asyncio.sleep(0)
    assert (lookups.find(1), lookups.find(2)) == (1, 1)
    with pytest.raises(CoordinatorLoading):
        lookups.find(0)
    lookups.close()
