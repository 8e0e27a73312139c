"""Orphan branches: what they hold back, what forgets them, and their bytes."""

from __future__ import annotations

import pytest

from georelay.ids import Epoch, Offset, RaftIndex
from region.topics.fence_core import Fence, FenceBook, FenceState, decode_fences, encode_fences
from region.topics.orphan_core import (
    ORPHAN_BRANCHES_MAX,
    OrphanBook,
    OrphanBranch,
    branch_epochs,
    decode_orphans,
    encode_orphans,
)
from region.topics.retention_core import HeldBranch, RetainedSegment, RetentionLimits, hold_orphans

DAY_MS = 24 * 3_600_000


def branch(cut: int, *, first_index: int = 10, epoch: int = 2) -> OrphanBranch:
    return OrphanBranch(
        epoch=Epoch(epoch),
        first=Offset(5),
        following=Offset(9),
        first_index=RaftIndex(first_index),
        cut_index=RaftIndex(cut),
        cut_us=1,
        epochs=((Epoch(1), Offset(5)),),
    )


def segment(first: int, last: int, *, size: int = 100) -> RetainedSegment:
    return RetainedSegment(
        first_index=RaftIndex(first),
        last_index=RaftIndex(last),
        size_bytes=size,
        end_offset=Offset(last),
        newest_append_ms=0,
    )


SEGMENTS = [segment(1, 9), segment(10, 19), segment(20, 29)]


@pytest.mark.parametrize(
    ("first_index", "held_from", "expected"),
    [(30, 15, 15), (30, 10, 10), (10, 15, 10), (30, 40, 30)],
)
def test_nothing_of_a_branch_goes_with_what_is_old(first_index: int, held_from: int, expected: int) -> None:
    branches = [HeldBranch(first_index=RaftIndex(held_from), cut_ms=0)]
    found = hold_orphans(SEGMENTS, RaftIndex(first_index), branches=branches, limits=RetentionLimits(), now_ms=DAY_MS)
    assert found == expected


def test_a_branch_is_held_for_a_time_and_a_size_only() -> None:
    branches = [HeldBranch(first_index=RaftIndex(15), cut_ms=0)]
    late = hold_orphans(SEGMENTS, RaftIndex(30), branches=branches, limits=RetentionLimits(), now_ms=31 * DAY_MS)
    large = hold_orphans(
        SEGMENTS, RaftIndex(30), branches=branches, limits=RetentionLimits(orphan_hold_bytes=199), now_ms=0
    )
    fits = hold_orphans(
        SEGMENTS, RaftIndex(30), branches=branches, limits=RetentionLimits(orphan_hold_bytes=200), now_ms=0
    )
    assert (late, large, fits) == (30, 30, 15)


def test_the_oldest_branches_are_forgotten_beyond_the_bound() -> None:
    book = OrphanBook()
    for number in range(ORPHAN_BRANCHES_MAX + 2):
        book.cut(branch(20 + number, epoch=number + 2))
        book.commit(RaftIndex(20 + number))
    assert [row.epoch for row in book.committed][:2] == [4, 5]
    assert len(book.committed) == ORPHAN_BRANCHES_MAX


def test_what_is_dropped_or_not_stored_any_more_is_not_listed() -> None:
    book = OrphanBook()
    book.cut(branch(20, first_index=10))
    book.cut(branch(40, first_index=30, epoch=3))
    book.commit(RaftIndex(40))
    book.start_moved(RaftIndex(41), stored_from=RaftIndex(11), dropped_below=RaftIndex(0))
    assert len(book.committed) == 2  # not committed yet
    book.commit(RaftIndex(41))
    assert [row.epoch for row in book.committed] == [3]
    book.start_moved(RaftIndex(42), stored_from=RaftIndex(1), dropped_below=RaftIndex(41))
    book.truncated(RaftIndex(42))
    book.commit(RaftIndex(42))
    assert [row.epoch for row in book.committed] == [3]


def test_the_epochs_of_a_branch_begin_where_it_begins() -> None:
    rows = [(Epoch(1), Offset(0)), (Epoch(2), Offset(4)), (Epoch(5), Offset(8))]
    assert branch_epochs(rows, first=Offset(6)) == ((2, 6), (5, 8))
    assert branch_epochs(rows, first=Offset(8)) == ((5, 8),)


def test_branches_that_end_too_early_are_refused() -> None:
    raw = encode_orphans([branch(20)])
    for size in range(len(raw)):
        with pytest.raises(ValueError, match=r"."):
            decode_orphans(raw[:size], 0)


def test_branches_and_fences_that_cannot_be_are_refused() -> None:
    raw = encode_orphans([branch(20)])
    with pytest.raises(ValueError, match="over"):
        decode_orphans(b"\xff\xff" + raw[2:], 0)
    with pytest.raises(ValueError, match="cannot be"):
        decode_orphans(raw[:6] + raw[14:22] + raw[6:14] + raw[22:], 0)  # first and following exchanged
    with pytest.raises(ValueError, match="unknown"):
        decode_fences(b"\x04", 0)


def test_fences_end_with_an_epoch_that_is_not_below_them() -> None:
    book = FenceBook()
    fence = Fence(new_epoch=Epoch(5), index=RaftIndex(3), end=Offset(1), digest=b"d" * 16)
    book.promised(fence)
    book.begun(RaftIndex(4), Epoch(4))
    assert book.end.promised == 5
    book.begun(RaftIndex(5), Epoch(5))
    assert (book.end, book.committed.promised) == (FenceState(), 0)
    assert book.at(RaftIndex(3)).promised == 5
    book.commit(RaftIndex(4))
    assert book.committed.promise == fence
    assert decode_fences(encode_fences(book.committed), 0)[0] == book.committed
