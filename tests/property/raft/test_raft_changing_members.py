"""Random schedules in which the members change, logs are compacted, segments are shipped and disks lose their end.

Checked after every step, beside what test_raft_schedules lists: a commit is held by the majorities of the
membership that counted it, and every later leader has it, whoever belongs to the group by then.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId
from region.raft.core import HeartbeatResponse
from tests.tiers import first

BROKERS = 5
MEMBERS = st.integers(1, BROKERS)
SETS = st.sets(MEMBERS, max_size=4)


class World:
    """Five brokers, some of them in the group, and everything that can happen to them."""

    def __init__(
        self, cluster_class: Any, founders: int, seed: int, *, disks_lose: bool = False, **limits: Any
    ) -> None:
        self.disks_lose = disks_lose
        self.fewest = 3 if disks_lose else 1  # with fewer voters, one that lost entries can block the others for ever
        self.cluster = cluster_class(founders, seed=seed, heartbeat_ticks=3, **limits)
        self.cluster.join(*range(founders + 1, BROKERS + 1))
        self.published = 0
        self.changes = 0

    def up(self, member: int) -> bool:
        return member not in self.cluster.down

    def deliver(self, position: int) -> None:
        if self.cluster.network:
            self.cluster.deliver_one(position % len(self.cluster.network))

    def drop(self, position: int) -> None:
        if self.cluster.network:
            self.cluster.network.pop(position % len(self.cluster.network))

    def duplicate(self, position: int) -> None:
        if self.cluster.network and len(self.cluster.network) < 100:
            self.cluster.network.append(self.cluster.network[position % len(self.cluster.network)])

    def flush(self, member: int) -> None:
        if self.up(member):
            self.cluster.flush(member, 1)
            self.note_repair(member)

    def note_repair(self, member: int) -> None:
        if not self.cluster.node(member).repairing:
            self.cluster.members[member].disk.lost = None

    def propose(self, member: int) -> None:
        self.published += 1
        try:
            self.cluster.propose(str(self.published), at=member)
        except (NotLeader, Busy):
            return
        self.cluster.pump()

    def change(self, voters: set[int], learners: set[int]) -> None:
        if len(voters) < self.fewest:
            return
        for member in self.cluster.members:
            if self.up(member) and self.cluster.node(member).is_leader:
                try:
                    self.changes += self.cluster.change(sorted(voters), sorted(learners - voters), at=member) > 0
                except Busy:
                    continue
                self.cluster.pump()

    def crash(self, member: int) -> None:
        self.cluster.crash(member)

    def restart(self, member: int) -> None:
        if not self.up(member):
            self.cluster.restart(member)

    def lose_tail(self, member: int, count: int) -> None:
        """One disk at a time loses entries that it had acknowledged."""
        disk = self.cluster.members[member].disk
        if not self.disks_lose:
            return
        if disk.entries and not any(box.disk.lost for i, box in self.cluster.members.items() if i != member):
            self.cluster.crash(member)
            disk.cut(max(disk.last - count, disk.start))
            self.cluster.restart(member)

    def campaign(self, member: int) -> None:
        if self.up(member):
            node = self.cluster.node(member)
            node.forget_leader(node.leader_id)
            node.campaign()
            self.cluster.pump()

    def transfer(self, member: int, to: int) -> None:
        if self.up(member):
            self.cluster.node(member).transfer_leadership(BrokerId(to))
            self.cluster.pump()

    def compact(self, member: int, keep: int) -> None:
        node = self.cluster.node(member)
        first = node.applied_index - keep
        if self.up(member) and node.log.first_index < first <= node.log.stable_index:
            self.cluster.compact(member, first)
            self.cluster.pump()

    def read(self, member: int) -> None:
        if self.up(member) and self.cluster.node(member).is_leader:
            seen = max(self.cluster.committed, default=0)
            self.cluster.node(member).read_index(seen)
            self.cluster.pump()

    def bulk(self, source: int, to: int, count: int) -> None:
        if source == to or not self.up(source) or not self.up(to):
            return
        giver, taker = self.cluster.node(source), self.cluster.node(to)
        first = taker.last_index + 1
        last = min(first + count, giver.commit_index, giver.applied_index)
        linked = self.cluster.members[to].pending
        if giver.log.first_index <= first <= last and not linked and taker.can_adopt(first, taker.term):
            if taker.term < giver.term:
                taker.observe_term(giver.term)
                self.cluster.pump()
                self.cluster.flush(to)
            if taker.can_adopt(first, giver.term) and self.continues(source, to):
                self.cluster.bulk(source, to, last)
                self.note_repair(to)

    def continues(self, source: int, to: int) -> bool:
        """What the chain proves: the segment continues this very log."""
        end = self.cluster.node(to).log
        giver = self.cluster.node(source).log
        return bool(giver.term(end.last_index) == end.last_term)

    def check_reads(self) -> None:
        for states in self.cluster.read_states.values():
            assert all(state.index >= state.context for state in states), "a read missed what was applied before it"

    def heal(self) -> None:
        """Once nothing fails any more, the members agree, and the group takes proposals."""
        cluster = self.cluster
        cluster.heal()
        for member in list(cluster.down):
            cluster.restart(member)
        cluster.answer_snapshots()
        for _ in range(100):
            cluster.tick(3)
            cluster.settle()
            leaders = [box.node for box in cluster.members.values() if box.node.is_leader]
            if not leaders:
                continue
            leader = max(leaders, key=lambda node: node.term)
            for peer in leader.peers:
                leader.step(HeartbeatResponse(from_=peer, to=leader.id, term=leader.term))
            cluster.settle()
            if leader.is_leader and not leader.transferee and self.agree(leader):
                break
        cluster.propose("after")
        cluster.settle()
        for member in leader.membership.members():
            assert cluster.data(member) == cluster.data(leader.id) and cluster.data(member)[-1] == "after", member
            assert not cluster.node(member).repairing
        self.check_reads()

    def agree(self, leader: Any) -> bool:
        members = [self.cluster.members[member] for member in leader.membership.members()]
        return all(len(box.applied) == leader.last_index for box in members) and not leader.membership.outgoing


def machine_for(cluster_class: Any) -> type[RuleBasedStateMachine]:
    class Schedule(RuleBasedStateMachine):
        world: World

        @initialize(founders=st.integers(1, 5), seed=st.integers(0, 1000), small=st.booleans(), lossy=st.booleans())
        def start(self, founders: int, seed: int, small: bool, lossy: bool) -> None:
            limits = {"append_message_bytes_max": 200, "inflight_messages_max": 2, "apply_bytes_max": 150}
            founders = max(founders, 3) if lossy else founders
            settings = limits if small else {}
            self.world = World(cluster_class, founders, seed, disks_lose=lossy, **settings)
            self.world.cluster.elect(1)

        @rule(position=st.integers(0, 30), count=st.integers(1, 8))
        def deliver(self, position: int, count: int) -> None:
            for _ in range(count):
                self.world.deliver(position)

        @rule(number=MEMBERS)
        def flush(self, number: int) -> None:
            self.world.flush(number)

        @rule(position=st.integers(0, 30))
        def drop(self, position: int) -> None:
            self.world.drop(position)

        @rule(position=st.integers(0, 30))
        def duplicate(self, position: int) -> None:
            self.world.duplicate(position)

        @rule(number=MEMBERS, ticks=st.integers(1, 25))
        def tick(self, number: int, ticks: int) -> None:
            self.world.cluster.tick(ticks, number)

        @rule(number=MEMBERS)
        def propose(self, number: int) -> None:
            if self.world.up(number):
                self.world.propose(number)

        @rule(voters=st.sets(MEMBERS, min_size=1, max_size=4), learners=SETS)
        def change(self, voters: set[int], learners: set[int]) -> None:
            self.world.change(voters, learners)

        @rule(number=MEMBERS)
        def crash(self, number: int) -> None:
            self.world.crash(number)

        @rule(number=MEMBERS)
        def restart(self, number: int) -> None:
            self.world.restart(number)

        @rule(number=MEMBERS, count=st.integers(1, 3))
        def lose_tail(self, number: int, count: int) -> None:
            self.world.lose_tail(number, count)

        @rule(number=MEMBERS)
        def campaign(self, number: int) -> None:
            self.world.campaign(number)

        @rule(number=MEMBERS, to=MEMBERS)
        def transfer(self, number: int, to: int) -> None:
            self.world.transfer(number, to)

        @rule(number=MEMBERS, keep=st.integers(0, 3))
        def compact(self, number: int, keep: int) -> None:
            self.world.compact(number, keep)

        @rule(number=MEMBERS)
        def read(self, number: int) -> None:
            self.world.read(number)

        @rule(number=MEMBERS, to=MEMBERS, count=st.integers(0, 5))
        def bulk(self, number: int, to: int, count: int) -> None:
            self.world.bulk(number, to, count)

        @rule()
        def calm(self) -> None:
            self.world.cluster.settle()

        def teardown(self) -> None:
            if hasattr(self, "world"):
                self.world.heal()

    return Schedule


def test_safety_holds_while_the_members_change_under_any_schedule(cluster_class: Any) -> None:
    run_state_machine_as_test(
        machine_for(cluster_class),
        settings=settings(stateful_step_count=60, suppress_health_check=list(HealthCheck)),
    )


def random_run(cluster_class: Any, seed: int, steps: int = 500) -> World:
    rng = random.Random(seed)
    limits = {"append_message_bytes_max": 300, "apply_bytes_max": 250} if seed % 2 else {}
    lossy = seed % 3 == 0
    world = World(cluster_class, rng.choice([3, 4] if lossy else [1, 2, 3]), seed, disks_lose=lossy, **limits)
    world.cluster.elect(1)
    everybody = range(1, BROKERS + 1)
    for _ in range(steps):
        member = rng.choice(everybody)
        draw = rng.random()
        if draw < 0.5:
            for _ in range(rng.randrange(1, 6)):
                world.deliver(rng.randrange(3))
        elif draw < 0.72:
            for box in everybody:
                world.flush(box if rng.random() < 0.6 else member)
        elif draw < 0.84:
            world.cluster.tick(rng.randrange(1, 4), member)
        elif draw < 0.89:
            leaders = [i for i in everybody if world.up(i) and world.cluster.node(i).is_leader]
            if leaders:
                world.propose(rng.choice(leaders))
        elif draw < 0.91:
            voters = set(rng.sample(everybody, rng.randrange(world.fewest, 5)))
            world.change(voters, set(rng.sample(everybody, 2)))
        elif draw < 0.93:
            world.drop(rng.randrange(100))
        elif draw < 0.945:
            world.duplicate(rng.randrange(100))
        elif draw < 0.955:
            world.compact(member, rng.randrange(3))
        elif draw < 0.965:
            world.bulk(rng.choice(everybody), member, rng.randrange(5))
        elif draw < 0.975:
            world.read(member)
        elif draw < 0.98:
            world.lose_tail(member, rng.randrange(1, 4))
        elif draw < 0.99:
            if world.up(member) and len(world.cluster.down) < 2:
                world.crash(member)
            else:
                world.restart(rng.choice([member, *world.cluster.down]))
        else:
            world.transfer(member, rng.choice(everybody))
    return world


@pytest.mark.parametrize("seed", first(10, range(80)))
def test_safety_holds_in_long_random_runs_with_changing_members(cluster_class: Any, seed: int) -> None:
    random_run(cluster_class, seed).heal()


def test_the_random_runs_do_change_members_install_snapshots_and_answer_reads(cluster_class: Any) -> None:
    """Without this, runs in which nothing ever happens would pass too."""
    worlds = [random_run(cluster_class, seed) for seed in range(16)]
    kinds = {type(message).__name__ for world in worlds for message in world.cluster.sent}
    assert {"Snapshot", "ReadIndexAnswer", "TimeoutNow", "VoteRequest"} <= kinds
    assert sum(world.changes for world in worlds) > 16
    assert any(world.cluster.node(i).repairing for world in worlds for i in range(1, BROKERS + 1))
    committed = [item.members for world in worlds for item in world.cluster.committed.values() if item.members]
    assert len(committed) > 8 and any(members.outgoing for members in committed)
    assert any(states for world in worlds for states in world.cluster.read_states.values())
