"""The same comparison twice: what a second run must find, from the rounds of the first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.peers.again_core import again, predicted
from loadtest.peers.page_core import ONE_REGION

PROMISES = {"georelay": ("synced on 2 of 3", "librdkafka", True), "Other": ("in memory", "other-py", False)}
NUMBERS = st.lists(st.floats(0.01, 1e6), min_size=2, max_size=10)


def _rounds(contender: str, *values: float) -> list[dict[str, Any]]:
    return [
        {
            "contender": contender,
            "workload": "single-1000",
            "round": number,
            "figures": {"p50_ms": value, "lost": 0, "unknown": 0},
        }
        for number, value in enumerate(values)
    ]


def test_the_interval_is_that_of_student_for_logarithms() -> None:
    # mean of the logs 0, their deviation ln 2; t(2, 95 %) = 4.303; two means of three: sqrt(2 / 3)
    least, most = predicted([0.5, 1.0, 2.0])
    assert most == pytest.approx(2 ** (4.303 * (2 / 3) ** 0.5))
    assert least == pytest.approx(1 / most)


@given(NUMBERS)
def test_a_run_that_finds_the_same_is_within(numbers: list[float]) -> None:
    least, most = predicted(numbers)
    middle = sorted(numbers)[len(numbers) // 2]
    assert least / 1.0001 <= middle <= most * 1.0001


@given(NUMBERS, st.floats(0.1, 10))
def test_the_unit_of_a_figure_changes_nothing(numbers: list[float], factor: float) -> None:
    scaled = predicted([factor * number for number in numbers])
    assert scaled == pytest.approx([factor * bound for bound in predicted(numbers)], rel=1e-6)


@pytest.mark.parametrize("numbers", [[1.0], [], [1.0, 0.0], [1.0] * 11])
def test_what_says_nothing_of_another_run_is_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="positive numbers are needed"):
        predicted(numbers)


def test_each_figure_of_the_second_run_is_held_against_the_first() -> None:
    first = _rounds("georelay", 2.0, 2.1, 2.2) + _rounds("Other", 1.0, 1.0, 1.1)
    second = _rounds("georelay", 2.1, 2.3, 2.2) + _rounds("Other", 3.0, 3.0, 3.0)
    text = again(first, second, PROMISES, ONE_REGION)
    assert text.startswith("1 of 2 figures of the second run are where the first one said.")
    assert "| georelay | 2.10 (2.00 to 2.20), then 2.20 (2.10 to 2.30) | - |" in text
    assert "then 3.00 (3.00 to 3.00): **not** within 0.85 to 1.25 |" in text


def test_one_round_says_nothing_of_another_run() -> None:
    text = again(_rounds("georelay", 2.0), _rounds("georelay", 2.0), PROMISES, ONE_REGION)
    assert text == "0 of 0 figures of the second run are where the first one said."
