"""What a thousand partitions cost while nobody uses them."""

from __future__ import annotations

import time

from loadtest.bench.batched import create_topic
from loadtest.bench.machine import cpu_seconds, resident_mib
from loadtest.mesh_process import MeshProcess

PARTITIONS = 1_000
SETTLE_SECONDS = 15
SECONDS = 10


def run(mesh: MeshProcess, *, partitions: int = PARTITIONS) -> list[str]:
    """Return report lines: CPU and memory per broker of the region."""
    pids = [mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    time.sleep(SETTLE_SECONDS)  # what a broker takes once, whatever it holds
    memory_before = [resident_mib(pid) for pid in pids]
    create_topic(mesh, "idle", partitions)
    time.sleep(SETTLE_SECONDS)
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(SECONDS)
    shares = [(cpu_seconds(pid) - cpu) / SECONDS for pid, cpu in zip(pids, before, strict=True)]
    memory = [resident_mib(pid) for pid in pids]
    grown = [(now - then) * 1024 / partitions for now, then in zip(memory, memory_before, strict=True)]
    return [
        f"{partitions} idle partitions: CPU per broker {', '.join(f'{share:.1%}' for share in shares)} of a core; "
        f"memory per broker {', '.join(f'{mib:.0f}' for mib in memory)} MiB "
        f"({', '.join(f'{kib:.0f}' for kib in grown)} KiB per partition more than without them)"
    ]
