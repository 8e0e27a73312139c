"""The policy simulation, thin: half an hour of a few clients in every scenario (make routes: a day of 600)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.routes.scenarios import scenarios
from tests.routes.world import HEADER, Outcome, World

GOLDEN = Path(__file__).parents[2] / "golden" / "routes" / "policy.txt"
HOURS = 0.5
CROWDS = {"region lost and back": 60, "under-sized region": 60}  # where few clients are no load that can be shared out
CLIENTS = 6
ROUTES_CHANGE = ("step of 30 ms", "slow drift")  # for good: one move is right
UNDER_PRESSURE = ("region lost and back", "gray region", "under-sized region", "all of it (the design's table)")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {
        scenario.name: World(scenario, clients=CROWDS.get(scenario.name, CLIENTS), seed=1).run(HOURS)
        for scenario in scenarios(HOURS)
    }


def test_policy_table_is_the_stored_one(outcomes: dict[str, Outcome], request: pytest.FixtureRequest) -> None:
    lines = [f"{'scenario':32} {HEADER}", *(f"{name:32} {outcome.row()}" for name, outcome in outcomes.items())]
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text("\n".join(lines) + "\n")
    assert lines == GOLDEN.read_text().splitlines()


def test_clients_are_within_three_milliseconds_of_the_nearest_region_and_hardly_move(
    outcomes: dict[str, Outcome],
) -> None:
    for name, outcome in outcomes.items():
        if name not in UNDER_PRESSURE:
            assert outcome.regret_ms <= 3.0, name
            wanted = 1 / HOURS if name in ROUTES_CHANGE else 0.0
            assert outcome.switches_per_client_hour <= wanted + 0.25, name


def test_clients_between_two_regions_never_move(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["equidistant pair"].switches_per_client_hour == 0


def test_no_region_is_over_its_capacity_for_more_than_a_minute_when_another_one_is_lost(
    outcomes: dict[str, Outcome],
) -> None:
    for name in CROWDS:
        assert outcomes[name].shed_most > 0
        assert outcomes[name].over_s <= 60, name
