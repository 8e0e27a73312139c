"""The latency grid: fixed numbers, bounds, quantiles, merging."""

from __future__ import annotations

import math
import random

import pytest

from georelay.trace.histogram import (
    BUCKETS_PER_OCTAVE,
    LatencyHistogram,
    bucket_bounds,
    bucket_index,
    bucket_mid,
    is_quantile_meaningful,
    merge,
    quantile,
)

# Fixed for ever: they are in files.
GOLDEN_BUCKETS = {
    -5: 0,
    0: 0,
    1: 0,
    2: 32,
    3: 50,
    10: 106,
    999: 318,
    1_000: 318,
    1_023: 319,
    1_024: 320,
    50_000: 499,
    1_000_000: 637,
    60_000_000: 826,
    2**40: 1280,
}


def test_bucket_index_matches_the_golden_numbers() -> None:
    assert {us: bucket_index(us) for us in GOLDEN_BUCKETS} == GOLDEN_BUCKETS


def test_powers_of_two_begin_a_bucket() -> None:
    for exponent in range(1, 48):
        assert bucket_index(2**exponent) == exponent * BUCKETS_PER_OCTAVE
        assert bucket_index(2**exponent - 1) < exponent * BUCKETS_PER_OCTAVE


def test_every_latency_lies_within_the_bounds_of_its_bucket() -> None:
    for us in range(1, 200_000):
        lower, upper = bucket_bounds(bucket_index(us))
        assert lower <= us < upper, us


def test_the_middle_of_a_bucket_is_within_1_1_percent_of_its_bounds() -> None:
    for index in range(1_300):
        lower, upper = bucket_bounds(index)
        assert (upper - bucket_mid(index)) / upper < 0.011
        assert (bucket_mid(index) - lower) / lower < 0.011


def test_quantiles_are_within_1_1_percent_of_the_exact_ones() -> None:
    rng = random.Random(7)
    values = sorted(int(rng.lognormvariate(9, 1)) + 1 for _ in range(20_000))
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    for q in (0.5, 0.95, 0.99, 0.999, 1.0):
        exact = values[math.ceil(q * len(values)) - 1]
        assert quantile(histogram.buckets, q) == pytest.approx(exact, rel=0.011)


def test_a_quantile_of_nothing_is_none() -> None:
    assert quantile({}, 0.5) is None


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1])
def test_a_quantile_outside_its_range_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        quantile({1: 1}, q)


def test_merging_parts_in_any_order_equals_the_whole() -> None:
    rng = random.Random(3)
    whole = LatencyHistogram()
    parts = [LatencyHistogram() for _ in range(5)]
    for _ in range(2_000):
        latency_us, count = rng.randrange(1, 90_000), rng.randrange(1, 50)
        whole.add(latency_us, count)
        rng.choice(parts).add(latency_us, count)
    rng.shuffle(parts)
    merged: dict[int, int] = {}
    for part in parts:
        merge(merged, part.buckets.items())
    assert merged == whole.buckets
    assert sum(part.n_good for part in parts) == whole.n_good


def test_the_target_is_counted_exactly_and_inclusively() -> None:
    histogram = LatencyHistogram()
    for latency_us in (49_999, 50_000, 50_001):
        histogram.add(latency_us, 3)
    assert (histogram.n, histogram.n_good, histogram.lat_max_us, histogram.lat_sum_us) == (9, 6, 50_001, 450_000)


def test_a_clock_error_widens_the_good_count_to_an_interval() -> None:
    histogram = LatencyHistogram(clock_error_us=1_000)
    for latency_us in (48_999, 49_500, 50_500, 51_001):
        histogram.add(latency_us)
    assert (histogram.n_good_lo, histogram.n_good, histogram.n_good_hi) == (1, 2, 3)


@pytest.mark.parametrize(
    ("n", "q", "is_shown"),
    [
        (40, 0.5, True),
        (39, 0.5, False),
        (2_000, 0.99, True),
        (1_999, 0.99, False),
        (20_000, 0.999, True),
        (19_999, 0.999, False),
    ],
)
def test_a_quantile_needs_twenty_records_beyond_it(n: int, q: float, *, is_shown: bool) -> None:
    assert is_quantile_meaningful(n, q) is is_shown
