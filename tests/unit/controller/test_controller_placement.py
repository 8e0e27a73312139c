"""Replica assignment: few brokers, many groups, always spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import BrokerId
from region.controller.placement_core import ReplicaLoad

BROKERS = st.integers(1, 7).map(lambda count: [BrokerId(1001 + number) for number in range(count)])
FACTORS = st.lists(st.integers(1, 5), max_size=60)


def taken(load: ReplicaLoad, factor: int, brokers: list[BrokerId]) -> tuple[BrokerId, ...]:
    voters = load.choose(factor, brokers)
    load.take(voters)
    return voters


@given(brokers=BROKERS, factors=FACTORS)
def test_replicas_differ_by_at_most_one_between_brokers(brokers: list[BrokerId], factors: list[int]) -> None:
    load = ReplicaLoad()
    for factor in factors:
        voters = taken(load, factor, brokers)
        assert len(set(voters)) == len(voters) == min(factor, len(brokers))
    held = [load.held(broker) for broker in brokers]
    assert max(held) - min(held) <= 1


@given(brokers=BROKERS, factor=st.integers(1, 5), groups=st.integers(0, 60))
def test_leaderships_of_equal_groups_stay_within_two(brokers: list[BrokerId], factor: int, groups: int) -> None:
    load = ReplicaLoad()
    for _ in range(groups):
        taken(load, factor, brokers)
    led = [load.led(broker) for broker in brokers]
    assert max(led) - min(led) <= 2
    assert sum(led) == groups


@given(brokers=BROKERS, factors=FACTORS)
def test_the_same_wishes_get_the_same_voters(brokers: list[BrokerId], factors: list[int]) -> None:
    one, two = ReplicaLoad(), ReplicaLoad()
    backwards = brokers[::-1]
    assert [taken(one, factor, brokers) for factor in factors] == [taken(two, factor, backwards) for factor in factors]


@given(brokers=BROKERS, factors=FACTORS)
def test_released_voters_leave_no_load_behind(brokers: list[BrokerId], factors: list[int]) -> None:
    load = ReplicaLoad()
    for voters in [taken(load, factor, brokers) for factor in factors]:
        load.release(voters)
    assert {load.held(broker) for broker in brokers} == {0}
    assert {load.led(broker) for broker in brokers} == {0}


def test_three_replicas_on_three_brokers_lead_in_turn() -> None:
    load = ReplicaLoad()
    brokers = [BrokerId(1001), BrokerId(1002), BrokerId(1003)]
    assert [taken(load, 3, brokers)[0] for _ in range(6)] == [1001, 1002, 1003, 1001, 1002, 1003]
