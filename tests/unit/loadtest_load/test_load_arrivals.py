"""Records are due by the rate alone, and latency counts from then: a target that stands still cannot hide it."""

from __future__ import annotations

import itertools
import math
import random

from loadtest.load.arrivals import Arrivals, Keys
from loadtest.load.samples_core import Samples, bucket_ms

SECOND = 1_000_000_000


def offered(rate: float, *, poisson: bool, seconds: int = 20) -> list[int]:
    arrivals = Arrivals(random.Random(1), poisson=poisson)
    arrivals.set_rate(rate, 0)
    return list(arrivals.due(seconds * SECOND))


def test_constant_arrivals_are_equally_far_apart() -> None:
    due = offered(500, poisson=False)
    assert len(due) == 10_000
    assert {later - earlier for earlier, later in itertools.pairwise(due)} == {2_000_000}


def test_poisson_arrivals_have_the_rate_and_irregular_gaps() -> None:
    due = offered(500, poisson=True)
    assert abs(len(due) - 10_000) < 300
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    share_short = sum(gap < 2_000_000 for gap in gaps) / len(gaps)
    assert abs(share_short - (1 - math.exp(-1))) < 0.02


def test_what_is_due_is_due_once_however_late_somebody_asks() -> None:
    asked_often, asked_once = (Arrivals(random.Random(3), poisson=True) for _ in range(2))
    for arrivals in (asked_often, asked_once):
        arrivals.set_rate(100, 0)
    pieces = [due for at in range(0, 10 * SECOND, SECOND // 7) for due in asked_often.due(at)]
    assert [*pieces, *asked_often.due(10 * SECOND)] == list(asked_once.due(10 * SECOND))


def test_a_changed_rate_counts_at_once_and_rate_0_offers_nothing() -> None:
    arrivals = Arrivals(random.Random(1), poisson=False)
    assert arrivals.next_ns == math.inf
    arrivals.set_rate(1, 0)
    arrivals.set_rate(10, SECOND // 2)  # half of the gap is left: a tenth of it now
    assert next(iter([*arrivals.due(SECOND)])) == SECOND // 2 + SECOND // 20
    arrivals.set_rate(0, SECOND)
    assert arrivals.next_ns == math.inf
    arrivals.set_rate(4, 2 * SECOND)
    assert arrivals.next_ns == 2 * SECOND + SECOND // 4


def stalled(latency_from_due: bool) -> Samples:
    """Offer 500/s for 20 s to a target that answers at once, but for 2 s in the middle."""
    samples = Samples()
    arrivals = Arrivals(random.Random(5), poisson=True)
    arrivals.set_rate(500, 0)
    stall_from, stall_to = 9 * SECOND, 11 * SECOND
    for due in arrivals.due(20 * SECOND):
        stands_still = stall_from <= due < stall_to
        answered = stall_to if stands_still else due
        samples.add((answered - due) / 1e6 if latency_from_due else 0.0)
    return samples


def test_a_target_that_stalls_for_two_seconds_shows_in_p99_at_500_per_second() -> None:
    assert stalled(latency_from_due=True).quantile_ms(0.99) >= 1_500


def test_the_closed_model_would_hide_that_stall() -> None:
    """50 users that wait for their answer send 50 records during the stall: 0.5 % of all, below p99."""
    samples = Samples()
    free_at = [0.0] * 50
    for round_ in range(200):
        for user, free in enumerate(free_at):
            sent = max(free, round_ * 0.1 + user * 0.002)  # ten per second each, when it is free
            answered = max(sent, 11.0) if 9.0 <= sent < 11.0 else sent
            samples.add((answered - sent) * 1e3)
            free_at[user] = answered
    assert samples.quantile_ms(0.99) < 100


def test_buckets_are_finer_than_locusts_and_sums_are_exact() -> None:
    assert [bucket_ms(value) for value in (49.96, 123.4, 1_234.0)] == [50.0, 123.0, 1_230.0]
    one, other = Samples(), Samples()
    for value in (1.04, 99.96, 250.0):
        one.add(value)
    other.failed = 2
    other.extend(one.told())
    assert (other.n, other.failed, other.min_ms, other.max_ms) == (3, 2, 1.04, 250.0)
    assert other.quantile_ms(0.5) == 100.0
    assert Samples().quantile_ms(0.99) == 0.0


def test_keys_follow_their_distribution() -> None:
    def shares(text: str, count: int = 100) -> list[float]:
        keys = Keys(text, count, random.Random(2))
        drawn = [keys.draw() for _ in range(20_000)]
        assert set(drawn) <= set(range(count))
        return [drawn.count(key) / len(drawn) for key in range(2)]

    assert shares("uniform")[0] < 0.02
    assert abs(shares("hot:0.9")[0] - 0.9) < 0.02
    first, second = shares("zipf:1.0")
    assert abs(first / second - 2) < 0.3
    assert shares("hot:0.5", count=1)[0] == 1.0
