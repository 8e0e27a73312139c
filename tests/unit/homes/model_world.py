"""Three regions in virtual time: the shipping cores, agents and control leader over logs, links and clocks in memory.

What is modelled: a region's Raft group (an append is committed at once and survives), the carrier of links, mesh
control's log. What ships: receiver rule, promises, book, waves, driver, leases, failover.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from georelay.errors import HomeUnreachable, NotLeader
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow
from mesh.replication.stream_header import first_digest
from region.controller.topic import Homes, TopicDefinition
from region.homes.levels import may_fail_over
from tests.unit.homes.model_region import ModelControl, RegionState
from tests.unit.homes.model_stream import LATENCY_S, Acked, ModelStream
from tests.unit.homes.virtual_time import VirtualLoop

TOPIC_ID = bytes(range(16))
ELECTION_S = (1.5, 3.0)
PARTITIONS = 3


class World:
    """Regions, links, mesh control, publishers, and what was promised to them. Implements MeshTopics."""

    def __init__(self, loop: VirtualLoop, *, seed: int, regions: int, automatic: bool) -> None:
        self.loop = loop
        self.rng = random.Random(seed)
        self.is_automatic = automatic
        self.regions = tuple(RegionNumber(number) for number in range(1, regions + 1))
        self.is_publishing = True
        config = {"min.insync.regions": "2", "protect.k": "2", "failover": "auto"} if automatic else {}
        self.topic = TopicDefinition(
            name="orders", topic_id=TOPIC_ID, partitions=PARTITIONS, replication_factor=1, homes=Homes.ONE,
            home=RegionNumber(1), retention_ms=-1, retention_bytes=-1, config=tuple(sorted(config.items())), index=1,
        )  # fmt: skip
        assert may_fail_over(self.topic) is automatic
        self.log: list[JsonObject] = []
        self.leader: RegionNumber | None = None
        self.cuts: set[frozenset[RegionNumber]] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.acks: dict[StreamKey, list[Acked]] = {}
        self.geo_acks: dict[StreamKey, set[bytes]] = {}
        self.homes_of_epochs: dict[tuple[StreamKey, Epoch], RegionNumber] = {}
        self.streams: dict[tuple[RegionNumber, StreamKey], ModelStream] = {}
        self.keys = [StreamKey(TOPIC_ID, RegionNumber(0), partition) for partition in range(PARTITIONS)]
        self.states: dict[RegionNumber, RegionState] = {}
        for key in self.keys:
            row = HomeRow.first(
                TOPIC_ID, key.partition, home=RegionNumber(1), regions=self.regions, digest=first_digest(key)
            )
            for region in self.regions:
                stream = self.streams[region, key] = ModelStream(self, region, row)
                if region != 1:
                    stream.rows.append((Epoch(1), Offset(0)))
        self.states = {region: RegionState(self, region) for region in self.regions}
        for stream in self.streams.values():
            self.spawn(stream.pull())
        self.spawn(self._elections())
        self.spawn(self._publishers())
        self.spawn(self._pullers())

    # --- MeshTopics -------------------------------------------------------------------------------

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return self.topic if topic_id == TOPIC_ID else None

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([self.topic])

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        return self.regions

    def may_be_home(self, region: RegionNumber) -> bool:
        return region in self.regions

    def is_removed(self, region: RegionNumber) -> bool:
        return False

    # --- network ----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def is_up(self, region: RegionNumber) -> bool:
        return not self.states or self.states[region].is_up

    def is_led(self, region: RegionNumber) -> bool:
        """Return whether the region has its majority: without it nothing is committed there."""
        return not self.states or self.states[region].is_led

    def reach(self, one: RegionNumber, other: RegionNumber) -> bool:
        return self.is_up(one) and self.is_up(other) and (one == other or frozenset((one, other)) not in self.cuts)

    async def travel(self, one: RegionNumber, other: RegionNumber) -> None:
        await asyncio.sleep(0 if one == other else LATENCY_S * self.rng.uniform(0.5, 1.0))
        if not self.reach(one, other):
            raise HomeUnreachable(f"region {other} cannot be reached from {one}")

    async def ask(
        self, one: RegionNumber, other: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> JsonObject:
        if not self.reach(one, other):
            await asyncio.sleep(min(timeout_s, 1.0))
            raise HomeUnreachable(f"region {other} cannot be reached from {one}")
        await self.travel(one, other)
        answer = await self.states[other].agent.handle(method, body, from_broker=self.states[one].broker)
        await self.travel(other, one)
        return answer

    # --- mesh control -----------------------------------------------------------------------------

    def _majority(self, leader: RegionNumber) -> bool:
        return sum(self.reach(leader, region) for region in self.regions) * 2 > len(self.regions)

    async def confirm(self, number: RegionNumber) -> None:
        await asyncio.sleep(LATENCY_S)
        if self.leader != number or not self._majority(number):
            raise NotLeader("no majority confirms it")

    async def propose(self, number: RegionNumber, command: JsonObject) -> JsonObject:
        await self.confirm(number)
        self.log.append(command)
        state = self.states[number]
        state.applied = len(self.log)
        outcome = state.part.apply(command, index=len(self.log), append_us=0)
        state.catch_up()
        return outcome

    async def _elections(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self.leader is not None and not self._majority(self.leader):
                deposed, self.leader = self.leader, None
                await asyncio.sleep(self.rng.uniform(*ELECTION_S))
                self.states[deposed].leader.deposed()
            able = [region for region in self.regions if self.is_up(region) and self._majority(region)]
            if self.leader is None and able:
                elected = self.rng.choice(able)
                self.states[elected].catch_up()
                self.leader = elected
                self.states[elected].leader.elected()

    async def _pullers(self) -> None:
        """Bring control's rows to the regions that reach its leader, with a delay."""
        while True:
            await asyncio.sleep(0.1)
            for region in self.regions:
                if self.leader is not None and self.reach(region, self.leader):
                    self.states[region].catch_up()

    # --- publishers and what they were promised ---------------------------------------------------

    async def _publishers(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for stream in self.streams.values() if self.is_publishing else ():
                stream.publish()

    def may_acknowledge(self, region: RegionNumber) -> bool:
        return not self.is_automatic or self.states[region].keeper.holds()

    def acknowledged(self, stream: ModelStream, ack: Acked) -> None:
        home = self.homes_of_epochs.setdefault((stream.key, ack.epoch), stream.region)
        assert home == stream.region, f"regions {home} and {stream.region} were both home in epoch {ack.epoch}"
        acks = self.acks.setdefault(stream.key, [])
        if self.is_automatic:
            newest = max((earlier.epoch for earlier in acks), default=Epoch(0))
            assert ack.epoch >= newest, f"epoch {ack.epoch} was acknowledged after epoch {newest} had begun"
        acks.append(ack)

    def geo_acknowledged(self, stream: ModelStream) -> None:
        """Count what two regions hold in the home's own epoch."""
        reached = max(stream.acked.values(), default=Offset(0))
        known = self.geo_acks.setdefault(stream.key, set())
        known.update(header.digest for header, _ in stream.entries if header.next_offset <= reached)

    # --- drills -----------------------------------------------------------------------------------

    def crash(self, region: RegionNumber) -> None:
        state = self.states[region]
        state.is_up = False
        state.keeper_task.cancel()
        if self.leader == region:
            self.leader = None
            state.leader.deposed()

    def restart(self, region: RegionNumber) -> None:
        state = self.states[region]
        state.is_up = True
        state.start_keeper()

    def cut_off(self, region: RegionNumber) -> None:
        self.cuts |= {frozenset((region, other)) for other in self.regions if other != region}

    def heal(self) -> None:
        self.cuts.clear()

    async def until(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> float:
        """Wait; return how long it took."""
        begun = self.loop.time()
        while not condition():
            assert self.loop.time() - begun < seconds, "it did not happen in time"
            await asyncio.sleep(0.05)
        return self.loop.time() - begun

    def _operator(self) -> ModelControl:
        asker = next(region for region in self.regions if self.leader is not None and self.reach(region, self.leader))
        return ModelControl(self, asker)

    async def begin(self, method: str, body: JsonObject) -> JsonObject:
        """Ask control as an operator does."""
        return await self._operator().call(method, body)

    async def operate(self, method: str, body: JsonObject) -> JsonObject:
        """Ask control, and follow until it is over; return the last report."""
        control = self._operator()
        begun = await control.call(method, body)
        while True:
            report = await control.call("home.progress", {"move_id": begun["move_id"]})
            if report["over"]:
                return report
            await asyncio.sleep(0.1)

    def want_level(self, level: int) -> None:
        """Set min.insync.regions."""
        self.topic = replace(self.topic, config=(("min.insync.regions", str(level)),))

    def home(self, key: StreamKey) -> RegionNumber:
        assert self.leader is not None
        row = self.states[self.leader].part.row(key)
        assert row is not None
        return row.home

    def streams_json(self) -> list[object]:
        return [[TOPIC_ID.hex(), list(range(PARTITIONS))]]

    def check(self) -> None:
        """Hold, of a mesh that is whole and settled, everything that was promised."""
        for key in self.keys:
            logs = [self.streams[region, key].entries for region in self.regions]
            length = min(len(log) for log in logs)
            assert all(log[:length] == logs[0][:length] for log in logs), f"{key} diverged"
            history = {header.digest for header, _ in max(logs, key=len)}
            lost = self.geo_acks.get(key, set()) - history
            assert not lost, f"{len(lost)} batches of {key} that two regions acknowledged are gone"
            kept = history | {
                header.digest for region in self.regions for header, _ in self.streams[region, key].orphans
            }
            assert all(ack.digest in kept for ack in self.acks.get(key, [])), f"{key} lost what a home acknowledged"
