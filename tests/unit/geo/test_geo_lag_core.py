"""How old what a mirror lacks may be: marks are never younger than the records, and never many."""

from __future__ import annotations

import pytest

from georelay.ids import Offset
from region.geo.lag_core import (
    MARK_EVERY_US,
    MARKS_MAX,
    PAUSE_MS_MAX,
    SLOW_FROM,
    UNPROVEN,
    LagBounds,
    LagMeter,
    pause_ms,
    stream_pressure,
)


def meter(*commits: tuple[int, int]) -> LagMeter:
    """Return a meter that heard of (first offset, append time) of some commits."""
    made = LagMeter()
    for first, append_us in commits:
        made.committed(Offset(first), append_us)
    return made


def pressure(of: LagMeter, acked: int | None, *, now_us: int = 0, **bounds: int) -> float:
    at = None if acked is None else Offset(acked)
    return of.pressure(at, committed=Offset(100), now_us=now_us, bounds=LagBounds(**bounds))


def test_commits_close_together_share_the_time_of_the_first() -> None:
    made = meter((0, 1_000), (5, 1_000 + MARK_EVERY_US - 1), (9, 1_000 + MARK_EVERY_US))
    assert [made.append_us(Offset(at)) for at in (0, 5, 8, 9, 50)] == [1_000] * 3 + [1_000 + MARK_EVERY_US] * 2


def test_too_many_marks_lose_every_other_one_and_ages_are_rounded_up() -> None:
    made = meter(*((at, at * MARK_EVERY_US) for at in range(MARKS_MAX + 1)))
    assert [made.append_us(Offset(at)) for at in (0, 1, 2, 3)] == [0, 0, 2 * MARK_EVERY_US, 2 * MARK_EVERY_US]


def test_what_every_region_has_is_forgotten_and_the_rest_keeps_its_time() -> None:
    made = meter((0, 0), (10, MARK_EVERY_US), (20, 2 * MARK_EVERY_US))
    made.forget_below(Offset(0))
    made.forget_below(Offset(15))
    assert made.append_us(Offset(5)) is None
    assert [made.append_us(Offset(at)) for at in (15, 20)] == [MARK_EVERY_US, 2 * MARK_EVERY_US]


def test_a_new_leader_knows_no_age_of_what_was_committed_before_it() -> None:
    made = meter((0, 0))
    made.begin(Offset(50))
    made.committed(Offset(50), 7_000)
    assert [made.append_us(Offset(at)) for at in (49, 50)] == [None, 7_000]
    assert pressure(made, 49, max_ms=10) == UNPROVEN
    assert pressure(LagMeter(), 0, max_ms=10) == UNPROVEN


def test_a_region_that_was_not_heard_of_proves_nothing_and_one_that_has_all_has_no_lag() -> None:
    assert pressure(meter((0, 0)), None, max_ms=1) == UNPROVEN
    assert pressure(meter((0, 0)), 100, max_ms=1, max_records=1) == 0.0


def test_the_bound_that_is_nearer_counts() -> None:
    made = meter((0, 1_000_000))
    assert pressure(made, 80, now_us=1_005_000, max_ms=10) == 0.5
    assert pressure(made, 80, now_us=1_005_000, max_ms=10, max_records=25) == 0.8
    assert pressure(made, 80, max_records=10) == 2.0


@pytest.mark.parametrize(("bounds", "off"), [({}, True), ({"max_ms": 1}, False), ({"max_records": 1}, False)])
def test_without_a_bound_nothing_is_bounded(bounds: dict[str, int], off: bool) -> None:
    assert LagBounds(**bounds).are_off is off


def test_a_stream_is_as_near_to_its_bound_as_the_last_mirror_that_it_needs() -> None:
    assert stream_pressure([0.9, 0.1], 1) == 0.0
    assert stream_pressure([0.9, 0.1], 2) == 0.1
    assert stream_pressure([0.9, 0.1], 3) == 0.9
    assert stream_pressure([0.9, 0.1], 4) == UNPROVEN


def test_a_publish_waits_longer_the_nearer_the_bound_and_never_without_need() -> None:
    half = SLOW_FROM + (1.0 - SLOW_FROM) / 2
    waits = [pause_ms(value) for value in (0.0, SLOW_FROM, half, 1.0, UNPROVEN)]
    assert waits == [0, 0, PAUSE_MS_MAX // 2, PAUSE_MS_MAX, PAUSE_MS_MAX]
