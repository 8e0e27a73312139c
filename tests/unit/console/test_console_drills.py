"""The last drills on the first screen: the newest report of each kind, and why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.console.drills import LOOK_S, DrillReports
from gateway.console.drills_core import drill_row, newest
from gateway.console.overview_core import overview
from tests.unit.console.world import heard, mesh

OLD, NEW = "drill-region-loss-20261121T041227Z.json", "drill-region-loss-20261122T041227Z.json"
BROKER = "drill-broker-loss-20261120T000000Z.json"
SUMMARY = {
    "runs": 10,
    "rto_median_s": 4.18,
    "rto_worst_s": 6.01,
    "rpo_worst_s": 0.31,
    "geo_lost": 0,
    "region_orphaned": 60,
    "region_lost": 0,
    "broken": [],
    "verdict": "KEPT",
}


def report(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "mesh": "mesh-1", "where": "test bed us-eu=70ms", "summary": SUMMARY, "runs": []} | changes


def test_the_newest_of_each_kind_counts_whatever_else_lies_there() -> None:
    assert newest([OLD, "drill-region-loss-20261123.md", NEW, BROKER, "../drill", "notes.json"]) == [NEW, BROKER]


def test_a_report_is_shown_with_its_time_and_whether_it_was_this_mesh() -> None:
    row = drill_row(NEW, report(), mesh="mesh-1")
    assert row is not None
    assert (row["kind"], row["began_ms"], row["is_this_mesh"], row["kept"]) == (
        "region-loss",
        1795320747000,
        True,
        True,
    )
    assert (row["rto_median_s"], row["rto_worst_s"], row["region_orphaned"]) == (4.18, 6.01, 60)
    failed = report(
        mesh="other", summary=SUMMARY | {"verdict": "FAILED", "broken": ["run 1: lost"], "rto_worst_s": None}
    )
    row = drill_row(BROKER, failed, mesh="mesh-1")
    assert row is not None
    assert (row["is_this_mesh"], row["kept"], row["broken"], row["rto_worst_s"]) == (
        False,
        False,
        ["run 1: lost"],
        None,
    )


@pytest.mark.parametrize(
    "document", [{}, report(version=2), report(summary=None), report(summary=SUMMARY | {"rto_worst_s": "6 s"})]
)
def test_what_is_no_report_is_not_shown(document: dict[str, Any]) -> None:
    assert drill_row(NEW, document, mesh="mesh-1") is None


async def test_a_directory_is_looked_at_now_and_then_and_says_why_nothing_is_shown(tmp_path: Path) -> None:
    now = [0.0]
    assert "set drills_dir" in (await DrillReports(None, mesh="mesh-1").read())[1]
    assert "cannot be read: No such file" in (await DrillReports(tmp_path / "no", mesh="mesh-1").read())[1]
    reports = DrillReports(tmp_path, mesh="mesh-1", monotonic_s=lambda: now[0])
    assert "has no report" in (await reports.read())[1]
    (tmp_path / NEW).write_text(json.dumps(report()))
    (tmp_path / BROKER).write_text('{"version": 1, "summ')
    assert (await reports.read())[0] == []
    now[0] = LOOK_S
    rows, why = await reports.read()
    assert ([row["kind"] for row in rows], why) == (["region-loss"], "")


def test_the_overview_has_them() -> None:
    document = overview(mesh(us=heard("us")))
    assert document["drills"] == {"last": [], "why_none": ""}
