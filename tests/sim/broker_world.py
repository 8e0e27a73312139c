"""A world of brokers: machines with disks on one network, started, crashed and started again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from georelay.ids import BrokerId, GroupId
from region.log.errors import LogCorrupt, LogUnreadable
from region.multiraft.transport import FrameKind
from tests.sim.clockwork import NS_PER_MS, SimClock, SimLoop
from tests.sim.disk import SimDisk
from tests.sim.network import Network
from tests.sim.violation import Violation
from tests.sim.world import WALL_ORIGIN_NS, World

SYNC_FAILURE_OUTLIVED_NS: Final = 1_000 * NS_PER_MS


class BrokerWorld(World):
    """Brokers by id. A life is one run of a broker's process (see region_world.Life for what it offers)."""

    changes_members = False
    moves_replicas = False  # some group may have so few voters that it cannot bear the loss of a disk
    repairs_damage = False  # only sealed segments are damaged: the replica must be whole again in the end

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.brokers: tuple[BrokerId, ...] = ()
        self.network = Network(self.clockwork, rng=self.fork(), mark=self.mark)
        self.network.on_send = self.frame_sent
        self.network.patience_ns = self.rng.choice((1_000, 3_000, 10_000)) * NS_PER_MS
        self.disks: dict[BrokerId, SimDisk] = {}
        self.lives: dict[BrokerId, Any] = {}
        self.healing = False
        self.buried: list[SimLoop] = []
        self.drifts: dict[BrokerId, float] = {}
        self.wall_origin_ns: dict[BrokerId, int] = {}
        self.restarting: set[BrokerId] = set()
        self.victim: BrokerId | None = None  # whose disk was damaged
        self._drifting = self.rng.random() < 0.3

    def join(self, brokers: Iterable[BrokerId]) -> None:
        """Add brokers, each with an empty disk."""
        for broker in brokers:
            self.brokers += (broker,)
            disk = self.disks[broker] = SimDisk(rng=self.fork(), mark=self.mark)
            disk.on_sync_failed = partial(self._sync_failed, broker)
            self.drifts[broker] = self.rng.uniform(-0.05, 0.05) if self._drifting else 0.0
            self.wall_origin_ns[broker] = WALL_ORIGIN_NS
        if self._drifting:
            self.mark("clock.drifts")

    @abstractmethod
    def make_life(self, broker: BrokerId, loop: SimLoop, clock: SimClock) -> Any:
        """Return the next life of a broker."""

    @abstractmethod
    def look_at(self, broker: BrokerId, life: Any) -> None:
        """Check everything of one broker after one of its turns. Raises Violation."""

    @abstractmethod
    def frame_sent(self, source: BrokerId, target: BrokerId, kind: FrameKind, body: bytes) -> None:
        """Check a frame that leaves a broker. Raises Violation."""

    def check(self, broker: BrokerId) -> None:
        """Look at one broker after one of its turns."""
        life = self.lives.get(broker)
        if life is None:
            return
        if life.watch.due():
            self.look_at(broker, life)
        if not self.disks[broker].powered:
            self.crash(broker, power=True, restart_ns=None)

    def process_died(self, broker: BrokerId, *, silently: bool) -> None:
        """Tell the network."""
        self.network.process_died(broker, silently=silently)

    def replace_disk(self, broker: BrokerId) -> None:
        """Start a broker again on an empty disk, where the region can bear that."""

    def heal(self) -> None:
        """Repair everything and start whoever is down."""
        self.healing = True
        self.note("heal")
        self.network.heal()
        for disk in self.disks.values():
            disk.heal()
        for life in list(self.lives.values()):
            life.loop.paused_until_ns = 0
        for broker in self.brokers:
            if broker not in self.lives:
                self.restart_soon(broker, 10 * NS_PER_MS)
        self._restart_refusing()

    def _restart_refusing(self) -> None:
        """Do what an operator does about brokers that refuse a group: start them again, on the disk that works now."""
        for broker, life in list(self.lives.items()):
            if life.serving and life.refused and broker != self.victim:
                self.mark("host.restarted_for_refused_group")
                self.stop_cleanly(broker)
        self.clockwork.after(500 * NS_PER_MS, self._restart_refusing)

    # --- brokers --------------------------------------------------------------------------------------

    def start(self, broker: BrokerId) -> None:
        """Start a broker's process on its disk."""
        self.restarting.discard(broker)
        if broker in self.lives:
            return
        loop = SimLoop(
            self.clockwork,
            drift=self.drifts[broker],
            settled=lambda: self.check(broker),
            power_cut=lambda: self.crash(broker, power=True, restart_ns=None),
            failed=lambda text: self._task_failed(broker, text),
        )
        clock = SimClock(loop, wall_origin_ns=self.wall_origin_ns[broker])
        self.lives[broker] = life = self.make_life(broker, loop, clock)
        self.clockwork.at(self.clockwork.now_ns, loop, loop.run_now, life.begin)

    def crash(self, broker: BrokerId, *, power: bool, restart_ns: int | None) -> None:
        """End a broker at once: a killed process, or a machine without power."""
        life = self.lives.pop(broker, None)
        if life is None:
            return
        self.note("crash", broker, "power cut" if power else "killed")
        self.mark("crash.power_cut" if power else "crash.killed")
        life.serving = False
        life.loop.bury()
        self.buried.append(life.loop)
        self.process_died(broker, silently=power)
        if power:
            self.disks[broker].cut_power()
        else:
            self.disks[broker].process_died()
        if restart_ns is None:
            restart_ns = self.rng.randrange(20, 1_500) * NS_PER_MS
        self.restart_soon(broker, restart_ns)

    def restart_soon(self, broker: BrokerId, delay_ns: int) -> None:
        """Start the broker again after a delay, once."""
        if broker not in self.restarting:
            self.restarting.add(broker)
            self.clockwork.after(delay_ns, self.start, broker)

    def stop_cleanly(self, broker: BrokerId) -> None:
        """Stop a process the way an operator does, and start it again."""
        life: Any = self.lives.get(broker)
        if life is None or not life.serving:
            return
        self.note("stop", broker)
        loop: SimLoop = life.loop
        loop.run_now(life.stop, lambda: self._stopped(broker, life))

    def _stopped(self, broker: BrokerId, life: Any) -> None:
        if self.lives.get(broker) is life:
            self.mark("host.stopped_cleanly")
            self.clockwork.after(0, self._bury_stopped, broker, life)

    def _bury_stopped(self, broker: BrokerId, life: Any) -> None:
        if self.lives.get(broker) is not life:
            return
        loop: SimLoop = self.lives.pop(broker).loop
        loop.bury()
        self.buried.append(loop)
        self.process_died(broker, silently=False)
        self.disks[broker].process_died()
        self.restart_soon(broker, self.rng.randrange(10, 500) * NS_PER_MS)

    def _sync_failed(self, broker: BrokerId) -> None:
        """What the process believes to be durable may not be: it has to end."""
        self.clockwork.after(SYNC_FAILURE_OUTLIVED_NS, self._check_ended, broker, self.lives.get(broker))

    def _check_ended(self, broker: BrokerId, life: Any) -> None:
        if life is None:
            return
        loop: SimLoop = life.loop
        if self.lives.get(broker) is not life:
            return
        rest_ns = loop.paused_until_ns - self.clockwork.now_ns
        if rest_ns > 0:
            self.clockwork.after(rest_ns + SYNC_FAILURE_OUTLIVED_NS, self._check_ended, broker, life)
            return
        raise Violation("outlives-failed-sync", f"broker {broker} goes on")

    def process_failed(self, broker: BrokerId, reason: str) -> None:
        self.note("failed", broker, reason)
        self.mark("storage.failed")
        disk = self.disks[broker]
        if not (disk.faulty or disk.damaged):
            raise Violation("unexpected-failure", f"broker {broker}: {reason}")
        self.clockwork.after(NS_PER_MS, self._end_failed, broker, self.lives.get(broker))

    def _end_failed(self, broker: BrokerId, life: Any) -> None:
        if life is not None and self.lives.get(broker) is life:
            self.crash(broker, power=False, restart_ns=None)

    def group_stopped(self, broker: BrokerId, group: GroupId, reason: str) -> None:
        # Where only sealed segments are damaged, only they can be why.
        tells_damage = not self.repairs_damage or LogCorrupt.verdict in reason or LogUnreadable.verdict in reason
        if not (self.disks[broker].damaged and tells_damage):
            raise Violation("group-stopped", f"broker {broker}, group {group}: {reason}")

    def _task_failed(self, broker: BrokerId, text: str) -> None:
        Violation("unhandled-error", f"broker {broker}: {text}")  # not raised: a destructor may be calling
