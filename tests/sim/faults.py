"""What goes wrong in a world, drawn from its seed.

Each seed enables a random part of the faults and one pace, so that some worlds are torn by everything at once and
others suffer one thing for long (swarm testing).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId
from tests.sim.clockwork import NS_PER_MS
from tests.sim.schedules import SCHEDULES, begin

if TYPE_CHECKING:
    from tests.sim.broker_world import BrokerWorld

PACES_MS: Final = (60, 150, 400, 900)


class Nemesis:
    """Strikes a world again and again until `stop`."""

    def __init__(
        self, world: BrokerWorld, *, favoured: tuple[str, ...] = (), schedule: str = "", replaces_disks: bool = False
    ) -> None:
        """Begin to strike; with faults that are `favoured` no others, with a `schedule` that one again and again."""
        self._world = world
        self._rng = world.fork()
        self._stopped = False
        self._schedule = schedule
        faults: list[tuple[Callable[[], None], int]] = [
            (self._kill, 3),
            (self._cut_power, 3),
            (self._cut_power_inside, 4),
            (self._cut_power_of_all, 1),
            (self._pause, 3),
            (self._stall_briefly, 2),
            (self._partition, 4),
            (self._block_one_way, 3),
            (self._heal_network, 6),
            (self._reset, 3),
            (self._slow_link, 2),
            (self._slow_disk_for_a_while, 2),
            (self._fail_sync, 1),
            (self._fail_write, 1),
            (self._fill_disk, 1),
            (self._jump_clock, 1),
            (self._stop_cleanly, 1),
            (self._transfer, 3),
            (self._datagrams, 2),
            (self._begin_schedule, 1),
        ]
        kept = [fault for fault in faults if self._rng.random() < 0.45]
        if favoured:
            names = {f"_{name}" for name in favoured}
            kept = [(action, 6) for action, _ in faults if action.__name__ in names]
        if self._partition in [fault for fault, _ in kept] or self._block_one_way in [fault for fault, _ in kept]:
            kept.append((self._heal_network, 6))
        self._regions_hurt: set[int] = set()
        if replaces_disks:
            kept.append((self._replace_disk, 2))
        elif not (favoured or world.changes_members or world.moves_replicas) and self._rng.random() < 0.2:
            kept.append((self._damage, 2))
            world.repairs_damage = world.repairs_damage or self._rng.random() < 0.6
        if world.changes_members:
            kept.append((self._change_members, 8))
        if schedule:
            self._begin_schedule_soon()
        self._faults = kept
        self._pace_ms = self._rng.choice(PACES_MS[:2] if favoured else PACES_MS)
        if kept:
            self._later(500 + self._rng.randrange(1_000))

    def stop(self) -> None:
        """Strike no more."""
        self._stopped = True

    def _begin_schedule_soon(self) -> None:
        self._world.clockwork.after((800 + self._rng.randrange(400)) * NS_PER_MS, self._begin_schedule)

    def _begin_schedule(self) -> None:
        if not self._stopped:
            begin(self._world, self._schedule or self._rng.choice(sorted(SCHEDULES)), self._rng)

    def _later(self, delay_ms: int) -> None:
        self._world.clockwork.after(delay_ms * NS_PER_MS, self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        actions, weights = zip(*self._faults, strict=True)
        self._rng.choices(actions, weights)[0]()
        self._later(int(self._pace_ms * (0.3 + 1.4 * self._rng.random())) + 1)

    def _any(self) -> BrokerId:
        return self._rng.choice(self._world.brokers)

    def _pair(self) -> tuple[BrokerId, BrokerId]:
        one, other = self._rng.sample(self._world.brokers, 2)
        return one, other

    def _ms(self, least: int, most: int) -> int:
        """Draw a duration in nanoseconds, short ones more often."""
        return int(least * (most / least) ** self._rng.random()) * NS_PER_MS

    # --- processes and machines -----------------------------------------------------------------------

    def _leader_or_any(self) -> BrokerId:
        if self._rng.random() < 0.5:
            leaders: list[BrokerId] = [
                life.me
                for life in self._world.lives.values()
                if life.host is not None and any(group.node.is_leader for group in life.host.groups.values())
            ]
            if leaders:
                return self._rng.choice(leaders)
        return self._any()

    def _kill(self) -> None:
        self._world.crash(self._leader_or_any(), power=False, restart_ns=self._ms(20, 2_000))

    def _cut_power(self) -> None:
        self._world.crash(self._leader_or_any(), power=True, restart_ns=self._ms(20, 3_000))

    def _cut_power_inside(self) -> None:
        broker = self._leader_or_any()
        if broker in self._world.lives:
            self._world.disks[broker].power_cut_in = self._rng.randrange(12)

    def _cut_power_of_all(self) -> None:
        self._world.mark("crash.whole_region")
        for broker in self._world.brokers:
            self._world.crash(broker, power=True, restart_ns=self._ms(20, 500))

    def _hold(self, duration_ns: int) -> None:
        life = self._world.lives.get(self._leader_or_any())
        if life is not None:
            self._world.note("pause", life.me, f"{duration_ns / NS_PER_MS:.0f} ms")
            life.loop.paused_until_ns = self._world.clockwork.now_ns + duration_ns

    def _pause(self) -> None:
        self._world.mark("process.paused")
        self._hold(self._ms(50, 5_000))

    def _stall_briefly(self) -> None:
        self._world.mark("host.stalled")
        self._hold(self._ms(5, 400))

    def _stop_cleanly(self) -> None:
        self._world.stop_cleanly(self._any())

    def _jump_clock(self) -> None:
        life = self._world.lives.get(self._any())
        if life is not None:
            self._world.mark("clock.wall_jumped")
            jump = self._rng.choice((-1, 1)) * self._ms(1, 3_600_000)
            self._world.note("clock jumps", life.me, f"{jump / NS_PER_MS:.0f} ms")
            life.clock.wall_offset_ns += jump
            self._world.wall_origin_ns[life.me] += jump

    def _transfer(self) -> None:
        for life in self._world.lives.values():
            if life.host is None or not life.serving:
                continue
            for group in life.host.groups.values():
                if group.node.is_leader and self._rng.random() < 0.5:
                    target = self._rng.choice([broker for broker in self._world.brokers if broker != life.me])
                    if target in group.node.membership.voters and group.transfer_leadership(target):
                        self._world.mark("raft.transfer_begun")
                        self._world.note("transfer", life.me, group.group_id, f"to {target}")

    def _change_members(self) -> None:
        world = self._world
        group_id = self._rng.choice(sorted({group for life in world.lives.values() for group in life.streams}) or [0])
        for life in world.lives.values():
            group = life.host.groups.get(group_id) if life.host is not None and life.serving else None
            if group is None or not group.node.is_leader or group.stopped:
                continue
            voters = tuple(sorted(self._rng.sample(world.brokers, self._rng.choice((1, 2, 3, 3, 3)))))
            rest = [broker for broker in world.brokers if broker not in voters]
            learners = tuple(broker for broker in rest if self._rng.random() < 0.3)
            try:
                group.propose_membership(voters=voters, learners=learners)
            except (GeorelayError, ValueError) as error:
                world.mark(f"members.{type(error).__name__}")
            else:
                world.mark("members.changed")
                world.note("members", life.me, group_id, f"{voters} and {learners}")

    # --- network --------------------------------------------------------------------------------------

    def _partition(self) -> None:
        brokers = list(self._world.brokers)
        self._rng.shuffle(brokers)
        side = set(brokers[: self._rng.randrange(1, len(brokers))])
        self._world.mark("net.partition")
        self._world.note("partition", sorted(side))
        for one in brokers:
            for other in brokers:
                if one != other and (one in side) != (other in side):
                    self._world.network.block(one, other)

    def _block_one_way(self) -> None:
        one, other = self._pair()
        self._world.mark("net.one_way_partition")
        self._world.note("block", one, "->", other)
        self._world.network.block(one, other)

    def _heal_network(self) -> None:
        self._world.note("unblock")
        self._world.network.unblock_all()

    def _reset(self) -> None:
        one, other = self._pair()
        self._world.note("reset", one, other)
        self._world.network.reset_between(one, other)

    def _slow_link(self) -> None:
        one, other = self._pair()
        base = self._ms(1, 150)
        self._world.mark("net.slow_link")
        self._world.network.slow(one, other, base, base * self._rng.choice((0, 1, 4)))

    def _datagrams(self) -> None:
        self._world.network.datagrams = self._rng.choice((0.0, 0.01, 0.05))

    # --- disks ----------------------------------------------------------------------------------------

    def _slow_disk_for_a_while(self) -> None:
        disk = self._world.disks[self._leader_or_any()]
        disk.sync_us = self._rng.choice((200, 2_000, 20_000, 150_000, 600_000))
        if disk.sync_us > 2_000:
            self._world.mark("disk.slow_sync")

    def _damage(self) -> None:
        broker = self._world.victim or self._any()
        self._world.victim = broker  # of one replica only: what a minority loses, the others have
        disk = self._world.disks[broker]
        sealed = self._world.repairs_damage
        path = disk.flip_bit(sealed=sealed) if self._rng.random() < 0.7 else disk.spoil_sector(sealed=sealed)
        self._world.note("damage", broker, path)
        if sealed and path is not None:
            self._world.mark("disk.sealed_segment_damaged")

    def _replace_disk(self) -> None:
        broker = self._any()
        if broker // 1000 not in self._regions_hurt:
            self._regions_hurt.add(broker // 1000)
            self._world.replace_disk(broker)

    def _fail_sync(self) -> None:
        broker = self._any()
        if broker in self._world.lives:
            self._world.disks[broker].strike(syncs=1)

    def _fail_write(self) -> None:
        broker = self._any()
        if broker in self._world.lives:
            self._world.disks[broker].strike(writes=1)

    def _fill_disk(self) -> None:
        disk = self._world.disks[self._any()]
        disk.fill()
        self._world.clockwork.after(self._ms(50, 2_000), disk.empty)
