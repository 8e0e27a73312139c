"""One stretch of load on a mesh in a test bed: clients in processes of their own, and what they said."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.bench.client_settings import environment
from loadtest.wan.floors_core import Conditions
from loadtest.wan.tally_core import Delivery
from loadtest.wan.wan_mesh import WanMesh, Watch

READERS_AHEAD_S: Final = 4.0  # until every reader has found its partitions
WARM_UP_S: Final = 4.0
DRAIN_S: Final = 3.0
END_S: Final = 0.5  # by which the load outlives the measurement
FLUSH_S: Final = 60.0
CLIENT_SECONDS_MAX: Final = 600.0
LINE_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What is published where: the topic's name for those who publish in `region`, and for all who read."""

    topic: str
    region: str
    read_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it.

    Args:
        sent: rows (number, due_ns, acknowledged_ns or 0) of each stream.
        delivered: by (region of the reader, topic as it is read).
        measured_from_ns: records that were due earlier warmed everything up.
        cpu_s: CPU seconds while it was measured, by region, "gateway" and "router".
    """

    sent: list[list[tuple[int, int, int]]]
    delivered: dict[tuple[str, str], list[Delivery]]
    failed: int
    lag_p99_ms: float
    conditions: Conditions
    cpu_s: dict[str, float]
    measured_from_ns: int
    measured_s: float


async def run_load(
    mesh: WanMesh,
    streams: Sequence[Stream],
    *,
    rate_per_s: int,
    seconds: float,
    during: Callable[[], Awaitable[None]] | None = None,
) -> Outcome:
    """Publish and read for `seconds` after a time to warm up, do `during` meanwhile, and return what happened.

    Raises:
        RuntimeError: a client ended badly.
    """
    bootstrap = {region: ",".join(mesh.endpoints["regions"][region]["kafka"]) for region in mesh.regions}
    total_s = WARM_UP_S + seconds
    watch = await asyncio.to_thread(Watch, mesh)
    readers = [
        {"region": region, "bootstrap": bootstrap[region], "topics": [stream.read_as for stream in streams]}
        for region in mesh.regions
    ]
    places = [{"topic": stream.topic, "bootstrap": bootstrap[stream.region]} for stream in streams]
    reading = await _start(mesh, "consume", {"seconds": READERS_AHEAD_S + total_s + DRAIN_S, "readers": readers})
    await asyncio.sleep(READERS_AHEAD_S)
    publishing = await _start(
        mesh,
        "publish",
        {
            "seconds": total_s,
            "rate_per_s": rate_per_s,
            "flush_s": FLUSH_S,
            "is_idempotent": during is not None,  # where something is broken meanwhile, records are sent again
            "streams": places,
        },
    )
    began_ns = json.loads(await _line(publishing))["began_ns"]
    await asyncio.sleep(WARM_UP_S - (time.monotonic_ns() - began_ns) / 1e9)
    watch.start()
    if during is not None:
        await during()
    else:
        await asyncio.sleep(seconds - (time.monotonic_ns() - began_ns) / 1e9 + WARM_UP_S - END_S)
    watch.stop()
    sent, got = await _answer(publishing), await _answer(reading)
    conditions, cpu_s = await asyncio.to_thread(watch.result)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in streams]
    for index, number, due_ns, acknowledged_ns in sent["rows"]:
        rows[index].append((number, due_ns, acknowledged_ns))
    delivered: dict[tuple[str, str], list[Delivery]] = {
        (region, stream.read_as): [] for region in mesh.regions for stream in streams
    }
    for region, found in got["rows"].items():
        for topic, number, due_ns, at_ns in found:
            delivered[region, topic].append(Delivery(number, due_ns, at_ns))
    return Outcome(
        sent=rows,
        delivered=delivered,
        failed=sent["failed"],
        lag_p99_ms=sent["lag_p99_ms"],
        conditions=conditions,
        cpu_s=cpu_s,
        measured_from_ns=watch.began_ns,
        measured_s=watch.seconds,
    )


async def _start(mesh: WanMesh, role: str, plan: dict[str, Any]) -> asyncio.subprocess.Process:
    path = Path(mesh.directory) / f"{role}.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.wan.clients", role, str(path)),
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        env=environment(mesh.client_settings),
    )


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(CLIENT_SECONDS_MAX):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a client of the benchmark ended before it began")
    return line


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    async with asyncio.timeout(CLIENT_SECONDS_MAX):
        output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a client of the benchmark ended with {process.returncode}")
    answer: dict[str, Any] = json.loads(output)
    return answer
