"""A broker whose lease had ended takes another one only when it knows which homes were taken meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from georelay.clock import SystemClock
from georelay.fields import JsonObject
from region.controller.home_book import BEFORE_ALL, HomePosition
from region.controller.state_snapshot import position_json
from region.homes.lease_keeper import LeaseKeeper

MOVED: HomePosition = (18, b"t" * 16, 0, 0)


class Control:
    """Answers every renewal at once."""

    is_leader = False

    def __init__(self, answer: JsonObject) -> None:
        self.answer = answer
        self.renewed = asyncio.Event()

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        del method, body, timeout_s
        self.renewed.set()
        return self.answer

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        raise AssertionError((part, command))


class Region:
    """What the region of the broker knows, and how often it was looked at."""

    def __init__(self, known: HomePosition) -> None:
        self.known = known
        self.looked = 0
        self.was_looked_at = asyncio.Event()

    def __call__(self) -> HomePosition:
        self.looked += 1
        if self.looked == 2:
            self.was_looked_at.set()
        return self.known


def keeper_of(answer: JsonObject, region: Region) -> tuple[LeaseKeeper, Control]:
    control = Control(answer)
    keeper = LeaseKeeper(
        control=control, clock=SystemClock(), is_needed=lambda: True, is_there=lambda: True, known=region
    )
    return keeper, control


async def holds(keeper: LeaseKeeper) -> None:
    async with asyncio.timeout(5):
        while not keeper.holds():
            await asyncio.sleep(0)


async def test_a_region_that_does_not_know_of_a_move_gets_no_lease_until_it_does() -> None:
    region = Region(BEFORE_ALL)
    keeper, _ = keeper_of({"known": position_json(MOVED)}, region)
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        await region.was_looked_at.wait()
    assert not keeper.holds()
    region.known = MOVED
    await holds(keeper)
    running.cancel()


@pytest.mark.parametrize("answer", [{}, {"known": position_json(MOVED)}], ids=["no home ever moved", "all is known"])
async def test_a_region_that_knows_everything_gets_it_at_once(answer: JsonObject) -> None:
    region = Region(MOVED)
    keeper, control = keeper_of(answer, region)
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        await control.renewed.wait()
    await holds(keeper)
    assert region.looked <= 1
    running.cancel()


async def test_an_answer_that_is_no_position_gives_no_lease() -> None:
    keeper, control = keeper_of({"known": {"index": "x"}}, Region(MOVED))
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        await control.renewed.wait()
    await asyncio.sleep(0)
    assert not keeper.holds()
    running.cancel()
