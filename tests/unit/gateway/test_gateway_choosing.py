"""Choosing a region for one client: who is kept, who is left, and why; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.routing.choosing_core import (
    CONFIRMATIONS,
    DWELL_S,
    EVALUATE_EVERY_S,
    RAMP_S,
    Asked,
    Candidate,
    Choice,
    Memory,
    Obstacle,
    RegionState,
    choose,
    note_left,
)
from gateway.routing.distance_core import UNKNOWN, Estimate, Source
from mesh.distance.spread_core import SPREAD_S, hash_share

KEY = "client-1@10.0.0.1"


def region(name: str, rtt_ms: float, *, error_ms: float = 0.5, home_ms: float = 0.0, **state: object) -> Candidate:
    return Candidate(
        state=RegionState(name=name, **{"is_ready": True, **state}),  # type: ignore[arg-type]
        estimate=Estimate(rtt_ms, error_ms, Source.KERNEL),
        home_ms=home_ms,
    )


def ask(memory: Memory, *candidates: Candidate, now_s: float = 1000.0, **asked: object) -> Choice:
    return choose(Asked(key=KEY, now_s=now_s, **asked), candidates, memory)  # type: ignore[arg-type]


def settled(name: str, since_s: float = 0.0) -> Memory:
    return Memory(region=name, since_s=since_s, is_firm=True)


def shed_key(region_name: str, low: float, high: float) -> str:
    return next(f"c-{n}" for n in range(10_000) if low <= hash_share(f"c-{n}", region_name) < high)


def test_a_new_client_gets_the_nearest_region_that_can_be_used() -> None:
    assert ask(Memory(), region("us", 80), region("eu", 20), region("ap", 5, is_ready=False)).region == "eu"


def test_who_publishes_pays_the_way_to_the_home_as_well() -> None:
    near, home = region("us", 10, home_ms=75), region("eu", 40)
    assert ask(Memory(), near, home).region == "us"
    assert ask(Memory(), near, home, publishes=True).region == "eu"


@pytest.mark.parametrize(("held_ms", "other_ms", "moves"), [(20, 15, False), (20, 14, True), (200, 181, False)])
def test_a_client_moves_only_for_five_milliseconds_and_a_tenth(held_ms: float, other_ms: float, *, moves: bool) -> None:
    memory = settled("us")
    for turn in range(CONFIRMATIONS):
        choice = ask(memory, region("us", held_ms), region("eu", other_ms), now_s=1000 + turn * EVALUATE_EVERY_S)
    assert (choice.region == "eu") is moves


def test_what_may_be_wrong_by_much_has_to_be_better_by_more() -> None:
    memory = settled("us")
    for turn in range(CONFIRMATIONS):
        now_s = 1000 + turn * EVALUATE_EVERY_S
        choice = ask(memory, region("us", 60), region("eu", 30, error_ms=20), now_s=now_s)
    assert choice.region == "us"
    assert choice.margin_ms == 40


def test_a_move_takes_three_confirmations_that_are_thirty_seconds_apart() -> None:
    memory = settled("us")
    better = (region("us", 80), region("eu", 20))
    for now_s in (1000.0, 1001.0, 1002.0, 1031.0, 1059.0):
        assert ask(memory, *better, now_s=now_s).region == "us"
    choice = ask(memory, *better, now_s=1061.0)
    assert (choice.region, choice.moved_from, choice.must_move) == ("eu", "us", False)


def test_one_evaluation_without_the_gain_begins_the_count_anew() -> None:
    memory = settled("us")
    for now_s, far_ms in ((1000.0, 80), (1031.0, 80), (1062.0, 21), (1093.0, 80), (1124.0, 80)):
        choice = ask(memory, region("us", far_ms), region("eu", 20), now_s=now_s)
    assert (choice.region, choice.confirmations) == ("us", 2)


def test_who_has_just_moved_stays_for_the_dwell() -> None:
    memory = settled("us", since_s=1000.0)
    for turn in range(20):
        choice = ask(memory, region("us", 80), region("eu", 20), now_s=1000 + turn * EVALUATE_EVERY_S)
        assert (choice.region == "eu") is (turn * EVALUATE_EVERY_S >= DWELL_S)


def test_a_region_taken_on_a_guess_is_left_with_the_first_measurement() -> None:
    memory = Memory()
    guess = [
        replace(c, estimate=replace(c.estimate, source=Source.GATEWAY)) for c in (region("us", 1), region("eu", 75))
    ]
    assert ask(memory, *guess).region == "us"
    assert ask(memory, region("us", 90), region("eu", 20), now_s=1001.0).region == "eu"


def test_a_region_taken_before_the_way_to_another_was_known_is_left_as_soon_as_that_is_known() -> None:
    memory = Memory()
    unknown = replace(region("eu", 20), estimate=UNKNOWN)
    assert ask(memory, region("us", 80), unknown).region == "us"
    assert ask(memory, region("us", 80), region("eu", 20), now_s=1001.0).region == "eu"


def test_a_region_that_cannot_be_used_and_was_never_measured_makes_nobody_a_guesser() -> None:
    memory = Memory()
    down = Candidate(state=RegionState(name="ap", is_ready=False))
    assert ask(memory, region("us", 80), down).region == "us"
    assert ask(memory, region("us", 80), region("eu", 20), now_s=1001.0).region == "us"


@pytest.mark.parametrize("state", [{"is_ready": False}, {"is_ready": False, "is_refused": True}])
def test_a_region_that_is_lost_is_left_at_once(state: dict[str, bool]) -> None:
    choice = ask(settled("us", since_s=999.0), region("us", 10, **state), region("eu", 80), region("ap", 190))
    assert (choice.region, choice.must_move) == ("eu", True)


def test_clients_leave_a_draining_region_spread_over_a_minute_and_no_new_one_enters() -> None:
    draining = (region("us", 10, draining_since_s=1000.0), region("eu", 80))
    assert ask(Memory(), *draining, now_s=1000.0).region == "eu"
    leaving_s = hash_share(KEY, "us") * SPREAD_S
    assert ask(settled("us"), *draining, now_s=1000.0 + leaving_s - 0.1).region == "us"
    assert ask(settled("us"), *draining, now_s=1000.0 + leaving_s + 0.1).region == "eu"


def test_a_share_that_is_shed_is_the_same_clients_at_every_gateway() -> None:
    shed = (region("us", 10, shed=0.3), region("eu", 80))
    below, above = shed_key("us", 0.2, 0.3), shed_key("us", 0.36, 0.5)
    assert choose(Asked(key=below, now_s=0), shed, Memory()).region == "eu"
    assert choose(Asked(key=above, now_s=0), shed, Memory()).region == "us"
    assert choose(Asked(key=below, now_s=0, is_crowd=True), shed, Memory()).region == "us"


def test_who_was_shed_comes_back_only_when_the_share_is_clearly_below() -> None:
    key = shed_key("us", 0.30, 0.32)
    for shed, entered in ((0.28, False), (0.2, True)):
        candidates = (region("us", 10, shed=shed), region("eu", 80))
        assert (choose(Asked(key=key, now_s=0), candidates, Memory()).region == "us") is entered
        assert choose(Asked(key=key, now_s=0), candidates, settled("us")).region == "us"


def test_when_every_region_sheds_a_client_it_gets_the_nearest_one() -> None:
    assert ask(Memory(), region("us", 10, shed=0.95), region("eu", 80, shed=0.95)).region == "us"


def test_a_region_that_came_back_takes_its_clients_over_five_minutes() -> None:
    keys = [f"c-{n}" for n in range(400)]
    taken = {}
    for after_s in (0.0, RAMP_S / 2, RAMP_S):
        candidates = (region("us", 10, returned_s=1000.0), region("eu", 80))
        chosen = [choose(Asked(key=key, now_s=1000 + after_s), candidates, Memory()).region for key in keys]
        taken[after_s] = chosen.count("us") / len(keys)
    assert taken[0.0] < 0.12
    assert 0.4 < taken[RAMP_S / 2] < 0.6
    assert taken[RAMP_S] == 1.0


def test_who_did_not_leave_a_region_that_was_away_for_a_moment_is_not_sent_away_when_it_is_back() -> None:
    def left(**state: Any) -> float:
        candidates = (region("us", 10, returned_s=1000.0, **state), region("eu", 80))
        asked = [Asked(key=f"c-{n}", now_s=1001) for n in range(400)]
        return sum(choose(each, candidates, settled("us")).region != "us" for each in asked) / 400

    assert left() == 0.0
    assert 0.4 < left(shed=0.5) < 0.6  # what it wants elsewhere itself goes elsewhere


def test_who_says_that_it_left_a_region_that_was_away_comes_back_to_it_as_slowly_as_everybody() -> None:
    states = [region("us", 10, returned_s=1000.0).state, region("eu", 80).state]

    def back(after_s: float) -> float:
        told = [settled("us") for _ in range(400)]
        for memory in told:
            note_left(memory, "eu", states, 1000.0 + after_s)
        return sum(memory.region == "us" for memory in told) / 400

    assert (back(1), back(RAMP_S)) == (0.0, 1.0), "what it says counts while the region comes back"
    memory = settled("us")
    note_left(memory, "eu", states, 1001.0)
    near = (region("us", 10, returned_s=1000.0), region("eu", 80))
    chosen = [ask(memory, *near, now_s=1001.0 + second).region for second in range(0, 600, 30)]
    assert (chosen[0], chosen[9], chosen[-1]) == ("eu", "eu", "us")


@pytest.mark.parametrize("told", ["", "us", "mars"])
def test_who_says_nothing_of_another_region_has_left_none(told: str) -> None:
    memory = settled("us")
    note_left(memory, told, [region("us", 10, returned_s=1000.0).state, region("eu", 80).state], 1001.0)
    assert memory.region == "us"


def test_a_gateway_that_hears_less_than_half_takes_itself_for_the_one_that_is_cut_off() -> None:
    silent = (region("us", 90), region("eu", 10, is_ready=False), region("ap", 50, is_ready=False))
    choice = ask(Memory(), *silent)
    assert (choice.region, choice.is_degraded) == ("eu", True)
    refused = (region("us", 90), *(region(n, 10, is_ready=False, is_refused=True) for n in ("eu", "ap")))
    assert (ask(Memory(), *refused).region, ask(Memory(), *refused).is_degraded) == ("us", False)
    never_seen = (region("us", 90), *(region(n, 10, is_ready=False, was_seen=False) for n in ("eu", "ap")))
    assert ask(Memory(), *never_seen).region == "us"


def test_a_pin_counts_before_distance_until_its_region_is_lost() -> None:
    assert ask(settled("us"), region("us", 10), region("eu", 80), pin="eu").region == "eu"
    assert ask(settled("eu"), region("us", 10), region("eu", 80, is_ready=False), pin="eu").region == "us"


def test_while_switching_is_frozen_only_those_move_who_must() -> None:
    memory = settled("us")
    for turn in range(CONFIRMATIONS + 1):
        now_s = 1000 + turn * EVALUATE_EVERY_S
        assert ask(memory, region("us", 80), region("eu", 20), now_s=now_s, is_frozen=True).region == "us"
    assert ask(memory, region("us", 80, is_ready=False), region("eu", 20), is_frozen=True).region == "eu"


def test_load_that_was_not_heard_of_for_long_sheds_nobody_and_costs_ten_milliseconds() -> None:
    key = shed_key("us", 0.0, 0.2)
    stale = (region("us", 10, shed=0.9, heard_s=980.0), region("eu", 80))
    choice = choose(Asked(key=key, now_s=1000.0), stale, Memory())
    assert (choice.region, choice.ranked[0].cost_ms) == ("us", 20)


def test_a_verdict_says_what_stands_against_a_region() -> None:
    choice = ask(Memory(), region("us", 10, is_ready=False, draining_since_s=0.0), region("eu", 80))
    assert choice.ranked[1].obstacles == (Obstacle.DRAINING, Obstacle.SILENT)
    assert ask(settled("us"), region("us", 10, is_ready=False), region("eu", 80)).reason == "us does not answer"
