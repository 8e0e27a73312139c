"""A thousand streams in one request per region and stage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from georelay.clock import SystemClock
from georelay.errors import HomeUnreachable
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import MoveKind
from mesh.home.move_core import Move, Stage
from region.controller.topic import Homes, TopicDefinition
from region.homes.home_requests import LogEnds, PrefixEnd, Told, answer_json, read_question
from region.homes.part import STREAMS_PER_COMMAND_MAX, HomesPart, begin_command
from region.homes.wave import Wave

STREAMS = 1_000
REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
TOPIC = TopicDefinition(
    name="orders", topic_id=b"w" * 16, partitions=STREAMS, replication_factor=1, homes=Homes.ONE, home=REGIONS[0],
    retention_ms=-1, retention_bytes=-1, config=(), index=1,
)  # fmt: skip
KEYS = [StreamKey(TOPIC.topic_id, RegionNumber(0), partition) for partition in range(STREAMS)]
PREFIX = PrefixEnd(offset=Offset(5), digest=b"d" * 16)
ENDS = LogEnds(epoch=Epoch(1), next_offset=Offset(5), high_watermark=Offset(5), log_start=Offset(0))


class Mesh:
    """Control with one voter, and regions that answer at once. Implements MeshTopics and Control."""

    is_leader = True

    def __init__(self) -> None:
        self.part = HomesPart(self)
        self.commands = 0
        self.asked: Counter[tuple[int, str]] = Counter()

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return TOPIC if topic_id == TOPIC.topic_id else None

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([TOPIC])

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
        self.asked[region, method] += 1
        told: Told = ENDS if method == "home.ends" else PREFIX
        return answer_json({row.key: told for row in read_question(method, body).rows})

    async def move(self, kind: MoveKind, target: RegionNumber) -> None:
        for at in range(0, STREAMS, STREAMS_PER_COMMAND_MAX):
            chunk = KEYS[at : at + STREAMS_PER_COMMAND_MAX]
            await self.propose("homes", begin_command(chunk, move_id="m", kind=kind, target=target))
        rows = [self.part.row(key) for key in KEYS]
        moves = [Move(row, level=2, needs_lease=False) for row in rows if row is not None]
        wave = Wave(
            moves, part=self.part, control=self, ask=self.ask, clock=SystemClock(), is_heard=lambda _: True,
            leases_over=lambda _: False,
        )  # fmt: skip
        await wave.run()


async def test_a_thousand_planned_moves_are_two_requests_and_four_commits() -> None:
    mesh = Mesh()
    await mesh.move(MoveKind.PLANNED, REGIONS[1])
    assert mesh.asked == {(1, "home.seal"): 1, (2, "home.ends"): 1}
    assert mesh.commands == 4
    assert all(row.home == 2 and row.epoch == 2 and row.start == 5 for row in mesh.part.book.rows())


async def test_a_thousand_forced_moves_are_one_request_per_region_and_four_commits() -> None:
    mesh = Mesh()
    await mesh.move(MoveKind.FORCED, RegionNumber(0))
    assert mesh.asked == {(region, "home.promise"): 1 for region in REGIONS}
    assert mesh.commands == 4
    assert len(mesh.part.book) == STREAMS and not any(True for _ in mesh.part.book.attempts())


async def test_a_chosen_region_that_falls_silent_while_leases_run_out_is_left_out() -> None:
    mesh = Mesh()
    await mesh.propose("homes", begin_command([KEYS[0]], move_id="m", kind=MoveKind.FORCED))
    row = mesh.part.row(KEYS[0])
    assert row is not None
    move = Move(row, level=2, needs_lease=True)
    silent, over = {1}, False

    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region in silent:
            raise HomeUnreachable(f"region {region} does not answer")
        longest = replace(PREFIX, offset=Offset(9)) if region == 2 else PREFIX
        return answer_json({row.key: longest for row in read_question(method, body).rows})

    wave = Wave(
        [move], part=mesh.part, control=mesh, ask=ask, clock=SystemClock(),
        is_heard=lambda region: region not in silent, leases_over=lambda _: over,
    )  # fmt: skip
    running = asyncio.ensure_future(wave.run())
    async with asyncio.timeout(5):
        while move.stage is not Stage.FENCING:
            await asyncio.sleep(0.01)
        silent.add(2)
        while move.stage is Stage.FENCING:
            await asyncio.sleep(0.01)
        assert (move.waiting.promised, move.waiting.needed) == ((3,), 2), "fewer than that are never enough"
        silent.remove(1)
        over = True
        await running
    row = mesh.part.row(KEYS[0])
    assert row is not None and (row.home, row.start) == (1, 5)
