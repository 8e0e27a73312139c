"""The loop at control's leader: no attempt waits for another that cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import HomeUnreachable
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import NOT_CHOSEN, MoveKind
from region.controller.topic import Homes, TopicDefinition
from region.homes.driver import WAVES_MAX, MoveDriver
from region.homes.home_requests import LogEnds, PrefixEnd, Told, answer_json, read_question
from region.homes.part import HomesPart, begin_command

REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
PARTITIONS = 3
PREFIX = PrefixEnd(offset=Offset(5), digest=b"d" * 16)
ENDS = LogEnds(epoch=Epoch(1), next_offset=Offset(5), high_watermark=Offset(5), log_start=Offset(0))


def topic(number: int) -> TopicDefinition:
    return TopicDefinition(
        name=f"orders-{number}", topic_id=bytes([number]) * 16, partitions=PARTITIONS, replication_factor=1,
        homes=Homes.ONE, home=REGIONS[0], retention_ms=-1, retention_bytes=-1, config=(), index=1,
    )  # fmt: skip


class Mesh:
    """Control with one voter, and regions of which some do not answer. Implements MeshTopics, Control and AskRegion."""

    is_leader = True

    def __init__(self) -> None:
        self.part = HomesPart(self)
        self.commands = 0
        self.silent: set[int] = set()
        self.known = {definition.topic_id: definition for definition in map(topic, range(1, 3))}

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return self.known.get(topic_id)

    def topics(self) -> Iterator[TopicDefinition]:
        return iter(self.known.values())

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        return REGIONS

    def may_be_home(self, region: RegionNumber) -> bool:
        return True

    def is_removed(self, region: RegionNumber) -> bool:
        return False

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.commands += 1
        return self.part.apply(command, index=self.commands, append_us=0)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        raise AssertionError("the leader asks nobody")

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region in self.silent:
            raise HomeUnreachable(f"region {region} does not answer")
        told: Told = ENDS if method == "home.ends" else PREFIX
        return answer_json({row.key: told for row in read_question(method, body).rows})

    async def begin(self, key: StreamKey, move_id: str, kind: MoveKind, target: int = NOT_CHOSEN) -> None:
        command = begin_command([key], move_id=move_id, kind=kind, target=RegionNumber(target))
        assert (await self.propose("homes", command))["refused"] == []

    def driver(self) -> MoveDriver:
        return MoveDriver(
            part=self.part,
            topics=self,
            control=self,
            ask=self.ask,
            clock=SystemClock(),
            is_heard=lambda region: region not in self.silent,
            leases_over=lambda _: True,
            over=lambda _: None,
        )


@asynccontextmanager
async def running(driver: MoveDriver) -> AsyncIterator[MoveDriver]:
    driver.start()
    try:
        yield driver
    finally:
        driver.stop()


async def until_home(mesh: Mesh, key: StreamKey, home: int) -> None:
    async with asyncio.timeout(3):
        while (row := mesh.part.row(key)) is None or row.home != home or row.moving is not None:
            await asyncio.sleep(0.01)


def key(number: int, partition: int = 0) -> StreamKey:
    return StreamKey(bytes([number]) * 16, RegionNumber(0), partition)


async def test_a_forced_move_does_not_wait_for_the_planned_moves_that_began_with_the_one_it_replaces() -> None:
    mesh = Mesh()
    mesh.silent = {1}
    for partition in range(2):
        await mesh.begin(key(1, partition), "planned", MoveKind.PLANNED, target=2)
    async with running(mesh.driver()) as driver:
        await asyncio.sleep(0.05)  # one wave carries both: the home answers neither
        await mesh.begin(key(1, 0), "forced", MoveKind.FORCED)
        driver.wake()
        await until_home(mesh, key(1, 0), 2)
        row = mesh.part.row(key(1, 1))
        assert row is not None and row.moving is not None  # nobody asked to force that one


async def test_a_second_move_does_not_wait_for_the_streams_that_began_with_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh()
    real = mesh.ask

    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        answer = dict(await real(region, method, body, timeout_s=timeout_s))
        answer["rows"] = [row for row in answer["rows"] if row["partition"] == 0]  # the other one has no leader
        return answer

    monkeypatch.setattr(mesh, "ask", ask)
    for partition in range(2):
        await mesh.begin(key(1, partition), "first", MoveKind.PLANNED, target=2)
    async with running(mesh.driver()) as driver:
        await until_home(mesh, key(1, 0), 2)
        await mesh.begin(key(1, 0), "second", MoveKind.FORCED)
        driver.wake()
        async with asyncio.timeout(3):
            while (row := mesh.part.row(key(1, 0))) is None or row.epoch != 3:
                await asyncio.sleep(0.01)


async def test_moves_that_cannot_go_on_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh()
    mesh.silent = {1, 3}
    monkeypatch.setattr("region.homes.driver.WAVES_MAX", 1)
    assert WAVES_MAX > 1
    await mesh.begin(key(1), "stuck", MoveKind.PLANNED, target=2)
    async with running(mesh.driver()) as driver:
        await asyncio.sleep(0.05)
        await mesh.begin(key(2), "forced", MoveKind.FORCED)
        driver.accept_loss({key(2): "forced"})
        driver.wake()
        await until_home(mesh, key(2), 2)
