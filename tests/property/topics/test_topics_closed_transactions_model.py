"""What is decided below any end, against a model that reads the log anew; with room for a few transactions only."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from georelay.ids import Offset
from region.topics.closed_transactions_core import ClosedTransactions


def open_at(log: list[tuple[int, bool]], end: int) -> int:
    """Return the first offset of the earliest transaction that is open at `end`, or `end`."""
    firsts: dict[int, int] = {}
    for offset, (producer, ends) in enumerate(log[:end]):
        if ends:
            firsts.pop(producer, None)
        else:
            firsts.setdefault(producer, offset)
    return min([end, *firsts.values()])


@given(
    entries=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 8)), max_size=60),
    closed_max=st.sampled_from([1, 2, 5, 100]),
)
def test_nothing_undecided_is_ever_decided_and_nothing_decided_is_taken_back(
    entries: list[tuple[int, bool, int]], closed_max: int
) -> None:
    table = ClosedTransactions(closed_max=closed_max)
    log: list[tuple[int, bool]] = []
    firsts: dict[int, int] = {}
    shown = decided = 0
    for producer, ends, behind in entries:
        offset = len(log)
        log.append((producer, ends))
        if not ends:
            firsts.setdefault(producer, offset)
        elif producer in firsts:
            table.closed(Offset(firsts.pop(producer)), Offset(offset))
        end = max(0, len(log) - behind)
        unstable = Offset(min(firsts.values())) if firsts else None
        told, truth = table.stable_before(Offset(end), unstable=unstable), open_at(log, end)
        assert told <= truth
        if closed_max > len(entries) and end >= shown:
            assert told == truth
        assert len(table) <= closed_max
        if end >= shown:
            assert told >= decided, "what readers were given is taken back"
            shown, decided = end, told
