"""How long a suspect may defend itself: long at first, shorter with every independent accuser (Lifeguard).

    k    = suspicion_mult - 2, or 0 where the pool is too small for so many accusers
    min  = suspicion_mult * max(1, log10(n)) * probe_interval;  max = suspicion_max_mult * min
    c confirmations:  max(min, max - (max - min) * ln(c + 1) / ln(k + 1)), whole milliseconds

Source: "Lifeguard", section 3.2 (dynamic suspicion timeout).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mesh.gossip.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionBounds:
    """Confirmations wanted, shortest and longest time to defend oneself, in seconds."""

    confirmations: int
    min_s: float
    max_s: float


def suspicion_bounds(timing: Timing, members: int) -> SuspicionBounds:
    """Return the bounds for a pool of `members`, us included, the dead that are not yet forgotten too."""
    wanted = timing.suspicion_mult - 2
    if members - 2 < wanted:
        wanted = 0
    min_s = timing.suspicion_mult * max(1.0, math.log10(max(1, members))) * timing.probe_interval_s
    return SuspicionBounds(confirmations=max(0, wanted), min_s=min_s, max_s=timing.suspicion_max_mult * min_s)


def suspicion_timeout_s(bounds: SuspicionBounds, confirmed: int) -> float:
    """Return how long a suspicion with `confirmed` confirmations lasts, from its start."""
    if bounds.confirmations < 1:
        return bounds.min_s
    share = math.log(confirmed + 1) / math.log(bounds.confirmations + 1)
    left_s = bounds.max_s - (bounds.max_s - bounds.min_s) * share
    return max(bounds.min_s, math.floor(left_s * 1000) / 1000)


class Suspicion:
    """The suspicion against one member.

    Args:
        accuser: who accused first; it confirms nothing later.
        bounds: see suspicion_bounds.
        now: seconds.
    """

    __slots__ = ("_accusers", "_bounds", "_not_before", "_started", "confirmed", "deadline")

    def __init__(self, *, accuser: str, bounds: SuspicionBounds, now: float) -> None:
        self._accusers = {accuser}
        self._bounds = bounds
        self._started = now
        self._not_before = now
        self.confirmed = 0
        self.deadline = now + suspicion_timeout_s(bounds, 0)

    def confirm(self, accuser: str) -> bool:
        """Count another accuser; return whether it was new and wanted (then it is worth telling on)."""
        if self.confirmed >= self._bounds.confirmations or accuser in self._accusers:
            return False
        self._accusers.add(accuser)
        self.confirmed += 1
        self.deadline = max(self._not_before, self._started + suspicion_timeout_s(self._bounds, self.confirmed))
        return True

    def defer(self, until: float) -> None:
        """Do not fire before `until`: we were stalled and have not heard the defence yet."""
        self._not_before = max(self._not_before, until)
        self.deadline = max(self.deadline, until)
