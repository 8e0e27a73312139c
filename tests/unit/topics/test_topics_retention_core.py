"""Retention takes whole old segments, by age or by size, and waits for mirrors only so long."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from georelay.ids import Offset, RaftIndex
from region.topics.retention_core import (
    SEGMENT_AGE_MS_MAX,
    SEGMENT_AGE_MS_MIN,
    Cut,
    RetainedSegment,
    RetentionLimits,
    decide,
    follow,
    must_seal,
)

KEEP = RetentionLimits()
HOUR = RetentionLimits(retention_ms=3600)
SEGMENTS = [
    RetainedSegment(
        first_index=RaftIndex(10 * at + 1),
        last_index=RaftIndex(10 * at + 10),
        size_bytes=100,
        end_offset=Offset(50 * at + 50),
        newest_append_ms=1000 * at,
    )
    for at in range(5)
]


def cut(limits: RetentionLimits, *, now_ms: int = 0, applied: int = 50, start: int = 0, **more: Any) -> int | None:
    """Return how many segments go."""
    more.setdefault("mirrors", ())
    found = decide(
        SEGMENTS, limits=limits, now_ms=now_ms, log_start=Offset(start), applied_index=RaftIndex(applied), **more
    )
    if found is None:
        return None
    assert (found.first_index - 1) % 10 == 0
    assert found.log_start == max(start, 5 * (found.first_index - 1))
    return (found.first_index - 1) // 10


def test_without_limits_nothing_goes() -> None:
    assert cut(KEEP, now_ms=10**12) is None


@pytest.mark.parametrize(("now_ms", "gone"), [(3600, None), (3601, 1), (4600, 1), (4601, 2), (10**9, 5)])
def test_a_segment_goes_when_its_newest_entry_is_older_than_the_limit(now_ms: int, gone: int | None) -> None:
    assert cut(HOUR, now_ms=now_ms) == gone


@pytest.mark.parametrize(
    ("bytes_max", "active", "gone"),
    [(500, 0, None), (400, 0, 1), (399, 0, 1), (400, 100, 2), (0, 0, 5), (10**9, 0, None)],
)
def test_a_segment_goes_when_what_is_newer_reaches_the_limit_alone(
    bytes_max: int, active: int, gone: int | None
) -> None:
    assert cut(RetentionLimits(retention_bytes=bytes_max), active_bytes=active) == gone


def test_nothing_goes_that_is_not_applied() -> None:
    assert cut(HOUR, now_ms=10**9, applied=29) == 2
    assert cut(HOUR, now_ms=10**9, applied=9) is None


def test_what_an_operator_deleted_goes_whatever_the_limits_and_the_mirrors_say() -> None:
    assert cut(KEEP, start=120, mirrors=[Offset(0)]) == 2


def test_a_mirror_that_is_behind_holds_back_what_it_needs() -> None:
    assert cut(HOUR, now_ms=6601, mirrors=[Offset(500), Offset(120)]) == 2
    assert cut(HOUR, now_ms=6601, mirrors=[Offset(500), Offset(200)]) == 4
    assert cut(HOUR, now_ms=6601, mirrors=[Offset(0)]) is None


def test_a_mirror_holds_back_for_a_bounded_time() -> None:
    limits = dataclasses.replace(HOUR, mirror_hold_ms=1500)
    assert cut(limits, now_ms=5100, mirrors=[Offset(0)]) is None
    assert cut(limits, now_ms=5101, mirrors=[Offset(0)]) == 1


def test_a_mirror_holds_back_a_bounded_size() -> None:
    limits = dataclasses.replace(HOUR, mirror_hold_bytes=250)
    assert cut(limits, now_ms=10_000, mirrors=[Offset(0)]) == 3


def test_a_log_that_follows_its_home_drops_segments_below_the_start_only() -> None:
    def first(start: int, applied: int = 50) -> int | None:
        return follow(SEGMENTS, log_start=Offset(start), applied_index=RaftIndex(applied))

    assert [first(49), first(50), first(149), first(250), first(250, 35)] == [None, 11, 21, 51, 31]


@pytest.mark.parametrize(
    ("retention_ms", "age_ms"), [(-1, None), (10_000, 5_000), (0, SEGMENT_AGE_MS_MIN), (10**12, SEGMENT_AGE_MS_MAX)]
)
def test_a_segment_is_sealed_at_half_of_what_is_kept(retention_ms: int, age_ms: int | None) -> None:
    limits = RetentionLimits(retention_ms=retention_ms)
    assert limits.segment_age_ms == age_ms
    if age_ms is not None:
        assert not must_seal(limits, oldest_append_ms=7, now_ms=6 + age_ms)
        assert must_seal(limits, oldest_append_ms=7, now_ms=7 + age_ms)
    assert not must_seal(limits, oldest_append_ms=None, now_ms=10**15)


@given(
    sizes=st.lists(st.integers(1, 1000), max_size=8),
    retention_bytes=st.integers(-1, 3000),
    retention_ms=st.integers(-1, 3000),
    hold_ms=st.integers(0, 3000),
    hold_bytes=st.integers(0, 3000),
    mirror=st.integers(0, 100),
    now_ms=st.integers(0, 10_000),
)
def test_whatever_goes_is_a_front_of_the_log_that_may_go(
    sizes: list[int],
    retention_bytes: int,
    retention_ms: int,
    hold_ms: int,
    hold_bytes: int,
    mirror: int,
    now_ms: int,
) -> None:
    segments = [
        dataclasses.replace(SEGMENTS[0], first_index=RaftIndex(at + 1), last_index=RaftIndex(at + 1), size_bytes=size,
                            end_offset=Offset(10 * at + 10), newest_append_ms=500 * at)
        for at, size in enumerate(sizes)
    ]  # fmt: skip
    limits = RetentionLimits(
        retention_ms=retention_ms, retention_bytes=retention_bytes, mirror_hold_ms=hold_ms, mirror_hold_bytes=hold_bytes
    )

    def gone(mirrors: list[Offset]) -> int:
        found = decide(
            segments, limits=limits, now_ms=now_ms, log_start=Offset(0), applied_index=RaftIndex(99), mirrors=mirrors
        )
        assert found is None or found == Cut(
            first_index=found.first_index, log_start=segments[found.first_index - 2].end_offset
        )
        return 0 if found is None else found.first_index - 1

    free, held = gone([]), gone([Offset(mirror)])
    assert held <= free
    for segment in segments[held:free]:  # what is held is needed, young enough and not too much
        assert segment.end_offset > mirror
    assert sum(segment.size_bytes for segment in segments[held:free]) <= hold_bytes
    if retention_bytes >= 0 and retention_ms < 0:
        assert sum(sizes[free:]) >= min(retention_bytes, sum(sizes))
