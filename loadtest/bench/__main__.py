"""`python -m loadtest.bench`: all benchmarks of one region and its mirror, on this machine.

Every part ends with how often and how long the event loops of the brokers were held: no callback may take 5 ms,
but for a sync of a disk that was quick until then (docs/adr/0053-quick-disks-on-the-loop.md).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from loadtest.bench import (
    calls,
    cold,
    groups,
    idle,
    links,
    live,
    loads,
    native,
    resolve,
    sla,
    sockets,
    storage,
    timers,
    trace_readers,
    traced,
    viewers,
)
from loadtest.bench.machine import add_directory, describe, disk_of
from loadtest.bench.mesh_asks import loop_stalls
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

PARTS: dict[str, Callable[[MeshProcess], list[str]]] = {
    "batched": partial(loads.run, loads.BATCHED),
    "paced": loads.run_paced,
    "single": partial(loads.run, loads.SINGLE),
    "native": native.run,
    "calls": calls.run,
    "resolve": resolve.run,
    "groups": groups.run,
    "active": partial(loads.run, loads.MANY),
    "mirror": partial(loads.run, loads.SINGLE),
    "idle": idle.run,
    "sockets": sockets.run,
    "tls": loads.run_tls,
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
    "open": (timers.run_opening, "one data directory, no mesh"),
    "storage": (storage.run, "one operation of the log and of the codec, no mesh; the figures are stored"),
    "links": (links.run, "a link between two regions over each carrier in turn, TLS, no mesh"),
    "tracing": (timers.run_tracing, "the recorder of a broker, no mesh"),
    "traced": (traced.run, "two regions of one broker, with traces and without, in turn"),
    "cold": (cold.run, "Python that did not run for a while, no mesh"),
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


def main() -> int:
    """Run the benchmarks; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join((*PARTS, *ALONE))}; default: all of them")
    add_directory(parser)
    options = parser.parse_args()
    parts = options.parts or [*PARTS, *ALONE]
    unknown = set(parts) - {*PARTS, *ALONE}
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    with scratch_directory("georelay-bench-", disk_of(parser, options)) as scratch:
        uvloop.run(measure(scratch, parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
