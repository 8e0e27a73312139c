"""A region of brokers with disks and groups with real memberships, moved by leaders whose view may be old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex, RegionNumber, broker_id
from region.controller import commands
from region.controller.brokers import BrokerState
from region.controller.commands import (
    AddBroker,
    Command,
    DefineTopic,
    DrainBroker,
    DropTopic,
    FormRegion,
    MarkAbsent,
    MarkPresent,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    RemoveBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
)
from region.controller.planning_core import plan_moves
from region.controller.registration import BrokerRegistration
from region.controller.state_core import Assignment, ControllerState, Done, Effect, GroupReleased, Refused
from region.controller.topic import Homes, Tombstone, TopicDefinition
from region.controller.topology import RegionInfo, Topology

US = RegionNumber(1)
BROKERS = tuple(broker_id(US, number) for number in range(1, 7))
LIVE = (BrokerState.ACTIVE, BrokerState.DRAINING)
INDEX_STEP = 10  # entries from one membership of a group to the next
Life = tuple[int, int]  # of a replica: of its broker's disk, and how often it was made anew on that


def registration_of(broker: BrokerId, life: int) -> BrokerRegistration:
    return BrokerRegistration(
        broker=broker,
        disk_uuid=f"disk-{broker}-{life}",
        kafka_host="127.0.0.1",
        kafka_port=9092,
        grpc="127.0.0.1:1",
        link="127.0.0.1:2",
        admin="127.0.0.1:3",
        peers=f"127.0.0.1:{broker}",
        feature_level_max=2,
    )


@dataclass
class RealGroup:
    """What the replicated log of one group says, and since when its leader's view is up to date (the barrier)."""

    voters: dict[BrokerId, Life]  # broker -> life of the replica that was added
    learners: dict[BrokerId, Life] = field(default_factory=dict)
    view_floor: int = 0
    index: int = 0  # of the newest membership

    def members(self) -> dict[BrokerId, Life]:
        return self.voters | self.learners


