"""The latency histogram of every trace: a log-linear grid of 32 buckets per octave over microseconds.

Rule 1: bucket `b` holds latencies in [2**(b/32), 2**((b+1)/32)); everything below 1 us is in bucket 0.
Rule 2: two histograms merge by plain sums, in any order, with the same result.
Rule 3: a share of records within the target is counted beside, never read from buckets: 50 ms is no bucket bound.

The grid is the base-2 exponential grid of OpenTelemetry and Prometheus at scale 5 (ours is lower-inclusive). The middle
of a bucket is at most 1.1 % from any value in it. Unlike a sketch it is deterministic: one input, one report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

GRID: Final = 5  # log2 of the buckets per octave; stands in every row, so that a later grid can live beside it
BUCKETS_PER_OCTAVE: Final = 1 << GRID
GOOD_US_MAX: Final = 50_000  # the latency target, publish to deliver
QUANTILE_TAIL_MIN: Final = 20  # records that must lie beyond a quantile before it is worth printing

_log2 = math.log2


def bucket_index(latency_us: int) -> int:
    """Return the bucket of a latency in microseconds: floor(log2(us) * 32), 0 for anything below 1."""
    return int(_log2(latency_us) * BUCKETS_PER_OCTAVE) if latency_us > 1 else 0


def bucket_bounds(index: int) -> tuple[float, float]:
    """Return [lower, upper) of a bucket in microseconds."""
    return 2.0 ** (index / BUCKETS_PER_OCTAVE), 2.0 ** ((index + 1) / BUCKETS_PER_OCTAVE)


def bucket_mid(index: int) -> float:
    """Return the value that stands for a bucket: the middle of its bounds, in microseconds."""
    lower, upper = bucket_bounds(index)
    return (lower + upper) / 2


def merge(into: dict[int, int], other: Iterable[tuple[int, int]]) -> None:
    """Add the (bucket, count) pairs of `other` to `into`."""
    for index, count in other:
        into[index] = into.get(index, 0) + count


def quantile(buckets: Mapping[int, int], q: float) -> float | None:
    """Return the value at quantile `q` in microseconds, None when there is no record.

    Args:
        buckets: bucket -> records.
        q: 0 < q <= 1. The record of rank ceil(q * n) is the quantile.
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q} is outside (0, 1]")
    rank = math.ceil(q * sum(buckets.values()))
    seen = 0
    for index in sorted(buckets):
        seen += buckets[index]
        if seen >= rank > 0:
            return bucket_mid(index)
    return None


def is_quantile_meaningful(n: int, q: float) -> bool:
    """Return whether at least 20 of `n` records are expected beyond quantile `q`."""
    # In whole permyriads: 1 - 0.99 is 0.010000000000000009, and other quantiles err to the other side.
    return n * round((1 - q) * 10_000) >= QUANTILE_TAIL_MIN * 10_000


class LatencyHistogram:
    """A mutable histogram with the exact counts beside it. Weighted: one call per batch, `count` records each.

    Args:
        clock_error_us: bound of the clock error between both ends, >= 0; None when unknown, then `n_good_lo`
            and `n_good_hi` mean nothing and must be written as null.
    """

    __slots__ = (
        "_good_us_max_hi",
        "_good_us_max_lo",
        "buckets",
        "lat_max_us",
        "lat_sum_us",
        "n",
        "n_good",
        "n_good_hi",
        "n_good_lo",
    )

    def __init__(self, *, clock_error_us: int | None = 0) -> None:
        error_us = clock_error_us or 0
        self._good_us_max_lo = GOOD_US_MAX - error_us
        self._good_us_max_hi = GOOD_US_MAX + error_us
        self.n = 0
        self.n_good = 0  # at or below the target as measured
        self.n_good_lo = 0  # ... even if the clocks erred against us
        self.n_good_hi = 0  # ... if the clocks erred in our favour
        self.lat_sum_us = 0
        self.lat_max_us = 0
        self.buckets: dict[int, int] = {}

    def add(self, latency_us: int, count: int = 1) -> None:
        """Count `count` records of one latency (>= 0 us)."""
        self.n += count
        self.lat_sum_us += latency_us * count
        if latency_us > self.lat_max_us:
            self.lat_max_us = latency_us
        if latency_us <= self._good_us_max_hi:
            self.n_good_hi += count
            if latency_us <= GOOD_US_MAX:
                self.n_good += count
                if latency_us <= self._good_us_max_lo:
                    self.n_good_lo += count
        index = int(_log2(latency_us) * BUCKETS_PER_OCTAVE) if latency_us > 1 else 0  # bucket_index, without the call
        buckets = self.buckets
        buckets[index] = buckets.get(index, 0) + count
