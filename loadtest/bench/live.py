"""How far the live view is behind the brokers: `georelay-sla live` beside a mesh of two regions under a steady load.

The age of a region's traces is the wall clock, when live.json is read, minus the newest row in it: the wait for the
brokers' drain (a second), for the trigger and for the batch. The start is measured by itself: the first batch with rows
starts Python processes and compiles what all others use. At the end every record that was delivered must be in the
totals, once per region.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import georelay
from loadtest.child_process import end
from loadtest.mesh_process import MeshProcess
from loadtest.quantile_core import quantile

# It ends with whoever runs this, also by kill -9.
GUARDED_LIVE: Final = """
import runpy, sys
from georelay.process_guard import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
runpy.run_module("sla", run_name="__main__", alter_sys=True)
"""
TOPIC: Final = "bench-live"
REGIONS: Final = ("us", "eu")
RECORDS_PER_S: Final = 200
SECONDS: Final = 60
START_S_MAX: Final = 600
END_S_MAX: Final = 120
TRIGGERS: Final = ("5s", "2s")
SAMPLE_S: Final = 0.25
WARM_BATCHES: Final = 2  # after the first that was shown


def run(mesh: MeshProcess, *, seconds: int = SECONDS) -> list[str]:
    """Return report lines, one for each trigger."""
    lines = []
    for trigger in TRIGGERS:
        lines.append(asyncio.run(_measure(mesh, trigger, seconds)))
        sys.stderr.write(f"{lines[-1]}\n")  # the next takes minutes
    return lines


async def _measure(mesh: MeshProcess, trigger: str, seconds: int) -> str:
    checkpoint = mesh.directory / f"live-{trigger}"
    topic = f"{TOPIC}-{trigger}"
    async with contextlib.AsyncExitStack() as stack:
        connections = {
            region: await stack.enter_async_context(georelay.connect(mesh.gateway, region=region)) for region in REGIONS
        }
        await connections["us"].admin.create_topic(topic, partitions=3)
        for connection in connections.values():
            await _known(connection, topic)
        delivered = dict.fromkeys(REGIONS, 0)
        for region, connection in connections.items():
            task = asyncio.create_task(_consume(connection, topic, region, delivered))
            stack.callback(task.cancel)
        began_s = time.monotonic()
        live = _start(mesh, checkpoint, trigger)
        stack.callback(end, live, within_s=60)
        await _until(lambda: _document(checkpoint).get("state") == "live", START_S_MAX, "the view does not become live")
        started_s = time.monotonic() - began_s
        warm = _document(checkpoint)["batch"] + WARM_BATCHES
        await _until(lambda: _document(checkpoint)["batch"] >= warm, START_S_MAX, "no batch comes about")
        sampling = asyncio.create_task(_sample(checkpoint, seconds))
        published = await _publish(connections["us"], topic, seconds)
        ages_ms, batches = await sampling
        await _until(
            lambda: _counted(checkpoint) == dict.fromkeys(REGIONS, published),
            END_S_MAX,
            lambda: f"of {published} records, {delivered} were delivered and {_counted(checkpoint)} counted",
        )
    return (
        f"live view, trigger {trigger}, live {started_s:.0f} s after its start; {published} records in {seconds} s to "
        f"{len(REGIONS)} regions: newest traces "
        f"{quantile(ages_ms, 0.5) / 1e3:.1f} s old at the median, {quantile(ages_ms, 0.99) / 1e3:.1f} s at p99, "
        f"{max(ages_ms) / 1e3:.1f} s at most "
        f"({len(ages_ms)} looks); a batch every {seconds / max(1, batches):.1f} s; every record counted once per region"
    )


async def _known(connection: Any, topic: str) -> None:
    end = time.monotonic() + END_S_MAX
    while topic not in {found.name for found in await connection.admin.list_topics()}:
        if time.monotonic() > end:
            raise RuntimeError(f"topic {topic} does not come to every region")
        await asyncio.sleep(SAMPLE_S)


def _start(mesh: MeshProcess, checkpoint: Path, trigger: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", GUARDED_LIVE, str(os.getpid()), "live", "--source", mesh.gateway),
            *("--checkpoint", str(checkpoint), "--trigger", trigger),
        ],
        stderr=subprocess.DEVNULL,
    )


async def _consume(connection: Any, topic: str, region: str, delivered: dict[str, int]) -> None:
    async with connection.consumer([topic], start=georelay.Start.EARLIEST) as consumer:
        async for _ in consumer:
            delivered[region] += 1


async def _publish(connection: Any, topic: str, seconds: int) -> int:
    published = 0
    began = time.monotonic()
    async with connection.producer() as producer:
        while (elapsed := time.monotonic() - began) < seconds:
            while published < elapsed * RECORDS_PER_S:
                await producer.send(topic, b"x" * 100)
                published += 1
            await asyncio.sleep(0.01)
        await producer.flush()
    return published


async def _sample(checkpoint: Path, seconds: int) -> tuple[list[int], int]:
    """Return the ages of the older region's newest row, in ms, and how many batches there were."""
    ages_ms: list[int] = []
    first = _document(checkpoint)["batch"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        document = _document(checkpoint)
        newest_s = min(region["newest_s"] for region in document["regions"])
        ages_ms.append(round((time.time() - newest_s) * 1e3))
        await asyncio.sleep(SAMPLE_S)
    return ages_ms, _document(checkpoint)["batch"] - first


async def _until(is_so: Any, seconds: float, text: Any) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError(text if isinstance(text, str) else text())
        await asyncio.sleep(SAMPLE_S)


def _document(checkpoint: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((checkpoint / "live.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def _counted(checkpoint: Path) -> dict[str, int]:
    pairs = _document(checkpoint)["pairs"]
    return {pair["dest"]: pair["since_start"]["n"] for pair in pairs if pair["origin"] == "us"}
