"""`python -m loadtest.bench`: all benchmarks of one region and its mirror, on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from loadtest.bench import batched, idle, single
from loadtest.bench.machine import MEMORY_FILE_SYSTEMS, describe, file_system
from loadtest.mesh_process import MeshProcess

PARTS = {"batched": batched, "single": single, "mirror": single, "idle": idle}
MESHES = {"batched": ("us", 3), "single": ("us", 3), "mirror": ("us,eu", 1), "idle": ("us", 3)}


async def measure(directory: Path, parts: list[str]) -> None:
    """Print the machine, then each part as it is done."""
    for line in describe(directory):
        print(line, flush=True)
    print("loopback, no WAN delay, fsync on; us is the home region, eu its mirror; one gateway beside the brokers")
    for part in parts:
        regions, brokers = MESHES[part]
        async with MeshProcess(directory / part, regions=regions, brokers_per_region=brokers) as mesh:
            processes = brokers * len(regions.split(","))
            print(f"-- {part}: regions {regions}, {processes} broker processes and 1 gateway", flush=True)
            for line in await asyncio.to_thread(PARTS[part].run, mesh):
                print(line, flush=True)


def main() -> int:
    """Run the benchmarks; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all of them")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    if file_system(options.directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{options.directory} is in memory: a sync costs nothing there; give --directory on a disk")
    with tempfile.TemporaryDirectory(prefix="georelay-bench-", dir=options.directory) as scratch:
        uvloop.run(measure(Path(scratch), parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
