"""Token buckets: how long somebody who used more than its rate has to pause.

Rule 1: what was used is used: a bucket may go below empty, and the pause is the time until it is full enough again.
Rule 2: a bucket holds BURST_S of its rate, so that a rate is meant over a second, not over a request.
Rule 3: a pause is PAUSE_S_MAX at most; what is owed beyond that is forgotten, or one huge request would stop a client
        for minutes.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0


class TokenBucket:
    """One rate of one principal; units are the caller's (bytes, seconds of work), times monotonic seconds."""

    __slots__ = ("_level", "_rate_per_s", "_since_s")

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._level = rate_per_s * BURST_S
        self._since_s = now_s

    @property
    def rate_per_s(self) -> float:
        """Return the rate."""
        return self._rate_per_s

    def change_rate(self, rate_per_s: float, now_s: float) -> None:
        """Go on with another rate; what is owed stays owed."""
        self._refill(now_s)
        self._rate_per_s = rate_per_s
        self._level = min(self._level, rate_per_s * BURST_S)

    def use(self, amount: float, now_s: float) -> float:
        """Take `amount` out; return how long to pause (s), 0.0 when the rate was kept."""
        self._refill(now_s)
        self._level = max(self._level - amount, -PAUSE_S_MAX * self._rate_per_s)
        return 0.0 if self._level >= 0 else -self._level / self._rate_per_s

    def is_full(self, now_s: float) -> bool:
        """Return whether it may be forgotten: nothing was used for a while."""
        self._refill(now_s)
        return self._level >= self._rate_per_s * BURST_S

    def _refill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._since_s)
        self._since_s = now_s
        self._level = min(self._level + passed_s * self._rate_per_s, self._rate_per_s * BURST_S)
