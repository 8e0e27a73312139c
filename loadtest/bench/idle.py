"""What a mesh costs while nobody uses it.

`python -m loadtest.bench idle` measures a region of three. `python -m loadtest.bench.idle` prints a table of meshes and
numbers of partitions, for one checkout or, with --checkout twice, for two that are measured in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.batched import create_topic
from loadtest.bench.machine import IdleWatch, context_switches, cpu_seconds, resident_mib
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

PARTITIONS = 1_000
SETTLE_SECONDS = 15
SECONDS = 10
REGIONS = ("us", "eu", "ap")
GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one process in a second: CPU as a share of a core, threads that gave up a core; and its memory."""

    cpu: float
    switches: float
    resident_mib: float


def run(mesh: MeshProcess, *, partitions: int = PARTITIONS) -> list[str]:
    """Return report lines: CPU and memory per broker of the region."""
    pids = [mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    time.sleep(SETTLE_SECONDS)  # what a broker takes once, whatever it holds
    memory_before = [resident_mib(pid) for pid in pids]
    create_topic(mesh, "idle", partitions)
    time.sleep(SETTLE_SECONDS)
    costs = [*_costs(pids, SECONDS)]
    grown = [(cost.resident_mib - then) * 1024 / partitions for cost, then in zip(costs, memory_before, strict=True)]
    return [
        f"{partitions} idle partitions: CPU per broker {', '.join(f'{cost.cpu:.1%}' for cost in costs)} of a core; "
        f"memory per broker {', '.join(f'{cost.resident_mib:.0f}' for cost in costs)} MiB "
        f"({', '.join(f'{kib:.0f}' for kib in grown)} KiB per partition more than without them)"
    ]


def _costs(pids: Sequence[int], seconds: float) -> Iterator[Cost]:
    """Yield what each process costs, measured over the same seconds."""
    before = [(cpu_seconds(pid), context_switches(pid)) for pid in pids]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    for pid, (cpu, switches) in zip(pids, before, strict=True):
        yield Cost(
            cpu=(cpu_seconds(pid) - cpu) / took,
            switches=(context_switches(pid) - switches) / took,
            resident_mib=resident_mib(pid),
        )


def line_of(name: str, partitions: int, brokers: Sequence[Cost], gateway: Cost, idle: float) -> str:
    """Return one row of the table; `idle` is the share of the machine's CPU that nobody used meanwhile."""
    count = len(brokers)
    return (
        f"| {name} | {partitions:,} | {sum(cost.cpu for cost in brokers) / count:.1%} "
        f"| {max(cost.cpu for cost in brokers):.1%} | {sum(cost.resident_mib for cost in brokers) / count:.0f} "
        f"| {sum(cost.switches for cost in brokers) / count:.0f} | {gateway.cpu:.1%} | {gateway.resident_mib:.0f} "
        f"| {idle:.0%} |"
    )


HEAD = (
    "| mesh | partitions | CPU per broker | of the busiest | MiB per broker | context switches/s | gateway CPU "
    "| gateway MiB | idle machine |\n|---|---|---|---|---|---|---|---|---|"
)


async def measure(directory: Path, name: str, shape: str, options: argparse.Namespace, checkout: Path | None) -> None:
    """Print the rows of one mesh, such as "3x3", and how long it took to be ready."""
    regions, brokers = (int(part) for part in shape.split("x"))
    began = time.monotonic()
    mesh = MeshProcess(directory, regions=",".join(REGIONS[:regions]), brokers_per_region=brokers, checkout=checkout)
    async with mesh:
        ready = f"{name}{shape} ({time.monotonic() - began:.1f} s to ready)"
        names = [f"{region}-{number + 1}" for region in REGIONS[:regions] for number in range(brokers)]
        pids = [mesh.pid_of(one) for one in (*names, GATEWAY)]
        there = 0
        for partitions in options.partitions:
            if partitions > there:
                await asyncio.to_thread(create_topic, mesh, f"idle-{partitions}", partitions - there)
                there = partitions
            await asyncio.sleep(options.settle)
            watch = IdleWatch()
            watch.start()
            *costs, gateway = await asyncio.to_thread(lambda: [*_costs(pids, options.seconds)])
            print(line_of(ready, partitions, costs, gateway, watch.share()), flush=True)


async def table(options: argparse.Namespace) -> None:
    """Print the table; with several checkouts their meshes of one shape follow each other."""
    print(HEAD, flush=True)
    with scratch_directory("georelay-idle-", options.directory) as scratch:
        for shape in options.meshes:
            for number, checkout in enumerate(options.checkout or [None]):
                name = "" if checkout is None else f"{checkout.resolve().name} "
                where = scratch / f"{shape}-{number}"
                await measure(where, name, shape, options, None if checkout is None else checkout.resolve())


def main() -> int:
    """Print the table; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.idle", description=__doc__)
    parser.add_argument("--meshes", nargs="+", default=["1x1", "1x3", "3x3"], metavar="REGIONSxBROKERS")
    parser.add_argument("--partitions", nargs="+", type=int, default=[0, 100, 1_000], help="rising numbers")
    parser.add_argument("--checkout", action="append", type=Path, help="whose code runs; may be repeated")
    parser.add_argument("--seconds", type=float, default=20, help="that are measured")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    options = parser.parse_args()
    known = {f"{regions}x{brokers}" for regions in (1, 2, 3) for brokers in (1, 3, 5)}
    if strange := set(options.meshes) - known:
        parser.error(f"unknown mesh: {', '.join(sorted(strange))}; there are {', '.join(sorted(known))}")
    asyncio.run(table(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
