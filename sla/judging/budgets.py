"""Error budgets and burn rates: what may still go wrong, how fast it does, and when nothing will be left.

burn rate = bad share / (1 - objective): at 1 the period ends with the budget spent exactly.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from sla.judging.facts import BurnFacts, Span, Subject
from sla.report.model import Budget, BurnWindow, Unit
from sla.targets import BurnRule, Targets

_ALLOWED_DECIMALS = 6  # 1 - 0.9999 is 0.00009999999999998899
_RATE_DECIMALS = 4


def iso(second: int) -> str:
    """Return epoch seconds as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(second, tz=datetime.UTC).isoformat().replace("+00:00", "Z")


def bad_share_allowed(objective: float) -> float:
    """Return 1 - objective without the noise of binary fractions."""
    return round(1 - objective, 12)


def burn_rate(*, bad: int, total: int, objective: float) -> float | None:
    """Return how many times faster than allowed the budget is spent; None without events."""
    return bad / total / bad_share_allowed(objective) if total else None


def budget_of(
    *, unit: Unit, total: float, bad: int, objective: float, span: Span, burn: Iterable[BurnWindow] = ()
) -> Budget:
    """Return the budget of one subject over the span.

    Args:
        burn: the alerts' windows; the shortest long window with events says how fast it burns now.
    """
    allowed = round(total * bad_share_allowed(objective), _ALLOWED_DECIMALS)
    left = allowed - bad
    per_minute = 1.0 if unit is Unit.MINUTES else total / span.minutes
    rate = next((window.long_rate for window in burn if window.long_rate is not None), None)
    return Budget(
        unit=unit,
        allowed=allowed,
        used=bad,
        left_share=round(left / allowed, _ALLOWED_DECIMALS) if allowed else None,
        full_outage_minutes_left=round(max(0.0, left) / per_minute, 3) if per_minute else None,
        exhausted_at=_exhausted_at(left=left, allowed=allowed, rate=rate, span=span),
    )


def _exhausted_at(*, left: float, allowed: float, rate: float | None, span: Span) -> str | None:
    """Return when the rest is spent at this rate, None when it outlasts another period of the same length."""
    if left <= 0 or not rate:
        return None
    seconds = left / (rate * allowed / (span.end_s - span.start_s))
    return iso(span.end_s + int(seconds)) if seconds <= span.end_s - span.start_s else None


class BurnBook:
    """The burn facts of all targets, by target and subject."""

    def __init__(self, facts: Iterable[BurnFacts], targets: Targets) -> None:
        self._rules: Mapping[str, BurnRule] = {rule.name: rule for rule in targets.burn_rules}
        self._events_min = targets.burn_events_min
        self._facts: dict[tuple[str, Subject], dict[str, BurnFacts]] = {}
        for item in facts:
            self._facts.setdefault((item.target, item.subject), {})[item.rule] = item

    def windows(self, *, target: str, subject: Subject, objective: float) -> tuple[BurnWindow, ...]:
        """Return the alerts of one subject in the order of the rules; empty when no minute was counted for it."""
        found = self._facts.get((target, subject), {})
        return tuple(self._window(found[name], rule, objective) for name, rule in self._rules.items() if name in found)

    def _window(self, facts: BurnFacts, rule: BurnRule, objective: float) -> BurnWindow:
        long_rate = burn_rate(bad=facts.long_bad, total=facts.long_total, objective=objective)
        short_rate = burn_rate(bad=facts.short_bad, total=facts.short_total, objective=objective)
        limit = rule.rate * bad_share_allowed(objective)
        is_over = facts.long_bad > limit * facts.long_total and facts.short_bad > limit * facts.short_total
        is_burning = is_over and facts.long_total >= self._events_min
        is_partial = facts.covered_minutes < rule.long_minutes
        return BurnWindow(
            name=rule.name,
            severity=rule.severity,
            long_minutes=rule.long_minutes,
            short_minutes=rule.short_minutes,
            threshold=rule.rate,
            long_rate=_rounded(long_rate),
            short_rate=_rounded(short_rate),
            covered_minutes=facts.covered_minutes,
            is_burning=is_burning,
            is_firing=is_burning and not is_partial,
            is_partial=is_partial,
            firing_minutes=facts.firing_minutes,
            worst_rate=_rounded(facts.worst_rate),
            worst_at=None if facts.worst_s is None else iso(facts.worst_s),
        )


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, _RATE_DECIMALS)
