"""Intervals hold the truth, whatever chance, clocks or missing traces did; no Spark."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.histogram import bucket_index
from sla.judging.intervals import counted, good_within, is_apart, minutes_up, sampled, widened
from sla.report.model import Interval


@pytest.mark.parametrize(
    ("bad", "total", "lo", "hi"),
    [
        (259, 2_592_000, 0.999887, 0.999912),  # one probe per second for 30 days
        (26, 259_200, 0.999853, 0.999932),  # one per 10 s
        (4, 43_200, 0.999763, 0.999975),  # one per minute; so few that the interval is Clopper and Pearson's
        (43_196, 43_200, 0.000025, 0.000237),
        (10, 20, 0.271958, 0.728042),  # a table's 95 % interval of 10 of 20
        (20, 20, 0.0, 0.139108),
    ],
)
def test_intervals_of_probes_over_30_days(bad: int, total: int, lo: float, hi: float) -> None:
    interval = sampled(bad=bad, total=total, confidence=0.95)
    assert (round(interval.lo, 6), round(interval.hi, 6)) == (lo, hi)


def test_rule_of_three_needs_thirty_thousand_successes_for_four_nines() -> None:
    assert sampled(bad=0, total=29_956, confidence=0.95).lo >= 0.9999
    assert sampled(bad=0, total=29_955, confidence=0.95).lo < 0.9999
    assert sampled(bad=0, total=60, confidence=0.95).lo == pytest.approx(0.9513, abs=1e-4)


@pytest.mark.parametrize("total", [1_400, 5_000, 30_000, 100_000, 400_000])
def test_chance_alone_makes_a_wrong_verdict_in_at_most_one_of_twenty_periods(total: int) -> None:
    """At the objective exactly, and at twice its bad share: sum the probabilities of every count that misleads."""
    objective = 0.9999

    def probability(count: int, share: float) -> float:
        ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
        return math.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share))

    wrong_breach = wrong_pass = 0.0
    for bad in range(200):
        interval = sampled(bad=bad, total=total, confidence=0.95)
        wrong_breach += probability(bad, 1 - objective) if interval.hi < objective else 0
        wrong_pass += probability(bad, 1.0001 * (1 - objective)) if interval.lo >= objective else 0
    assert wrong_breach <= 0.05
    assert wrong_pass <= 0.05


@pytest.mark.parametrize("bad", [-1, 11])
def test_more_bad_than_all_is_no_share(bad: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        sampled(bad=bad, total=10, confidence=0.95)
    with pytest.raises(ValueError, match="is no share"):
        sampled(bad=0, total=0, confidence=0.95)


@given(st.integers(1, 10**7), st.floats(0, 1), st.floats(0.5, 0.999999), st.floats(0, 1))
def test_every_interval_is_in_order(total: int, share: float, confidence: float, missing: float) -> None:
    bad = int(total * share)
    interval = sampled(bad=bad, total=total, confidence=confidence)
    wide = widened(interval, missing_share=missing)
    assert interval.value == (total - bad) / total
    assert 0 <= wide.lo <= interval.lo <= interval.value + 1e-12
    assert interval.value - 1e-12 <= interval.hi <= wide.hi <= 1 + 1e-12


@given(st.lists(st.booleans(), min_size=1, max_size=50), st.data())
def test_missing_input_never_excludes_the_truth(events: list[bool], data: st.DataObject) -> None:
    seen = data.draw(st.integers(1, len(events)), label="seen")
    good = sum(events[:seen])
    share = counted(good=good, good_lo=good, good_hi=good, total=seen)
    wide = widened(share, missing_share=1 - seen / len(events))
    assert wide.lo - 1e-9 <= sum(events) / len(events) <= wide.hi + 1e-9


@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(-30_000, 30_000)), min_size=1, max_size=60),
    st.integers(1, 300_000),
)
def test_a_limit_beside_the_counted_one_has_bounds_that_hold_the_truth(
    records: list[tuple[int, int]], limit_us: int
) -> None:
    """Records are (measured latency, error of the measurement); the bound is the largest error."""
    bound_us = max(abs(error) for _, error in records)
    hist: dict[int, int] = {}
    for measured, _ in records:
        hist[bucket_index(measured)] = hist.get(bucket_index(measured), 0) + 1
    good, good_lo, good_hi = good_within(hist.items(), limit_us=limit_us, clock_err_us=bound_us)
    truth = sum(measured + error <= limit_us for measured, error in records)
    assert good_lo <= truth <= good_hi
    assert good_lo <= good <= good_hi


def test_an_unknown_clock_error_leaves_everything_possible() -> None:
    assert good_within([(100, 7), (600, 3)], limit_us=50_000, clock_err_us=None) == (7, 0, 10)


def test_unknown_minutes_are_down_in_the_lower_bound_and_up_in_the_upper() -> None:
    assert minutes_up(up=90, down=5, unknown=5) == Interval(value=90 / 95, lo=0.90, hi=0.95)
    nothing = minutes_up(up=0, down=0, unknown=10)
    assert (nothing.value, nothing.lo, nothing.hi) == (None, 0.0, 1.0)
    with pytest.raises(ValueError, match="no minutes"):
        minutes_up(up=0, down=0, unknown=0)


def test_intervals_that_touch_are_not_apart() -> None:
    low, high = Interval(value=None, lo=0.1, hi=0.2), Interval(value=None, lo=0.2, hi=0.3)
    assert not is_apart(low, high)
    assert is_apart(low, Interval(value=None, lo=math.nextafter(0.2, 1), hi=0.3))
