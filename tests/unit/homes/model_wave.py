"""Waves of forced moves in virtual time: control with one voter, and regions that answer as they are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from georelay.errors import HomeUnreachable, NotLeader, Unavailable
from georelay.fields import JsonObject
from georelay.ids import Offset, RegionNumber, StreamKey
from mesh.home.home_row import NOT_CHOSEN, HomeRow, MoveKind
from mesh.home.move_core import Move
from region.controller.topic import Homes, TopicDefinition
from region.homes.driver import MoveDriver
from region.homes.home_requests import (
    PING_METHOD,
    EndAsked,
    LogEnds,
    PrefixEnd,
    PromiseAsked,
    Told,
    answer_json,
    read_question,
)
from region.homes.move_desk import MoveAsked, MoveDesk
from region.homes.part import HomesPart, begin_command
from region.homes.wave import Wave
from tests.unit.homes.virtual_time import DriftingClock, VirtualLoop

ONE, TWO, THREE, FOUR = (RegionNumber(number) for number in (1, 2, 3, 4))
FIRST_KEY, SECOND_KEY = (StreamKey(topic * 16, RegionNumber(0), 0) for topic in (b"f", b"s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """What a region answers about one stream: after a while, a length or a fault."""

    told: int | Exception
    after_s: float = 0.0


class Mesh:
    """Control with one voter, two topics, and regions that answer as they are told. Implements MeshTopics, Control."""

    is_leader = True

    def __init__(self) -> None:
        self.part = HomesPart(self)
        self.index = 0
        self.silent = {ONE}
        self.all_regions: dict[StreamKey, tuple[RegionNumber, ...]] = dict.fromkeys(
            (FIRST_KEY, SECOND_KEY), (ONE, TWO, THREE)
        )
        self.says: Callable[[StreamKey, RegionNumber], Says] = lambda _key, _region: Says(told=5)
        self.ends: dict[RegionNumber, LogEnds | Unavailable] = {}
        self.leaving: set[RegionNumber] = set()
        self.removed: set[RegionNumber] = set()
        self.config: tuple[tuple[str, str], ...] = ()
        self.rng = random.Random(1)

    def _topic(self, key: StreamKey) -> TopicDefinition:
        return TopicDefinition(
            name=key.topic_id.decode()[:1], topic_id=key.topic_id, partitions=1, replication_factor=1, homes=Homes.ONE,
            home=ONE, retention_ms=-1, retention_bytes=-1, config=self.config, index=1,
        )  # fmt: skip

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return next((topic for topic in self.topics() if topic.topic_id == topic_id), None)

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([self._topic(key) for key in self.all_regions])

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        return self.all_regions[StreamKey(topic.topic_id, RegionNumber(0), 0)]

    def may_be_home(self, region: RegionNumber) -> bool:
        return region not in self.leaving and region not in self.removed

    def is_removed(self, region: RegionNumber) -> bool:
        return region in self.removed

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.index += 1
        return self.part.apply(command, index=self.index, append_us=0)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        raise AssertionError("the leader asks nobody")

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region in self.silent:
            await asyncio.sleep(timeout_s)
            raise HomeUnreachable(f"region {region} does not answer")
        if method == PING_METHOD:
            return {}
        answers: dict[StreamKey, Told] = {}
        for row in read_question(method, body).rows:
            if isinstance(row, EndAsked):
                answers[row.key] = self.ends[region]
                continue
            assert isinstance(row, PromiseAsked)
            said = self.says(row.key, region)
            await asyncio.sleep(said.after_s)
            if isinstance(said.told, int):
                answers[row.key] = PrefixEnd(offset=Offset(said.told), digest=said.told.to_bytes(16, "big"))
            else:
                answers[row.key] = NotLeader(str(said.told))
        return answer_json(answers)

    async def begun(self, key: StreamKey, **move: Any) -> Move:
        """Begin an attempt that is to keep what two regions acknowledged."""
        await self.propose("homes", begin_command([key], move_id=f"m-{key.topic_id!r}", kind=MoveKind.FORCED))
        row = self.row(key)
        return Move(row, level=2, needs_lease=False, **move)

    def row(self, key: StreamKey) -> HomeRow:
        row = self.part.row(key)
        assert row is not None
        return row

    def home(self, key: StreamKey) -> tuple[int, int]:
        row = self.row(key)
        assert row.moving is None
        return row.home, row.start

    def clock(self) -> DriftingClock:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return DriftingClock(loop, rate=1.0, origin_s=0.0)

    def wave(self, *moves: Move, leases_over: bool = True) -> Wave:
        return Wave(
            moves, part=self.part, control=self, ask=self.ask, clock=self.clock(),
            is_heard=lambda region: region not in self.silent, leases_over=lambda _: leases_over,
        )  # fmt: skip


class Control:
    """The shipping driver and desk of a control leader over a mesh."""

    def __init__(self, mesh: Mesh, *, leases_over: bool = True) -> None:
        self.leases_over = leases_over
        clock = mesh.clock()
        self.driver = MoveDriver(
            part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, clock=clock,
            is_heard=lambda region: region not in mesh.silent, leases_over=lambda _: self.leases_over,
            over=lambda _: self.desk.look(),
        )  # fmt: skip
        self.desk = MoveDesk(
            part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, driver=self.driver, clock=clock, rng=mesh.rng
        )
        self.driver.start()

    def stop(self) -> None:
        self.desk.stop()
        self.driver.stop()

    def forces(self, *, accept_loss: bool = False) -> Any:
        asked = MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.FORCED, target=NOT_CHOSEN, accept_loss=accept_loss)
        return self.desk.begin(asked)


Story = Callable[[Mesh], Coroutine[Any, Any, None]]


def play(story: Story) -> float:
    """Play a story in virtual time; return how many seconds it took."""
    loop = VirtualLoop()
    try:
        begun = loop.time()
        loop.run_until_complete(story(Mesh()))
        return loop.time() - begun
    finally:
        loop.close()
