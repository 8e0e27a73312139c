"""`python -m loadtest.wan congestion`: one bare TCP connection in a WAN test bed, under reno, cubic and BBR.

No mesh runs. What a mesh does in a test bed is measured by campaigns: `georelay load run wan-latency`, `wan-links`.
Needs what `georelay wan up` needs; see docs/development/wan.md.
"""

from __future__ import annotations

import argparse
import sys

from loadtest.wan import congestion
from loadtest.wan.wan_mesh import PAIRS


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.wan", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["congestion"])
    parser.add_argument("--pairs", default=PAIRS, help="round trips")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--losses", default=",".join(congestion.LOSSES))
    options = parser.parse_args()
    print(f"one TCP connection, {options.seconds:g} s each, {options.pairs}")
    for line in congestion.measure(options.pairs, seconds=options.seconds, losses=options.losses.split(",")):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
