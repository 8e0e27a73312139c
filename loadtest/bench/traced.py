"""What traces cost a broker: the same load on two regions, one with traces and one without, in turn.

Both meshes (one broker and a gateway each) are there all the time; the load goes to one of them while the other is
idle, then to the other, RUNS times, so that what else the machine does falls on both alike. Every record is read by
one consumer. CPU is that of the broker process with all its threads, what an idle second of it costs included.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import batched, client_process
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.bench.single import run_once
from loadtest.mesh_process import MeshProcess

REGION = "us"
RUNS = 3
SINGLE_TOPICS = 8
SECONDS = 10
BATCHED_PER_S = 100_000
LINGER_MS = 25
CLIENT_SECONDS_MAX = 120
ROLLED_S = 4.0  # until what was recorded is in files
IDLE_S = 10.0


@dataclass(slots=True, kw_only=True)
class Cost:
    """One run. `cpu_ms_per_s` is of the broker; stalls are turns of its loop over 5 ms.

    `trace_bytes` is what the directory of traces grew by.
    """

    cpu_ms_per_s: float
    stalls: float
    stall_ms_max: float
    trace_bytes: int
    records: int
    p99_ms: float
    idle: float


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


def _measure(meshes: dict[str, MeshProcess]) -> list[str]:
    for mesh in meshes.values():
        for number in range(SINGLE_TOPICS):
            batched.create_topic(mesh, f"single-{number}", 1)
        batched.create_topic(mesh, "batched", batched.PARTITIONS)
    loads: list[tuple[str, Callable[[MeshProcess], tuple[int, float]]]] = [
        ("nothing but probes", _nothing),
        ("1,000 single records/s", _single),
        (f"{BATCHED_PER_S:,} records/s in batches", _batched),
    ]
    lines = []
    for name, load in loads:
        costs: dict[str, list[Cost]] = {traces: [] for traces in meshes}
        for number in range(RUNS + 1):
            for traces, mesh in meshes.items():
                cost = _one(mesh, load)
                if number:  # the first is there for connections, first segments and warm caches
                    costs[traces].append(cost)
        lines += _lines(name, costs)
    return lines


def _one(mesh: MeshProcess, load: Callable[[MeshProcess], tuple[int, float]]) -> Cost:
    pid = mesh.pid_of(f"{REGION}-1")
    time.sleep(ROLLED_S)
    bytes_before = _trace_bytes(mesh)
    stalls_before = _metric(mesh, "georelay_loop_stalls_total")
    watch = IdleWatch()
    watch.start()
    cpu_before, began = cpu_seconds(pid), time.monotonic()
    records, p99_ms = load(mesh)
    time.sleep(ROLLED_S)  # what is written behind is part of the cost
    cpu, seconds = cpu_seconds(pid) - cpu_before, time.monotonic() - began
    return Cost(
        cpu_ms_per_s=cpu * 1e3 / seconds,
        stalls=_metric(mesh, "georelay_loop_stalls_total") - stalls_before,
        stall_ms_max=_metric(mesh, "georelay_loop_stall_seconds_max") * 1e3,
        trace_bytes=_trace_bytes(mesh) - bytes_before,
        records=records,
        p99_ms=p99_ms,
        idle=watch.share(),
    )


def _nothing(_: MeshProcess) -> tuple[int, float]:
    time.sleep(IDLE_S)
    return 0, 0.0


def _single(mesh: MeshProcess) -> tuple[int, float]:
    topics = [f"single-{number}" for number in range(SINGLE_TOPICS)]
    figures, _ = run_once(mesh, topics, partitions=1, seconds=SECONDS)
    return 1_000 * (SECONDS + 3), figures[REGION].p99_ms


def _batched(mesh: MeshProcess) -> tuple[int, float]:
    bootstrap = mesh.endpoints["regions"][REGION]["kafka"][0]
    records = BATCHED_PER_S * SECONDS
    words = ("count", bootstrap, "batched", batched.PARTITIONS, records, CLIENT_SECONDS_MAX)
    reader = client_process.start("loadtest.bench.kafka_client", *words)
    try:
        client_process.said(reader)  # "ready"
        way = batched.Way(
            label="batched",
            mesh=mesh,
            topic="batched",
            is_idempotent=False,
            linger_ms=LINGER_MS,
            rate_per_second=BATCHED_PER_S // batched.PRODUCERS,
            records=records // batched.PRODUCERS,
        )
        batched.produce(way)
        read = client_process.answer(reader)["records"]
    finally:
        reader.kill()
    if read != records:
        raise RuntimeError(f"of {records} records {read} were read")
    return records, 0.0


def _metric(mesh: MeshProcess, name: str) -> float:
    return batched.metric(mesh, REGION, name)[0]


def _trace_bytes(mesh: MeshProcess) -> int:
    return sum(path.stat().st_size for path in mesh.traces.rglob("*.parquet")) if mesh.traces.exists() else 0


def _lines(name: str, costs: dict[str, list[Cost]]) -> list[str]:
    def median(traces: str, field: str) -> float:
        return float(statistics.median(getattr(cost, field) for cost in costs[traces]))

    lines = []
    for traces, runs in costs.items():
        records = runs[0].records
        text = (
            f"{name}, traces {traces}: broker CPU {median(traces, 'cpu_ms_per_s'):.1f} ms per second "
            f"(runs {', '.join(f'{cost.cpu_ms_per_s:.0f}' for cost in runs)}), "
            f"{median(traces, 'stalls'):.0f} turns of its loop over 5 ms per run, "
            f"longest so far {max(cost.stall_ms_max for cost in runs):.1f} ms"
        )
        if median(traces, "p99_ms"):
            text += f", publish->deliver p99 {median(traces, 'p99_ms'):.1f} ms"
        if traces == "on":
            bytes_ = median(traces, "trace_bytes")
            text += f", trace files {bytes_ / 1e3:,.0f} kB" + (f" ({bytes_ / records:.2f} B/record)" if records else "")
        lines.append(f"{text}; CPU idle {median(traces, 'idle'):.0%}")
    more = _paired([(on.cpu_ms_per_s, off.cpu_ms_per_s) for on, off in zip(costs["on"], costs["off"], strict=True)])
    return [*lines, f"  traces cost {more} of the broker's CPU"]


def _paired(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the median of the differences of neighbouring runs, in ms of CPU per second and as a share."""
    differences = [on - off for on, off in pairs]
    shares = [on / off - 1 for on, off in pairs if off]
    return f"{statistics.median(differences):+.1f} ms per second ({statistics.median(shares):+.0%})"
