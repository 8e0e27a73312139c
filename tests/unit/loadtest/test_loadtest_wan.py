"""How long a healed link needed, and what a quantile is."""

from __future__ import annotations

import math

import pytest

from loadtest.load.figures_core import Delivery, caught_up_s, flowing_s
from loadtest.quantile_core import quantile

S = 1_000_000_000
MS = 1_000_000


def test_a_quantile_is_a_measured_value_below_which_the_share_lies() -> None:
    values = list(range(100, 0, -1))
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [51, 100, 100]


def test_without_values_a_quantile_is_no_number_unless_the_caller_has_one() -> None:
    assert math.isnan(quantile([], 0.5))
    assert quantile([], 0.5, none=0) == 0


def test_after_a_heal_records_flow_and_later_are_up_to_date() -> None:
    healed = 100 * S
    rows = [
        Delivery(1, 79 * S, 80 * S),
        Delivery(2, 85 * S, healed + 300 * MS),
        Delivery(3, healed - 200 * MS, healed + 400 * MS),
        Delivery(4, healed + 350 * MS, healed + 500 * MS),
    ]
    assert flowing_s(rows, healed) == pytest.approx(0.3)
    assert caught_up_s(rows, healed) == pytest.approx(0.5)


def test_a_link_that_never_came_back_says_so() -> None:
    assert flowing_s([Delivery(1, 0, 0)], 5) is None
    assert caught_up_s([Delivery(1, 0, 0)], 5) is None
