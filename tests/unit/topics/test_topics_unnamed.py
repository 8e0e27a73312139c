"""What nobody may have named: bounded, cut with the log, and forgotten when another broker leads."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.entry import Entry, EntryDraft, seal_entry
from region.topics.unnamed_core import RECOVERED_S_MAX, UnnamedRanges

MS = 1_000
S = 1_000 * MS


def entry(index: int, base: int, count: int, append_us: int, *, epoch: int = 1) -> Entry:
    header = StreamHeader(
        type=EntryType.DATA if count else EntryType.NOOP, entry_region=1, record_count=count, epoch=Epoch(epoch),
        base_offset=Offset(base), append_us=append_us, received_ns=0, max_timestamp_ms=-1, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, payload_crc=0, digest=bytes(16),
    )  # fmt: skip
    return seal_entry(EntryDraft(header=header, payload=b""), term=Term(1), index=RaftIndex(index), previous_chain=0)


def recovered(*entries: Entry) -> UnnamedRanges:
    ranges = UnnamedRanges()
    for each in entries:
        ranges.recovered(each)
    return ranges


def rows(ranges: UnnamedRanges) -> list[tuple[Any, ...]]:
    return [(row.epoch, row.from_offset, row.to_offset, row.first_us, row.last_us) for row in ranges.take()]


def test_batches_of_a_second_are_one_range_with_the_times_of_its_ends() -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 0, 100 * MS), entry(3, 3, 2, 900 * MS))
    assert rows(ranges) == [(1, 0, 5, 100 * MS, 900 * MS)]


@pytest.mark.parametrize(
    "second",
    [entry(2, 3, 2, S), entry(2, 3, 2, 100 * MS, epoch=2), entry(2, 9, 2, 100 * MS)],
    ids=["another second", "another epoch", "a jump"],
)
def test_a_range_ends_at_the_turn_of_a_second_at_an_epoch_and_at_a_jump(second: Entry) -> None:
    assert len(rows(recovered(entry(1, 0, 3, 100 * MS), second))) == 2


def test_of_what_was_recovered_the_newest_minute_is_remembered() -> None:
    ranges = UnnamedRanges()
    for second in range(200):
        ranges.recovered(entry(1 + second, second, 1, second * S))
        assert ranges.oldest_us == max(0, second - RECOVERED_S_MAX + 1) * S
    assert [row[1] for row in rows(ranges)] == list(range(200 - RECOVERED_S_MAX, 200))


def test_one_record_of_long_before_is_forgotten_by_the_first_of_now_and_a_clock_that_went_back_changes_nothing() -> (
    None
):
    ranges = recovered(entry(1, 0, 1, 0), entry(2, 1, 1, 500 * S), entry(3, 2, 1, 100 * S))
    assert [row[1] for row in rows(ranges)] == [1, 2]


def test_what_is_committed_beyond_what_was_recovered_is_remembered_however_old() -> None:
    ranges = recovered(entry(1, 0, 1, 500 * S))
    ranges.committed(
        [entry(1, 0, 1, 500 * S), entry(2, 1, 1, 500 * S), entry(3, 2, 0, 500 * S), entry(4, 2, 1, 900 * S)]
    )
    assert [row[1:3] for row in rows(ranges)] == [(0, 2), (2, 3)]


def test_what_was_taken_is_not_given_again() -> None:
    ranges = recovered(entry(1, 0, 1, 0))
    assert len(ranges.take()) == 1
    assert (ranges.take(), ranges.recovered_end, ranges.oldest_us) == ([], 0, 0)


@pytest.mark.parametrize(
    ("from_index", "newest", "left"),
    [
        (5, entry(4, 6, 1, 5 * S), [(0, 5), (5, 7)]),
        (4, entry(3, 5, 1, 5 * S), [(0, 5), (5, 6)]),
        (3, entry(2, 3, 2, 900 * MS), [(0, 5)]),
        (2, entry(1, 0, 3, 100 * MS), [(0, 3)]),
        (1, None, []),
    ],
)
def test_what_is_truncated_is_not_named(from_index: int, newest: Entry | None, left: list[tuple[int, int]]) -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS), entry(3, 5, 1, 5 * S), entry(4, 6, 1, 5 * S))
    ranges.truncated(from_index, newest)
    assert ranges.recovered_end == from_index - 1
    assert [row[1:3] for row in rows(ranges)] == left


def test_the_end_of_a_range_that_was_cut_has_the_time_of_what_remains() -> None:
    ranges = recovered(entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS))
    ranges.truncated(2, entry(1, 0, 3, 100 * MS))
    assert rows(ranges) == [(1, 0, 3, 100 * MS, 100 * MS)]


def test_what_is_applied_while_another_broker_leads_is_forgotten_up_to_there() -> None:
    log = [entry(1, 0, 3, 100 * MS), entry(2, 3, 2, 900 * MS), entry(3, 5, 1, 5 * S), entry(4, 6, 1, 5 * S)]
    ranges = recovered(*log)
    ranges.applied(log[0])
    assert (ranges.followed, ranges.recovered_end) == (1, 4)
    ranges.applied(log[2])
    assert [row[1:3] for row in rows(ranges)] == [(6, 7)]
    ranges = recovered(*log)
    ranges.applied(log[3])
    assert (rows(ranges), ranges.recovered_end, ranges.oldest_us) == ([], 0, 0)