class World:
    """One region; every command goes through bytes, and through a twin that was restored from a snapshot."""

    def __init__(self, founders: int) -> None:
        self.state = ControllerState()
        self.twin: ControllerState | None = None
        self.lives = dict.fromkeys(BROKERS, 1)
        self.real: dict[GroupId, RealGroup] = {}
        self.views: list[dict[GroupId, Assignment]] = [{}]  # by applied index
        self.disks: list[dict[BrokerId, int]] = [{}]  # life of each broker as registered at that index
        self.losses: dict[tuple[GroupId, BrokerId], list[int]] = {}  # at which indexes a replica was given up
        self.reports: list[ReplicasChanged] = []
        self.topics = 0
        own = BROKERS[:founders]
        topology = Topology(
            mesh_id="m",
            region=US,
            definitions_home=US,
            regions=(RegionInfo(number=US, name="us", brokers=own),),
        )
        self.do(FormRegion(topology=topology))
        self.do(RaiseFeatureLevel(level=2))
        for broker in own:
            self.do(RegisterBroker(registration=registration_of(broker, 1)))

    # --- commands -------------------------------------------------------------------------------

    def do(self, command: Command) -> Done | Refused:
        decoded = commands.decode(commands.encode(command))
        index = RaftIndex(self.state.applied_index + 1)
        before = {group.group_id: group for group in self.all_groups()}
        effects = self.state.apply(decoded, index)
        if self.twin is not None:
            assert self.twin.apply(decoded, index) == effects
            assert self.twin.outcome(index) == self.state.outcome(index)
        self.views.append({group.group_id: group for group in self.all_groups()})
        self.disks.append({broker: self.state.generation_of(broker) for broker in self.state.records})
        self.follow(effects)
        self.check(before)
        outcome = self.state.outcome(index)
        assert outcome is not None
        return outcome

    def all_groups(self) -> list[Assignment]:
        return [*self.state.assignments(), *([self.state.control] if self.state.control else [])]

    def follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GroupReleased):
                real = self.real[effect.group_id].members()
                for broker in effect.brokers:
                    assert broker not in real, f"{broker} of group {effect.group_id} would delete a replica that counts"
        present = {group.group_id: group for group in self.all_groups()}
        for group_id, group in present.items():
            if group_id not in self.real:
                voters = {broker: self.life_of(group_id, broker, self.state.applied_index) for broker in group.founders}
                self.real[group_id] = RealGroup(voters=voters, view_floor=self.state.applied_index)
        for group_id in [group_id for group_id in self.real if group_id not in present]:
            del self.real[group_id]

    def check(self, before: dict[GroupId, Assignment]) -> None:
        for group in self.all_groups():
            real = self.real[group.group_id].members()
            assert not group.unsafe & group.wanted
            assert set(real) <= group.members | group.wanted | group.unsafe, (group, real)
            for broker in group.wanted & set(real):
                life = self.life_of(group.group_id, broker, self.state.applied_index)
                assert real[broker] == life, f"{broker} is wanted with life {life} and is there with {real[broker]}"
            for broker in group.founders:
                if broker not in group.seed:
                    assert group.base_for(broker) == ()
            old = before.get(group.group_id)
            if old is not None and old.target != group.target and self.is_all_known(group):
                absent = [b for b in group.target if self.state.records[b].state is BrokerState.ABSENT]
                shrunk = set(group.target) <= set(old.target)  # a disk that is gone takes its replica along
                assert shrunk or 2 * len(absent) < len(group.target), (old, group)

    def life_of(self, group_id: GroupId, broker: BrokerId, index: int) -> Life:
        """Return which replica of a broker counted when the command at `index` was applied."""
        lost = sum(at <= index for at in self.losses.get((group_id, broker), ()))
        return self.disks[index].get(broker, 0), lost

    def is_all_known(self, group: Assignment) -> bool:
        return all(broker in self.state.records for broker in group.target)

    # --- what happens ---------------------------------------------------------------------------

    def define(self, partitions: int, factor: int) -> None:
        self.topics += 1
        self.do(
            DefineTopic(
                definition=TopicDefinition(
                    name=f"t{self.topics}",
                    topic_id=self.topics.to_bytes(16, "big"),
                    partitions=partitions,
                    replication_factor=factor,
                    homes=Homes.ONE,
                    home=US,
                    retention_ms=-1,
                    retention_bytes=-1,
                    config=(),
                    index=0,
                )
            )
        )

    def drop(self, number: int) -> None:
        if self.topics:
            topic_id = (1 + number % self.topics).to_bytes(16, "big")
            self.do(DropTopic(tombstone=Tombstone(name="t", topic_id=topic_id, index=0)))

    def add(self, broker: BrokerId) -> None:
        removed = broker in self.state.records and self.state.records[broker].state is BrokerState.REMOVED
        self.do(AddBroker(broker=broker))
        if removed:
            self.lives[broker] += 1
        self.do(RegisterBroker(registration=registration_of(broker, self.lives[broker])))

    def lose_disk(self, broker: BrokerId) -> None:
        if broker in self.state.brokers:
            replaces = self.state.brokers[broker].disk_uuid
            self.lives[broker] += 1
            command = ReplaceDisk(registration=registration_of(broker, self.lives[broker]), replaces=replaces)
            assert isinstance(self.do(command), Done)

    def lose_replica(self, number: int, place: int) -> None:
        """A broker reports a replica as lost, under the generation that it knows."""
        groups = list(self.state.assignments())
        if not groups:
            return
        group = groups[number % len(groups)]
        broker = BROKERS[place % len(BROKERS)]
        view = self.view_of(group.group_id, place % 3) or group
        index = self.state.applied_index + 1
        counts = broker in group.concerned - group.unsafe and view.generation == group.generation
        if counts and group.can_do_without(broker):
            self.losses.setdefault((group.group_id, broker), []).append(index)
        outcome = self.do(ReplicaLost(group_id=group.group_id, broker=broker, generation=view.generation))
        after = self.state.group(group.group_id)
        assert after is not None
        lost = broker in after.unsafe and broker not in group.unsafe
        assert lost == (index in self.losses.get((group.group_id, broker), ())), outcome
        assert not lost or (isinstance(outcome, Done) and set(group.voters) - after.unsafe)

    def reassign(self, number: int, target: Sequence[BrokerId], pinned: bool) -> None:
        groups = list(self.state.assignments())
        if groups:
            group = groups[number % len(groups)]
            self.do(
                Reassign(
                    group_id=group.group_id,
                    target=tuple(target),
                    generation=group.generation,
                    pinned=len(target) if pinned else 0,
                )
            )

    def plan(self, in_flight_max: int = 3) -> int:
        moves = plan_moves(self.state, in_flight_max)
        for move in moves:
            group = self.state.group(move.group_id)
            assert group is not None
            before = self.live(group.target)
            topic = self.state.topic_by_id(group.key.topic_id)
            assert topic is not None
            enough = min(group.pinned or topic.replication_factor, self.state.strength)
            assert self.live(move.target) >= min(before, enough), (group, move)
            self.do(
                Reassign(group_id=move.group_id, target=move.target, generation=move.generation, pinned=move.pinned)
            )
        return len(moves)

    def live(self, brokers: Sequence[BrokerId]) -> int:
        return sum(self.state.records[broker].state in LIVE for broker in brokers)

    # --- leaders of groups ----------------------------------------------------------------------

    def elect(self, number: int) -> None:
        """A new leader waits for the barrier: from now on it never acts on an older view than this."""
        self.real[self.pick(number)].view_floor = self.state.applied_index

    def pick(self, number: int) -> GroupId:
        ids = sorted(self.real)
        return ids[number % len(ids)]

    def keep(self, number: int, age: int) -> None:
        """One step of the leader's keeper, on the view it has: anything since its barrier."""
        group_id = self.pick(number)
        real = self.real[group_id]
        view = self.view_of(group_id, age)
        if view is None:
            return
        expelled = (set(view.unsafe) | (set(real.learners) - view.wanted)) & set(real.members())
        # A leader removes only what leaves a quorum of live replicas; the model keeps it from having none.
        if expelled and set(real.voters) - expelled:
            for broker in expelled:
                real.voters.pop(broker, None)
                real.learners.pop(broker, None)
            real.index += INDEX_STEP
            return
        missing = view.wanted - set(real.members())
        if missing:
            for broker in missing:  # with an old view it is the old replica that answers
                real.learners[broker] = self.life_of(group_id, broker, self.index_of_view(group_id, age))
            real.index += INDEX_STEP
            return
        if view.target and set(view.target) != set(real.voters):
            merged = real.members()
            real.voters = {broker: merged[broker] for broker in view.target}
            real.learners = {b: life for b, life in merged.items() if b in view.target_learners}
            real.index += INDEX_STEP

    def index_of_view(self, group_id: GroupId, age: int) -> int:
        return max(self.real[group_id].view_floor, self.state.applied_index - age)

    def view_of(self, group_id: GroupId, age: int) -> Assignment | None:
        return self.views[self.index_of_view(group_id, age)].get(group_id)

    def report(self, number: int, age: int) -> None:
        """Report what is true now under the generation of the view, to arrive whenever it does."""
        group_id = self.pick(number)
        view = self.view_of(group_id, age)
        if view is not None:
            real = self.real[group_id]
            # The view only ever moves on for one leader.
            real.view_floor = max(real.view_floor, self.state.applied_index - age)
            self.reports.append(
                ReplicasChanged(
                    group_id=group_id,
                    voters=tuple(sorted(real.voters)),
                    learners=tuple(sorted(real.learners)),
                    generation=view.generation,
                    index=real.index + age % INDEX_STEP,  # one that began with a manifest names that one's index
                )
            )

    def deliver(self, number: int) -> None:
        if self.reports:
            self.do(self.reports.pop(number % len(self.reports)))

    # --- the end --------------------------------------------------------------------------------

    def heal(self, rounds_max: int = 400) -> int:
        """Let everybody come back and everything settle; return the rounds that it took."""
        for broker, record in list(self.state.records.items()):
            if record.state is BrokerState.ABSENT:
                self.do(MarkPresent(broker=broker))
        self.reports.clear()
        for round_ in range(rounds_max):
            settled = all(group.is_settled or not group.target for group in self.all_groups())
            if self.plan() == 0 and settled:
                return round_
            for place in range(len(self.real)):
                self.elect(place)
                for _ in range(4):
                    self.keep(place, 0)
                self.report(place, 0)
            while self.reports:
                self.deliver(0)
        raise AssertionError([group for group in self.all_groups() if not group.is_settled])


