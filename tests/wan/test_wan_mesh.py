"""`georelay up --wan`: a mesh whose regions are as far from each other as it was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.load.campaign_file import parse
from loadtest.load.locust_processes import RunOptions
from loadtest.load.results import Results
from loadtest.load.runner import run_campaign
from loadtest.load.verdict_core import EXIT_CODES, INVALID, PASS, totals_of
from loadtest.wan.wan_mesh import WanMesh
from mesh.testbed.bed_process import missing_here

ONE_WAY_MS = 35
SECONDS_MAX = 20.0


CAMPAIGN = """\
about = "Fifty records a second from one region into another."
[target]
published_share_min = 1.0
[topology]
kind = "wan"
pairs = "us-eu=70ms"
[[topics]]
name = "orders"
home = "us"
[[stages]]
for = "8s"
users = 1
rate = 50
[[users]]
kind = "kafka"
topics = ["orders"]
regions = ["us"]
arrival = "constant"
[[readers]]
topics = ["orders"]
"""


def need_a_bed() -> None:
    missing = missing_here()
    if missing:
        pytest.exit(f"make wan: this machine cannot run a test bed: {'; '.join(missing)}", returncode=1)
    if os.geteuid() != 0:
        pytest.exit(
            "make wan: clients of this test run on the host, which only root may connect to a bed", returncode=1
        )


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[WanMesh]:
    need_a_bed()
    running = WanMesh(tmp_path, brokers_per_region=1, pairs="us-eu=70ms")
    async with running:
        yield running


async def test_a_record_published_in_one_region_is_read_in_the_other_after_the_delay(tmp_path: Path) -> None:
    need_a_bed()
    campaign = parse(CAMPAIGN, name="delay", place="delay.toml")
    options = RunOptions(campaign_text=CAMPAIGN, out=tmp_path, workers_per_region=1)
    code = await run_campaign(campaign, options, print)
    assert code in (EXIT_CODES[PASS], EXIT_CODES[INVALID]), "lost, twice, out of order, or not read"
    (folder,) = tmp_path.iterdir()
    done = totals_of(Results(folder).seconds)
    here, there = done["deliver", "us->us"], done["deliver", "us->eu"]
    assert here.n == there.n > 0
    assert (there.min_ms or 0) >= ONE_WAY_MS
    assert there.quantile_ms(0.5) < ONE_WAY_MS + 60
    assert here.quantile_ms(0.5) < ONE_WAY_MS, "within a region nothing is delayed"


async def test_a_killed_mesh_leaves_no_process_and_no_device(mesh: WanMesh) -> None:
    pids = [*map(mesh.pid_of, ("us-1", "eu-1", "gateway")), mesh.record["pid"]]
    devices = {name for name in os.listdir("/sys/class/net") if name.startswith("georelay-wan")}
    assert devices
    os.kill(mesh.pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS_MAX
    while any(_runs(pid) for pid in pids) or devices & set(os.listdir("/sys/class/net")):
        assert time.monotonic() < deadline, "something is left"
        await asyncio.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
