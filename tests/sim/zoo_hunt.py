"""Puts each bug of the zoo in and counts the seeds until a rule is broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.runs import Outcome, play
from tests.sim.zoo import ZOO, Bug


def find(bug: Bug, *, seeds_max: int, first_seed: int = 1) -> tuple[int, Outcome | None]:
    """Return (seeds played, the outcome that showed the bug or None).

    A seed shows the bug only when the same world without it keeps every rule.
    """
    for played in range(1, seeds_max + 1):
        seed = first_seed + played - 1
        with bug.patch():
            outcome = play(bug.world, seed, bug.settings)
        if outcome.rule and not play(bug.world, seed, bug.settings).rule:
            return played, outcome
    return seeds_max, None


def hunt(names: Sequence[str], *, jobs: int) -> int:
    """Print bug -> seeds needed; return 1 when one was not found in its number of seeds, 2 for an unknown name."""
    unknown = [name for name in names if name not in ZOO]
    if unknown:
        sys.stderr.write(f"no such bug: {', '.join(unknown)}\n")
        return 2
    missed = 0
    for name, played, outcome in _hunts([name for name in ZOO if not names or name in names], jobs):
        found = f"{played:>4}" if outcome is not None else f"NOT FOUND in {played}"
        rule = "" if outcome is None else f"{outcome.rule}: {outcome.detail[:120]}"
        missed += outcome is None
        sys.stdout.write(f"{name:<48} {ZOO[name].world:<6} {found} of {ZOO[name].seeds_max:>3} seeds  {rule}\n")
        sys.stdout.flush()
    sys.stdout.write("every bug was found\n" if not missed else f"{missed} bugs were not found\n")
    return 1 if missed else 0


def _hunts(names: Sequence[str], jobs: int) -> Iterator[tuple[str, int, Outcome | None]]:
    if jobs <= 1:
        yield from map(_hunt_one, names)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_hunt_one, names)


def _hunt_one(name: str) -> tuple[str, int, Outcome | None]:
    bug = ZOO[name]
    return name, *find(bug, seeds_max=bug.seeds_max)
