"""What `make lab` prints: a row for each step, and the clients' verdict over all of them. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

HEADS: Final = ("step", "seconds", "longest pause ms", "voters up at worst", "verdict")


@dataclass(frozen=True)
class Step:
    """One step, from `begin` to `end` in seconds since 1970; `fault` is what went wrong, "" for nothing."""

    name: str
    begin: float
    end: float
    voters_worst: str
    fault: str = ""


@dataclass
class Table:
    """All steps, the times at which records were acknowledged (in order), and the clients' verdict."""

    steps: list[Step] = field(default_factory=list)
    acknowledged_at: Sequence[float] = ()
    verdict: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    @property
    def is_good(self) -> bool:
        """Return whether all was done, and nothing was lost, doubled, moved or refused."""
        kept = all(self.verdict.get(key) == 0 for key in ("lost", "duplicated", "moved", "backwards", "refused"))
        return self.finished and kept and not any(step.fault for step in self.steps)

    def text(self) -> str:
        """Return the table, and one line with the clients' counts."""
        rows = [HEADS, *(self._row(step) for step in self.steps)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        counts = ", ".join(f"{value} {key}" for key, value in self.verdict.items() if key != "why_refused")
        return "\n".join([*lines, f"records: {counts or 'no verdict'}", *map(str, self.verdict.get("why_refused", ()))])

    def _row(self, step: Step) -> tuple[str, ...]:
        pause = longest_pause_s(self.acknowledged_at, step.begin, step.end)
        shown = "-" if pause is None else f"{pause * 1000:.0f}"
        return step.name, f"{step.end - step.begin:.1f}", shown, step.voters_worst or "-", step.fault or "as it should"


def longest_pause_s(times: Sequence[float], begin: float, end: float) -> float | None:
    """Return the longest time between two acknowledgements that overlaps [begin, end]; None: there was no load."""
    if not times or times[0] > end or times[-1] < begin:
        return None
    first = max(0, bisect.bisect_left(times, begin) - 1)
    last = min(len(times) - 1, bisect.bisect_right(times, end))
    return max((times[at + 1] - times[at] for at in range(first, last)), default=0.0)
