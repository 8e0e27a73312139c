"""The simulator's command: plays seeds, prints what it did, and ends with 1 when a rule was broken.

python -m tests.sim --seed 1 --runs 100 [--world region|mesh] [--jobs 2] [--marks] [--zoo [NAME …]]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.sim.marks import HOST_MARKS, missing
from tests.sim.runs import Outcome, play

TRACE_SHOWN = 200
MARKS_CHECKED_FROM = 300  # runs


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = _options(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets are walked in hash order: the same seed must walk them in the same order.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    if options.zoo is not None:
        from tests.sim.zoo_hunt import hunt

        return hunt(options.zoo, seeds_max=options.runs if options.runs > 1 else 500)
    return _play_all(options)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Play simulated worlds from their seeds.")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--world", choices=("region", "mesh"), default="region")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print the trace also of a good run")
    parser.add_argument("--zoo", nargs="*", metavar="BUG", help="put known bugs in and count the seeds to find them")
    return parser.parse_args(arguments)


def _play_all(options: argparse.Namespace) -> int:
    seeds = range(options.seed, options.seed + options.runs)
    begun, marks, failures = time.monotonic(), Counter[str](), list[Outcome]()
    events = virtual_ns = done = 0
    cpu_s = 0.0
    work = [(options.world, seed) for seed in seeds]
    with ProcessPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(_play_one, work, chunksize=4) if options.jobs > 1 else map(_play_one, work)
        for outcome in outcomes:
            done += 1
            events += outcome.events
            virtual_ns += outcome.virtual_ns
            cpu_s += outcome.cpu_s
            heal_ms = max(marks["heal.ms"], outcome.marks.pop("heal.ms", 0))
            marks.update(outcome.marks)
            marks["heal.ms"] = heal_ms
            if outcome.rule:
                failures.append(outcome)
                _show(outcome, options.world)
                if len(failures) >= 5:
                    break
            elif options.trace:
                sys.stdout.write("\n".join(outcome.trace) + "\n")
            if done % 100 == 0:
                sys.stdout.write(f"… {done} seeds, {len(failures)} violations\n")
                sys.stdout.flush()
    longest = marks.pop("heal.ms", 0)
    _show_marks(marks)
    wall_s = time.monotonic() - begun
    sys.stdout.write(
        f"{done} seeds from {options.seed} ({options.world}): {len(failures)} violations, {events:,} events, "
        f"{virtual_ns / 6e10:.1f} virtual minutes, {cpu_s:.1f} s CPU, {wall_s:.1f} s wall; "
        f"{done / wall_s:.1f} seeds/s, "
        f"{virtual_ns / 1e9 / max(cpu_s, 1e-9):.1f} virtual minutes per CPU minute, longest heal {longest} ms\n"
    )
    absent = missing(marks, HOST_MARKS) if options.world == "region" and done >= MARKS_CHECKED_FROM else []
    if absent:
        sys.stdout.write(f"never hit: {', '.join(absent)}\n")
    return 1 if failures or absent else 0


def _play_one(work: tuple[str, int]) -> Outcome:
    return play(*work)


def _show(outcome: Outcome, world: str) -> None:
    sys.stdout.write("\n".join(outcome.trace[-TRACE_SHOWN:]) + "\n")
    sys.stdout.write(f"VIOLATION seed {outcome.seed}: {outcome.rule}: {outcome.detail}\n")
    if outcome.crash:
        sys.stdout.write(outcome.crash)
    sys.stdout.write(f"again: make sim SEED={outcome.seed} RUNS=1 WORLD={world}\n\n")
    sys.stdout.flush()


def _show_marks(marks: Counter[str]) -> None:
    rows = sorted(marks.items())
    width = max((len(name) for name, _ in rows), default=0)
    half = (len(rows) + 1) // 2
    for row in range(half):
        cells = [f"{name:<{width}} {count:>9,}" for name, count in rows[row::half]]
        sys.stdout.write("  " + "   ".join(cells) + "\n")
