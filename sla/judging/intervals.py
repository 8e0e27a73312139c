"""Intervals around shares: what is proven about a share when chance, clocks or missing traces stand between.

Rule 1: every function returns 0 <= lo <= value <= hi <= 1.
Rule 2: chance, clocks and missing input are three different doubts; each only widens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Final

from georelay.trace.histogram import bucket_bounds, bucket_mid
from sla.report.model import Interval

EXACT_MAX: Final = 20
_HALVINGS: Final = 80


def sampled(*, bad: int, total: int, confidence: float) -> Interval:
    """Return the share of good ones among `total` independent trials, and the interval of the true share.

    Wilson's score interval; with at most EXACT_MAX bad (or good) ones Clopper and Pearson's, because Wilson's is too
    narrow on the side of the few: one failure in 1 400 would "prove" that 99.99 % are missed. With none at all the
    bound is one-sided, (1 - confidence) ** (1 / n), the rule of three: 99.99 % at 95 % needs 30 000 successes without
    a failure. Outages come in runs, so the truth is wider than any of this: it is the least doubt there is.

    Args:
        confidence: probability that the interval holds the true share, in (0, 1).

    Source: E. B. Wilson, JASA 22 (1927) 209; C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404;
    B. D. Jovanovic, P. S. Levy, The American Statistician 51 (1997) 137.
    """
    if total <= 0 or not 0 <= bad <= total:
        raise ValueError(f"{bad} of {total} is no share")
    share = (total - bad) / total
    if bad <= EXACT_MAX:
        low, high = _exact(bad, total, confidence)
        return Interval(value=share, lo=min(share, 1 - high), hi=max(share, 1 - low))
    if total - bad <= EXACT_MAX:
        low, high = _exact(total - bad, total, confidence)
        return Interval(value=share, lo=min(share, low), hi=max(share, high))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Interval(value=share, lo=max(0.0, middle - half), hi=min(1.0, middle + half))


def _exact(few: int, total: int, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds of the probability of what happened `few` times in `total`."""
    if few == 0:
        return 0.0, 1 - (1 - confidence) ** (1 / total)
    if few == total:
        return (1 - confidence) ** (1 / total), 1.0
    tail = (1 - confidence) / 2
    low = _solve(lambda p: 1 - _at_most(few - 1, total, p) >= tail)
    high = _solve(lambda p: _at_most(few, total, p) <= tail)
    return low, high


def _at_most(few: int, total: int, p: float) -> float:
    """Return the probability of at most `few` successes in `total` trials."""
    log_ways, sum_ = 0.0, 0.0
    for count in range(few + 1):
        sum_ += math.exp(log_ways + count * math.log(p) + (total - count) * math.log1p(-p))
        log_ways += math.log((total - count) / (count + 1)) if count < total else 0.0
    return min(1.0, sum_)


def _solve(is_reached: Callable[[float], bool]) -> float:
    """Return the smallest p in (0, 1) for which a condition that stays true once it is holds."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high


def counted(*, good: int, good_lo: int, good_hi: int, total: int) -> Interval:
    """Return the share of a complete count, where `good_lo` are good for sure and `good_hi` perhaps."""
    if total <= 0:
        raise ValueError(f"a share of {total}")
    return Interval(value=good / total, lo=min(good_lo, good) / total, hi=max(good_hi, good) / total)


def widened(interval: Interval, *, missing_share: float) -> Interval:
    """Return what is known when `missing_share` of all events were not seen: they may all be bad, or all good."""
    seen = 1 - missing_share
    return Interval(value=interval.value, lo=interval.lo * seen, hi=interval.hi * seen + missing_share)


def good_within(hist: Iterable[tuple[int, int]], *, limit_us: float, clock_err_us: int | None) -> tuple[int, int, int]:
    """Return (good, good for sure, good perhaps): records of a histogram within a limit that is no exact counter.

    A bucket counts by its middle; for sure only when all of it is within, perhaps when any of it is, with the clock
    error taken off and added. With an unknown clock error nothing is sure and everything is possible.
    """
    good = good_lo = good_hi = 0
    for index, n in hist:
        lower, upper = bucket_bounds(index)
        good += n if bucket_mid(index) <= limit_us else 0
        if clock_err_us is None:
            good_hi += n
            continue
        good_lo += n if upper <= limit_us - clock_err_us else 0
        good_hi += n if (lower if index else 0) <= limit_us + clock_err_us else 0
    return good, good_lo, good_hi


def minutes_up(*, up: float, down: float, unknown: float, unsure: float = 0.0) -> Interval:
    """Return the share of minutes that were up: unknown ones all down in `lo`, all up in `hi`; value of the known.

    Args:
        unsure: minutes of `up` that would be down if what is missing of their probes had failed; down in `lo`, too.
    """
    total = up + down + unknown
    if total <= 0:
        raise ValueError("a period of no minutes")
    known = up + down
    return Interval(value=up / known if known else None, lo=(up - unsure) / total, hi=(up + unknown) / total)


def is_apart(one: Interval, other: Interval) -> bool:
    """Return whether two intervals share no value: the difference is proven."""
    return one.hi < other.lo or other.hi < one.lo
