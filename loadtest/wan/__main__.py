"""`python -m loadtest.wan latency|cut|one-way|loss|cap|congestion`: a mesh in a WAN test bed, measured.

latency   publish -> deliver above the one-way floor for every pair, acknowledgements above theirs, CPU per record
cut       a link is cut for 20 s and healed             one-way   the same in one direction, and then in the other
loss      1 % of the packets of a link are lost         cap       a link carries 50 Mbit/s
congestion  no mesh: one bare TCP connection under reno, cubic and BBR, without loss, with 0.1 % and with 1 %
Needs what `georelay wan up` needs; see docs/development/wan.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop

from loadtest.bench.machine import describe
from loadtest.scratch import scratch_directory
from loadtest.wan import congestion, faults, latency
from loadtest.wan.wan_mesh import PAIRS, SETTLE_SECONDS, WanMesh

FAULTS = {"cut": ("cut",), "one-way": ("one-way-out", "one-way-back"), "loss": ("loss",), "cap": ("cap",)}


def main() -> int:
    """Run what the command line asks for; returns 1 when a run was invalid."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.wan", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["latency", *FAULTS, "congestion"])
    parser.add_argument("--pairs", default=PAIRS, help="round trips")
    parser.add_argument("--brokers-per-region", type=int, default=1)
    parser.add_argument("--rate", type=int, default=300, help="records per second in all")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement; of a fault")
    parser.add_argument("--homes", default="one,every,first", help=f"of {', '.join(latency.HOMES)}; latency only")
    parser.add_argument("--geo", type=int, default=1, help="regions that acknowledge; latency only")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--congestion-control", default="", choices=["", "reno", "cubic", "bbr"])
    parser.add_argument("--losses", default=",".join(congestion.LOSSES), help="congestion only")
    parser.add_argument("--loss", default="1%")
    parser.add_argument("--cap", default="50mbit")
    parser.add_argument("--directory", type=Path, help="for the data; a temporary one by default")
    options = parser.parse_args()
    if options.what == "congestion":
        print(f"one TCP connection, {options.seconds:g} s each, {options.pairs}")
        _say(congestion.measure(options.pairs, seconds=options.seconds, losses=options.losses.split(",")))
        return 0
    with scratch_directory("georelay-wan-", options.directory) as scratch:
        lines = uvloop.run(_measure(options, scratch))
    return 1 if any("INVALID" in line for line in lines) else 0


async def _measure(options: argparse.Namespace, scratch: Path) -> list[str]:
    for line in describe(scratch):
        print(line)
    mesh = WanMesh(
        scratch / "mesh",
        brokers_per_region=options.brokers_per_region,
        pairs=options.pairs,
        congestion_control=options.congestion_control,
    )
    said: list[str] = []
    async with mesh:
        count = options.brokers_per_region * len(mesh.regions)
        print(f"-- {options.what}: {options.pairs}, {count} brokers with TLS and users, fsync on", flush=True)
        await asyncio.sleep(SETTLE_SECONDS)
        for run in range(1, options.runs + 1):
            if options.what == "latency":
                for homes in options.homes.split(","):
                    said += _say(
                        await latency.measure(
                            mesh, homes, rate_per_s=options.rate, seconds=options.seconds, geo=options.geo, run=run
                        )
                    )
                continue
            for fault in FAULTS[options.what]:
                said += _say(
                    await faults.measure(
                        mesh,
                        fault,
                        rate_per_s=options.rate,
                        fault_s=options.seconds,
                        loss=options.loss,
                        rate=options.cap,
                        run=run,
                    )
                )
    return said


def _say(lines: list[str]) -> list[str]:
    for line in lines:
        print(line, flush=True)
    return lines


if __name__ == "__main__":
    sys.exit(main())
