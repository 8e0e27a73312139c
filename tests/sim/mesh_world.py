"""The world of the whole mesh: regions of brokers, a WAN between them, producers everywhere, mirrors everywhere.

Runs the shipping BrokerCore: data directory, Raft groups, controller, streams, housekeeping and inter-region links.
Beside the rules of each group (ledger.py) it holds that a mirror commits what its home committed, at the same offsets,
and that after the heal every mirror is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey, broker_id, region_of
from georelay.wire.batch import validate
from mesh.replication.incoming_link import IncomingLink
from region.controller.topic import Homes, TopicSpec
from region.multiraft.transport import FrameKind
from tests.sim.broker_world import BrokerWorld
from tests.sim.clients import Producer, Reader
from tests.sim.clockwork import NS_PER_MS, SimClock, SimLoop
from tests.sim.core_life import CoreLife, config_of
from tests.sim.faults import Nemesis
from tests.sim.ledger import DurableLog, GroupLedger
from tests.sim.limits import small_limits
from tests.sim.link_carrier import LinkCarrier
from tests.sim.sim_broker import DATA_PATH
from tests.sim.violation import Violation

TOPICS: Final = (("orders", Homes.ONE), ("events", Homes.EVERY))
STEP_NS: Final = 200 * NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings:
    """Shape of a mesh world; times are virtual."""

    regions: int = 3
    brokers: int = 3
    producers: int = 4
    settle_ms: int = 30_000
    fault_ms: int = 10_000
    heal_ms: int = 60_000
    period_ms: int = 60


class MeshWorld(BrokerWorld):
    """Brokers of every region."""

    def __init__(self, seed: int, settings: MeshSettings | None = None) -> None:
        super().__init__(seed)
        self.settings = settings = settings or MeshSettings()
        self.regions = tuple(RegionNumber(row + 1) for row in range(settings.regions))
        self.carrier = LinkCarrier(self.network)
        self.ledgers: dict[tuple[RegionNumber, GroupId], GroupLedger] = {}
        self.homes: dict[StreamKey, GroupLedger] = {}
        self.mirrors: dict[tuple[StreamKey, RegionNumber], GroupLedger] = {}
        self.producers: list[Producer] = []
        self.tick_ms = self.rng.choice((50, 100))
        self.join(broker_id(region, number) for region in self.regions for number in range(1, settings.brokers + 1))
        wan_ns = self.rng.choice((1, 10, 40)) * NS_PER_MS
        for one in self.brokers:
            for other in self.brokers:
                if region_of(one) != region_of(other):
                    self.network.lay(one, other, base_ns=wan_ns, jitter_ns=wan_ns // 10)

    def make_life(self, broker: BrokerId, loop: SimLoop, clock: SimClock) -> CoreLife:
        """Return the next life of a broker."""
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
        )

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
        host = life.host
        if host is None:
            return
        for group_id, group in host.groups.items():
            if group.stopped:
                continue
            ledger = self.ledgers.get((region_of(broker), group_id))
            if life.seen.get(group_id) is not group:
                life.seen[group_id] = group
                ledger = self._opened(broker, life, group_id, group)
            assert ledger is not None
            ledger.check(broker, group)

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
        return ledger

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
            nemesis = Nemesis(self, replaces_disks=self.rng.random() < 0.3)
            self.clockwork.run_until(self.clockwork.now_ns + settings.fault_ms * NS_PER_MS)
            nemesis.stop()
            self.heal()
            self.clockwork.run_until(self.clockwork.now_ns + 1_000 * NS_PER_MS)
            for producer in self.producers:
                producer.stopped = True
            begun = self.clockwork.now_ns
            self._until(self._unsettled, settings.heal_ms, "not-live")
            self.marks["heal.ms"] = (self.clockwork.now_ns - begun) // NS_PER_MS

    def _until(self, missing_now: Any, wait_ms: int, rule: str) -> None:
        deadline = self.clockwork.now_ns + wait_ms * NS_PER_MS
        missing = ""
        while self.clockwork.now_ns < deadline:
            self.clockwork.run_until(self.clockwork.now_ns + STEP_NS)
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

    def _streams_wanted(self) -> Iterator[tuple[str, RegionNumber]]:
        """Yield (local name, home)."""
        for name, homes in TOPICS:
            if homes is Homes.ONE:
                yield name, RegionNumber(1)
            else:
                for region in self.regions:
                    yield f"r{region}.{name}", region

    def _unserved(self) -> Iterator[str]:
        for name, home in self._streams_wanted():
            for region in self.regions:
                leaders = [stream for stream in self._replicas(name, region) if stream.is_leader]
                if len(leaders) != 1:
                    yield f"{name} has {len(leaders)} leaders in region {region}"
                elif region == home and leaders[0].epoch < 1:
                    yield f"{name} has no epoch at home"

    def _replicas(self, name: str, region: RegionNumber) -> list[Any]:
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
        rows = list(self._streams_wanted())
        for number in range(self.settings.producers):
            name, home = rows[number % len(rows)]
            key = self._replicas(name, home)[0].key
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
                    period_ns=self.settings.period_ms * NS_PER_MS,
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
                period_ns=4 * self.settings.period_ms * NS_PER_MS,
                choose=lambda rng=rng, near=near: rng.choice(near),  # type: ignore[misc]
            )

    def _of(self, region: int) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.brokers if region_of(broker) == region)

    def _unsettled(self) -> Iterator[str]:
        yield from self._unready()
        for producer in self.producers:
            if not producer.idle:
                yield f"a producer of group {producer._group} waits"
        for name, home in self._streams_wanted():
            ends: set[tuple[int, int]] = set()
            for region in self.regions:
                replicas = self._replicas(name, region)
                if sum(1 for stream in replicas if stream.is_leader) != 1 or len(replicas) < self.settings.brokers:
                    yield f"{name} in region {region}: {len(replicas)} replicas, not one leader"
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
            name,
            0,
            validate(batch, from_client=True),
            bytearray(batch),
            received_ns=1,
            entry_region=region_of(life.me),
            lane=producer_id,
        )

    return publish
