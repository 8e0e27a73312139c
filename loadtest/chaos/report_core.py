"""What many runs amount to, nemesis by nemesis. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.history.verdict import Category, Verdict

LOST: Final = (Category.LOST_WRITE, Category.UNSEEN, Category.VANISHED)
DOUBLED: Final = (Category.DUPLICATE,)
DISORDERED: Final = (
    Category.INCONSISTENT_OFFSET,
    Category.NON_MONOTONIC_SEND,
    Category.OVERTAKEN_SEND,
    Category.NON_MONOTONIC_POLL,
    Category.POLL_SKIP,
)
STALE: Final = (Category.STALE_END,)
WRONG: Final = (Category.WRONG_BYTES, Category.ABORTED_READ)
assert {*LOST, *DOUBLED, *DISORDERED, *STALE, *WRONG} == set(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Limits of the time without an acknowledgement, in ms; None: no limit."""

    median_ms_max: float | None = None
    worst_ms_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the report needs of one run."""

    verdict: Verdict
    gap_ms: float
    complaints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All runs of one nemesis. Counts are findings; gaps are the longest of each run."""

    nemesis: str
    runs: int
    acknowledged: int
    records_read: int
    lost: int
    doubled: int
    disordered: int
    stale: int
    wrong: int
    complaints: int
    median_gap_ms: float
    worst_gap_ms: float
    goal: Goal
    must_fail: bool = False

    @property
    def is_clean(self) -> bool:
        """Return whether every promise was kept in every run."""
        return not (self.lost or self.doubled or self.disordered or self.stale or self.wrong or self.complaints)

    @property
    def is_as_wanted(self) -> bool:
        """Return whether it is clean, or is not and must not be."""
        return self.is_clean is not self.must_fail

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        if self.must_fail:
            return "VALID, must not be" if self.is_clean else "not valid, as it must be"
        return "valid" if self.is_clean else "NOT VALID"

    @property
    def is_in_time(self) -> bool | None:
        """Return whether the goals were met; None without goals."""
        pairs = [(self.median_gap_ms, self.goal.median_ms_max), (self.worst_gap_ms, self.goal.worst_ms_max)]
        limits = [gap <= limit for gap, limit in pairs if limit is not None]
        return all(limits) if limits else None


def row_of(nemesis: str, outcomes: Sequence[Outcome], goal: Goal, *, must_fail: bool = False) -> Row:
    """Add up at least one run."""
    gaps_ms = [outcome.gap_ms for outcome in outcomes]

    def total(*categories: Category) -> int:
        return sum(outcome.verdict.count(*categories) for outcome in outcomes)

    return Row(
        nemesis=nemesis,
        runs=len(outcomes),
        acknowledged=sum(outcome.verdict.acknowledged for outcome in outcomes),
        records_read=sum(outcome.verdict.records_read for outcome in outcomes),
        lost=total(*LOST),
        doubled=total(*DOUBLED),
        disordered=total(*DISORDERED),
        stale=total(*STALE),
        wrong=total(*WRONG),
        complaints=sum(outcome.complaints for outcome in outcomes),
        median_gap_ms=statistics.median(gaps_ms),
        worst_gap_ms=max(gaps_ms),
        goal=goal,
        must_fail=must_fail,
    )


def goal_text(row: Row) -> str:
    """Return the goals of a row and whether they were met, "" without goals."""
    parts = [
        f"{name} <= {limit:g}"
        for name, limit in (("median", row.goal.median_ms_max), ("worst", row.goal.worst_ms_max))
        if limit is not None
    ]
    return f"{', '.join(parts)}: {'met' if row.is_in_time else 'MISSED'}" if parts else ""
