"""What a campaign has found so far: added up seed by seed, kept in a file, continued from it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.sim.runs import Outcome

HEAL_MS = "heal.ms"  # the one mark that is a maximum and not a count


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over the seeds that were played; `failures` are (seed, rule, detail)."""

    world: str
    first_seed: int
    seeds: int = 0
    events: int = 0
    virtual_ns: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    heal_ms_max: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    beyond: set[int] = field(default_factory=set)  # played, while an earlier seed still is

    @property
    def next_seed(self) -> int:
        """Return the first seed that was not played: a campaign goes on here."""
        return self.first_seed + self.seeds - len(self.beyond)

    def add(self, outcome: Outcome) -> None:
        """Count one seed, in whatever order they end."""
        self.beyond.add(outcome.seed)
        self.seeds += 1
        while self.next_seed in self.beyond:
            self.beyond.discard(self.next_seed)
        self.events += outcome.events
        self.virtual_ns += outcome.virtual_ns
        self.cpu_s += outcome.cpu_s
        self.heal_ms_max = max(self.heal_ms_max, outcome.marks.pop(HEAL_MS, 0))
        self.marks.update(outcome.marks)
        if outcome.rule:
            self.failures.append((outcome.seed, outcome.rule, outcome.detail))

    @property
    def pace(self) -> float:
        """Return virtual minutes per CPU minute."""
        return self.virtual_ns / 1e9 / max(self.cpu_s, 1e-9)

    def line(self) -> str:
        """Return everything but the marks in one line."""
        return (
            f"{self.seeds:,} seeds from {self.first_seed} ({self.world}): {len(self.failures)} violations, "
            f"{self.events:,} events, {self.virtual_ns / 6e10:,.1f} virtual minutes, {self.cpu_s:,.1f} s CPU, "
            f"{self.wall_s:,.1f} s wall; {self.seeds / max(self.wall_s, 1e-9):.1f} seeds/s, "
            f"{self.pace:.1f} virtual minutes per CPU minute, longest heal {self.heal_ms_max} ms"
        )

    def mark_lines(self) -> Iterator[str]:
        """Yield the marks in two columns."""
        rows = sorted(self.marks.items())
        width = max((len(name) for name, _ in rows), default=0)
        half = (len(rows) + 1) // 2
        for row in range(half):
            yield "  " + "   ".join(f"{name:<{width}} {count:>11,}" for name, count in rows[row::half])

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        raw = {each.name: getattr(self, each.name) for each in fields(self)} | {"beyond": sorted(self.beyond)}
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(raw, indent=1))
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """Read what `save` wrote."""
        raw = json.loads(path.read_text())
        raw["marks"] = Counter(raw["marks"])
        raw["failures"] = [(seed, rule, detail) for seed, rule, detail in raw["failures"]]
        raw["beyond"] = set(raw["beyond"])
        return cls(**raw)
