"""A few worlds in which leaders are killed under geo acknowledgements; `make sim WORLD=geo` plays more."""

from __future__ import annotations

import pytest

from tests.tiers import first


@pytest.mark.parametrize("seed", first(1, [6, 1, 2]))  # 6: half the time of 1, and settings raised behind four cuts
def test_killed_leaders_acknowledge_and_show_only_what_enough_regions_have(seed: int) -> None:
    from tests.sim.runs import play

    outcome = play("geo", seed)
    assert not outcome.rule, f"make sim WORLD=geo SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    assert outcome.marks["geo.reached_2"] + outcome.marks["geo.reached_3"] > 20
    assert outcome.marks["geo.home_leader_killed"] > 0
