"""What the WAN benchmarks compute: floors, verdicts about a run, and what readers got."""

from __future__ import annotations

import math

import pytest

from loadtest.quantile_core import quantile
from loadtest.wan.floors_core import Conditions, acknowledgement_ms, one_way_ms, parse_pairs
from loadtest.wan.tally_core import Delivery, caught_up_s, flowing_s, tally

RTTS = parse_pairs("us-eu=70ms,us-ap=150ms,eu-ap=120ms")
S = 1_000_000_000
MS = 1_000_000


def test_no_record_is_faster_than_half_of_the_round_trip() -> None:
    assert one_way_ms(RTTS, "ap", "us") == one_way_ms(RTTS, "us", "ap") == 75
    assert one_way_ms(RTTS, "us", "us") == 0


@pytest.mark.parametrize(("home", "regions", "floor"), [("us", 1, 0), ("us", 2, 70), ("ap", 2, 120), ("us", 3, 150)])
def test_an_acknowledgement_waits_for_the_nearest_regions(home: str, regions: int, floor: float) -> None:
    assert acknowledgement_ms(RTTS, home, regions) == floor


def test_a_quantile_is_a_measured_value_below_which_the_share_lies() -> None:
    values = list(range(100, 0, -1))
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [51, 100, 100]


def test_without_values_a_quantile_is_no_number_unless_the_caller_has_one() -> None:
    assert math.isnan(quantile([], 0.5))
    assert quantile([], 0.5, none=0) == 0


def conditions(idle_share: float, lag_us: int) -> Conditions:
    return Conditions(idle_share=idle_share, lag_us=lag_us, realtime=True, congestion_control="reno")


def test_a_run_counts_on_a_machine_with_time_left_and_a_punctual_router() -> None:
    assert conditions(0.25, 2_000).describe().startswith("valid; ")


@pytest.mark.parametrize(("idle_share", "lag_us", "said"), [(0.24, 0, "24% of the CPU"), (1.0, 2_001, "2.0 ms late")])
def test_a_run_on_a_busy_machine_is_invalid(idle_share: float, lag_us: int, said: str) -> None:
    found = conditions(idle_share, lag_us).describe()
    assert found.startswith("INVALID: ")
    assert said in found


def deliveries(*numbers: int) -> list[Delivery]:
    return [Delivery(number, 0, 0) for number in numbers]


@pytest.mark.parametrize(
    ("got", "lost", "duplicated", "reordered"),
    [
        ((0, 1, 2, 3), 0, 0, 0),
        ((0, 1, 3), 1, 0, 0),
        ((0, 1, 1, 2, 3), 0, 1, 0),
        ((0, 1, 2, 3, 1), 0, 1, 0),
        ((0, 2, 1, 3), 0, 0, 1),
        ((), 4, 0, 0),
    ],
)
def test_what_went_wrong_is_counted(got: tuple[int, ...], lost: int, duplicated: int, reordered: int) -> None:
    found = tally(range(4), deliveries(*got))
    assert (found.lost, found.duplicated, found.reordered) == (lost, duplicated, reordered)
    assert found.is_clean == (lost == duplicated == reordered == 0)


def test_a_record_nobody_acknowledged_may_be_there_or_not() -> None:
    assert tally([0, 2], deliveries(0, 1, 2)).is_clean
    assert tally([0, 2], deliveries(0, 2)).is_clean


def test_after_a_heal_records_flow_and_later_are_up_to_date() -> None:
    healed = 100 * S
    rows = [
        Delivery(1, 79 * S, 80 * S),
        Delivery(2, 85 * S, healed + 300 * MS),
        Delivery(3, healed - 200 * MS, healed + 400 * MS),
        Delivery(4, healed + 350 * MS, healed + 500 * MS),
    ]
    assert flowing_s(rows, healed) == pytest.approx(0.3)
    assert caught_up_s(rows, healed, floor_ms=35) == pytest.approx(0.5)


def test_a_link_that_never_came_back_says_so() -> None:
    assert flowing_s(deliveries(1), 5) is None
    assert caught_up_s(deliveries(1), 5, 35) is None
