"""Offsets that a client was told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.campaign.offset_ranges_core import OffsetRanges


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=30))
def test_ranges_are_sets_that_count_what_came_again(pairs: list[tuple[int, int]]) -> None:
    ranges, again = OffsetRanges(), 0
    seen: set[int] = set()
    for first, size in pairs:
        offsets = set(range(first, first + size))
        again += len(offsets & seen)
        seen |= offsets
        ranges.add(first, first + size)
    assert (ranges.size, ranges.again) == (len(seen), again)
    assert {offset for first, end in ranges.ranges for offset in range(first, end)} == seen