OPERATIONS: dict[str, Callable[[World, int, int], Any]] = {
    "define": lambda world, a, b: world.define(1 + a % 4, 1 + b % 4),
    "drop": lambda world, a, b: world.drop(a),
    "add": lambda world, a, b: world.add(BROKERS[a % len(BROKERS)]),
    "drain": lambda world, a, b: world.do(DrainBroker(broker=BROKERS[a % len(BROKERS)])),
    "remove": lambda world, a, b: world.do(RemoveBroker(broker=BROKERS[a % len(BROKERS)])),
    "absent": lambda world, a, b: world.do(MarkAbsent(broker=BROKERS[a % len(BROKERS)])),
    "present": lambda world, a, b: world.do(MarkPresent(broker=BROKERS[a % len(BROKERS)])),
    "lose_disk": lambda world, a, b: world.lose_disk(BROKERS[a % len(BROKERS)]),
    "lose_replica": lambda world, a, b: world.lose_replica(a, b),
    "reassign": lambda world, a, b: world.reassign(a, BROKERS[b % 4 : b % 4 + 1 + a % 3], bool(b % 2)),
    "plan": lambda world, a, b: world.plan(1 + a % 5),
    "elect": lambda world, a, b: world.elect(a),
    "keep": lambda world, a, b: world.keep(a, b),
    "report": lambda world, a, b: world.report(a, b),
    "deliver": lambda world, a, b: world.deliver(a),
}


@pytest.fixture
def make_world() -> Callable[[int], World]:
    return World


@pytest.fixture
def operations() -> dict[str, Callable[[World, int, int], Any]]:
    return OPERATIONS
