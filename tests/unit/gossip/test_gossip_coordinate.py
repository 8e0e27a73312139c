"""Vivaldi: one update by hand, what is refused, and that regions end up where their round trips say."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median

import pytest

from mesh.gossip.coordinate_core import (
    DIMENSIONS,
    HEIGHT_MIN_S,
    MEMBERS_MAX,
    Coordinate,
    CoordinateClient,
)
from mesh.gossip.faults import CoordinateFault

START = Coordinate.origin()
FAR = replace(START, vec=(0.1,) + (0.0,) * (DIMENSIONS - 1))


def test_the_distance_has_heights_and_adjustments_and_never_goes_below_zero() -> None:
    one, two = replace(START, height=0.01), replace(FAR, height=0.02)
    assert one.distance_s(two) == pytest.approx(0.13)
    assert replace(one, adjustment=0.01).distance_s(replace(two, adjustment=0.02)) == pytest.approx(0.16)
    assert replace(one, adjustment=-0.2).distance_s(two) == pytest.approx(0.13)


def test_one_update_is_the_paper_by_hand() -> None:
    client = CoordinateClient(rng=random.Random(1))
    moved = client.update("b", FAR, 0.05)
    distance = 0.1 + 2e-5
    wrong, weight = (distance - 0.05) / 0.05, 0.5
    assert moved.error == pytest.approx(min(1.5, 0.25 * weight * wrong + 1.5 * (1 - 0.25 * weight)))
    # Pulled towards the other by a quarter of half the difference; gravity is too weak to see here.
    assert moved.vec[0] == pytest.approx(0.25 * weight * (distance - 0.05), rel=1e-6)
    assert moved.vec[1:] == (0.0,) * (DIMENSIONS - 1)
    assert moved.height == HEIGHT_MIN_S
    left = math.dist(moved.vec, FAR.vec) + 2e-5
    assert moved.adjustment == pytest.approx((0.05 - left) / 40)


def test_a_single_slow_answer_moves_nothing_much() -> None:
    steady, disturbed = (CoordinateClient(rng=random.Random(1)) for _ in range(2))
    for number in range(30):
        steady.update("b", FAR, 0.1)
        disturbed.update("b", FAR, 5.0 if number == 20 else 0.1)
    assert disturbed.coordinate == steady.coordinate


@pytest.mark.parametrize("rtt_s", [-0.001, 10.001, math.nan, math.inf])
def test_a_round_trip_that_cannot_be_true_is_refused(rtt_s: float) -> None:
    client = CoordinateClient(rng=random.Random(1))
    with pytest.raises(CoordinateFault):
        client.update("b", FAR, rtt_s)
    assert client.coordinate == START


@pytest.mark.parametrize(
    "changes",
    [{"vec": (0.0,) * 7}, {"error": math.nan}, {"adjustment": math.inf}, {"height": -1.0}, {"vec": (1e300,) * 8}],
)
def test_a_coordinate_that_cannot_be_true_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CoordinateFault):
        CoordinateClient(rng=random.Random(1)).update("b", replace(FAR, **changes), 0.1)  # type: ignore[arg-type]


def test_members_at_one_point_part_in_a_random_direction_or_in_the_first() -> None:
    class Dull(random.Random):
        def random(self) -> float:
            return 0.5

    drawn = CoordinateClient(rng=random.Random(1)).update("b", START, 0.1)
    assert math.hypot(*drawn.vec) > 0.01
    dull = CoordinateClient(rng=Dull()).update("b", START, 0.1)
    assert dull.vec[0] > 0.01
    assert dull.vec[1:] == (0.0,) * (DIMENSIONS - 1)


def test_samples_are_kept_for_a_bounded_number_of_members() -> None:
    client = CoordinateClient(rng=random.Random(1))
    for number in range(MEMBERS_MAX + 10):
        client.update(f"m{number}", FAR, 0.1)
    assert len(client._samples) == MEMBERS_MAX
    client.forget(f"m{MEMBERS_MAX}")
    assert len(client._samples) == MEMBERS_MAX - 1


def test_regions_are_as_far_apart_as_their_round_trips_after_eighty_probes_each() -> None:
    rng = random.Random(5)
    matrix = {(0, 1): 0.070, (0, 2): 0.150, (1, 2): 0.120}
    clients = [CoordinateClient(rng=random.Random(number)) for number in range(9)]

    def rtt_s(a: int, b: int) -> float:
        pair = (min(a % 3, b % 3), max(a % 3, b % 3))
        return matrix.get(pair, 0.0006) * rng.uniform(1.0, 1.05)

    for _ in range(80):
        for a, client in enumerate(clients):
            b = rng.choice([number for number in range(9) if number != a])
            client.update(str(b), clients[b].coordinate, rtt_s(a, b))
    misses = [
        abs(clients[a].coordinate.distance_s(clients[b].coordinate) - rtt_s(a, b)) / rtt_s(a, b)
        for a in range(9)
        for b in range(a)
        if a % 3 != b % 3
    ]
    assert median(misses) < 0.12
    assert sum(client.resets for client in clients) == 0
