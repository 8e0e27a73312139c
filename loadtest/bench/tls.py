"""What TLS costs: batched produce of 100 B records into a region of three brokers with TLS on and off, in turns.

With TLS everything is encrypted: the producers' connections and those between brokers. Both meshes run all the time;
only the brokers that are written to are counted.
"""

from __future__ import annotations

import asyncio
import statistics

from loadtest.bench.batched import RUNS, Way, in_turns, lines_of
from loadtest.bench.client_settings import settings_of
from loadtest.mesh_process import MeshProcess


def run(plain: MeshProcess, *, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs each."""
    return asyncio.run(_run(plain, runs))


async def _run(plain: MeshProcess, runs: int) -> list[str]:
    secure = MeshProcess(plain.directory.with_name("tls-on"), regions="us", brokers_per_region=3, arguments=("--tls",))
    async with secure:
        ways = [
            Way(label=f"batched produce, TLS {name:3}", mesh=mesh, topic="bench-tls", settings=settings_of(mesh))
            for name, mesh in (("off", plain), ("on", secure))
        ]
        costs = await asyncio.to_thread(in_turns, ways, runs)
    lines = [line for way, of_way in zip(ways, costs, strict=True) for line in lines_of(way, of_way)]
    off, on = (statistics.median(cost.cpu_s for cost in of_way) for of_way in costs)
    return [*lines, f"  TLS costs the brokers {on / off:.2f} times the CPU"]
