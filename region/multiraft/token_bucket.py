"""A rate limit that says how long to wait. Pure: time comes in as an argument."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate_per_s` units pass per second on average, `burst` of them at once.

    A taker may overdraw: it is told how long to wait before it goes on, and later takers wait behind it.
    """

    def __init__(self, *, rate_per_s: int, burst: int, now_ns: int) -> None:
        if rate_per_s < 1 or burst < 1:
            raise ValueError(f"rate {rate_per_s} and burst {burst} must be positive")
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = float(burst)
        self._seen_ns = now_ns

    def take(self, units: int, *, now_ns: int) -> float:
        """Take `units` now; return the seconds to wait before they are used."""
        passed_ns = max(now_ns - self._seen_ns, 0)
        self._seen_ns = max(now_ns, self._seen_ns)
        self._tokens = min(self._tokens + passed_ns * self._rate_per_s / 1e9, float(self._burst)) - units
        return max(-self._tokens / self._rate_per_s, 0.0)
