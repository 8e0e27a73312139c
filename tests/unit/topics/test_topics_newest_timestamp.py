"""Which batch has the newest timestamp, while entries come, are taken back and take others out of the log."""

from __future__ import annotations

from georelay.ids import Offset, RaftIndex
from region.topics.newest_timestamp_core import NewestTimestamp, TimestampTracker


def test_a_batch_after_a_truncated_one_is_not_hidden_by_what_an_uncommitted_skip_takes_out_of_the_log() -> None:
    tracker = TimestampTracker()
    tracker.appended(RaftIndex(1), 500, Offset(0))
    tracker.bend(RaftIndex(2))  # everything before it leaves the log
    tracker.appended(RaftIndex(3), 100, Offset(7))
    tracker.truncated(RaftIndex(3))
    tracker.appended(RaftIndex(3), 200, Offset(7))
    tracker.commit(RaftIndex(2))
    tracker.lose(first=Offset(7), following=Offset(7))
    tracker.commit(RaftIndex(3))
    assert tracker.committed == NewestTimestamp(timestamp_ms=200, offset=Offset(7))


def test_a_bend_that_is_truncated_hides_nothing() -> None:
    tracker = TimestampTracker()
    tracker.appended(RaftIndex(1), 500, Offset(0))
    tracker.bend(RaftIndex(2))
    tracker.truncated(RaftIndex(2))
    tracker.appended(RaftIndex(2), 100, Offset(1))
    tracker.commit(RaftIndex(2))
    assert tracker.committed == NewestTimestamp(timestamp_ms=500, offset=Offset(0))
