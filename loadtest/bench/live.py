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
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import georelay
from loadtest.bench.sdk_load import consume, publish
from loadtest.campaign.mesh import NotYet, until
from loadtest.child_process import end, guarded
from loadtest.mesh_process import MeshProcess
from loadtest.quantile_core import quantile

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
        delivered: Counter[str] = Counter()
        for region, connection in connections.items():
            await until(partial(_known, connection, topic), within_s=END_S_MAX, every_s=SAMPLE_S)
            task = asyncio.create_task(consume(connection, topic, delivered, region))
            stack.callback(task.cancel)
        began_s = time.monotonic()
        live = _start(mesh, checkpoint, trigger)
        stack.callback(end, live, within_s=60)
        await _until(
            lambda: _document(checkpoint).get("state") == "live", START_S_MAX, lambda: "the view does not become live"
        )
        started_s = time.monotonic() - began_s
        warm = _document(checkpoint)["batch"] + WARM_BATCHES
        await _until(lambda: _document(checkpoint)["batch"] >= warm, START_S_MAX, lambda: "no batch comes about")
        sampling = asyncio.create_task(_sample(checkpoint, seconds))
        published = await publish(connections["us"], topic, RECORDS_PER_S, seconds)
        ages_ms, batches = await sampling
        await _until(
            lambda: _counted(checkpoint) == dict.fromkeys(REGIONS, published),
            END_S_MAX,
            lambda: f"of {published} records, {dict(delivered)} were delivered and {_counted(checkpoint)} counted",
        )
    return (
        f"live view, trigger {trigger}, live {started_s:.0f} s after its start; {published} records in {seconds} s to "
        f"{len(REGIONS)} regions: newest traces "
        f"{quantile(ages_ms, 0.5) / 1e3:.1f} s old at the median, {quantile(ages_ms, 0.99) / 1e3:.1f} s at p99, "
        f"{max(ages_ms) / 1e3:.1f} s at most "
        f"({len(ages_ms)} looks); a batch every {seconds / max(1, batches):.1f} s; every record counted once per region"
    )


async def _known(connection: Any, topic: str) -> None:
    if topic not in {found.name for found in await connection.admin.list_topics()}:
        raise NotYet(f"topic {topic} does not come to every region")


def _start(mesh: MeshProcess, checkpoint: Path, trigger: str) -> subprocess.Popen[bytes]:
    told = ("--source", mesh.gateway, "--checkpoint", checkpoint, "--trigger", trigger)
    return subprocess.Popen(guarded(sys.executable, "-m", "sla", "live", *told), stderr=subprocess.DEVNULL)


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


async def _until(is_so: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    async def look() -> None:
        if not is_so():
            raise NotYet(otherwise())

    await until(look, within_s=seconds, every_s=SAMPLE_S)


def _document(checkpoint: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((checkpoint / "live.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def _counted(checkpoint: Path) -> dict[str, int]:
    pairs = _document(checkpoint)["pairs"]
    return {pair["dest"]: pair["since_start"]["n"] for pair in pairs if pair["origin"] == "us"}
