"""Which replicas move next: needs before balance, little by little, and never more than necessary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex
from region.controller.absence_core import AbsenceWatch
from region.controller.commands import (
    AddBroker,
    Command,
    DefineTopic,
    DrainBroker,
    FormRegion,
    MarkAbsent,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    ReplaceDisk,
    ReplicasChanged,
)
from region.controller.planning_core import Move, plan_moves
from region.controller.state_core import Assignment, ControllerState

Make = Callable[..., Any]
B1, B2, B3, B4, B5 = (BrokerId(1000 + number) for number in range(1, 6))


class Region:
    """Applies commands; `settle` lets planned moves happen."""

    def __init__(self, topology: Make, registration: Make, brokers: int) -> None:
        self.state = ControllerState()
        self.registration = registration
        self(FormRegion(topology=topology(1, brokers=brokers)))
        self(RaiseFeatureLevel(level=2))
        for number in range(1, brokers + 1):
            self.register(BrokerId(1000 + number))

    def __call__(self, command: Command) -> None:
        self.state.apply(command, RaftIndex(self.state.applied_index + 1))

    def register(self, broker: BrokerId, disk: str = "disk") -> None:
        said = replace(self.registration(broker, disk=disk), feature_level_max=2)
        self(RegisterBroker(registration=said))

    def grow(self, *brokers: BrokerId) -> None:
        for broker in brokers:
            self(AddBroker(broker=broker))
            self.register(broker)

    def begin(self, moves: list[Move]) -> None:
        for move in moves:
            self(Reassign(group_id=move.group_id, target=move.target, generation=move.generation, pinned=move.pinned))

    def arrive(self) -> None:
        for group in list(self.state.assignments()):
            if not group.is_settled and group.target:
                self(
                    ReplicasChanged(
                        group_id=group.group_id, voters=group.target, learners=(), generation=group.generation
                    )
                )

    def settle(self, in_flight_max: int = 4) -> list[list[Move]]:
        rounds = []
        while moves := plan_moves(self.state, in_flight_max):
            rounds.append(moves)
            self.begin(moves)
            self.arrive()
            assert len(rounds) < 500
        return rounds

    def groups(self) -> list[Assignment]:
        return list(self.state.assignments())

    def held(self) -> dict[BrokerId, int]:
        return {broker: self.state.load.held(broker) for broker in self.state.brokers}


@pytest.fixture
def make_region(topology: Make, registration: Make, definition: Make) -> Callable[..., Region]:
    def make(brokers: int, *, partitions: int = 6, factor: int = 3) -> Region:
        region = Region(topology, registration, brokers)
        region(DefineTopic(definition=definition(partitions=partitions, replication_factor=factor)))
        return region

    return make


def test_region_that_is_as_it_shall_be_moves_nothing(make_region: Any) -> None:
    assert plan_moves(make_region(3).state, 4) == []


def test_region_that_grows_from_one_to_three_to_five_brokers_spreads_replicas_and_leaders(make_region: Any) -> None:
    region = make_region(1, partitions=10)
    assert {group.target for group in region.groups()} == {(B1,)}
    region.grow(B2, B3)
    region.settle()
    assert {frozenset(group.voters) for group in region.groups()} == {frozenset({B1, B2, B3})}
    led = [region.state.load.led(broker) for broker in (B1, B2, B3)]
    assert max(led) - min(led) <= 1
    region.grow(B4, B5)
    region.settle()
    assert region.held() == dict.fromkeys((B1, B2, B3, B4, B5), 6)


def test_region_shrinks_again_and_keeps_as_many_replicas_as_it_can(make_region: Any) -> None:
    region = make_region(5, partitions=10)
    for broker in (B5, B4):
        region(DrainBroker(broker=broker))
    region.settle()
    assert {frozenset(group.voters) for group in region.groups()} == {frozenset({B1, B2, B3})}
    region(DrainBroker(broker=B3))
    region.settle()
    assert {frozenset(group.voters) for group in region.groups()} == {frozenset({B1, B2})}


def test_moves_begin_a_few_at_a_time_and_the_next_when_one_has_arrived(make_region: Any) -> None:
    region = make_region(1, partitions=10)
    region.grow(B2, B3)
    first = plan_moves(region.state, 3)
    assert len(first) == 3
    region.begin(first)
    assert plan_moves(region.state, 3) == []
    region(
        ReplicasChanged(
            group_id=first[0].group_id,
            voters=first[0].target,
            learners=(),
            generation=region.state.group(first[0].group_id).generation,
        )
    )
    assert len(plan_moves(region.state, 3)) == 1


def test_group_that_cannot_commit_keeps_nobody_else_from_moving(make_region: Any) -> None:
    region = make_region(1, partitions=6)
    region.grow(B2)
    stuck = plan_moves(region.state, 2)
    region.begin(stuck)
    assert plan_moves(region.state, 2) == []
    dead = plan_moves(region.state, 2, is_alive=lambda broker: broker != B1)
    assert dead == []  # every group has its only voter there
    region.grow(B3)
    assert plan_moves(region.state, 2, is_alive=lambda broker: broker != B1) == []


def test_growth_moves_no_replica_that_can_stay(make_region: Any) -> None:
    region = make_region(3, partitions=8)
    before = {group.group_id: set(group.target) for group in region.groups()}
    region.grow(B4)
    moved = sum(len(set(group.target) - before[group.group_id]) for group in (region.settle(), region.groups())[1])
    assert moved == 6  # 24 replicas on 4 brokers: exactly what the new one has to get


def test_absent_broker_is_replaced_when_another_one_is_there(make_region: Any) -> None:
    region = make_region(4, partitions=4)
    region(MarkAbsent(broker=B2))
    region.settle()
    assert all(len(group.voters) == 3 and B2 not in group.voters for group in region.groups())


def test_absence_never_makes_a_group_smaller(make_region: Any) -> None:
    region = make_region(3)
    region(MarkAbsent(broker=B2))
    assert plan_moves(region.state, 4) == []


def test_broker_that_leaves_stays_while_it_is_needed_for_an_absent_one(make_region: Any) -> None:
    region = make_region(3)
    region(MarkAbsent(broker=B3))
    region(DrainBroker(broker=B2))
    region.settle()
    assert {frozenset(group.voters) for group in region.groups()} == {frozenset({B1, B2})}


def test_new_disk_gets_its_replicas_back_after_every_group_has_removed_it(make_region: Any) -> None:
    region = make_region(3, partitions=4)
    new = replace(region.registration(1003, disk="new"), feature_level_max=2)
    region(ReplaceDisk(registration=new, replaces="disk-1003"))
    assert plan_moves(region.state, 4) == []
    region.arrive()
    region.settle()
    assert all(set(group.voters) == {B1, B2, B3} for group in region.groups())


def test_groups_with_the_fewest_replicas_come_first(make_region: Any) -> None:
    region = make_region(1, partitions=2)
    region.grow(B2)
    region.begin(plan_moves(region.state, 1))
    region.arrive()
    region.grow(B3)
    assert [len(group.voters) for group in region.groups()] == [2, 1]
    assert [move.group_id for move in plan_moves(region.state, 1)] == [GroupId(2)]


def test_what_an_operator_pinned_is_not_evened_out_but_still_repaired(make_region: Any) -> None:
    region = make_region(4, partitions=4, factor=2)
    for group in region.groups():
        region(Reassign(group_id=group.group_id, target=(B1, B2), generation=group.generation, pinned=2))
    region.arrive()
    assert plan_moves(region.state, 4) == []
    region(DrainBroker(broker=B2))
    region.settle()
    for group in region.groups():
        assert B1 in group.voters and B2 not in group.voters and group.pinned == 2


def test_leaders_are_spread_without_moving_a_replica(make_region: Any) -> None:
    region = make_region(3, partitions=6)
    for group in region.groups():
        region(Reassign(group_id=group.group_id, target=(B1, B2, B3), generation=group.generation))
    assert region.state.load.led(B1) == 6
    rounds = region.settle()
    assert all(len(set(move.target)) == 3 for moves in rounds for move in moves)
    assert [region.state.load.led(broker) for broker in (B1, B2, B3)] == [2, 2, 2]


def test_absence_is_counted_by_the_leaders_own_clock_and_forgotten_with_its_leadership() -> None:
    watch = AbsenceWatch(30.0)
    watch.look(100.0, {B1: True, B2: False})
    assert not watch.is_absent(B2, 129.9) and watch.is_absent(B2, 130.0)
    watch.look(120.0, {B1: True, B2: True})
    watch.look(121.0, {B1: True, B2: False})
    assert not watch.is_absent(B2, 150.0) and watch.is_absent(B2, 151.0)
    watch.forget()
    assert not watch.is_absent(B2, 999.0)


def test_absence_can_be_switched_off() -> None:
    watch = AbsenceWatch(0)
    watch.look(0.0, {B1: False})
    assert not watch.is_absent(B1, 1e9)
