"""What TLS costs: batched produce of 100 B records into a region of three brokers with TLS on and off, in turns.

With TLS everything is encrypted: the producers' connections and those between brokers. Both meshes run all the time;
only the brokers that are written to are counted.
"""

from __future__ import annotations

import asyncio
import statistics

from loadtest.bench.batched import PARTITIONS, PRODUCERS, create_topic, produce
from loadtest.bench.client_settings import Settings, tls_settings
from loadtest.bench.machine import cpu_seconds
from loadtest.mesh_process import MeshProcess

RECORDS_PER_PRODUCER = 400_000
RUNS = 3
TOPIC = "bench-tls"


def run(plain: MeshProcess, *, records: int = RECORDS_PER_PRODUCER, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs each."""
    return asyncio.run(_run(plain, records, runs))


async def _run(plain: MeshProcess, records: int, runs: int) -> list[str]:
    secure = MeshProcess(plain.directory.with_name("tls-on"), regions="us", brokers_per_region=3, arguments=("--tls",))
    async with secure:
        meshes = {"off": plain, "on": secure}
        for mesh in meshes.values():
            await asyncio.to_thread(create_topic, mesh, TOPIC, PARTITIONS)
        costs: dict[str, list[float]] = {name: [] for name in meshes}
        rates: dict[str, list[float]] = {name: [] for name in meshes}
        for _ in range(runs):
            for name, mesh in meshes.items():
                settings = tls_settings(mesh)
                cost, rate = await asyncio.to_thread(measure, mesh, records, topic=TOPIC, settings=settings)
                costs[name].append(cost)
                rates[name].append(rate)
    factor = statistics.median(costs["on"]) / statistics.median(costs["off"])
    lines = [line_of(f"batched produce, TLS {name:3}", costs[name], rates[name]) for name in meshes]
    return [*lines, f"TLS costs the brokers {factor:.2f} times the CPU"]


def line_of(what: str, costs: list[float], rates: list[float]) -> str:
    """Return the report line of several runs of `measure`."""
    return (
        f"{what}: {statistics.median(rates):>9,.0f} records/s, {statistics.median(costs):.3f} CPU s per 100,000 "
        f"records summed over 3 brokers (runs {', '.join(f'{cost:.3f}' for cost in costs)})"
    )


def measure(mesh: MeshProcess, records: int, *, topic: str, settings: Settings) -> tuple[float, float]:
    """Return (CPU seconds of the brokers per 100,000 records, records per second) of one run."""
    pids = [mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    before = sum(map(cpu_seconds, pids))
    bootstrap = ",".join(mesh.endpoints["regions"]["us"]["kafka"])
    outcomes = produce(bootstrap, topic, records, idempotent=True, settings=settings)
    acknowledged = records * PRODUCERS
    cost = (sum(map(cpu_seconds, pids)) - before) / acknowledged * 1e5
    return cost, acknowledged / max(outcome["seconds"] for outcome in outcomes)
