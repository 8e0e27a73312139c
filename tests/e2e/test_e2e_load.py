"""A campaign from its file to its verdict: mesh, Locust with workers, a killed broker, histories that agree with it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from georelay.cli.application import PLUGIN_GROUP, run

CAMPAIGN = """\
about = "Four seconds, and the only broker of a mirror is killed."
[topology]
kind = "up"
regions = ["us", "eu"]
[[topics]]
name = "orders"
partitions = 2
home = "us"
[[stages]]
for = "4s"
users = 4
rate = 50
[[users]]
kind = "kafka"
topics = ["orders"]
[[readers]]
topics = ["orders"]
[[faults]]
at = "1s"
do = "kill"
what = "eu-1"
for = "1s"
[generator]
cpu_share_max = 1
lag_p99_ms_max = 60000
"""


def georelay(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-P", "-m", "georelay.cli", "load", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_a_campaign_is_run_broken_and_judged_record_by_record(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text(CAMPAIGN)
    done = georelay("run", str(file), "--workers", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASS")
    (folder,) = (tmp_path / "out").iterdir()
    verdict = json.loads((folder / "verdict.json").read_text())
    assert [line["what"] for line in verdict["lines"]] == ["every reader has", "history", "Locust and histories"]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(event["what"], event["of"]) for event in events] == [("kill", "eu-1"), ("healed", "eu-1")]
    workers = {path.stem for path in folder.glob("seconds-*.jsonl")}
    assert workers == {"seconds-us", "seconds-eu"}
    assert "<svg" in (folder / "result.html").read_text()
    again = georelay("report", str(folder))
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "PASS")


def test_a_mesh_that_is_not_there_is_one_line_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere.toml"
    unbroken = CAMPAIGN.partition("[[faults]]")[0]
    file.write_text(unbroken.replace('kind = "up"', f'kind = "endpoints"\nendpoints = "{tmp_path}/none.json"'))
    plugins = importlib.metadata.entry_points(group=PLUGIN_GROUP)
    assert run(["load", "run", str(file), "--out", str(tmp_path / "out")], plugins) == 3  # in this process
    assert capsys.readouterr().err.splitlines() == [
        f"georelay: {tmp_path}/none.json: no mesh there; `georelay up --endpoints FILE` writes it"
    ]
