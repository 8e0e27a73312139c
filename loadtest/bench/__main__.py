"""`python -m loadtest.bench`: all benchmarks of one region and its mirror, on this machine.

Every part ends with how often and how long the event loops of the brokers were held: no callback may take 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from loadtest.bench import (
    active,
    batched,
    calls,
    groups,
    idle,
    links,
    live,
    native,
    opening,
    resolve,
    single,
    sla,
    sockets,
    storage,
    tls,
    trace_readers,
    traced,
    tracing,
    viewers,
)
from loadtest.bench.machine import MEMORY_FILE_SYSTEMS, describe, file_system
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

PARTS: dict[str, Callable[[MeshProcess], list[str]]] = {
    "batched": batched.run,
    "paced": batched.run_paced,
    "single": single.run,
    "native": native.run,
    "calls": calls.run,
    "resolve": resolve.run,
    "groups": groups.run,
    "active": active.run,
    "mirror": single.run,
    "idle": idle.run,
    "sockets": sockets.run,
    "tls": tls.run,
    "live": live.run,
    "readers": trace_readers.run,
    "viewers": viewers.run,
}
# Regions and brokers of each; the others have the default.
MESHES = {
    "mirror": ("us,eu", 1),
    "resolve": ("us,eu", 1),
    "live": ("us,eu", 1),
    "readers": ("us", 1),
    "viewers": ("us,eu,ap", 1),
}
DEFAULT_MESH = ("us", 3)
ALONE: dict[str, tuple[Callable[[Path], list[str]], str]] = {  # parts that need no mesh, and what they measure
    "open": (opening.run, "one data directory, no mesh"),
    "storage": (storage.run, "one operation of the log and of the codec, no mesh; the figures are stored"),
    "links": (links.run, "a link between two regions over each carrier in turn, TLS, no mesh"),
    "tracing": (tracing.run, "the recorder of a broker, no mesh"),
    "traced": (traced.run, "two regions of one broker, with traces and without, in turn"),
    "sla": (sla.run, "the report's jobs on 1 M delivery rows, no mesh (python -m loadtest.bench.sla has options)"),
}


async def measure(directory: Path, parts: list[str]) -> None:
    """Print the machine, then each part as it is done."""
    for line in describe(directory):
        print(line, flush=True)
    print("loopback, no WAN delay, fsync on; us is the home region, eu its mirror; one gateway beside the brokers")
    for part in parts:
        if part in ALONE:
            measured, what = ALONE[part]
            print(f"-- {part}: {what}", flush=True)
            for line in await asyncio.to_thread(measured, directory / part):
                print(line, flush=True)
            continue
        regions, brokers = MESHES.get(part, DEFAULT_MESH)
        async with MeshProcess(directory / part, regions=regions, brokers_per_region=brokers) as mesh:
            processes = brokers * len(regions.split(","))
            print(f"-- {part}: regions {regions}, {processes} broker processes and 1 gateway", flush=True)
            lines = await asyncio.to_thread(PARTS[part], mesh)
            for line in [*lines, *await asyncio.to_thread(loop_stalls, mesh)]:
                print(line, flush=True)


def loop_stalls(mesh: MeshProcess) -> list[str]:
    """Return how often since their start, and for how long at most, the event loops of the brokers were held."""
    lines = []
    for region in mesh.endpoints["regions"]:
        counts = batched.metric(mesh, region, "georelay_loop_stalls_total")
        longest = batched.metric(mesh, region, "georelay_loop_stall_seconds_max")
        lines.append(
            f"  event loops of {region}: {', '.join(f'{count:.0f}' for count in counts)} turns over 5 ms, "
            f"the longest {max(longest) * 1e3:.1f} ms (other processes' turns on the CPU are among them)"
        )
    return lines


def main() -> int:
    """Run the benchmarks; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join((*PARTS, *ALONE))}; default: all of them")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    parts = options.parts or [*PARTS, *ALONE]
    unknown = set(parts) - {*PARTS, *ALONE}
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    if file_system(options.directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{options.directory} is in memory: a sync costs nothing there; give --directory on a disk")
    with scratch_directory("georelay-bench-", options.directory) as scratch:
        uvloop.run(measure(scratch, parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
