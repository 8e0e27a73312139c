"""What a region of three costs while nobody uses it, without partitions and with a thousand of them."""

from __future__ import annotations

import time
from typing import Final

from loadtest.bench.machine import Meter
from loadtest.bench.mesh_asks import create_topic, pids_of
from loadtest.mesh_process import MeshProcess

SETTLE_SECONDS: Final = 15
SECONDS: Final = 20
PARTITIONS: Final = (0, 1_000)
GATEWAY: Final = "gateway"
HEAD: Final = (
    "| partitions | CPU per broker | of the busiest | MiB per broker | context switches/s | gateway CPU "
    "| gateway MiB | idle machine |\n|---|---|---|---|---|---|---|---|"
)


def run(mesh: MeshProcess) -> list[str]:
    """Return a table."""
    lines = [HEAD]
    for partitions in PARTITIONS:
        if partitions:
            create_topic(mesh, "idle", partitions)
        time.sleep(SETTLE_SECONDS)
        meter = Meter(pids_of(mesh) | {GATEWAY: mesh.pid_of(GATEWAY)})
        time.sleep(SECONDS)
        lines.append(line_of(partitions, meter))
    return lines


def line_of(partitions: int, meter: Meter) -> str:
    """Return one row of the table: the mean of the brokers and the busiest of them, the gateway, the machine."""
    brokers = [each for each in meter.pids if each != GATEWAY]
    cores, count = [meter.share(each) for each in brokers], len(brokers)
    return (
        f"| {partitions:,} | {sum(cores) / count:.1%} | {max(cores):.1%} "
        f"| {meter.resident_mib(*brokers) / count:.0f} | {meter.switches(*brokers) / meter.seconds / count:.0f} "
        f"| {meter.share(GATEWAY):.1%} | {meter.resident_mib(GATEWAY):.0f} | {meter.idle():.0%} |"
    )
