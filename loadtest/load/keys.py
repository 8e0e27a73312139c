"""Which key a record has: uniform, Zipf, or one hot key. Pure."""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate


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
