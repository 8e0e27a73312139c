"""What a check comes to. Every word of judging that is shared by targets, rows and the whole report.

Rule 1: a verdict is given only where the counts carry it: enough events, and no unknown that could turn it.
Rule 2: what is unknown (clocks, missing traces, minutes without data) widens an interval, never moves it.
Rule 3: a breach in what was seen stays a breach unless the unknown could take it back.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(enum.Enum):
    """Outcome of one check or of the whole report."""

    PASS = "PASS"  # noqa: S105 (a verdict, no password)
    BREACH = "BREACH"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_DATA = "NO_DATA"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and, unless it is a plain pass, one line that says why."""

    verdict: Verdict
    reason: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several parts: a breach decides, then doubt; parts without data count when all are."""
    seen = set(verdicts)
    for verdict in (Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.PASS):
        if verdict in seen:
            return verdict
    return Verdict.NO_DATA
