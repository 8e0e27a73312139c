"""`python -m loadtest.wan`: what is measured in a WAN test bed and is no campaign (`georelay load run wan-latency`).

congestion  one bare TCP connection under reno, cubic and BBR; no mesh runs
landing     in which region every client lands, from every region, by every way in (JARS: also Java)
step        a path gets 30 ms longer: who moves, when, how often (14 minutes)
return      a region is cut off and comes back: who leaves it, who returns and when (8 minutes)
cuts        regions are cut off under load: how long nothing comes, what is lost or comes twice (25 s a cut)

Needs what `georelay wan up` needs, all but the first as root; see docs/development/wan.md. landing and cuts end with 1
when something that was acknowledged is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from loadtest.scratch import scratch_directory
from loadtest.wan import congestion, landing, moving
from loadtest.wan.gateway_bed import PAIRS as GATEWAY_PAIRS
from loadtest.wan.gateway_bed import GatewayBed, Lost
from loadtest.wan.wan_mesh import PAIRS


def main() -> int:
    """Run what the command line asks for; 1 when something that was acknowledged is lost."""
    kinds = ["congestion", "landing", "step", "return", "cuts"]
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.wan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--pairs", default=PAIRS, help="congestion: round trips")
    parser.add_argument("--seconds", type=float, default=20.0, help="congestion: of each measurement")
    parser.add_argument("--losses", default=",".join(congestion.LOSSES))
    parser.add_argument("--jars", default="", help="folder with Kafka's jars, as `make interop-java` brings, for Java")
    parser.add_argument("--count", type=int, default=20, help="step, return: connections; cuts: how many")
    parser.add_argument("--gateway", default="us", help="step, return: whose gateway the connections ask")
    parser.add_argument("--rate", type=float, default=300.0, help="cuts: records per second")
    parser.add_argument("--kinds", default="confluent-kafka,aiokafka,SDK", help="cuts: of clients; Java needs JARS")
    options = parser.parse_args()
    if options.what != "congestion":
        return asyncio.run(_in_a_bed(options))
    print(f"one TCP connection, {options.seconds:g} s each, {options.pairs}")
    for line in congestion.measure(options.pairs, seconds=options.seconds, losses=options.losses.split(",")):
        print(line, flush=True)
    return 0


async def _in_a_bed(options: argparse.Namespace) -> int:
    with scratch_directory("georelay-wan-") as directory:
        async with GatewayBed(directory) as bed:
            print(f"{options.what}: {GATEWAY_PAIRS}, a broker and a gateway in each region, none at the edge")
            lines = {
                "landing": lambda: landing.measure(bed, jars=options.jars),
                "step": lambda: moving.step(bed, count=options.count, gateway=options.gateway),
                "return": lambda: moving.come_back(bed, count=options.count, gateway=options.gateway),
                "cuts": lambda: moving.cuts(
                    bed, count=options.count, rate=options.rate, kinds=options.kinds.split(","), jars=options.jars
                ),
            }[options.what]()
            code = 0
            try:
                async for line in lines:
                    print(line, flush=True)
            except Lost as error:
                print(f"LOST: {error}", flush=True)
                code = 1
            print(f"lag of the router: at most {max(bed.bed_since(0)['lag_us'], default=0) / 1e3:.2f} ms")
            return code


if __name__ == "__main__":
    sys.exit(main())
