"""What traces cost a broker: the same load on two regions, one with traces and one without, in turn.

Both meshes (one broker and a gateway each) are there all the time; the load goes to one of them while the other is
idle, then to the other, RUNS times, so that what else the machine does falls on both alike. Every record is read by
one consumer. CPU is that of the broker process with all its threads, what an idle second of it costs included.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.bench import loads
from loadtest.bench.cluster import clusters_of
from loadtest.bench.figures_core import spread
from loadtest.bench.machine import Meter
from loadtest.bench.measured import Way, measure
from loadtest.bench.mesh_asks import LONGEST_STALL, STALLS, metric, pids_of
from loadtest.bench.schedule_core import Load
from loadtest.mesh_process import MeshProcess
from loadtest.table_core import table_lines

REGION: Final = "us"
RUNS: Final = 3
ROLLED_S: Final = 4.0  # until what was recorded is in files
IDLE_S: Final = 10.0
BATCHED: Final = dataclasses.replace(
    loads.batches("batched", is_idempotent=False), rate_per_s=50_000, seconds=10, linger_ms=25
)
LOADS: Final[Mapping[str, Load | None]] = {
    "nothing but probes": None,
    "1,000 single records/s": loads.single_load(),
    "100,000 records/s in batches": BATCHED,
}
COLUMNS: Final = {
    "CPU ms per s": ("cpu_ms_per_s", "{:.0f}"),
    "turns over 5 ms": ("stalls", "{:.0f}"),
    "longest so far ms": ("stall_ms_max", "{:.1f}"),
    "publish->deliver p99 ms": ("p99_ms", "{:.1f}"),
    "kB of trace files": ("trace_kb", "{:,.0f}"),
    "bytes per record": ("bytes_per_record", "{:.2f}"),
    "idle": ("idle", "{:.0%}"),
}


def run(directory: Path) -> list[str]:
    """Return report lines, two for each load."""
    return asyncio.run(_run(directory))


async def _run(directory: Path) -> list[str]:
    arguments = {"on": (), "off": ("--no-traces",)}
    meshes = {
        name: MeshProcess(directory / name, regions=REGION, brokers_per_region=1, arguments=more)
        for name, more in arguments.items()
    }
    async with meshes["on"], meshes["off"]:
        return await asyncio.to_thread(_measure, meshes)


def _measure(meshes: Mapping[str, MeshProcess]) -> list[str]:
    for mesh in meshes.values():
        loads.prepare(mesh, *(load for load in LOADS.values() if load is not None))
    lines = []
    for name, load in LOADS.items():
        costs: dict[str, list[Mapping[str, float]]] = {traces: [] for traces in meshes}
        for number in range(RUNS + 1):
            for traces, mesh in meshes.items():
                cost = _one(mesh, load)
                if number:  # the first is there for connections, first segments and warm caches
                    costs[traces].append(cost)
        lines += _lines(name, costs)
    return lines


def _one(mesh: MeshProcess, load: Load | None) -> Mapping[str, float]:
    time.sleep(ROLLED_S)
    bytes_before, stalls_before = _trace_bytes(mesh), metric(mesh, REGION, STALLS)[0]
    meter = Meter(pids_of(mesh))
    figures = _sent(mesh, load)
    time.sleep(ROLLED_S)  # what is written behind is part of the cost
    trace_bytes = _trace_bytes(mesh) - bytes_before
    return {
        "cpu_ms_per_s": meter.share() * 1e3,
        "stalls": metric(mesh, REGION, STALLS)[0] - stalls_before,
        "stall_ms_max": metric(mesh, REGION, LONGEST_STALL)[0] * 1e3,
        "p99_ms": figures.get("p99_ms", 0.0),
        "trace_kb": trace_bytes / 1e3,
        "bytes_per_record": trace_bytes / figures["read"] if figures else 0.0,
        "idle": meter.idle(),
    }


def _sent(mesh: MeshProcess, load: Load | None) -> Mapping[str, Any]:
    """Send a load and read all of it; return its figures. Raises RuntimeError: not every record was read."""
    if load is None:
        time.sleep(IDLE_S)
        return {}
    way = loads.of(mesh, load)
    if load.window:
        way = Way(places=clusters_of(mesh), load=load, producers=way.producers, readers=({"role": "count"},))
    found, _ = measure(way)
    if found[REGION]["read"] != load.count * way.producers:
        raise RuntimeError(f"of {load.count * way.producers} records {found[REGION]['read']} were read")
    return found[REGION]


def _trace_bytes(mesh: MeshProcess) -> int:
    return sum(path.stat().st_size for path in mesh.traces.rglob("*.parquet")) if mesh.traces.exists() else 0


def _lines(name: str, costs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    rows = [
        [f"{name}, traces {traces}", *(spread([run[key] for run in runs], form) for key, form in COLUMNS.values())]
        for traces, runs in costs.items()
    ]
    pairs = [(on["cpu_ms_per_s"], off["cpu_ms_per_s"]) for on, off in zip(costs["on"], costs["off"], strict=True)]
    more = statistics.median(on - off for on, off in pairs)
    share = statistics.median(on / off - 1 for on, off in pairs if off)
    note = f"  traces cost {more:+.1f} ms per second ({share:+.0%}) of the broker's CPU, of neighbouring runs"
    return [*table_lines(["", *COLUMNS], rows), note]
