"""Verdicts: pure rules from counts to PASS, BREACH, INCONCLUSIVE or NO_DATA.

Rule 1: a verdict is given only where the counts carry it: enough records, and a clock error that cannot turn it.
Rule 2: a breach is a breach however little else is known; missing input can only take a pass away.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from georelay.trace.histogram import QUANTILE_TAIL_MIN, is_quantile_meaningful
from sla.targets import THROUGHPUT_WINDOW_S, Targets


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


def judge_latency(*, n: int, n_good_lo: int, n_good_hi: int, n_clock_unknown: int, targets: Targets) -> Judgement:
    """Judge one region pair. `n_good_lo` and `n_good_hi` bound the records within the target under the clock error."""
    if n == 0:
        return Judgement(verdict=Verdict.NO_DATA, reason="no record was delivered live")
    share = targets.latency_share
    if n_good_hi < share * n and n - n_good_hi >= QUANTILE_TAIL_MIN:
        return Judgement(verdict=Verdict.BREACH, reason=f"{n_good_hi / n:.4%} within {targets.latency_ms:g} ms")
    if not is_quantile_meaningful(n, share):
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"n too small: {n} records")
    if n_good_lo >= share * n:
        return Judgement(verdict=Verdict.PASS)
    if n_clock_unknown:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason="the clock error between the brokers is unknown")
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason="the clock error is larger than the margin")


def judge_throughput(*, max_window: float, offered_max_window: float, targets: Targets) -> Judgement:
    """Judge one region by its best window of THROUGHPUT_WINDOW_S seconds (means per second)."""
    if max_window >= targets.delivered_per_s:
        return Judgement(verdict=Verdict.PASS)
    if offered_max_window < targets.delivered_per_s * targets.offered_margin:
        text = f"at most {offered_max_window:,.0f}/s were offered over {THROUGHPUT_WINDOW_S} s"
        return Judgement(verdict=Verdict.NO_DATA, reason=text)
    return Judgement(verdict=Verdict.BREACH, reason=f"{max_window:,.0f}/s of {offered_max_window:,.0f}/s offered")


def judge_integrity(
    *, delivered: int, lost: int, unexplained: int, duplicated: int, out_of_order: int, is_ledger_complete: bool
) -> Judgement:
    """Judge one stream in one region. A gap in an incomplete ledger may be the ledger's own."""
    if delivered == 0:
        return Judgement(verdict=Verdict.NO_DATA, reason="nothing was delivered")
    wrong = [f"{count} {name}" for name, count in (("duplicated", duplicated), ("out of order", out_of_order)) if count]
    if lost and is_ledger_complete:
        wrong.insert(0, f"{lost} lost")
    if wrong:
        return Judgement(verdict=Verdict.BREACH, reason=", ".join(wrong))
    if lost:
        text = f"{lost} records have no delivery, but rows of the ledger are missing"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)
    if unexplained:
        text = f"{unexplained} offsets were skipped that no ledger knows as committed"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)
    if not is_ledger_complete:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason="rows of the ledger are missing")
    return Judgement(verdict=Verdict.PASS)


def combine(*, required: Iterable[Iterable[Verdict]], optional: Iterable[Verdict]) -> Verdict:
    """Return the verdict of the whole.

    Args:
        required: groups of verdicts; a group without any (or with only NO_DATA) leaves the whole without data.
        optional: verdicts that only count when they are a breach or inconclusive.
    """
    groups = [list(group) for group in required]
    everything = [verdict for group in groups for verdict in group] + list(optional)
    if Verdict.BREACH in everything:
        return Verdict.BREACH
    if any(all(verdict is Verdict.NO_DATA for verdict in group) for group in groups):
        return Verdict.NO_DATA
    return Verdict.INCONCLUSIVE if Verdict.INCONCLUSIVE in everything else Verdict.PASS
