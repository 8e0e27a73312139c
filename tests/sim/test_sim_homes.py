"""A few worlds of homes that move in every test run; `make sim WORLD=homes` plays as many as one has time for."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.tiers import first

DRILLED = (2, 1, 4, 5, 8)  # 2 takes the least time; in 4 homes move by themselves


@functools.cache  # a world takes seconds: what one test played the other plays again, but once
def played(seed: int) -> Any:
    from tests.sim.runs import play

    return play("homes", seed)


@pytest.mark.parametrize("seed", first(1, DRILLED))
def test_homes_that_move_keep_every_promise(seed: int) -> None:
    outcome = played(seed)
    assert not outcome.rule, f"make sim WORLD=homes SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    assert outcome.marks["home.moved"] > 0
    assert outcome.marks["homes.acknowledged"] + outcome.marks["homes.geo_acknowledged"] > 100


@pytest.mark.parametrize("seed", first(0, [4, 2]))
def test_a_home_region_that_loses_its_majority_keeps_every_promise(seed: int) -> None:
    from tests.sim.mesh_world import MeshSettings
    from tests.sim.runs import play

    outcome = play("homes", seed, MeshSettings(brokers=3))
    assert not outcome.rule, f"homes of 3 brokers, seed {seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    assert outcome.marks["homes.majority_lost"] > 0 and outcome.marks["home.moved"] > 0


@pytest.mark.slow
def test_the_same_seed_moves_the_same_homes() -> None:
    from tests.sim.runs import play

    first, second = played(DRILLED[0]), play("homes", DRILLED[0])
    assert (first.events, first.virtual_ns, first.marks) == (second.events, second.virtual_ns, second.marks)
