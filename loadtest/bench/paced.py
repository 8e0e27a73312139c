"""Batched produce at a fixed rate: what a record costs while the machine has time left.

As fast as they can, producers and brokers share the cores of one machine and slow each other down; a fixed rate
leaves some of the CPU idle, so that the CPU seconds are those of the brokers.
"""

from __future__ import annotations

import statistics

from loadtest.bench.batched import PARTITIONS, PRODUCERS, create_topic, produce, sync_count
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.mesh_process import MeshProcess

RATE_PER_SECOND = 400_000
LINGER_MS = 25
SECONDS = 6
RUNS = 3


def run(mesh: MeshProcess, *, rate_per_second: int = RATE_PER_SECOND, seconds: int = SECONDS) -> list[str]:
    """Return report lines: CPU per record at the rate, its median over RUNS runs."""
    bootstrap = ",".join(mesh.endpoints["regions"]["us"]["kafka"])
    pids = [mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    create_topic(mesh, "paced", PARTITIONS)
    costs, rates, idles, syncs = [], [], [], []
    for run_number in range(RUNS + 1):
        records = rate_per_second // PRODUCERS * (seconds if run_number else 1)
        watch = IdleWatch()
        watch.start()
        cpu_before, syncs_before = sum(map(cpu_seconds, pids)), sync_count(mesh)
        outcomes = produce(
            bootstrap,
            "paced",
            records,
            idempotent=False,
            rate_per_second=rate_per_second // PRODUCERS,
            linger_ms=LINGER_MS,
        )
        acknowledged = records * PRODUCERS
        if run_number == 0:
            continue  # connections, first segments, warm caches
        costs.append((sum(map(cpu_seconds, pids)) - cpu_before) / acknowledged * 1e5)
        rates.append(acknowledged / max(outcome["seconds"] for outcome in outcomes))
        syncs.append((sync_count(mesh) - syncs_before) / acknowledged * 1e3)
        idles.append(watch.share())
    return [
        f"batched produce at a pace, linger {LINGER_MS} ms, idempotence off: {statistics.median(rates):,.0f} of "
        f"{rate_per_second:,} records/s, {statistics.median(costs):.3f} CPU s per 100,000 records summed over 3 "
        f"brokers (runs {', '.join(f'{cost:.3f}' for cost in costs)}), {statistics.median(syncs):.2f} syncs per 1,000 "
        f"acknowledged records, CPU idle {statistics.median(idles):.0%}"
    ]
