"""Requests to a running test bed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mesh.testbed.control_core import BedControl
from mesh.testbed.path_core import Path
from mesh.testbed.plan_core import BedPlan, parse_wan
from mesh.testbed.router import paths_of

US, EU, AP = 1, 2, 3


@pytest.fixture
def bed() -> tuple[BedControl, dict[tuple[int, int], Path]]:
    plan = BedPlan(name="dev", slot=0, spec=parse_wan("us-eu=70ms,us-ap=150ms,eu-ap=120ms"), token="t")
    paths = paths_of(plan, random.Random(1))
    return BedControl(plan, paths), paths


def ask(control: BedControl, **request: Any) -> dict[str, Any]:
    return control.answer(json.dumps(request).encode())


def cut_paths(paths: dict[tuple[int, int], Path]) -> set[tuple[int, int]]:
    return {pair for pair, path in paths.items() if path.settings.is_cut}


Bed = tuple[BedControl, dict[tuple[int, int], Path]]


def test_a_cut_takes_both_directions_of_a_pair_and_no_other(bed: Bed) -> None:
    control, paths = bed
    assert ask(control, op="cut", to="eu", one_way=False, **{"from": "us"}) == {"ok": True}
    assert cut_paths(paths) == {(US, EU), (EU, US)}


def test_a_one_way_cut_takes_one_direction(bed: Bed) -> None:
    control, paths = bed
    ask(control, op="cut", to="eu", one_way=True, **{"from": "us"})
    assert cut_paths(paths) == {(US, EU)}


def test_a_region_is_cut_from_all_others(bed: Bed) -> None:
    control, paths = bed
    ask(control, op="cut", to="", one_way=False, **{"from": "eu"})
    assert cut_paths(paths) == {(EU, US), (US, EU), (EU, AP), (AP, EU)}


def test_a_region_that_is_cut_one_way_still_hears(bed: Bed) -> None:
    control, paths = bed
    ask(control, op="cut", to="", one_way=True, **{"from": "eu"})
    assert cut_paths(paths) == {(EU, US), (EU, AP)}


def test_healing_brings_back_what_the_bed_was_started_with(bed: Bed) -> None:
    control, paths = bed
    before = {pair: path.settings for pair, path in paths.items()}
    ask(control, op="cut", to="", one_way=False, **{"from": "us"})
    ask(control, op="set", to="ap", one_way=False, loss_ppm=1_000, delay_us=5, **{"from": "us"})
    ask(control, op="heal", to="", **{"from": ""})
    assert {pair: path.settings for pair, path in paths.items()} == before


def test_healing_one_pair_leaves_the_others(bed: Bed) -> None:
    control, paths = bed
    ask(control, op="cut", to="", one_way=False, **{"from": "us"})
    ask(control, op="heal", to="us", **{"from": "eu"})
    assert cut_paths(paths) == {(US, AP), (AP, US)}


def test_a_change_leaves_what_it_does_not_name(bed: Bed) -> None:
    control, paths = bed
    ask(control, op="set", to="eu", one_way=True, rate_bits_s=50_000_000, **{"from": "us"})
    settings = paths[US, EU].settings
    assert (settings.rate_bits_s, settings.delay_us) == (50_000_000, 35_000)
    assert paths[EU, US].settings.rate_bits_s == 0


def test_a_source_with_one_lossy_path_sends_single_packets(bed: Bed) -> None:
    control, _ = bed
    ask(control, op="set", to="eu", one_way=True, loss_ppm=1, **{"from": "us"})
    assert [control.source_needs_single_packets(index) for index in (US, EU, AP)] == [True, False, False]


def test_stat_has_a_row_for_every_direction(bed: Bed) -> None:
    control, paths = bed
    paths[US, EU].admit(0, 100)
    rows = {(row["from"], row["to"]): row for row in ask(control, op="stat")["paths"]}
    assert len(rows) == 6
    assert (rows["us", "eu"]["packets"], rows["us", "eu"]["bytes"], rows["us", "eu"]["delay_us"]) == (1, 100, 35_000)


def test_stop_is_noted(bed: Bed) -> None:
    control, _ = bed
    ask(control, op="stop")
    assert control.is_stopped


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": "dance"},
        {"op": "cut", "from": "us", "to": "xx", "one_way": False},
        {"op": "cut", "from": "us", "to": "us", "one_way": False},
        {"op": "cut", "from": "", "to": "us", "one_way": False},
        {"op": "cut", "from": "us", "to": "eu"},
        {"op": "set", "from": "us", "to": "eu", "one_way": False, "loss_ppm": 1_000_001},
        {"op": "set", "from": "us", "to": "eu", "one_way": False, "delay_us": -1},
        {"op": "set", "from": "us", "to": "eu", "one_way": False, "surprise": 1},
        {"op": "stat", "more": True},
    ],
)
def test_a_request_that_is_refused_says_why_and_changes_nothing(bed: Bed, request_: dict[str, Any]) -> None:
    control, paths = bed
    before = {pair: path.settings for pair, path in paths.items()}
    answer = ask(control, **request_)
    assert list(answer) == ["error"] and answer["error"]
    assert {pair: path.settings for pair, path in paths.items()} == before
