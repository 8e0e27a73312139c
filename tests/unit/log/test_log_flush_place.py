"""Where a flush cycle is done: the loop waits for a disk that is quick, and for one that is not only once."""

from __future__ import annotations

import pytest

from region.log.flush_place_core import LONG_US, MEAN_US, SHORT_US, TRIED, FlushPlace


def after(*syncs_us: int) -> FlushPlace:
    place = FlushPlace()
    for sync_us in syncs_us:
        place.took(sync_us)
    return place


def on_loop() -> FlushPlace:
    return after(*[SHORT_US] * TRIED)


def test_the_thread_begins_and_the_loop_follows_when_the_disk_has_shown_that_it_is_quick() -> None:
    slow_for_want_of_the_lock = [4 * SHORT_US] * (TRIED - 1)
    assert not after(*slow_for_want_of_the_lock).is_on_loop
    assert after(*slow_for_want_of_the_lock, SHORT_US).is_on_loop


def test_a_disk_that_is_never_quick_is_left_to_the_thread() -> None:
    assert not after(*[SHORT_US + 1] * 10 * TRIED).is_on_loop


def test_a_long_sync_on_the_loop_is_the_last_one_there_for_a_while() -> None:
    place = on_loop()
    place.took(LONG_US)
    assert place.is_on_loop
    place.took(LONG_US + 1)
    assert not place.is_on_loop
    for _ in range(TRIED - 1):
        place.took(SHORT_US)
        assert not place.is_on_loop
    place.took(SHORT_US)
    assert place.is_on_loop


@pytest.mark.parametrize(("sync_us", "stays"), [(MEAN_US, True), (MEAN_US + 1, False)])
def test_a_disk_that_is_slow_in_the_mean_is_left_to_the_thread(sync_us: int, stays: bool) -> None:
    place = on_loop()
    for _ in range(TRIED):
        assert place.is_on_loop
        place.took(sync_us)
    assert place.is_on_loop is stays
