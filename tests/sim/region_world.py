"""The world of one region: three brokers with four groups each, clients, faults, and a heal phase that must end well.

Phases: faults for `fault_ms`; then everything is repaired and the world must, within `heal_ms`, have a leader for
every group, answer every parked request and hold the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey
from region.broker import hosted_groups
from region.multiraft.peers import FrameKind
from region.topics.hosted_stream import HostedStream
from tests.sim.broker_world import BrokerWorld
from tests.sim.clients import Producer, Reader
from tests.sim.clockwork import NS_PER_MS, SimClock, SimLoop
from tests.sim.disk import Folder, Inode
from tests.sim.durable_journal import DurableJournal
from tests.sim.faults import Nemesis
from tests.sim.flushing import SimFlusher
from tests.sim.ledger import DurableLog, GroupLedger, frames_of
from tests.sim.limits import small_limits
from tests.sim.patching import replaced
from tests.sim.region_controller import PATIENCE_NS, RegionController
from tests.sim.sim_broker import DATA_PATH, FEATURE_LEVEL, Life, Tuning
from tests.sim.violation import Violation

TABLE_PERIOD_NS: Final = 200 * NS_PER_MS
STEP_NS: Final = 100 * NS_PER_MS
PERIODS_MS: Final = (60, 120, 200, 350)  # some worlds are busy, others have time for long silences


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSettings:
    """Shape of a region world; times are virtual."""

    brokers: int = 3
    groups: int = 4
    producers: int = 2
    readers: int = 1
    fault_ms: int = 7_000
    heal_ms: int = 20_000
    period_ms: int = 0  # of each producer; 0: drawn from the seed
    flusher: Callable[..., SimFlusher] = SimFlusher
    memberships: float = 0.4  # odds that a world changes members
    schedule: str = ""
    datagrams: float = 0.0  # odds of drop, doubling and reordering of each Raft frame, as long as there are faults
    tick_ms: int = 0  # 0: drawn from the seed
    favoured: tuple[str, ...] = ()


class RegionWorld(BrokerWorld):
    """Brokers, their disks and their network; `run` plays one seed."""

    feature_level = FEATURE_LEVEL

    def __init__(self, seed: int, settings: RegionSettings | None = None) -> None:
        super().__init__(seed)
        self.settings = settings = settings or RegionSettings()
        grows = self.rng.random() < settings.memberships
        count = settings.brokers + (self.rng.choice((0, 1, 2)) if grows else 0)
        self.join(BrokerId(1001 + row) for row in range(count))
        self.founders = self.brokers[: settings.brokers]
        self.changes_members = grows
        self.groups = {
            GroupId(row + 1): StreamKey(bytes([row]) * 16, RegionNumber(0), 0) for row in range(settings.groups)
        }
        self.ledgers = {group: GroupLedger(group, mark=self.mark, note=self.note) for group in self.groups}
        self.tuning = Tuning(
            tick_ms=settings.tick_ms or self.rng.choice((30, 60, 100, 100)),
            bulk_bytes_per_s=self.rng.choice((20_000, 200_000, 1 << 30)),
            bulk_behind_bytes=self.rng.choice((8_192, 65_536, 1 << 30)),
            retention_bytes=self.rng.choice((-1, 0, 10_000, 100_000)),
            retention_every_ms=self.rng.choice((100, 400, 1_500)),
        )
        self.period_ns = (settings.period_ms or self.rng.choice(PERIODS_MS)) * NS_PER_MS
        self.network.datagrams = settings.datagrams
        self.producers: list[Producer] = []
        self.controller = RegionController(self, lost=lambda group, broker: self.ledgers[group].lost_replica(broker))

    # --- brokers --------------------------------------------------------------------------------------

    def make_life(self, broker: BrokerId, loop: SimLoop, clock: SimClock) -> Life:
        """Return the next life of a broker."""
        return Life(
            me=broker,
            loop=loop,
            clock=clock,
            disk=self.disks[broker],
            network=self.network,
            rng=self.fork(),
            brokers=self.brokers,
            founders=self.founders,
            tuning=self.tuning,
            groups=self.groups,
            on_opened=self._group_opened,
            on_started=self._started,
            on_failed=self.process_failed,
            on_group_stopped=self.group_stopped,
            on_refused=self._group_refused,
            opens=self.controller.opens,
            power_cut=lambda: self.crash(broker, power=True, restart_ns=None),
            flusher=self.settings.flusher,
            make_stream=self.make_stream,
            feature_level=self.feature_level,
        )

    def make_stream(self, **arguments: Any) -> HostedStream:
        """Return the machine of a group on one broker."""
        return HostedStream(**arguments)

    def _started(self, broker: BrokerId) -> None:
        self.note("started", broker)
        self._scrub(broker)

    def _scrub(self, broker: BrokerId) -> None:
        """Have the damage of a victim found and repaired, once the faults are over."""
        life = self.lives.get(broker)
        if self.healing and self.repairs_damage and broker == self.victim and life is not None and life.serving:
            life.loop.run_now(lambda: life.loop.create_task(life.scrub()))

    def heal(self) -> None:
        """Repair everything, and let the brokers repair what was damaged."""
        super().heal()
        if self.victim is not None:
            self._scrub(self.victim)
            if self.repairs_damage:
                self.controller.begin()

    @property
    def exempt(self) -> BrokerId | None:
        """Return the broker that need not be whole in the end: damage of its own kinds may have been too much."""
        return None if self.repairs_damage else self.victim

    def _group_refused(self, broker: BrokerId, group_id: GroupId, reason: str) -> None:
        self.note("group refused", broker, group_id, reason)
        self.mark("log.group_refused")
        if not (self.disks[broker].damaged or self.disks[broker].faulty):
            raise Violation("unexpected-failure", f"broker {broker} refuses group {group_id}: {reason}")

    def _group_opened(self, broker: BrokerId, group_id: GroupId, group: Any) -> None:
        disk = self.disks[broker]
        durable = DurableLog(disk, DATA_PATH / "groups" / str(group_id))
        self.ledgers[group_id].opened(broker, group, durable, trusted=not disk.damaged)
        self.lives[broker].seen[group_id] = group

    # --- rules ----------------------------------------------------------------------------------------

    def look_at(self, broker: BrokerId, life: Life) -> None:
        """Check every group of a broker."""
        for group in life.watch.take():
            ledger = self.ledgers[group.group_id]
            if group.stopped:
                continue
            if life.seen.get(group.group_id) is not group:
                self._group_opened(broker, group.group_id, group)
            elif broker in ledger.views:
                ledger.check(broker, group)

    def frame_sent(self, source: BrokerId, target: BrokerId, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.RAFT:
            ledger = self.ledgers.get(GroupId(int.from_bytes(body[1:5], "big")))
            if ledger is not None:
                ledger.sent(source, target, body)

    def _compare_tables(self) -> None:
        for broker, life in self.lives.items():
            if life.serving and life.host is not None:
                for group_id, stream in life.streams.items():
                    group = life.host.groups[group_id]
                    if not group.stopped:
                        self.ledgers[group_id].state(broker, stream.commit_index, hash(stream.snapshot()))
        self.clockwork.after(TABLE_PERIOD_NS, self._compare_tables)

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the seed. Raises Violation."""
        with small_limits(self), replaced(hosted_groups, "HostedStream", self.make_stream):
            for broker in self.brokers:
                self.start(broker)
            self._make_clients()
            nemesis = Nemesis(self, favoured=self.settings.favoured, schedule=self.settings.schedule)
            self.clockwork.after(TABLE_PERIOD_NS, self._compare_tables)
            try:
                self.clockwork.run_until(self.settings.fault_ms * NS_PER_MS)
                nemesis.stop()
                self.heal()
                self._settle()
            except Violation as violation:
                self.violation = violation
                raise

    def _make_clients(self) -> None:
        settings = self.settings
        producer_id = 1
        for ledger in self.ledgers.values():
            for _ in range(settings.producers):
                self.producers.append(
                    Producer(
                        self,
                        self,
                        ledger,
                        producer_id=producer_id,
                        rng=self.fork(),
                        window=self.rng.choice((1, 1, 3, 5)),
                        period_ns=self.period_ns,
                        bytes_max=self.rng.choice((100, 700, 2_000)),
                    )
                )
                producer_id += 1
            for _ in range(settings.readers):
                rng = self.fork()
                Reader(
                    self,
                    self,
                    ledger,
                    rng=rng,
                    period_ns=2 * self.period_ns,
                    choose=lambda rng=rng: rng.choice(self.brokers),  # type: ignore[misc]
                )

    def _settle(self) -> None:
        begun = self.clockwork.now_ns
        deadline = begun + self.settings.heal_ms * NS_PER_MS
        self.clockwork.run_until(begun + 500 * NS_PER_MS)
        for producer in self.producers:
            producer.stopped = True
        missing = "nothing"
        while self.clockwork.now_ns < deadline + self.controller.needed * PATIENCE_NS:
            self.clockwork.run_until(self.clockwork.now_ns + STEP_NS)
            missing = next(self.unsettled(), "")
            if not missing:
                self.marks["heal.ms"] = max(self.marks["heal.ms"], (self.clockwork.now_ns - begun) // NS_PER_MS)
                self._compare_bytes()
                if self.repairs_damage and self.victim is not None:
                    self.mark("disk.damage_healed")
                return
        waited_ms = (self.clockwork.now_ns - begun) // NS_PER_MS
        raise Violation("not-live", f"{waited_ms} ms after the heal: {missing}")

    def unsettled(self) -> Iterator[str]:
        """Yield what keeps the region from being whole."""
        for broker in self.brokers:
            life = self.lives.get(broker)
            if (life is None or not life.serving) and broker != self.exempt:
                yield f"broker {broker} does not serve"
            elif self.repairs_damage and broker == self.victim and life is not None and not life.is_sound:
                yield f"broker {broker} has damage"
        yield from self.controller.unsettled()
        for producer in self.producers:
            if not producer.idle:
                yield f"a producer of group {producer._group} waits for {list(producer._flight) or 'its next try'}"
        for group_id in self.groups:
            nodes = {
                life.me: life.host.groups[group_id].node
                for life in self.lives.values()
                if life.host is not None and group_id in life.host.groups
            }
            leaders = [node for node in nodes.values() if node.is_leader]
            if len(leaders) != 1:
                yield f"group {group_id} has leaders {[node.id for node in leaders]}"
                continue
            membership = leaders[0].membership
            if membership.outgoing or not leaders[0].membership_committed:
                yield f"group {group_id} is on its way to {membership}"
            ends = {
                (node.last_index, node.commit_index, node.log.stable_index, node.applied_index)
                for broker, node in nodes.items()
                if broker in membership.members() and broker != self.exempt
            }
            if len(ends) != 1 or len(set(next(iter(ends)))) != 1:
                yield f"group {group_id} ends differ: {sorted(ends)}"
        for life in self.lives.values():
            for group_id, stream in life.streams.items():
                if stream._commits._waiting:
                    yield f"broker {life.me}, group {group_id}: {len(stream._commits._waiting)} publishes are parked"

    def _compare_bytes(self) -> None:
        for group_id in self.groups:
            leader = next(
                node
                for life in self.lives.values()
                if life.host is not None
                and group_id in life.host.groups
                and (node := life.host.groups[group_id].node).is_leader
            )
            entries: dict[int, bytes] = {}
            for broker in leader.membership.members():
                if broker == self.exempt:
                    continue
                own = self.durable_entries(broker, group_id)
                if max(own, default=0) != leader.last_index and leader.last_index >= leader.log.first_index:
                    raise Violation("bytes-differ", f"group {group_id}: broker {broker} ends at {max(own, default=0)}")
                for index, frame in own.items():
                    if entries.setdefault(index, frame) != frame:
                        raise Violation("bytes-differ", f"group {group_id}: broker {broker} differs at {index}")

    def durable_entries(self, broker: BrokerId, group_id: GroupId) -> dict[int, bytes]:
        """Return every entry of a group as the broker's disk holds it, by index."""
        folder = self.disks[broker].find(DATA_PATH / "groups" / str(group_id), durable=True)
        found: dict[int, bytes] = {}
        if isinstance(folder, Folder):
            for name in sorted(folder.durable):
                node = folder.durable[name]
                if name.endswith(".log") and isinstance(node, Inode):
                    found.update(frames_of(node.durable))
            found.update(DurableJournal.of(self.disks[broker]).entries(group_id))
        return found
