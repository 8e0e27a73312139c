"""The report of the traces judges by the campaign's target, and its verdict is one of the campaign's lines."""

from __future__ import annotations

import asyncio
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign_file import load, shipped
from loadtest.load.locust_processes import RunOptions
from loadtest.load.report_targets_core import targets_of
from loadtest.load.runner import run_campaign
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


def test_where_no_report_can_be_made_nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "FAIL  java       not found: install Java 17\nok    pyspark    4.3.0\n"
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 4, said, ""))
    options = RunOptions(campaign_text="", out=tmp_path / "out")
    with pytest.raises(CampaignFailed, match=r"cannot be made here: java not found: install Java 17$"):
        asyncio.run(run_campaign(CAMPAIGNS["smoke"], options, lambda _: None))
    assert not (tmp_path / "out").exists()
