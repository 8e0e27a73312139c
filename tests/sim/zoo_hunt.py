"""Puts each bug of the zoo in and counts the seeds until a rule is broken."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.sim.runs import Outcome, play
from tests.sim.zoo import ZOO, Bug


def find(bug: Bug, *, seeds_max: int, first_seed: int = 1) -> tuple[int, Outcome | None]:
    """Return (seeds played, the outcome that showed the bug or None)."""
    with bug.patch():
        for played in range(1, seeds_max + 1):
            outcome = play("region", first_seed + played - 1, bug.settings)
            if outcome.rule:
                return played, outcome
    return seeds_max, None


def hunt(names: Sequence[str], *, seeds_max: int) -> int:
    """Print bug -> seeds needed; return 1 when one was not found in time."""
    missed = 0
    for name, bug in ZOO.items():
        if names and name not in names:
            continue
        played, outcome = find(bug, seeds_max=seeds_max)
        if outcome is None:
            missed += 1
            sys.stdout.write(f"{name:<40} NOT FOUND in {played} seeds\n")
        else:
            late = "" if played <= bug.seeds_max else f" (later than {bug.seeds_max})"
            missed += played > bug.seeds_max
            sys.stdout.write(f"{name:<40} {played:>4} seeds{late}  {outcome.rule}: {outcome.detail[:140]}\n")
        sys.stdout.flush()
    return 1 if missed else 0
