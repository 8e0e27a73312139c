"""The tail holds consecutive entries, bounded per stream and over all streams, and always the newest."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import Offset, RaftIndex, Term
from region.log.entry import Entry, EntryDraft, seal_entry
from region.topics.committed_tail import CommittedTail, TailBudget


@pytest.fixture
def make_entry(make_header: Any) -> Any:
    def make(base: int, count: int = 1, size: int = 72) -> Entry:
        draft = EntryDraft(header=make_header(base=base, count=count), payload=bytes(size))
        return seal_entry(draft, term=Term(1), index=RaftIndex(base + 1), previous_chain=0)

    return make


def bases(entries: Any) -> list[int]:
    return [entry.base_offset for entry in entries]


def test_a_read_begins_with_the_entry_that_holds_the_offset(make_entry: Any) -> None:
    tail = CommittedTail(TailBudget())
    for base in (0, 10, 20):
        tail.append(make_entry(base, 10))
    assert [bases(tail.read(Offset(at), 1 << 20)) for at in (0, 9, 10, 29)] == [
        [0, 10, 20],
        [0, 10, 20],
        [10, 20],
        [20],
    ]
    assert tail.read(Offset(30), 1 << 20) == []


def test_the_first_entry_is_whole_whatever_its_size_and_the_rest_fits(make_entry: Any) -> None:
    tail = CommittedTail(TailBudget())
    for base in range(3):
        tail.append(make_entry(base))  # 200 bytes each
    assert bases(tail.read(Offset(0), 1)) == [0]
    assert bases(tail.read(Offset(0), 400)) == [0, 1]
    assert bases(tail.read(Offset(0), 399)) == [0]


def test_what_is_not_in_memory_is_none_and_not_empty(make_entry: Any) -> None:
    tail = CommittedTail(TailBudget())
    assert tail.read(Offset(0), 1) is None
    tail.append(make_entry(5))
    assert tail.read(Offset(4), 1) is None


def test_old_entries_leave_over_the_limit_of_a_stream_but_never_the_newest(
    make_entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.topics.committed_tail.TAIL_BYTES_MAX", 1000)
    budget = TailBudget()
    tail = CommittedTail(budget)
    for base in range(500):
        tail.append(make_entry(base))
    assert (tail.first.base_offset, budget.bytes_held) == (495, 1000)  # type: ignore[union-attr]
    assert bases(tail.read(Offset(495), 1 << 20)) == [495, 496, 497, 498, 499]
    tail.append(make_entry(500, size=5000))
    assert bases(tail.read(Offset(500), 1)) == [500]
    assert tail.read(Offset(499), 1) is None


def test_over_the_budget_of_all_streams_each_keeps_its_minimum(
    make_entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.topics.committed_tail.TAIL_BYTES_MIN", 600)
    budget = TailBudget(bytes_max=1000)
    one, other = CommittedTail(budget), CommittedTail(budget)
    for base in range(5):
        one.append(make_entry(base))
    for base in range(5):
        other.append(make_entry(base))
    assert bases(other.read(Offset(2), 1 << 20)) == [2, 3, 4]
    assert budget.bytes_held == 1600


def test_cutting_drops_what_reaches_beyond_the_offset(make_entry: Any) -> None:
    budget = TailBudget()
    tail = CommittedTail(budget)
    for base in range(4):
        tail.append(make_entry(base))
    tail.cut(Offset(2))
    assert (bases(tail.read(Offset(0), 1 << 20)), budget.bytes_held) == ([0, 1], 400)
    tail.cut(Offset(0))
    assert (tail.read(Offset(0), 1), tail.newest, budget.bytes_held) == (None, None, 0)


def test_clearing_gives_the_bytes_back(make_entry: Any) -> None:
    budget = TailBudget()
    tail = CommittedTail(budget)
    tail.append(make_entry(0))
    tail.clear()
    assert (budget.bytes_held, tail.first) == (0, None)
