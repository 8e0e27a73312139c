"""The simulator's command: plays seeds, prints what it did, and ends with 1 when a rule was broken.

python -m tests.sim --seed 1 --runs 100 [--world region|mesh|coordinator|homes|geo] [--jobs 2] [--tally FILE]
                    [--zoo [NAME …]]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from tests.sim.campaign import campaign
from tests.sim.marks import COORDINATOR_MARKS, GEO_MARKS, HOMES_MARKS, HOST_MARKS, MESH_MARKS, missing
from tests.sim.tally import Tally

MARKS_CHECKED_FROM: Final = {"region": 300, "mesh": 150, "coordinator": 100, "homes": 40, "geo": 40}  # seeds
MARKS: Final = {
    "region": HOST_MARKS,
    "mesh": MESH_MARKS,
    "coordinator": COORDINATOR_MARKS,
    "homes": HOMES_MARKS,
    "geo": GEO_MARKS,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = _options(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets are walked in hash order: the same seed must walk them in the same order.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    if options.zoo is not None:
        from tests.sim.zoo_hunt import hunt

        return hunt(options.zoo, jobs=options.jobs)
    return _play_all(options)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Play simulated worlds from their seeds.")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--world", choices=tuple(MARKS), default="region")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="keep the sums here; go on from them if it exists")
    parser.add_argument("--trace", action="store_true", help="print the trace also of a good run")
    parser.add_argument("--zoo", nargs="*", metavar="BUG", help="put known bugs in and count the seeds to find them")
    return parser.parse_args(arguments)


def _play_all(options: argparse.Namespace) -> int:
    tally = Tally(world=options.world, first_seed=options.seed)
    if options.tally is not None and options.tally.exists():
        tally = Tally.load(options.tally)
        if (tally.world, tally.first_seed) != (options.world, options.seed):
            sys.stderr.write(f"{options.tally} is about WORLD={tally.world} from SEED={tally.first_seed}\n")
            return 2
    end = tally.first_seed + options.runs
    seeds = [seed for seed in range(tally.next_seed, end) if seed not in tally.beyond]
    campaign(tally, seeds, jobs=options.jobs, keep_in=options.tally, trace=options.trace)
    sys.stdout.write("".join(f"{line}\n" for line in (*tally.mark_lines(), tally.line())))
    for seed, rule, detail in sorted(tally.failures):
        sys.stdout.write(f"failed: seed {seed}: {rule}: {detail[:200]}\n")
    absent = missing(tally.marks, MARKS[tally.world]) if tally.seeds >= MARKS_CHECKED_FROM[tally.world] else []
    if absent:
        sys.stdout.write(f"never hit: {', '.join(absent)}\n")
    return 1 if tally.failures or absent or tally.next_seed < end else 0
