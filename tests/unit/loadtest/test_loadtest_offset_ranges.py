"""Offsets that a client was told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.campaign.offset_ranges_core import OffsetRanges


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=30))
def test_ranges_are_sets(pairs: list[tuple[int, int]]) -> None:
    ranges = OffsetRanges()
    seen: set[int] = set()
    for first, size in pairs:
        seen |= set(range(first, first + size))
        ranges.add(first, first + size)
    assert ranges.size == len(seen)
    assert {offset for first, end in ranges.ranges for offset in range(first, end)} == seen
