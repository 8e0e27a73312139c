"""Ranges of offsets against a plain set."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from region.queues.offset_ranges_core import OffsetRanges

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(RANGES, st.integers(0, 40))
def test_ranges_hold_what_was_added_in_the_fewest_ranges(ranges: list[tuple[int, int]], cursor: int) -> None:
    made = OffsetRanges(ranges)
    plain = {offset for first, following in ranges for offset in range(first, following)}
    assert {offset for first, following in made for offset in range(first, following)} == plain
    assert all(offset in made for offset in plain) and not any(offset in made for offset in set(range(50)) - plain)
    listed = list(made)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(listed))
    assert made.count_between(5, 20) == len(plain & set(range(5, 20)))
    cut = OffsetRanges(made)
    assert cut.cut(cursor) == len({offset for offset in plain if offset >= cursor})
    assert {offset for first, following in cut for offset in range(first, following)} == {
        o for o in plain if o < cursor
    }
    assert list(cut) == list(OffsetRanges(cut))
    at = made.advanced(cursor)
    assert at not in plain and all(offset in plain for offset in range(cursor, at))
    assert {offset for first, following in made for offset in range(first, following)} == {o for o in plain if o > at}
