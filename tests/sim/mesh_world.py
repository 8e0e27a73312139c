"""The world of the whole mesh: regions of brokers, a WAN between them, producers everywhere, mirrors everywhere.

Runs the shipping BrokerCore: data directory, Raft groups, controller, streams, housekeeping and inter-region links.
Beside the rules of each group (ledger.py) it holds that a mirror commits what its home committed, at the same offsets,
and that after the heal every mirror is whole, and every record named (named_records.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey, broker_id, region_of
from mesh.replication.incoming_link import IncomingLink
from mesh.replication.publish import Publish
from region.controller.commands import FEATURE_LEVEL_MAX
from region.controller.topic import Homes, TopicSpec
from region.multiraft.transport import FrameKind
from tests.sim.broker_world import BrokerWorld
from tests.sim.clients import Producer, Reader
from tests.sim.clockwork import NS_PER_MS, SimClock, SimLoop
from tests.sim.control_rules import ControlRules
from tests.sim.core_life import CoreLife, config_of
from tests.sim.faults import Nemesis
from tests.sim.ledger import DurableLog, GroupLedger
from tests.sim.limits import small_limits
from tests.sim.link_carrier import LinkCarrier
from tests.sim.named_records import NamedRecords
from tests.sim.operators import Operator
from tests.sim.sim_broker import DATA_PATH
from tests.sim.violation import RAISED, Violation

TOPICS: Final = (("orders", Homes.ONE), ("events", Homes.EVERY))
STEP_NS: Final = 200 * NS_PER_MS
PERIODS_MS: Final = (40, 100, 250)
RACES: Final = 0.4  # odds that the wall clocks of a region race
RACING_WALL_RATE: Final = 200  # a world is of hours there, and not of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings:
    """Shape of a mesh world; times are virtual."""

    regions: int = 3
    brokers: int = 3
    producers: int = 4
    settle_ms: int = 30_000
    fault_ms: int = 10_000
    heal_ms: int = 60_000
    replaces_disks: float = 0.3  # odds that a world loses disks
    operated: float = 0.5  # odds that operators change things
    favoured: tuple[str, ...] = ()


class MeshWorld(BrokerWorld):
    """Brokers of every region."""

    repairs_damage = True

    def __init__(self, seed: int, settings: MeshSettings | None = None) -> None:
        super().__init__(seed)
        self.settings = settings = settings or MeshSettings()
        self.regions = tuple(RegionNumber(row + 1) for row in range(settings.regions))
        self.carrier = LinkCarrier(self.network)
        self.ledgers: dict[tuple[RegionNumber, GroupId], GroupLedger] = {}
        self.homes: dict[StreamKey, GroupLedger] = {}
        self.mirrors: dict[tuple[StreamKey, RegionNumber], GroupLedger] = {}
        self.producers: list[Producer] = []
        self.named = NamedRecords()
        self.tick_ms = self.rng.choice((50, 100, 100))
        self.period_ns = self.rng.choice(PERIODS_MS) * NS_PER_MS
        self.join(broker_id(region, number) for region in self.regions for number in range(1, settings.brokers + 1))
        upgrading = self.rng.random() < 0.3
        self.levels = {
            broker: 1 if upgrading and self.rng.random() < 0.6 else FEATURE_LEVEL_MAX for broker in self.brokers
        }
        self._lived: set[BrokerId] = set()
        self.operator: Operator | None = None
        self.control_rules = ControlRules(seed=seed)
        self.racing = self._racing_region()
        wan_ns = self.rng.choice((1, 10, 40)) * NS_PER_MS
        for one in self.brokers:
            for other in self.brokers:
                if region_of(one) != region_of(other):
                    self.network.lay(one, other, base_ns=wan_ns, jitter_ns=wan_ns // 10)

    def _racing_region(self) -> RegionNumber | None:
        """Return the region in whose wall clocks minutes pass in a second, if this world has one.

        Its records are of hours, as if its mirrors were far behind; what a broker does may not hang on their age.
        """
        rng = random.Random(f"wall clocks of {self.seed}")
        region = rng.choice(self.regions) if rng.random() < RACES else None
        if region is not None:
            self.mark("clock.races")
        return region

    def make_life(self, broker: BrokerId, loop: SimLoop, clock: SimClock) -> CoreLife:
        """Return the next life of a broker."""
        if region_of(broker) == self.racing:
            clock.wall_rate = RACING_WALL_RATE
        config = config_of(
            broker // 1000,
            broker % 1000,
            regions=self.settings.regions,
            brokers=self.settings.brokers,
            data=DATA_PATH,
            tick_ms=self.tick_ms,
        )
        return CoreLife(
            config=config,
            loop=loop,
            clock=clock,
            disk=self.disks[broker],
            network=self.network,
            carrier=self.carrier,
            rng=self.fork(),
            on_started=lambda me: self.note("started", me),
            on_failed=self.process_failed,
            power_cut=lambda: self.crash(broker, power=True, restart_ns=None),
            named=self.named,
            level=self._next_level(broker),
        )

    def _next_level(self, broker: BrokerId) -> int:
        """Return the feature level of a broker's next life: it may come back as the new version."""
        if self.levels[broker] < FEATURE_LEVEL_MAX and broker in self._lived and self.rng.random() < 0.5:
            self._upgrade(broker)
        self._lived.add(broker)
        return self.levels[broker]

    def _upgrade(self, broker: BrokerId) -> None:
        self.levels[broker] = FEATURE_LEVEL_MAX
        self.note("upgraded", broker)
        self.mark("upgrade.broker")

    def _upgrade_rest(self) -> None:
        """Upgrade the brokers of the old version, one after the other."""
        old = [broker for broker, level in self.levels.items() if level < FEATURE_LEVEL_MAX]
        if old:
            life = self.lives.get(old[0])
            if life is None:
                self._upgrade(old[0])
            elif life.serving:
                self._upgrade(old[0])
                self.stop_cleanly(old[0])
            self.clockwork.after(500 * NS_PER_MS, self._upgrade_rest)

    def heal(self) -> None:
        """Repair everything and finish the upgrade."""
        super().heal()
        self._upgrade_rest()

    def replace_disk(self, broker: BrokerId) -> None:
        """Start a broker again on an empty disk: the region must take it for a new replica."""
        self.crash(broker, power=True, restart_ns=300 * NS_PER_MS)
        self.note("disk replaced", broker)
        self.mark("disk.replaced")
        self.disks[broker].wipe()
        for (region, _), ledger in self.ledgers.items():
            if region == region_of(broker):
                ledger.lost_disk(broker)

    def process_died(self, broker: BrokerId, *, silently: bool) -> None:
        """Tell the network and the links."""
        super().process_died(broker, silently=silently)
        self.carrier.process_died(broker, silently=silently)

    # --- rules ----------------------------------------------------------------------------------------

    def look_at(self, broker: BrokerId, life: CoreLife) -> None:
        """Check every group of a broker; a group that is new here is looked at as it was recovered."""
        for group in life.watch.take():
            group_id = group.group_id
            host = life.host
            if group.stopped or host is None or host.groups.get(group_id) is not group:
                continue
            ledger = self.ledgers.get((region_of(broker), group_id))
            if life.seen.get(group_id) is not group:
                life.seen[group_id] = group
                ledger = self._opened(broker, life, group_id, group)
            assert ledger is not None
            try:
                ledger.check(broker, group)
            except Violation as violation:
                # What replicas have of a deleted topic goes one after the other, and binds nobody any more.
                if not self._is_dropped(region_of(broker), group_id):
                    raise
                RAISED.remove(violation)
                self.mark("group.dropped_while_looked_at")

    def _opened(self, broker: BrokerId, life: CoreLife, group_id: GroupId, group: Any) -> GroupLedger:
        region = region_of(broker)
        ledger = self.ledgers.get((region, group_id))
        if ledger is None:
            ledger = self.ledgers[region, group_id] = GroupLedger(
                group_id, mark=self.mark, note=self.note, streams=group_id != 0, name=f"r{region}/"
            )
        stream = group.machine
        if group_id != 0:
            if stream.is_home:
                self.homes[stream.key] = ledger
            else:
                self.mirrors[stream.key, region] = ledger
                ledger.home = lambda key=stream.key: self.homes.get(key)
        disk = self.disks[broker]
        durable = DurableLog(disk, DATA_PATH / "groups" / str(group_id))
        ledger.opened(broker, group, durable, trusted=not disk.damaged)
        ledger.views[broker].level = life.level
        return ledger

    def _is_dropped(self, region: RegionNumber, group_id: GroupId) -> bool:
        """Return whether a broker of the region has applied that the group's topic was deleted."""
        states = [self.lives[broker].core.controller.state for broker in self._of(region) if broker in self.lives]
        return any(state.was_given_out(group_id) and state.group(group_id) is None for state in states)

    def frame_sent(self, source: BrokerId, target: BrokerId, kind: FrameKind, body: bytes) -> None:
        """Check what a Raft frame promises."""
        if kind is FrameKind.RAFT:
            ledger = self.ledgers.get((region_of(source), GroupId(int.from_bytes(body[1:5], "big"))))
            if ledger is not None:
                ledger.sent(source, target, body)

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the seed. Raises Violation."""
        settings = self.settings
        with small_limits(self), ordered_sets(self):
            for broker in self.brokers:
                self.start(broker)
            self._until(self._unready, settings.settle_ms, "not-ready")
            for name, homes in TOPICS:
                self._create(name, homes)
            self._until(self._unserved, settings.settle_ms, "not-ready")
            self._make_clients()
            replaces_disks = self.rng.random() < settings.replaces_disks
            operated = self.rng.random() < settings.operated
            self.moves_replicas = operated and not replaces_disks
            nemesis = Nemesis(self, favoured=settings.favoured, replaces_disks=replaces_disks)
            if operated:
                self.operator = Operator(self, self.fork(), moves_replicas=self.moves_replicas)
            faults_end_ns = self.clockwork.now_ns + settings.fault_ms * NS_PER_MS
            while self.clockwork.now_ns < faults_end_ns:
                self.clockwork.run_until(min(self.clockwork.now_ns + STEP_NS, faults_end_ns))
                self.control_rules.look(self.lives)
            nemesis.stop()
            if self.operator is not None:
                self.operator.stop()
            self.heal()
            self.clockwork.run_until(self.clockwork.now_ns + 1_000 * NS_PER_MS)
            for producer in self.producers:
                producer.stopped = True
            begun = self.clockwork.now_ns
            self._until(self._unsettled, settings.heal_ms, "not-live")
            self.marks["heal.ms"] = (self.clockwork.now_ns - begun) // NS_PER_MS
            for name, _ in self.streams_wanted():
                self._check_names(name)
            self.marks["names.late"] = self.named.late

    def _check_names(self, name: str) -> None:
        for region in self.regions:
            for stream in self.replicas(name, region):
                if stream.is_leader:
                    self.named.check(stream)

    def _until(self, missing_now: Any, wait_ms: int, rule: str) -> None:
        deadline = self.clockwork.now_ns + wait_ms * NS_PER_MS
        missing = ""
        while self.clockwork.now_ns < deadline:
            self.clockwork.run_until(self.clockwork.now_ns + STEP_NS)
            self.control_rules.look(self.lives)
            missing = next(missing_now(), "")
            if not missing:
                return
        raise Violation(rule, f"after {wait_ms} ms: {missing}")

    def _unready(self) -> Iterator[str]:
        for broker in self.brokers:
            life = self.lives.get(broker)
            if life is None or not life.serving or not life.core.cluster.ready():
                yield f"broker {broker} is not ready"

    def _create(self, name: str, homes: Homes) -> None:
        life = self.lives[self.rng.choice(self.brokers)]
        spec = TopicSpec(name=name, partitions=1, homes=homes, home="r1" if homes is Homes.ONE else "")
        life.loop.run_now(lambda: life.loop.create_task(self._create_topic(life, spec)))

    async def _create_topic(self, life: CoreLife, spec: TopicSpec) -> None:
        assert life.core is not None
        while True:
            try:
                await life.core.cluster.create_topic(spec)
            except GeorelayError as error:
                self.note("create", spec.name, repr(error))
                if type(error).__name__ == "TopicExists":
                    return
            else:
                return

    def streams_wanted(self) -> list[tuple[str, RegionNumber]]:
        """Return (name in other regions, home) of every stream."""
        found = []
        for name, homes in TOPICS:
            if homes is Homes.ONE:
                found.append((name, RegionNumber(1)))
            else:
                found.extend((f"r{region}.{name}", region) for region in self.regions)
        return found

    def local_names(self, region: RegionNumber) -> list[str]:
        """Return what the streams are called in a region."""
        return [name.removeprefix(f"r{region}.") for name, _ in self.streams_wanted()]

    def _unserved(self) -> Iterator[str]:
        for name, home in self.streams_wanted():
            for region in self.regions:
                leaders = [stream for stream in self.replicas(name, region) if stream.is_leader]
                if len(leaders) != 1:
                    yield f"{name} has {len(leaders)} leaders in region {region}"
                elif region == home and leaders[0].epoch < 1:
                    yield f"{name} has no epoch at home"

    def replicas(self, name: str, region: RegionNumber) -> list[Any]:
        """Return the replicas of a stream that a region serves now."""
        found = []
        for broker in self.brokers:
            life = self.lives.get(broker)
            if region_of(broker) == region and life is not None and life.serving:
                local = name.removeprefix(f"r{region}.")
                stream = life.core.cluster.stream(local, 0)
                if stream is not None:
                    found.append(stream)
        return found

    def _make_clients(self) -> None:
        rows = self.streams_wanted()
        for number in range(self.settings.producers):
            name, home = rows[number % len(rows)]
            key = self.replicas(name, home)[0].key
            # A topic with one home takes records everywhere; one with homes everywhere takes them at each.
            near = self.brokers if home == 1 and "." not in name else self._of(home)
            self.producers.append(
                Producer(
                    self,
                    self,
                    self.homes[key],
                    producer_id=number + 1,
                    rng=self.fork(),
                    window=self.rng.choice((1, 3)),
                    period_ns=self.period_ns,
                    bytes_max=self.rng.choice((100, 2_000)),
                    brokers=near,
                    publish=_publish(name.rpartition(".")[2]),
                )
            )
        for (key, region), ledger in list(self.mirrors.items()):
            del key
            rng, near = self.fork(), self._of(region)
            Reader(
                self,
                self,
                ledger,
                rng=rng,
                period_ns=4 * self.period_ns,
                choose=lambda rng=rng, near=near: rng.choice(near),  # type: ignore[misc]
            )

    def _of(self, region: int) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.brokers if region_of(broker) == region)

    def _of_group(self, region: RegionNumber, group_id: GroupId) -> Any:
        """Return the assignment of a group as the region's controller has it."""
        states = [self.lives[broker].core.controller.state for broker in self._of(region)]
        return max(states, key=lambda state: int(state.applied_index)).group(group_id)

    def _unsettled(self) -> Iterator[str]:
        yield from self._unready()
        if self.operator is not None and not self.operator.is_done:
            yield "a drained broker is not back"
        for broker, life in self.lives.items():
            if life.level < FEATURE_LEVEL_MAX or life.core.controller.feature_level < FEATURE_LEVEL_MAX:
                yield f"broker {broker} is at feature level {life.core.controller.feature_level}"
        yield from self.control_rules.unsettled(self.lives, len(self.regions))
        for producer in self.producers:
            if not producer.idle:
                yield f"a producer of group {producer._group} waits"
        for name, home in self.streams_wanted():
            ends: set[tuple[int, int]] = set()
            for region in self.regions:
                replicas = self.replicas(name, region)
                leader = next((stream for stream in replicas if stream.is_leader), None)
                if leader is None:
                    yield f"{name} in region {region} has no leader"
                    continue
                assignment = self._of_group(region, leader.group_id)
                here = {broker for broker in self._of(region) if leader.group_id in self.lives[broker].streams}
                if assignment is None or not assignment.is_settled or not here >= {*assignment.target}:
                    yield f"{name} in region {region} is at {sorted(here)}, not at {assignment}"
                ends.update((stream.high_watermark, stream.next_offset) for stream in replicas)
                for stream in replicas:
                    if stream._commits._waiting:
                        yield f"{name} in region {region}: publishes are parked"
            if len(ends) != 1:
                yield f"{name} of region {home} ends at {sorted(ends)}"


@contextmanager
def ordered_sets(world: MeshWorld) -> Iterator[None]:
    """Make sets of accepted links be walked in the same order in every process."""
    numbers: dict[int, int] = {}
    kept: list[object] = []  # an address is not used again while the world lives

    def by_number(link: object) -> int:
        number = numbers.get(id(link))
        if number is None:
            kept.append(link)
            number = numbers[id(link)] = world.clockwork.next_number()
        return number

    before = IncomingLink.__hash__
    IncomingLink.__hash__ = by_number  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        IncomingLink.__hash__ = before  # type: ignore[method-assign]


def _publish(name: str) -> Any:
    def publish(life: CoreLife, producer_id: int, batch: bytes) -> Any:
        assert life.core is not None
        return life.core.cluster.publish(
            name, 0, Publish.built(batch, received_ns=1, entry_region=region_of(life.me), lane=producer_id)
        )

    return publish
