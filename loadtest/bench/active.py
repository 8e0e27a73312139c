"""A thousand partitions, each with one record per second: what many small streams cost in latency."""

from __future__ import annotations

from loadtest.bench import single
from loadtest.bench.batched import create_topic
from loadtest.mesh_process import MeshProcess

PARTITIONS = single.RATE_PER_SECOND  # one record per second in each
RUNS = 3


def run(mesh: MeshProcess, *, seconds: int = single.SECONDS, runs: int = RUNS) -> list[str]:
    """Return report lines: publish -> deliver over all partitions."""
    create_topic(mesh, "active", PARTITIONS)
    return single.measure(mesh, ["active"], partitions=PARTITIONS, seconds=seconds, runs=runs)
