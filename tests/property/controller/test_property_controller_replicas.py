"""Whatever order brokers, disks, plans, leaders and late reports come in: no replica is counted that lost its log.

The world's own checks, after every command: nobody wanted is there with an older replica; the controller never knows
less than the real membership; nobody is told to delete a replica that counts; a plan never lowers the live replicas;
absent brokers are never made a majority.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from region.controller.brokers import BrokerState
from region.controller.state_core import ControllerState
from tests.tiers import first

WEIGHTS = {
    **dict.fromkeys(
        (
            *("define", "drop", "add", "drain", "remove", "absent", "present"),
            *("lose_disk", "lose_replica", "reassign", "elect"),
        ),
        1,
    ),
    **dict.fromkeys(("plan", "report", "deliver"), 3),
    "keep": 4,
}
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40), st.integers(0, 12)), max_size=120)
Operations = dict[str, Callable[[Any, int, int], Any]]
RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(suppress_health_check=RELAXED)
@given(founders=st.integers(1, 4), steps=STEPS)
def test_no_interleaving_counts_a_replica_that_lost_its_disk(
    make_world: Any, operations: Operations, founders: int, steps: list[tuple[str, int, int]]
) -> None:
    world = make_world(founders)
    for name, a, b in steps:
        operations[name](world, a, b)


@pytest.mark.parametrize("seed", first(15, range(120)))
def test_no_long_history_counts_a_replica_that_lost_its_disk(
    make_world: Any, operations: Operations, seed: int
) -> None:
    rng = random.Random(seed)
    world = make_world(rng.randint(2, 4))
    world.define(rng.randint(1, 2), rng.randint(2, 3))
    names = [name for name in NAMES if name not in ("define", "drop")]
    names += ["lose_disk", "lose_replica", "add", "reassign", "deliver"]
    for _ in range(250):
        operations[rng.choice(names)](world, rng.randrange(1 << 10), rng.randrange(40))
    world.heal()


@settings(suppress_health_check=RELAXED)
@given(founders=st.integers(1, 4), steps=STEPS)
def test_planning_ends_with_replicas_spread_within_one(
    make_world: Any, operations: Operations, founders: int, steps: list[tuple[str, int, int]]
) -> None:
    world = make_world(founders)
    for name, a, b in steps:
        if name != "reassign":  # what an operator pinned is not evened out
            operations[name](world, a, b)
    world.heal()
    state: ControllerState = world.state
    active = [broker for broker, record in state.records.items() if record.takes_replicas]
    held = [state.load.held(broker) for broker in active]
    assert max(held, default=0) - min(held, default=0) <= 1  # a broker alone that was lost and removed leaves nobody
    for group in state.assignments():
        topic = state.topic_by_id(group.key.topic_id)
        assert topic is not None
        assert len(group.target) == min(topic.replication_factor, state.strength) or not group.target
        assert set(group.target) <= set(active)
    # Who drains while everybody else lost its disk goes on voting in the controller's group, whose wish is empty then.
    everyone = [*state.assignments(), *([] if state.control is None else [state.control])]
    assert not any(record.state is BrokerState.DRAINING for record in state.records.values()) or not all(
        group.target for group in everyone
    )


def test_who_drains_while_the_other_voter_lost_its_disk_goes_on_voting(make_world: Any, operations: Operations) -> None:
    world = make_world(2)
    operations["drain"](world, 0, 0)
    operations["lose_disk"](world, 1, 0)
    world.heal()
    assert [record.state for record in world.state.records.values()] == [BrokerState.DRAINING, BrokerState.ACTIVE]
    assert world.state.control.voters == (1001, 1002) and world.state.control.target == ()


@settings(suppress_health_check=RELAXED)
@given(founders=st.integers(1, 4), steps=STEPS, where=st.integers(0, 120))
def test_a_state_restored_anywhere_goes_on_as_the_one_it_was_made_of(
    make_world: Any, operations: Operations, founders: int, steps: list[tuple[str, int, int]], where: int
) -> None:
    world = make_world(founders)
    for place, (name, a, b) in enumerate(steps):
        if place == where:
            world.twin = ControllerState.from_snapshot(world.state.to_snapshot())
        operations[name](world, a, b)  # compares effects and outcomes with the twin's
    if world.twin is not None:
        assert world.twin.to_snapshot() == world.state.to_snapshot()
    assert ControllerState.from_snapshot(world.state.to_snapshot()).to_snapshot() == world.state.to_snapshot()
