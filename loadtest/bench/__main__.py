"""`python -m loadtest.bench`: all benchmarks of one region and its mirror, on this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from loadtest.bench import batched, idle, single
from loadtest.bench.machine import MEMORY_FILE_SYSTEMS, describe, file_system
from loadtest.mesh_process import MeshProcess


async def measure(directory: Path, parts: list[str]) -> None:
    """Print the machine, then each part as it is done."""
    for line in describe(directory):
        print(line, flush=True)
    print("mesh: 2 regions on loopback, no WAN delay: us with 3 brokers (home), eu with 3 brokers (mirror), 1 gateway")
    for part in parts:
        async with MeshProcess(
            directory / part, regions="us" if part != "single" else "us,eu", brokers_per_region=3
        ) as mesh:
            lines = await single.run(mesh) if part == "single" else {"batched": batched, "idle": idle}[part].run(mesh)
            for line in lines:
                print(line, flush=True)


def main() -> int:
    """Run the benchmarks; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help="batched, single, idle; default: all of them")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    parts = options.parts or ["batched", "single", "idle"]
    unknown = set(parts) - {"batched", "single", "idle"}
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    if file_system(options.directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{options.directory} is in memory: a sync costs nothing there; give --directory on a disk")
    with tempfile.TemporaryDirectory(prefix="georelay-bench-", dir=options.directory) as scratch:
        uvloop.run(measure(Path(scratch), parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
