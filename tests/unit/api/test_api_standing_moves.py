"""A position stands to a stream whose home has moved: never moved, told where histories part."""

from __future__ import annotations

import pytest

from region.api.streams.standing_core import Standing, StreamBounds, judge


def bounds(*, known: tuple[int, int], epoch: int, high_watermark: int, end: int | None = None) -> StreamBounds:
    return StreamBounds(
        log_start=0,
        high_watermark=high_watermark,
        end=end,
        known_epoch=known[0],
        known_end=known[1],
        epoch=epoch,
    )


@pytest.mark.parametrize("end", [None, 100])
def test_beyond_an_epoch_that_ended_at_the_end_of_the_log_a_position_diverges(end: int | None) -> None:
    found = judge(1, 120, bounds(known=(1, 100), epoch=2, high_watermark=100, end=end))
    assert (found.standing, found.epoch, found.offset) == (Standing.DIVERGED, 1, 100)


def test_a_position_in_an_epoch_of_which_the_mesh_kept_nothing_diverges_where_its_history_ended() -> None:
    found = judge(2, 120, bounds(known=(1, 80), epoch=3, high_watermark=200))
    assert (found.standing, found.epoch, found.offset) == (Standing.DIVERGED, 1, 80)


def test_a_mirror_that_has_not_heard_of_the_epoch_is_behind() -> None:
    found = judge(2, 120, bounds(known=(1, 2**63 - 1), epoch=1, high_watermark=100))
    assert (found.standing, found.behind) == (Standing.BEHIND, 20)


def test_at_the_very_end_of_an_ended_epoch_nothing_differs() -> None:
    assert judge(1, 100, bounds(known=(1, 100), epoch=2, high_watermark=140)).standing is Standing.OK


@pytest.mark.parametrize("offset", [4, 10])
def test_a_position_outside_what_the_home_keeps_in_its_epoch_is_out_of_range(offset: int) -> None:
    found = judge(1, offset, StreamBounds(log_start=5, high_watermark=9, end=9, known_epoch=1, known_end=20, epoch=1))
    assert (found.standing, found.offset) == (Standing.OUT_OF_RANGE, offset)
