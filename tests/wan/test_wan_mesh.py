"""`georelay up --wan`: a mesh whose regions are as far from each other as it was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.quantile_core import quantile
from loadtest.wan.load import Stream, run_load
from loadtest.wan.tally_core import tally
from loadtest.wan.wan_mesh import WanMesh
from mesh.testbed.bed_process import missing_here

ONE_WAY_MS = 35
SECONDS_MAX = 20.0


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[WanMesh]:
    missing = missing_here()
    if missing:
        pytest.exit(f"make wan: this machine cannot run a test bed: {'; '.join(missing)}", returncode=1)
    if os.geteuid() != 0:
        pytest.exit(
            "make wan: clients of this test run on the host, which only root may connect to a bed", returncode=1
        )
    running = WanMesh(tmp_path, brokers_per_region=1, pairs="us-eu=70ms")
    async with running:
        yield running


async def test_a_record_published_in_one_region_is_read_in_the_other_after_the_delay(mesh: WanMesh) -> None:
    await mesh.create_topic("orders", home="us")
    stream = Stream(topic="orders", region="us", read_as="orders")
    outcome = await run_load(mesh, [stream], rate_per_s=50, seconds=5)
    acknowledged = [number for number, _, at_ns in outcome.sent[0] if at_ns]
    assert len(acknowledged) == len(outcome.sent[0]) > 0
    for region in ("us", "eu"):
        assert tally(acknowledged, outcome.delivered["us", "orders"]).is_clean, region
    took_ms = [(row.at_ns - row.due_ns) / 1e6 for row in outcome.delivered["eu", "orders"]]
    print(f"us -> eu: p50 {quantile(took_ms, 0.5):.1f} ms; {outcome.conditions.describe()}")
    assert min(took_ms) >= ONE_WAY_MS
    assert quantile(took_ms, 0.5) < ONE_WAY_MS + 60
    home_ms = [(row.at_ns - row.due_ns) / 1e6 for row in outcome.delivered["us", "orders"]]
    assert quantile(home_ms, 0.5) < ONE_WAY_MS, "within a region nothing is delayed"


async def test_a_killed_mesh_leaves_no_process_and_no_device(mesh: WanMesh) -> None:
    pids = [*mesh.broker_pids()["us"], *mesh.broker_pids()["eu"], mesh.pid_of("gateway")]
    pids.append(int(mesh.wan("stat")["bed"]["pid"]))
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
