"""The page of a run shows the verdict, what was judged, and every fault over the curves; names stay text."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.load.campaign_file import load
from loadtest.load.engine_values import Plan
from loadtest.load.page import page_of
from loadtest.load.results import Results
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import EXIT_CODES

CAMPAIGN = """\
about = "Ten seconds of <b>orders</b>."
[topology]
kind = "up"
regions = ["us", "eu"]
[[topics]]
name = "orders"
[[stages]]
for = "10s"
users = 1
rate = 10
[[users]]
kind = "kafka"
topics = ["orders"]
regions = ["us"]
[[readers]]
topics = ["orders"]
count = 2
[[readers]]
topics = ["orders"]
regions = ["eu"]
"""


def folder_of_a_run(folder: Path) -> Path:
    (folder / "histories").mkdir()
    (folder / "unit.toml").write_text(CAMPAIGN)
    (folder / "began.json").write_text(json.dumps({"wall_ns": 1_000_000_000_000}))
    samples = Samples()
    samples.add(7.0)
    done = [{"method": "deliver", "name": "us->eu", **samples.told()}]
    rows = [
        {"second": 1_000 + at, "role": role, "worker": "w", "done": done, "cpu_share": 0.9, "lag_p99_ms": 0.1}
        for at in range(1, 10)
        for role in ("publish", "read")
    ]
    (folder / "seconds-w.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [
        {"second": 1_002, "what": "disk-slow", "of": "us-1"},
        {"second": 1_003, "what": "kill", "of": "us-1"},
        {"second": 1_005, "what": "healed", "of": "us-1", "fault": "disk-slow"},
        {"second": 1_006, "what": "healed", "of": "us-1", "fault": "kill"},
        {"second": 1_008, "what": "stop", "of": "eu-1"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "cpu.jsonl").write_text(json.dumps({"second": 1_004, "cpu": {"us-1": 0.5}}) + "\n")
    return folder


def test_a_page_shows_verdict_curves_and_faults_and_opens_without_a_network(tmp_path: Path) -> None:
    results = Results(folder_of_a_run(tmp_path))
    judgement = results.judge()
    page = page_of(results, judgement)
    assert EXIT_CODES[judgement.verdict] == 2  # 90 % of a core
    for words in ("INVALID", "publish engine of w: 90% of a core", "kill us-1", "stop eu-1", "us-&gt;eu", "CPU, cores"):
        assert words in page, words
    assert "&lt;b&gt;orders&lt;/b&gt;" in page
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert 'src="http' not in page


def test_a_campaign_says_who_publishes_and_who_reads_where(tmp_path: Path) -> None:
    (tmp_path / "unit.toml").write_text(CAMPAIGN)
    plan = Plan(
        campaign=load(tmp_path / "unit.toml"),
        endpoints={"regions": {"us": {"kafka": ["a:1", "b:2"]}}},
        regions=("us", "eu"),
        folder=tmp_path,
        worker="w",
        settings={},
    )
    assert plan.bootstrap("us") == "a:1,b:2"
    assert [(row, region) for row, _, region in plan.rows()] == [(0, "us")]
    assert [name for name, *_ in plan.readers()] == [
        *("w-deliver0.0-us", "w-deliver0.1-us", "w-deliver0.0-eu", "w-deliver0.1-eu"),
        "w-deliver1.0-eu",
    ]
    assert [region for _, region, *_ in plan.complete_readers()] == ["us", "eu"]
