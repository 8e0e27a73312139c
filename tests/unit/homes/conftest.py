"""Three regions in virtual time: the shipping cores, agents and control leader over logs, links and clocks in memory.

What is modelled: a region's Raft group (an append is committed at once and survives), the carrier of links, mesh
control's log. What ships: receiver rule, promises, book, waves, driver, leases, failover.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest

from georelay.errors import Fenced, HomeUnreachable, NotHome, NotLeader, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.home.home_row import HomeRow
from mesh.home.promise_core import agreeing_length
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import MirrorEnd, Verdict, following_row, judge
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest
from region.controller.home_book import BEFORE_ALL, HomePosition
from region.controller.topic import Homes, TopicDefinition
from region.homes.agent import HomeAgent
from region.homes.leader import HomeLeader
from region.homes.lease_keeper import LeaseKeeper
from region.homes.levels import may_fail_over
from region.homes.part import HomesPart

TOPIC_ID = bytes(range(16))
LATENCY_S = 0.04
PULL_S = 0.03
ELECTION_S = (1.5, 3.0)
PARTITIONS = 3


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class DriftingClock:
    """Monotonic time that runs too fast or too slow."""

    def __init__(self, loop: VirtualLoop, *, rate: float, origin_s: float) -> None:
        self._loop = loop
        self._rate = rate
        self._origin_s = origin_s

    def monotonic_ns(self) -> int:
        return int((self._loop.time() * self._rate + self._origin_s) * 1_000_000_000)

    def wall_ns(self) -> int:
        return self.monotonic_ns()


class End(NamedTuple):
    offset: Offset
    digest: bytes


Stored = tuple[StreamHeader, bytes]


class Acked(NamedTuple):
    """A region-level acknowledgement: `digest` names the record and everything before it."""

    at_s: float
    epoch: Epoch
    offset: Offset
    digest: bytes


class ModelStream:
    """One region's log of one stream: what is appended is committed, and survives."""

    def __init__(self, world: World, region: RegionNumber, row: HomeRow) -> None:
        self.world = world
        self.region = region
        self.row = row
        self.key = row.key
        self.entries: list[Stored] = []
        self.rows: list[EpochRow] = []  # EPOCH entries in log order
        self.orphans: list[Stored] = []
        self.fence = Epoch(0)
        self.sealed_for = Epoch(0)
        self.acked: dict[RegionNumber, Offset] = {}  # by mirrors, in this epoch
        self.waiters: dict[int, Callable[[], None]] = {}
        self.follow_home(row)

    @property
    def is_leader(self) -> bool:
        return self.world.is_up(self.region)

    @property
    def epoch(self) -> Epoch:
        return self.rows[-1][0] if self.rows else Epoch(0)

    @property
    def next_offset(self) -> Offset:
        return self.entries[-1][0].next_offset if self.entries else Offset(0)

    high_watermark = next_offset

    @property
    def log_start(self) -> Offset:
        return Offset(0)

    @property
    def is_home(self) -> bool:
        return self.row.home == self.region and self.epoch == self.row.epoch

    def digest_at(self, offset: Offset) -> bytes | None:
        if offset == 0:
            return first_digest(self.key)
        return next((header.digest for header, _ in self.entries if header.next_offset == offset), None)

    def add_waiter(self, callback: Callable[[], None]) -> int:
        handle = len(self.waiters) + 1 + max(self.waiters, default=0)
        self.waiters[handle] = callback
        return handle

    def remove_waiter(self, handle: int) -> None:
        self.waiters.pop(handle, None)

    def moved(self) -> None:
        for callback in list(self.waiters.values()):
            callback()

    # --- home -------------------------------------------------------------------------------------

    def publish(self) -> bool:
        """Append one batch if this region may; whether it is acknowledged at region level is the lease's to say."""
        if not self.is_leader or not self.is_home or self.fence > self.epoch or self.sealed_for > self.epoch:
            return False
        if not self.world.may_acknowledge(self.region):
            return False
        first, records = self.next_offset, self.world.rng.randint(1, 3)
        payload = f"{self.key.partition}/{self.epoch}/{first}".encode() * 4
        last = Offset(first + records - 1)
        before = self.digest_at(first)
        assert before is not None
        digest = next_digest(before, epoch=self.epoch, first=first, last=last, batch=payload)
        header = StreamHeader(
            type=EntryType.DATA, entry_region=self.region, record_count=records, epoch=self.epoch, base_offset=first,
            append_us=0, received_ns=0, max_timestamp_ms=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            payload_crc=crc32c(payload), digest=digest,
        )  # fmt: skip
        self.entries.append((header, payload))
        self.world.acknowledged(self, Acked(self.world.loop.time(), self.epoch, last, digest))
        self.moved()
        return True

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> End:
        if self.fence > new_epoch or self.epoch > epoch:
            raise Fenced(f"epoch {new_epoch} is over")
        if not self.is_home or self.epoch != epoch:
            raise NotHome("not home of that epoch", epoch=self.epoch, home=self.row.home)
        self.sealed_for = max(self.sealed_for, new_epoch)
        return self.end()

    async def promise(self, *, new_epoch: Epoch, table: Sequence[EpochRow]) -> End:
        if self.fence > new_epoch or self.epoch >= new_epoch:
            raise Fenced(f"epoch {new_epoch} is over")
        self.fence = max(self.fence, new_epoch)
        length = agreeing_length(self.rows, end=self.next_offset, table=table)
        digest = self.digest_at(length)
        assert digest is not None
        return End(length, digest)

    def end(self) -> End:
        digest = self.digest_at(self.next_offset)
        assert digest is not None
        return End(self.next_offset, digest)

    # --- mirror -----------------------------------------------------------------------------------

    def follow_home(self, row: HomeRow) -> None:
        if row.epoch >= self.row.epoch:
            self.row = row
        if self.row.home == self.region:
            self._open(self.row.epoch, self.row.start, self.row.digest)

    def _open(self, epoch: Epoch, start: Offset, digest: bytes) -> None:
        """Append EPOCH once the log reaches its start: what lies beyond becomes an orphan branch."""
        if self.epoch >= epoch or self.next_offset < start:
            return
        assert self.digest_at(start) == digest, f"{self.key} diverged in region {self.region}"
        self.orphans += [row for row in self.entries if row[0].base_offset >= start]
        self.entries = [row for row in self.entries if row[0].base_offset < start]
        self.rows.append((epoch, start))
        self.fence = max(self.fence, epoch)
        self.acked.clear()
        self.moved()

    async def pull(self) -> None:
        """Follow the home for ever, one session after the other."""
        while True:
            await asyncio.sleep(PULL_S)
            home = self.world.streams[self.row.home, self.key]
            # A new home that has not got everything yet takes it from the old one, by promise of the table.
            source = home if home.region != self.region else self.world.streams[self._old_home(), self.key]
            if source.region != self.region and self.world.reach(self.region, source.region):
                await self._session(source)

    def _old_home(self) -> RegionNumber:
        homes = self.row.homes
        return homes[-2][1] if len(homes) > 1 and not self.is_home else self.region

    async def _session(self, source: ModelStream) -> None:
        if self.fence > max(source.epoch, self.epoch) or source.epoch < self.epoch or not source.rows:
            return
        session = self.epoch
        table = source.agreed_rows()
        await asyncio.sleep(LATENCY_S / 2)
        raised = following_row(table, session)
        for header, payload in [row for row in source.entries if row[0].base_offset >= self.next_offset][:20]:
            end = self.end()
            mine = MirrorEnd(epoch=self.epoch, next_offset=end.offset, digest=end.digest)
            verdict = judge(mine, session_epoch=session, table=table, header=header, payload=payload)
            if self.fence > max(source.epoch, self.epoch) or verdict is not Verdict.ACCEPT:
                break
            self.entries.append((header, payload))
            self.moved()
        if raised is not None and self.next_offset >= raised[1]:
            digest = source.digest_at(raised[1])
            assert digest is not None
            self._open(raised[0], raised[1], digest)
        self.follow_home(self.row)
        if not self.world.reach(self.region, source.region):
            return
        reached, epoch = self.next_offset, self.epoch
        if epoch == source.epoch and self.fence <= epoch:
            await asyncio.sleep(LATENCY_S / 2)
            if source.epoch == epoch and source.is_home:
                source.acked[self.region] = max(reached, source.acked.get(self.region, Offset(0)))
                self.world.geo_acknowledged(source)

    def agreed_rows(self) -> tuple[EpochRow, ...]:
        rows: list[EpochRow] = []
        for epoch, start in self.rows:
            while rows and rows[-1][1] > start:
                rows.pop()
            rows.append((epoch, start))
        return tuple(rows)


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
        self.agent = HomeAgent(me=self.broker, hosted=self._hosted, leader_of=lambda _: self.broker, ask=self._nobody)
        self.leader = HomeLeader(
            part=self.part, topics=world, control=ModelControl(world, number), confirm=lambda: world.confirm(number),
            ask=lambda region, method, body, timeout_s: world.ask(number, region, method, body, timeout_s=timeout_s),
            own_region=number, regions=lambda: world.regions, voters=lambda: len(world.regions), clock=self.clock,
            rng=world.rng,
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


@pytest.fixture
def play() -> Iterator[Callable[..., None]]:
    """Play a story in a world of its own: play(story, seed=, regions=, automatic=)."""
    loops: list[VirtualLoop] = []

    def run(
        story: Callable[[World], Coroutine[Any, Any, None]], *, seed: int = 1, regions: int = 3, automatic: bool = False
    ) -> None:
        loop = VirtualLoop()
        loops.append(loop)
        failures: list[BaseException] = []
        loop.set_exception_handler(
            lambda _, context: failures.append(context.get("exception") or RuntimeError(context))
        )

        async def whole() -> None:
            world = World(loop, seed=seed, regions=regions, automatic=automatic)
            try:
                await world.until(lambda: world.leader is not None)
                if automatic:  # a region that never asked for a lease is not failed over
                    await world.until(lambda: all(state.keeper.holds() for state in world.states.values()))
                await story(world)
            finally:
                for state in world.states.values():
                    state.leader.deposed()
                for task in list(world.tasks):
                    task.cancel()
                await asyncio.sleep(0.01)

        loop.run_until_complete(whole())
        if failures:
            raise failures[0]

    yield run
    for loop in loops:
        loop.close()
