"""Chaos on real processes, in its shortest form: kind faults, and one whose loss must be found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_e2e_load import georelay

pytestmark = pytest.mark.slow

CAMPAIGN = """\
about = "Short."
[topology]
kind = "up"
regions = ["us"]
brokers_per_region = 3
[[topics]]
name = "orders"
partitions = 2
home = "us"
[[stages]]
for = "16s"
users = 30
rate = 300
[[users]]
kind = "kafka"
topics = ["orders"]
[[readers]]
kind = "aiokafka"
topics = ["orders"]
[generator]
cpu_share_max = 1
lag_p99_ms_max = 60000
"""
FAULT = '[[faults]]\nat = "{at}s"\ndo = "{do}"\nwhat = "{what}"\nfor = "1s"\n'


def run(tmp_path: Path, *faults: tuple[int, str, str], checks: str) -> dict[str, Any]:
    file = tmp_path / "short.toml"
    file.write_text(CAMPAIGN + "".join(FAULT.format(at=at, do=do, what=what) for at, do, what in faults) + checks)
    done = georelay("run", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return {line["what"]: line["found"] for line in verdict["lines"]}


def test_faults_break_no_promise(tmp_path: Path) -> None:
    kept = run(tmp_path, (2, "power-cut", "us"), (9, "peer-cut", "leader of orders"), checks="[checks]\nends = true\n")
    assert "acknowledged" in kept["history"]


def test_the_loss_of_a_disk_that_lies_is_found(tmp_path: Path) -> None:
    found = run(tmp_path, (2, "disk-lies", "us"), checks='[checks]\nfinds_loss = true\nsettle = "5s"\n')
    assert "LOST_WRITE" in found["history"] or "UNSEEN" in found["history"]
