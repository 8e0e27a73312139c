"""The world of homes that move: three regions lose their home, are cut off, come back, and give homes to each other.

Runs the shipping BrokerCore, mesh control included. What it holds, once everything works again:

- acknowledged-lost: what two regions acknowledged is in the stream, at its offset.
- acknowledged-gone: what the home alone acknowledged is in the stream, or in an orphan branch of some region.
- stored-twice: no batch of a producer is in the stream twice.
- histories-differ: all regions have one history, one epoch table, and one home.
- unnamed: what is readable in a region was named by one of its brokers (named_records.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from georelay.durability import Durability
from georelay.errors import GeorelayError, OutOfOrderSequence
from georelay.ids import BrokerId, RegionNumber, region_of
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.level import AskedLevel
from mesh.replication.publish import Publish
from region.controller.commands import FEATURE_LEVEL_MAX
from region.controller.topic import Homes, TopicSpec
from region.multiraft.transport import FrameKind
from tests.sim.clockwork import NS_PER_MS
from tests.sim.core_life import CoreLife
from tests.sim.limits import small_limits
from tests.sim.mesh_world import STEP_NS, MeshSettings, MeshWorld, ordered_sets
from tests.sim.violation import Violation

TOPIC: Final = "orders"
DRILLS: Final = 3
READ_BYTES: Final = 1 << 20
AUTOMATIC: Final = {"failover": "auto", "min.insync.regions": "2", "protect.k": "2"}


class Stored(NamedTuple):
    """Where a producer was told that its batch is."""

    offset: int
    level: int


class Publisher:
    """One idempotent producer with one batch in flight; it begins anew when its sequence has a gap."""

    def __init__(self, world: HomesWorld, number: int, rng: random.Random) -> None:
        self.acknowledged: dict[tuple[int, int], Stored] = {}
        self.idle = False
        self._is_open = False
        self._level = AskedLevel(durability=Durability(1 + number % 2), deadline_ms=1_000)
        self._world = world
        self._rng = rng
        self._id = number * 1_000
        self._sequence = 0
        self._attempt = 0
        world.clockwork.after(rng.randrange(100) * NS_PER_MS, self._go)

    def _go(self) -> None:
        self._attempt += 1
        if self._world.stops_publishing and not self._is_open:
            self.idle = True
            return
        self._is_open, self.idle = True, False
        self._world.clockwork.after(1_500 * NS_PER_MS, self._timed_out, self._attempt)
        lives = [life for life in self._world.lives.values() if life.serving]
        if lives:
            life = self._rng.choice(lives)
            life.loop.run_now(self._publish, life, self._attempt)

    def _publish(self, life: CoreLife, attempt: int) -> None:
        assert life.core is not None
        batch = build_batch(
            [RecordDraft(value=f"{self._id}/{self._sequence}".encode())],
            timestamps_ms=1, producer_id=self._id, producer_epoch=0, base_sequence=self._sequence,
        )  # fmt: skip
        try:
            publish = Publish.built(
                batch, received_ns=1, entry_region=region_of(life.me), lane=self._id, level=self._level
            )
            future = life.core.cluster.publish(TOPIC, 0, publish)
        except GeorelayError as error:
            self._answered(attempt, self._id, self._sequence, error)
            return
        producer, sequence = self._id, self._sequence
        future.add_done_callback(
            lambda done: (
                None
                if done.cancelled()
                else self._answered(attempt, producer, sequence, done.exception() or done.result())
            )
        )

    def _answered(self, attempt: int, producer: int, sequence: int, answer: Any) -> None:
        if not isinstance(answer, Exception):
            known = self.acknowledged.get((producer, sequence))
            reached = 1 if answer.is_pending else answer.level
            if known is None or reached > known.level:
                self.acknowledged[producer, sequence] = Stored(answer.base_offset, reached)
            self._world.mark("homes.acknowledged" if reached < 2 else "homes.geo_acknowledged")
        if attempt != self._attempt:
            return
        if isinstance(answer, OutOfOrderSequence):
            self._id += 1
            self._sequence = 0
            self._world.mark("homes.producer_began_anew")
        elif not isinstance(answer, Exception):
            self._sequence += 1
            self._is_open = False
        else:
            self._world.mark(f"homes.{type(answer).__name__}")
        self._world.clockwork.after(self._rng.randrange(20, 120) * NS_PER_MS, self._go)

    def _timed_out(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._go()


class HomesWorld(MeshWorld):
    """Brokers of three regions, one partition whose home moves."""

    def __init__(self, seed: int, settings: MeshSettings | None = None) -> None:
        super().__init__(seed, settings or MeshSettings(brokers=1))
        self.levels = dict.fromkeys(self.brokers, FEATURE_LEVEL_MAX)
        self.is_automatic = self.rng.random() < 0.5
        self.stops_publishing = False
        self.publishers: Sequence[Publisher] = ()

    def look_at(self, broker: BrokerId, life: CoreLife) -> None:
        """Nothing: histories are compared at the end; what Raft promises is for the other worlds."""
        life.watch.take()

    def frame_sent(self, source: BrokerId, target: BrokerId, kind: FrameKind, body: bytes) -> None:
        """Nothing to check."""

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the seed. Raises Violation."""
        with small_limits(self), ordered_sets(self):
            for broker in self.brokers:
                self.start(broker)
            self._until(self._unready, 30_000, "not-ready")
            self._until(self._uncontrolled, 60_000, "not-ready")
            self._create(TOPIC, Homes.ONE)
            self._until(self._unserved, 30_000, "not-ready")
            self.publishers = [Publisher(self, number, self.fork()) for number in (1, 2, 3, 4)]
            for _ in range(DRILLS):
                self._wait_ms(self.rng.randrange(500, 3_000))
                self.rng.choice(self._drills())()
                self.network.unblock_all()
                self._until(self._unready, 30_000, "not-ready")
                self._until(self._moving, 60_000, "not-live")
            self.stops_publishing = True
            self._until(self._unsettled, self.settings.heal_ms, "not-live")
            self._compare()

    def _wait_ms(self, ms: int) -> None:
        self.clockwork.run_until(self.clockwork.now_ns + ms * NS_PER_MS)

    def _create(self, name: str, homes: Homes) -> None:
        life = self._any_life()
        spec = TopicSpec(name=name, partitions=1, homes=homes, home="r1")
        spec = spec.with_settings(AUTOMATIC) if self.is_automatic else spec
        life.loop.run_now(lambda: life.loop.create_task(self._create_topic(life, spec)))

    def _any_life(self) -> CoreLife:
        life: CoreLife = self.rng.choice([life for life in self.lives.values() if life.serving])
        return life

    def _drills(self) -> tuple[Callable[[], None], ...]:
        lost = (self._region_lost, self._lagging_lost, self._region_cut, self._lost_moving)
        return (self._planned, self._forced, *lost, *((self._majority_lost,) if self.settings.brokers > 1 else ()))

    # --- drills ---------------------------------------------------------------------------------------

    def _home(self) -> RegionNumber:
        """Return the home as most regions know it."""
        return max(self._rows(), key=lambda row: int(row.index)).home if self._rows() else RegionNumber(1)

    def _rows(self) -> list[Any]:
        states = [life.core.controller.state for life in self.lives.values() if life.serving and life.core]
        return [row for state in states for row in state.homes.rows()]

    def _operate(self, method: str, body: dict[str, object]) -> None:
        """Ask control through a broker; what it answers is its business."""
        life = self._any_life()
        self.note(method, body)

        async def ask() -> None:
            assert life.core is not None
            try:
                await life.core.control.call(method, body)
                self.mark(f"{method}.begun")
            except GeorelayError as error:
                self.mark(f"{method}.{type(error).__name__}")

        life.loop.run_now(lambda: life.loop.create_task(ask()))

    def _streams(self) -> list[object]:
        state = self._any_life().core.controller.state  # type: ignore[union-attr]
        return [[topic.topic_id.hex(), [0]] for topic in state.topics() if topic.name == TOPIC]

    def _planned(self) -> None:
        target = self.rng.choice([region for region in self.regions if region != self._home()])
        self._operate("home.move", {"streams": self._streams(), "target": target})
        self._wait_ms(3_000)

    def _lagging_lost(self) -> None:
        """One mirror hears nothing for a while; then the home is lost, and the other one knows more."""
        home = self._home()
        lagging = self.rng.choice([region for region in self.regions if region != home])
        self._cut(home, lagging)
        self._wait_ms(self.rng.randrange(1_000, 4_000))
        self._lose(home, back_ms=self.rng.randrange(6_000, 15_000))
        self.network.unblock_all()
        self._take_home_away()

    def _region_lost(self) -> None:
        self._lose(self._home(), back_ms=self.rng.randrange(6_000, 15_000))
        self._take_home_away()

    def _majority_lost(self) -> None:
        """All brokers of the home region but one are lost: that one commits nothing, and goes on talking."""
        back_ms = self.rng.randrange(8_000, 15_000)
        for broker in self._of(self._home())[1:]:
            self.crash(broker, power=self.rng.random() < 0.5, restart_ns=back_ms * NS_PER_MS)
        self.mark("homes.majority_lost")
        self._take_home_away()

    def _lost_moving(self) -> None:
        self._planned_begun()
        self._wait_ms(self.rng.randrange(1, 400))
        self._lose(self.rng.choice(self.regions), back_ms=self.rng.randrange(3_000, 9_000))
        self._wait_ms(9_500)

    def _planned_begun(self) -> None:
        target = self.rng.choice([region for region in self.regions if region != self._home()])
        self._operate("home.move", {"streams": self._streams(), "target": target})

    def _region_cut(self) -> None:
        lost = self._home()
        for region in self.regions:
            if region != lost:
                self._cut(lost, region)
        self.mark("homes.region_cut")
        self._wait_ms(5_000)
        self._take_home_away()

    def _cut(self, one: RegionNumber, other: RegionNumber) -> None:
        for broker in self._of(one):
            for there in self._of(other):
                self.network.block(broker, there)
                self.network.block(there, broker)

    def _forced(self) -> None:
        """Force a home away that is well: its own promise is one of the answers."""
        self._operate("home.failover", {"region": self._home(), "streams": [], "accept_loss": False})
        self._wait_ms(4_000)

    def _lose(self, region: RegionNumber, *, back_ms: int) -> None:
        for broker in self._of(region):
            self.crash(broker, power=self.rng.random() < 0.5, restart_ns=back_ms * NS_PER_MS)
        self.mark("homes.region_lost")

    def _take_home_away(self) -> None:
        """Wait for control to do it, or do what an operator does."""
        lost = self._home()
        self._wait_ms(4_000)
        if not self.is_automatic:
            self._operate("home.failover", {"region": lost, "streams": [], "accept_loss": False})
        self._wait_ms(4_000)

    # --- what is waited for ---------------------------------------------------------------------------

    def _uncontrolled(self) -> Iterator[str]:
        yield from self.control_rules.unsettled(self.lives, len(self.regions))

    def _unserved(self) -> Iterator[str]:
        for region in self.regions:
            if not any(stream.is_leader and stream.epoch >= 1 for stream in self.replicas(TOPIC, region)):
                yield f"{TOPIC} is not there in region {region}"

    def _moving(self) -> Iterator[str]:
        for life in self.lives.values():
            if life.serving and life.core.control.is_leader:
                yield from (f"{row.key} moves" for row in life.core.homes.part.book.attempts())
                return
        yield "mesh control has no leader"

    def _unsettled(self) -> Iterator[str]:
        yield from self._unready()
        yield from self._uncontrolled()
        yield from self._moving()
        ends = set()
        for region in self.regions:
            leaders = [stream for stream in self.replicas(TOPIC, region) if stream.is_leader]
            if not leaders:
                yield f"{TOPIC} in region {region} has no leader"
                return
            stream = leaders[0]
            ends.add((stream.epoch, stream.high_watermark, stream.next_offset))
        if len(ends) != 1:
            yield f"{TOPIC} ends at {sorted(ends)}"
        if not all(publisher.idle for publisher in self.publishers):
            yield "a producer waits"

    # --- what was promised ----------------------------------------------------------------------------

    def _compare(self) -> None:
        leaders = {
            region: next(stream for stream in self.replicas(TOPIC, region) if stream.is_leader)
            for region in self.regions
        }
        facts = {(stream.end.digest, tuple(stream.epoch_table()), stream.home) for stream in leaders.values()}
        if len(facts) != 1:
            raise Violation("histories-differ", str(facts))
        for stream in leaders.values():
            self.named.check(stream)
        self.marks["names.late"] = self.named.late
        history: dict[tuple[int, int], int] = {}
        for header in self._headers(leaders[self.regions[0]], _read_all):
            key = (header.producer_id, header.base_sequence)
            if key in history:
                raise Violation("stored-twice", f"{key} is at {history[key]} and {header.base_offset}")
            history[key] = header.base_offset
        orphans = {
            (header.producer_id, header.base_sequence)
            for stream in leaders.values()
            for header in self._headers(stream, _read_orphans)
        }
        self.marks["homes.orphan_batches"] = len(orphans)
        for publisher in self.publishers:
            for key, stored in publisher.acknowledged.items():
                if stored.level >= 2 and history.get(key) != stored.offset:
                    raise Violation("acknowledged-lost", f"{key} at {stored}: it is at {history.get(key)}")
                if history.get(key) != stored.offset and key not in orphans:
                    raise Violation("acknowledged-gone", f"{key} at {stored}: it is at {history.get(key)}")

    def _headers(self, stream: Any, read: Callable[[Any], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        life = next(life for life in self.lives.values() if stream in life.core.streams.values())
        found: list[list[Any]] = []

        async def collect() -> None:
            found.append(await read(stream))

        life.loop.run_now(lambda: life.loop.create_task(collect()))
        for _ in range(100):
            self._wait_ms(STEP_NS // NS_PER_MS)
            if found:
                return found[0]
        raise Violation("not-live", f"{stream.key} cannot be read")


async def _read_all(stream: Any) -> list[Any]:
    headers: list[Any] = []
    offset = stream.log_start
    while offset < stream.high_watermark:
        entries = stream.read(offset, READ_BYTES)
        entries = await stream.read_cold(offset, READ_BYTES) if entries is None else entries
        headers += [entry.header() for entry in entries]
        offset = entries[-1].next_offset
    return headers


async def _read_orphans(stream: Any) -> list[Any]:
    headers: list[Any] = []
    for branch in stream.orphans():
        offset = branch.first
        while offset < branch.following:
            entries = await stream.read_orphans(branch, offset, READ_BYTES)
            headers += [entry.header() for entry in entries]
            offset = entries[-1].next_offset
    return headers
