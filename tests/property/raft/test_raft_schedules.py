"""Random schedules of messages, time, crashes and slow disks: the safety rules hold after every step.

The rules themselves are checked by the cluster: one leader per term, one vote per term over crashes, log
matching, every committed entry in every later leader, committed entries never change, nothing committed that is
not durable on a quorum, nothing promised or applied that is not durable.
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

MEMBERS = st.integers(1, 5)


def machine_for(cluster_class: Any) -> type[RuleBasedStateMachine]:
    class Schedule(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.published = 0

        @initialize(voters=st.sampled_from([1, 3, 5]), seed=st.integers(0, 1000), cut=st.booleans())
        def start(self, voters: int, seed: int, cut: bool) -> None:
            small = {"append_message_bytes_max": 200, "inflight_messages_max": 2} if cut else {}
            self.cluster = cluster_class(voters, seed=seed, heartbeat_ticks=3, **small)
            self.voters = voters

        def member(self, number: int) -> int:
            return (number - 1) % self.voters + 1

        @rule(number=MEMBERS)
        def flush(self, number: int) -> None:
            if self.member(number) not in self.cluster.down:
                self.cluster.flush(self.member(number), 1)

        @rule(position=st.integers(0, 30), count=st.integers(1, 8))
        def deliver(self, position: int, count: int) -> None:
            for _ in range(count):
                if self.cluster.network:
                    self.cluster.deliver_one(position % len(self.cluster.network))

        @rule(position=st.integers(0, 30))
        def drop(self, position: int) -> None:
            if self.cluster.network:
                self.cluster.network.pop(position % len(self.cluster.network))

        @rule(position=st.integers(0, 30))
        def duplicate(self, position: int) -> None:
            if self.cluster.network and len(self.cluster.network) < 100:
                self.cluster.network.append(self.cluster.network[position % len(self.cluster.network)])

        @rule(number=MEMBERS, ticks=st.integers(1, 25))
        def tick(self, number: int, ticks: int) -> None:
            self.cluster.tick(ticks, self.member(number))

        @rule(number=MEMBERS, count=st.integers(1, 3))
        def propose(self, number: int, count: int) -> None:
            member = self.member(number)
            if member in self.cluster.down:
                return
            texts = [f"{self.published + i}" for i in range(count)]
            self.published += count
            try:
                self.cluster.propose(*texts, at=member)
            except (NotLeader, Busy):
                return
            self.cluster.pump()

        @rule(number=MEMBERS)
        def crash(self, number: int) -> None:
            self.cluster.crash(self.member(number))

        @rule(number=MEMBERS)
        def restart(self, number: int) -> None:
            if self.member(number) in self.cluster.down:
                self.cluster.restart(self.member(number))

        @rule(number=MEMBERS)
        def campaign(self, number: int) -> None:
            member = self.member(number)
            if member not in self.cluster.down:
                node = self.cluster.node(member)
                node.forget_leader(node.leader_id)
                node.campaign()
                self.cluster.pump()

        @rule(number=MEMBERS, to=MEMBERS)
        def transfer(self, number: int, to: int) -> None:
            if self.member(number) not in self.cluster.down:
                self.cluster.node(self.member(number)).transfer_leadership(BrokerId(self.member(to)))
                self.cluster.pump()

        @rule(number=MEMBERS, to=MEMBERS)
        def lose_connection(self, number: int, to: int) -> None:
            self.cluster.node(self.member(number)).report_unreachable(BrokerId(self.member(to)))

        @rule(number=MEMBERS)
        def evict(self, number: int) -> None:
            node = self.cluster.node(self.member(number))
            node.log.evict(node.applied_index)

        def teardown(self) -> None:
            if hasattr(self, "cluster"):
                heal(self.cluster)

    return Schedule


def heal(cluster: Any) -> None:
    """Once nothing fails any more, the group elects a leader, commits, and all members end equal."""
    cluster.heal()
    for member in list(cluster.down):
        cluster.restart(member)
    for _ in range(60):
        cluster.tick(3)
        cluster.settle()
        leader = next((m.node for m in cluster.members.values() if m.node.is_leader), None)
        if leader is not None and leader.transferee == 0:
            for peer in leader.peers:
                leader.step(HeartbeatResponse(from_=peer, to=leader.id, term=leader.term))
            cluster.settle()
            if leader.is_leader and len({len(m.applied) for m in cluster.members.values()}) == 1:
                break
    cluster.propose("after")
    cluster.settle()
    logs = [[item.data for item in m.applied] for m in cluster.members.values()]
    assert logs[0][-1] == "after" and all(log == logs[0] for log in logs)


def test_safety_holds_under_any_schedule_and_the_group_recovers(cluster_class: Any) -> None:
    run_state_machine_as_test(
        machine_for(cluster_class),
        settings=settings(stateful_step_count=60, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("seed", first(6, range(40)))
def test_safety_holds_in_long_random_runs(cluster_class: Any, seed: int) -> None:
    rng = random.Random(seed)
    cluster = cluster_class(rng.choice([3, 3, 5]), seed=seed, heartbeat_ticks=3, append_message_bytes_max=300)
    members = list(cluster.members)
    for step in range(600):
        member = rng.choice(members)
        draw = rng.random()
        if draw < 0.5 and cluster.network:
            cluster.deliver_one(rng.randrange(min(4, len(cluster.network))))
        elif draw < 0.75:
            if member not in cluster.down:
                cluster.flush(member, 1)
        elif draw < 0.88:
            cluster.tick(rng.randrange(1, 4), member)
        elif draw < 0.94:
            if cluster.node(member).is_leader and member not in cluster.down and not cluster.node(member).transferee:
                cluster.propose(str(step), at=member)
                cluster.pump()
        elif draw < 0.96:
            if cluster.network:
                cluster.network.pop(rng.randrange(len(cluster.network)))
        elif draw < 0.98:
            if cluster.network:
                cluster.network.append(rng.choice(cluster.network))
        elif draw < 0.99:
            if member in cluster.down:
                cluster.restart(member)
            elif len(cluster.down) < len(members) // 2:
                cluster.crash(member)
        elif member not in cluster.down:
            cluster.node(member).log.evict(cluster.node(member).applied_index)
            cluster.node(member).transfer_leadership(rng.choice(members))
            cluster.pump()
    heal(cluster)


def test_the_random_runs_do_elect_and_commit(cluster_class: Any) -> None:
    """Without this, runs in which nothing ever happens would pass too."""
    cluster = cluster_class(3, seed=5, heartbeat_ticks=3)
    for _ in range(40):
        cluster.tick(1)
        cluster.settle()
    assert cluster.leaders and cluster.committed
