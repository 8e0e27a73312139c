"""What a mesh costs while nobody uses it: a table of meshes and numbers of partitions.

`python -m loadtest.bench idle` measures a region of three. `python -m loadtest.bench.idle` measures several meshes, for
one checkout or, with --checkout twice, for two that are measured in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.bench.machine import Meter, add_directory
from loadtest.bench.mesh_asks import create_topic, pids_of
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

SETTLE_SECONDS = 15
SECONDS = 20
REGIONS = ("us", "eu", "ap")
GATEWAY = "gateway"
HEAD = (
    "| mesh | partitions | CPU per broker | of the busiest | MiB per broker | context switches/s | gateway CPU "
    "| gateway MiB | idle machine |\n|---|---|---|---|---|---|---|---|---|"
)


def run(mesh: MeshProcess) -> list[str]:
    """Return the table of a mesh without partitions and with a thousand of them."""
    return [HEAD, *rows(mesh, "1x3", [0, 1_000])]


def rows(
    mesh: MeshProcess,
    name: str,
    partitions: Sequence[int],
    *,
    settle: float = SETTLE_SECONDS,
    seconds: float = SECONDS,
) -> Iterator[str]:
    """Yield the rows of one mesh, of rising numbers of partitions."""
    there = 0
    for count in partitions:
        if count > there:
            create_topic(mesh, f"idle-{count}", count - there)
            there = count
        time.sleep(settle)
        meter = Meter(pids_of(mesh) | {GATEWAY: mesh.pid_of(GATEWAY)})
        time.sleep(seconds)
        yield line_of(name, count, meter)


def line_of(name: str, partitions: int, meter: Meter) -> str:
    """Return one row of the table: the mean of the brokers and the busiest of them, the gateway, the machine."""
    brokers = [each for each in meter.pids if each != GATEWAY]
    cores, count = [meter.share(each) for each in brokers], len(brokers)
    return (
        f"| {name} | {partitions:,} | {sum(cores) / count:.1%} | {max(cores):.1%} "
        f"| {meter.resident_mib(*brokers) / count:.0f} | {meter.switches(*brokers) / meter.seconds / count:.0f} "
        f"| {meter.share(GATEWAY):.1%} | {meter.resident_mib(GATEWAY):.0f} | {meter.idle():.0%} |"
    )


async def table(options: argparse.Namespace) -> None:
    """Print the table; with several checkouts their meshes of one shape follow each other."""
    print(HEAD, flush=True)
    with scratch_directory("georelay-idle-", options.directory) as scratch:
        for shape in options.meshes:
            for number, checkout in enumerate(options.checkout or [None]):
                await _measure(scratch / f"{shape}-{number}", shape, options, checkout and checkout.resolve())


async def _measure(directory: Path, shape: str, options: argparse.Namespace, checkout: Path | None) -> None:
    """Print the rows of one mesh, such as "3x3", and how long it took to be ready."""
    regions, brokers = (int(part) for part in shape.split("x"))
    began = time.monotonic()
    mesh = MeshProcess(directory, regions=",".join(REGIONS[:regions]), brokers_per_region=brokers, checkout=checkout)
    async with mesh:
        of_whom = "" if checkout is None else f"{checkout.name} "
        name = f"{of_whom}{shape} ({time.monotonic() - began:.1f} s to ready)"

        def measure() -> None:
            for line in rows(mesh, name, options.partitions, settle=options.settle, seconds=options.seconds):
                print(line, flush=True)

        await asyncio.to_thread(measure)


def main() -> int:
    """Print the table; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.idle", description=__doc__)
    parser.add_argument("--meshes", nargs="+", default=["1x1", "1x3", "3x3"], metavar="REGIONSxBROKERS")
    parser.add_argument("--partitions", nargs="+", type=int, default=[0, 100, 1_000], help="rising numbers")
    parser.add_argument("--checkout", action="append", type=Path, help="whose code runs; may be repeated")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that are measured")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before")
    add_directory(parser)
    options = parser.parse_args()
    known = {f"{regions}x{brokers}" for regions in (1, 2, 3) for brokers in (1, 3, 5)}
    if strange := set(options.meshes) - known:
        parser.error(f"unknown mesh: {', '.join(sorted(strange))}; there are {', '.join(sorted(known))}")
    asyncio.run(table(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
