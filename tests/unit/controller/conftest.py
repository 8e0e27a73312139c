"""A mesh of controllers in memory: a sequence instead of Raft, function calls instead of sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, NotLeader, OutcomeUnknown, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RaftIndex, RegionNumber, broker_id
from region.controller.registration import BrokerRegistration
from region.controller.routing import ControllerSettings
from region.controller.service import ControllerService
from region.controller.topic import Homes, TopicDefinition
from region.controller.topology import RegionInfo, Topology

NAMES = ("us", "eu", "ap")
FAST = ControllerSettings(
    pull_interval_s=0.02,
    request_timeout_s=0.5,
    apply_timeout_s=0.5,
    retry_delay_s=0.005,
    producer_block=3,
    disk_claim_s=0.05,
)


def make_topology(region: int = 1, *, regions: int = 2, brokers: int = 3) -> Topology:
    infos = tuple(
        RegionInfo(
            number=RegionNumber(number),
            name=NAMES[number - 1],
            brokers=tuple(broker_id(RegionNumber(number), n) for n in range(1, brokers + 1)),
        )
        for number in range(1, regions + 1)
    )
    return Topology(mesh_id="mesh", region=RegionNumber(region), definitions_home=RegionNumber(1), regions=infos)


def make_definition(
    name: str = "orders",
    *,
    topic_id: int = 1,
    partitions: int = 2,
    homes: Homes = Homes.ONE,
    index: int = 0,
    replication_factor: int = 3,
) -> TopicDefinition:
    return TopicDefinition(
        name=name,
        topic_id=topic_id.to_bytes(16, "big"),
        partitions=partitions,
        replication_factor=replication_factor,
        homes=homes,
        home=RegionNumber(1 if homes is Homes.ONE else 0),
        retention_ms=-1,
        retention_bytes=-1,
        config=(),
        index=index,
    )


def make_registration(broker: int, *, disk: str = "disk") -> BrokerRegistration:
    return BrokerRegistration(
        broker=BrokerId(broker),
        disk_uuid=f"{disk}-{broker}",
        kafka_host="127.0.0.1",
        kafka_port=21000,
        grpc="127.0.0.1:1",
        link="127.0.0.1:2",
        admin="127.0.0.1:3",
    )


WISHES = ("definitions.create", "definitions.alter", "definitions.delete", "security.change")  # of operators


class MeshInMemory:
    """Two regions of two brokers; broker 1 of each leads until `leaders` says otherwise."""

    def __init__(self, levels: dict[int, int] | None = None, **changes: Any) -> None:
        self.services: dict[int, ControllerService] = {}
        self.leaders = {1: 1001, 2: 2001}
        self.indexes = {1: 0, 2: 0}
        self.cut: set[int] = set()  # regions whose links are down
        self.calls: list[tuple[int, str]] = []
        self.lose_answers = 0
        self.lost: Callable[[], None] = lambda: None  # called with each answer that is lost
        self.behind: set[int] = set()  # brokers that get no commands
        self.dead: set[int] = set()  # brokers that nobody hears
        self.learned: dict[int, dict[BrokerId, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for region in (1, 2):
            for number in (1, 2):
                broker = region * 1000 + number
                self.add(region, broker, level=(levels or {}).get(broker, 2), **changes)

    def add(self, region: int, broker: int, *, disk: str = "disk", level: int = 2, **changes: Any) -> ControllerService:
        async def propose(command: bytes, /) -> RaftIndex:
            if self.leaders[region] != broker:
                raise NotLeader
            self.indexes[region] += 1
            index = RaftIndex(self.indexes[region])
            for member, service in self.services.items():
                if member // 1000 == region and member not in self.behind:
                    service.apply(command, index)
            await asyncio.sleep(0)
            return index

        async def request(
            *, region: RegionNumber, broker: BrokerId | None, method: str, body: JsonObject
        ) -> JsonObject:
            crossing = region != own
            if crossing and ({region, own} & self.cut):
                raise HomeUnreachable(f"region {region} cannot be reached")
            self.calls.append((int(region), method))
            target = broker if broker is not None else BrokerId(region * 1000 + 2)  # a follower, on purpose
            if target not in self.services:
                raise Unavailable("no such broker")
            await asyncio.sleep(0)
            answer = await self.services[target].handle(method, body)
            if crossing and ({region, own} & self.cut):
                raise OutcomeUnknown("the link was cut before the answer came")
            if self.lose_answers and method in WISHES:
                self.lose_answers -= 1
                self.lost()
                raise OutcomeUnknown("the answer was lost")
            return answer

        own = region
        service = ControllerService(
            topology=make_topology(region, brokers=2),
            registration=replace(
                make_registration(broker, disk=disk),
                peers=f"127.0.0.1:{broker}" if level > 1 else "",
                feature_level_max=level,
            ),
            propose=propose,
            request=request,
            is_leader=lambda: self.leaders[region] == broker,
            leader_id=lambda: 0 if broker in self.behind else self.leaders[region],
            settings=replace(FAST, **changes),
            is_alive=lambda other: other not in self.dead,
            peers_learned=lambda peers: self.learned.update({broker: peers}),
        )
        self.services[broker] = service
        return service

    def start(self) -> None:
        self._tasks = [asyncio.create_task(service.run()) for service in self.services.values()]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in self.services.values():
            await service.close()


@pytest.fixture
async def mesh() -> AsyncIterator[MeshInMemory]:
    running = MeshInMemory()
    running.start()
    await running.until(lambda: all(service.is_settled for service in running.services.values()))
    await running.until(lambda: all(service.feature_level == 2 for service in running.services.values()))
    await running.until(lambda: all(service.is_settled for service in running.services.values()))
    yield running
    await running.stop()


@pytest.fixture
async def mesh_of() -> AsyncIterator[Callable[..., Any]]:
    """Makes a running mesh with other levels and settings; not settled yet."""
    made: list[MeshInMemory] = []

    async def make(**changes: Any) -> MeshInMemory:
        made.append(MeshInMemory(**changes))
        made[-1].start()
        return made[-1]

    yield make
    for running in made:
        await running.stop()


@pytest.fixture
def topology() -> Callable[..., Topology]:
    return make_topology


@pytest.fixture
def definition() -> Callable[..., TopicDefinition]:
    return make_definition


@pytest.fixture
def registration() -> Callable[..., BrokerRegistration]:
    return make_registration
