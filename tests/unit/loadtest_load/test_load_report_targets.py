"""The report of the traces judges by the campaign's target, and its verdict is one of the campaign's lines."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from loadtest.load.campaign_file import load, shipped
from loadtest.load.report_targets_core import targets_of
from loadtest.load.verdict_core import judge_report

CAMPAIGNS = {path.stem: load(path) for path in shipped()}


def test_the_bound_of_a_campaign_is_the_limit_of_the_report() -> None:
    told = tomllib.loads(targets_of(CAMPAIGNS["smoke"]))
    assert told == {
        "schema_version": 1,
        "target": [
            {"name": "integrity", "kind": "integrity"},
            {"name": "latency", "kind": "latency", "objective": 0.99, "threshold_ms": 50},
        ],
    }


def test_each_pair_has_its_floor_on_top_in_the_report_too() -> None:
    rows = tomllib.loads(targets_of(CAMPAIGNS["wan"]))["target"][1:]
    assert {row["scope"][0]: row["threshold_ms"] for row in rows}["us -> ap"] == 95
    assert len({row["name"] for row in rows}) == len(rows) == 9


def test_without_a_bound_only_the_integrity_of_records_is_judged() -> None:
    smoke = CAMPAIGNS["smoke"]
    told = tomllib.loads(targets_of(replace(smoke, target=replace(smoke.target, deliver_p99_ms_max=None))))
    assert [row["kind"] for row in told["target"]] == ["integrity"]


def test_where_clocks_are_wrong_on_purpose_the_report_keeps_its_own_targets() -> None:
    assert targets_of(CAMPAIGNS["accounts-clocks"]) == ""


@pytest.mark.parametrize(("verdict", "is_kept"), [("PASS", True), ("INCONCLUSIVE", True), ("BREACH", False)])
def test_a_breach_in_the_report_is_one_of_the_campaign(verdict: str, is_kept: bool) -> None:
    line = judge_report(verdict, f"{verdict}: why")
    assert (line.is_kept, line.found, line.wanted) == (is_kept, f"{verdict}: why", "no BREACH")
