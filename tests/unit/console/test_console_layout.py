"""Distances on the picture are the measured round trips."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.layout_core import Point, layout

RTTS = {("eu", "us"): 70.0, ("ap", "us"): 150.0, ("ap", "eu"): 120.0}


def far(places: dict[str, Point], one: str, other: str) -> float:
    return math.dist(places[one], places[other])


def test_three_regions_stand_as_far_apart_as_their_round_trips() -> None:
    places = layout(["us", "eu", "ap"], RTTS)
    assert {pair: far(places, *pair) for pair in RTTS} == pytest.approx(RTTS, rel=0.01)


def test_a_region_that_comes_moves_the_others_little() -> None:
    before = layout(["us", "eu", "ap"], RTTS)
    more = RTTS | {("sa", other): 130.0 for other in ("us", "eu", "ap")}
    after = layout(["us", "eu", "ap", "sa"], more, before)
    assert max(math.dist(before[name], after[name]) for name in before) < 70
    assert layout(["us", "eu", "ap"], RTTS, before) == {
        name: pytest.approx(place, abs=0.01) for name, place in before.items()
    }


def test_a_pair_that_nobody_measured_stands_at_the_usual_distance() -> None:
    places = layout(["us", "eu", "ap"], {("eu", "us"): 80.0, ("ap", "us"): 80.0})
    assert far(places, "eu", "ap") == pytest.approx(80.0, rel=0.02)


@given(st.lists(st.floats(0, 400), min_size=6, max_size=6))
def test_no_round_trips_make_a_region_vanish_or_two_one_point(rtts: list[float]) -> None:
    names = ["a", "b", "c", "d"]
    places = layout(names, dict(zip(combinations(names, 2), rtts, strict=True)))
    assert all(math.isfinite(axis) for place in places.values() for axis in place)
    assert len(set(places.values())) == 4


def test_one_region_stands_in_the_middle_and_none_is_no_picture() -> None:
    assert layout(["us"], {}) == {"us": (0.0, 0.0)}
    assert layout([], {}) == {}
