"""Committed offsets: per stream, with transactions and expiry."""

from __future__ import annotations

from georelay.ids import RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from region.groups.offsets_core import CommittedOffset, GroupOffsets
from region.groups.settings import OFFSET_METADATA_BYTES_MAX, OFFSETS_PER_GROUP_MAX

DAY_US = 86_400_000_000
HERE = StreamKey(bytes(16), RegionNumber(1), 0)
THERE = StreamKey(bytes(16), RegionNumber(2), 0)


def at(offset: int, commit_us: int = 0) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_us=commit_us)


def test_the_streams_of_two_regions_under_one_topic_have_offsets_of_their_own() -> None:
    offsets = GroupOffsets()
    offsets.commit({HERE: at(5)})
    assert THERE not in offsets.committed
    offsets.commit({THERE: at(7)})
    assert [offsets.committed[key].offset for key in (HERE, THERE)] == [5, 7]


def test_offsets_of_a_transaction_appear_when_it_is_committed_and_never_when_it_is_aborted() -> None:
    offsets = GroupOffsets()
    offsets.hold(1, 0, -1, {HERE: at(5)})
    assert offsets.is_unstable(HERE)
    assert HERE not in offsets.committed
    offsets.end(1, 0, -1, is_commit=True)
    offsets.hold(1, 0, -1, {HERE: at(9)})
    offsets.end(1, 0, -1, is_commit=False)
    assert (offsets.committed[HERE].offset, offsets.is_unstable(HERE)) == (5, False)


def test_the_end_of_a_transaction_may_come_again_and_does_nothing() -> None:
    offsets = GroupOffsets()
    offsets.hold(1, 0, 1, {HERE: at(5)})
    offsets.end(1, 0, 1, is_commit=True)
    offsets.commit({HERE: at(6)})
    offsets.end(1, 0, 1, is_commit=True)
    assert offsets.committed[HERE].offset == 6


def test_a_late_end_does_not_end_the_next_transaction_of_the_producer() -> None:
    offsets = GroupOffsets()
    offsets.end(1, 0, 1, is_commit=False)
    offsets.hold(1, 0, 2, {HERE: at(5)})
    offsets.end(1, 0, 1, is_commit=True)
    assert offsets.is_unstable(HERE)


def test_what_a_transaction_adds_after_its_end_is_refused() -> None:
    offsets = GroupOffsets()
    offsets.end(1, 3, 7, is_commit=True)
    assert offsets.check_transaction(1, 3, 7) == ErrorCode.INVALID_TXN_STATE
    assert offsets.check_transaction(1, 2, 8) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert offsets.check_transaction(1, 3, 8) == ErrorCode.NONE
    assert offsets.check_transaction(2, 0, 1) == ErrorCode.NONE


def test_the_abort_of_a_fenced_producer_with_a_higher_epoch_drops_what_the_older_one_held() -> None:
    offsets = GroupOffsets()
    offsets.hold(1, 0, 1, {HERE: at(5)})
    offsets.end(1, 1, 1, is_commit=False)
    assert not offsets.pending
    assert HERE not in offsets.committed


def test_a_text_over_the_limit_is_refused_by_its_bytes() -> None:
    assert GroupOffsets.check_metadata("x" * OFFSET_METADATA_BYTES_MAX) == ErrorCode.NONE
    assert GroupOffsets.check_metadata("x" * (OFFSET_METADATA_BYTES_MAX + 1)) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert GroupOffsets.check_metadata("ü" * OFFSET_METADATA_BYTES_MAX) == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_group_has_offsets_of_so_many_streams_and_no_more() -> None:
    offsets = GroupOffsets()
    many = [StreamKey(number.to_bytes(16), RegionNumber(0), 0) for number in range(OFFSETS_PER_GROUP_MAX)]
    offsets.commit({key: at(1) for key in many})
    assert offsets.check_count(many) == ErrorCode.NONE
    assert offsets.check_count([HERE, THERE]) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def expired(offsets: GroupOffsets, *, days: float, empty_since_us: int | None, used: bool = False) -> list[StreamKey]:
    return offsets.expired(
        now_us=round(days * DAY_US), retention_us=7 * DAY_US, empty_since_us=empty_since_us, is_used=lambda _: used
    )


def test_offsets_of_a_group_expire_a_retention_after_it_lost_its_last_member() -> None:
    offsets = GroupOffsets()
    offsets.commit({HERE: at(5, commit_us=0)})
    assert expired(offsets, days=9.9, empty_since_us=3 * DAY_US) == []
    assert expired(offsets, days=10, empty_since_us=3 * DAY_US) == [HERE]


def test_offsets_of_a_consumer_without_membership_expire_a_retention_after_their_commit() -> None:
    offsets = GroupOffsets()
    offsets.commit({HERE: at(5, commit_us=DAY_US)})
    assert expired(offsets, days=7.9, empty_since_us=None) == []
    assert expired(offsets, days=8, empty_since_us=None) == [HERE]


def test_offsets_that_members_use_or_a_transaction_may_change_do_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.commit({HERE: at(5)})
    assert expired(offsets, days=100, empty_since_us=None, used=True) == []
    offsets.hold(1, 0, 1, {HERE: at(6)})
    assert expired(offsets, days=100, empty_since_us=None) == []


def test_the_size_of_offsets_is_what_is_there() -> None:
    offsets = GroupOffsets()
    offsets.commit({HERE: CommittedOffset(offset=1, metadata="x" * 100), THERE: at(2)})
    offsets.commit({HERE: at(3)})
    offsets.delete([THERE, THERE])
    alone = GroupOffsets()
    alone.commit({HERE: at(3)})
    assert offsets.size_bytes == alone.size_bytes > 0


def test_what_a_transaction_adds_behind_its_end_in_the_log_is_not_held() -> None:
    offsets = GroupOffsets()
    offsets.end(1, 3, 7, is_commit=False)
    offsets.hold(1, 3, 7, {HERE: at(5)})
    offsets.hold(1, 2, 8, {HERE: at(6)})
    assert not offsets.is_unstable(HERE)
    offsets.end(1, 3, 8, is_commit=True)
    assert HERE not in offsets.committed


def test_the_commit_of_a_transaction_commits_nothing_of_an_older_one() -> None:
    offsets = GroupOffsets()
    offsets.hold(1, 0, 1, {HERE: at(5)})
    offsets.end(1, 0, 2, is_commit=True)
    assert (HERE in offsets.committed, offsets.is_unstable(HERE)) == (False, False)
