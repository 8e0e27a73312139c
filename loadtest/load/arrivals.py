"""When records are due, whether or not those before them were answered (the open model), and their keys. Pure.

Rule 1: due times follow from the rate alone. Who is late sends what is due at once, and latency counts from the due
        time: a target that stands still hides nothing (coordinated omission, Tene 2013).
Rule 2: users of one kind are one stream of arrivals: the sum of independent Poisson processes is a Poisson process.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate


class Arrivals:
    """Due times of one kind of user, ascending.

    Args:
        rng: draws the gaps of poisson arrivals.
        poisson: False: equal gaps.
    """

    def __init__(self, rng: random.Random, *, poisson: bool) -> None:
        self._rng = rng
        self._poisson = poisson
        self._rate_per_s = 0.0
        self._next_ns: float = math.inf

    @property
    def next_ns(self) -> float:
        """Return when the next record is due, infinity at rate 0."""
        return self._next_ns

    def set_rate(self, rate_per_s: float, now_ns: int) -> None:
        """Offer so many per second from now on; what was due before stays due."""
        if rate_per_s == self._rate_per_s:
            return
        before, self._rate_per_s = self._rate_per_s, rate_per_s
        if self._next_ns <= now_ns:
            return
        if not before or not rate_per_s:
            self._next_ns = now_ns + self._gap_ns()
        else:  # what is left of the gap shrinks or grows with it
            self._next_ns = now_ns + (self._next_ns - now_ns) * before / rate_per_s

    def due(self, now_ns: int) -> Iterator[int]:
        """Yield the due times up to now, each once."""
        while self._next_ns <= now_ns:
            due_ns = int(self._next_ns)
            self._next_ns += self._gap_ns()
            yield due_ns

    def _gap_ns(self) -> float:
        if not self._rate_per_s:
            return math.inf
        gap_s = self._rng.expovariate(self._rate_per_s) if self._poisson else 1 / self._rate_per_s
        return gap_s * 1e9


class Keys:
    """Draws keys 0..count-1.

    Args:
        distribution: uniform, zipf:EXPONENT, or hot:SHARE (key 0 has that share, the others are uniform).
    """

    def __init__(self, distribution: str, count: int, rng: random.Random) -> None:
        kind, _, number = distribution.partition(":")
        self._rng = rng
        self._count = count
        self._hot_share = float(number) if kind == "hot" else 0.0
        self._sums = list(accumulate((row + 1) ** -float(number) for row in range(count))) if kind == "zipf" else []

    def draw(self) -> int:
        """Return a key."""
        if self._sums:
            return min(bisect(self._sums, self._rng.random() * self._sums[-1]), self._count - 1)
        if self._hot_share and (self._count == 1 or self._rng.random() < self._hot_share):
            return 0
        first = 1 if self._hot_share else 0
        return self._rng.randrange(first, self._count)
