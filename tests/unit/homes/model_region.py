"""One region of the model: the shipping agent, control leader and lease keeper, and the way to mesh control."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from georelay.errors import Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey
from region.controller.home_book import BEFORE_ALL, HomePosition
from region.homes.agent import HomeAgent
from region.homes.leader import HomeLeader
from region.homes.lease_keeper import LeaseKeeper
from region.homes.part import HomesPart
from tests.unit.homes.model_stream import ModelStream
from tests.unit.homes.virtual_time import DriftingClock

if TYPE_CHECKING:
    from tests.unit.homes.model_world import World


class RegionState:
    """One region: the streams are in the world; here is what control's voter and the broker keep."""

    def __init__(self, world: World, number: RegionNumber) -> None:
        self.world = world
        self.number = number
        self.broker = BrokerId(number * 1000 + 1)
        self.clock = DriftingClock(
            world.loop, rate=world.rng.uniform(0.97, 1.03), origin_s=world.rng.uniform(0.0, 1_000.0)
        )
        self.part = HomesPart(world)
        self.applied = 0
        self.is_up = True
        self.is_led = True  # False: a broker lives, and the majority of its region does not
        self.agent = HomeAgent(
            me=self.broker, hosted=self._hosted, leader_of=lambda _: self.broker if self.is_led else -1,
            ask=self._nobody, is_led=lambda: self.is_led,
        )  # fmt: skip
        self.leader = HomeLeader(
            part=self.part, topics=world, control=ModelControl(world, number), confirm=lambda: world.confirm(number),
            ask=lambda region, method, body, timeout_s: world.ask(number, region, method, body, timeout_s=timeout_s),
            own_region=number, regions=lambda: world.regions, voters=lambda: len(world.regions), clock=self.clock,
            rng=world.rng, is_led=lambda: self.is_led,
        )  # fmt: skip
        self.methods = self.leader.methods()
        self.start_keeper()

    def start_keeper(self) -> None:
        """A broker that starts has no lease."""
        self.keeper = LeaseKeeper(
            control=ModelControl(self.world, self.number),
            clock=self.clock,
            is_needed=lambda: self.world.is_automatic,
            is_there=lambda: True,
            known=lambda: self.known,
            is_led=lambda: self.is_led,
        )
        self.keeper_task = self.world.spawn(self.keeper.run())

    @property
    def known(self) -> HomePosition:
        """Return up to where this region knows the homes."""
        return self.part.book.position or BEFORE_ALL

    def _hosted(self, key: StreamKey) -> ModelStream | None:
        return self.world.streams.get((self.number, key))

    async def _nobody(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        raise Unavailable(f"broker {broker} is alone in its region")

    def catch_up(self) -> None:
        """Apply what control committed, and tell the streams."""
        for index, command in enumerate(self.world.log[self.applied :], start=self.applied + 1):
            self.part.apply(command, index=index, append_us=0)
        self.applied = len(self.world.log)
        for row in self.part.book.rows():
            self.world.streams[self.number, row.key].follow_home(row)


@dataclass(slots=True)
class ModelControl:
    """Mesh control as one region sees it."""

    world: World
    number: RegionNumber

    @property
    def is_leader(self) -> bool:
        return self.world.leader == self.number

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        assert part == "homes"
        return await self.world.propose(self.number, command)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        leader = self.world.leader
        if leader is None or not self.world.reach(self.number, leader):
            await asyncio.sleep(timeout_s)
            raise Unavailable("no majority of mesh control is reachable")
        await self.world.travel(self.number, leader)
        answer = await self.world.states[leader].methods[method](body, self.world.states[self.number].broker)
        await self.world.travel(leader, self.number)
        return answer
