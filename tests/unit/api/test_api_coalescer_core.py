"""The lane that cuts batches and survives failures: no clock, no loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from georelay.errors import (
    Busy,
    HomeUnreachable,
    NotLeader,
    Outcome,
    OutcomeUnknown,
    OutOfOrderSequence,
    PolicyViolation,
    Unavailable,
)
from georelay.lane_core import IN_FLIGHT_MAX, Lane, LaneBatch, LaneLimits, LaneState

MS = 1_000_000
LIMITS = LaneLimits(
    linger_ns=2 * MS, batch_bytes=100, batch_records=5, queue_bytes=300, deadline_ns=1000 * MS, backoff_ns=50 * MS
)


@dataclass(frozen=True, eq=False)
class Chunk:
    record_count: int = 1
    size_bytes: int = 10


def flowing() -> Lane[Chunk]:
    lane: Lane[Chunk] = Lane(limits=LIMITS)
    lane.producer_assigned(7)
    return lane


def sent(lane: Lane[Chunk], now_ns: int, chunks: int = 1) -> LaneBatch[Chunk]:
    """Offer chunks and send them after the linger time."""
    for _ in range(chunks):
        lane.offer(now_ns, Chunk())
    batch = lane.next_batch(now_ns + 2 * MS)
    assert batch is not None
    return batch


def test_an_idle_lane_sends_at_once() -> None:
    lane = flowing()
    lane.offer(0, Chunk())
    assert lane.next_batch(0) is not None


def test_nothing_is_sent_without_a_producer_id() -> None:
    lane: Lane[Chunk] = Lane(limits=LIMITS)
    lane.offer(0, Chunk())
    assert lane.next_batch(0) is None
    lane.producer_assigned(7)
    batch = lane.next_batch(0)
    assert batch is not None
    assert (batch.producer_id, batch.sequence) == (7, 0)


def test_behind_a_batch_in_flight_records_gather_for_the_linger_time() -> None:
    lane = flowing()
    sent(lane, 0)
    lane.offer(10 * MS, Chunk())
    lane.offer(11 * MS, Chunk())
    assert lane.next_batch(12 * MS - 1) is None
    assert lane.wake_at_ns() == 12 * MS
    batch = lane.next_batch(12 * MS)
    assert batch is not None
    assert len(batch.chunks) == 2


@pytest.mark.parametrize("chunk", [Chunk(size_bytes=100), Chunk(record_count=5)])
def test_a_full_batch_does_not_wait(chunk: Chunk) -> None:
    lane = flowing()
    sent(lane, 0)
    lane.offer(0, chunk)
    assert lane.next_batch(0) is not None


def paced(chunks: int) -> Lane[Chunk]:
    """Return a lane with nothing in flight that sent a batch of so many chunks at 0."""
    lane: Lane[Chunk] = Lane(limits=replace(LIMITS, pace_ns=5 * MS))
    lane.producer_assigned(7)
    for _ in range(chunks):
        lane.offer(0, Chunk())
    batch = lane.next_batch(0)
    assert batch is not None
    assert lane.acked(batch)
    return lane


def test_a_lane_whose_callers_come_together_sends_one_batch_per_pace() -> None:
    lane = paced(chunks=2)
    lane.offer(1 * MS, Chunk())
    lane.offer(4 * MS, Chunk())
    assert lane.next_batch(5 * MS - 1) is None
    assert lane.wake_at_ns() == 5 * MS
    batch = lane.next_batch(5 * MS)
    assert batch is not None
    assert len(batch.chunks) == 2


def test_a_caller_who_publishes_alone_is_not_paced() -> None:
    lane = paced(chunks=1)
    lane.offer(1 * MS, Chunk())
    assert lane.next_batch(1 * MS) is not None


def test_a_full_batch_does_not_wait_for_the_pace() -> None:
    lane = paced(chunks=2)
    lane.offer(1 * MS, Chunk(size_bytes=100))
    assert lane.next_batch(1 * MS) is not None


def test_a_batch_stops_before_the_chunk_that_does_not_fit() -> None:
    lane = flowing()
    for size in (60, 30, 20):
        lane.offer(0, Chunk(size_bytes=size))
    batch = lane.next_batch(0)
    assert batch is not None
    assert [chunk.size_bytes for chunk in batch.chunks] == [60, 30]


def test_sequences_count_records() -> None:
    lane = flowing()
    assert [sent(lane, 0, chunks=count).sequence for count in (3, 2, 1)] == [0, 3, 5]


def test_no_more_batches_are_out_than_streams_remember() -> None:
    lane = flowing()
    for _ in range(IN_FLIGHT_MAX):
        sent(lane, 0)
    lane.offer(0, Chunk(size_bytes=100))
    assert lane.next_batch(10 * MS) is None


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    lane: Lane[Chunk] = Lane(limits=LIMITS)
    for _ in range(3):
        lane.offer(0, Chunk(size_bytes=100))
    with pytest.raises(Busy, match="300"):
        lane.offer(0, Chunk())
    assert lane.queued_bytes == 300


def test_failed_batches_are_resent_in_order_with_their_old_sequences() -> None:
    lane = flowing()
    first, second = sent(lane, 0), sent(lane, 0)
    lane.offer(0, Chunk())
    assert lane.failed(first, NotLeader(), 5 * MS) == []
    assert lane.state.name == "DRAINING"
    assert lane.next_batch(500 * MS) is None
    lane.failed(second, OutOfOrderSequence("gap"), 6 * MS)
    assert lane.next_batch(56 * MS - 1) is None
    assert lane.next_batch(56 * MS) is first
    assert lane.next_batch(56 * MS) is None
    assert lane.acked(first)
    assert lane.next_batch(56 * MS) is second
    assert (first.sequence, second.sequence, second.producer_id) == (0, 1, 7)
    assert lane.acked(second)
    assert lane.state is LaneState.FLOWING
    third = lane.next_batch(60 * MS)
    assert third is not None
    assert third.sequence == 2


def test_an_unknown_outcome_is_resent_and_the_duplicate_answer_counts() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    lane.failed(batch, OutcomeUnknown("lost"), 0)
    assert lane.next_batch(50 * MS) is batch
    assert lane.acked(batch)


def test_a_refusal_that_cannot_pass_is_told_and_the_lane_takes_a_new_producer() -> None:
    lane = flowing()
    first, second = sent(lane, 0), sent(lane, 0)
    (given_up,) = lane.failed(first, PolicyViolation("no"), 0)
    assert given_up.batch is first
    assert given_up.error.outcome is Outcome.NOT_STORED
    lane.failed(second, OutOfOrderSequence("gap"), 0)
    assert lane.state is LaneState.NEEDS_PRODUCER
    lane.producer_assigned(8)
    resent = lane.next_batch(50 * MS)
    assert resent is second
    assert (second.producer_id, second.sequence) == (8, 0)


def test_at_the_deadline_an_unanswered_batch_has_an_unknown_outcome() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    assert lane.expire(1000 * MS - 1) == []
    (given_up,) = lane.expire(1000 * MS)
    assert isinstance(given_up.error, OutcomeUnknown)
    assert not lane.acked(batch)
    assert lane.state is LaneState.NEEDS_PRODUCER


def test_a_batch_that_was_perhaps_stored_is_never_reported_as_not_stored() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    lane.failed(batch, OutcomeUnknown("lost"), 0)
    assert lane.next_batch(50 * MS) is batch
    lane.failed(batch, NotLeader("us has no leader; nothing was stored"), 51 * MS)
    (given_up,) = lane.expire(1000 * MS)
    assert given_up.error.outcome is Outcome.UNKNOWN
    assert str(given_up.error) == (
        "it may be stored: an attempt was not answered; later ones were refused: us has no leader"
    )


def test_a_batch_whose_outcome_is_unknown_is_not_stamped_anew() -> None:
    lane = flowing()
    first, second, third = sent(lane, 0), sent(lane, 1), sent(lane, 2)
    lane.failed(second, OutcomeUnknown("lost"), 0)
    lane.failed(third, OutOfOrderSequence("gap"), 0)
    given_up = lane.failed(first, PolicyViolation("no"), 0)
    assert [lost.batch for lost in given_up] == [first, second]
    lane.producer_assigned(8)
    assert lane.next_batch(1000 * MS) is third
    assert third.sequence == 0


def test_an_unknown_producer_at_the_stream_leads_to_a_new_one() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    assert lane.failed(batch, OutOfOrderSequence("who?"), 0) == []
    assert lane.state is LaneState.NEEDS_PRODUCER
    lane.producer_assigned(8)
    assert lane.next_batch(50 * MS) is batch
    assert (batch.producer_id, batch.sequence) == (8, 0)


def test_what_waits_past_its_deadline_is_not_stored() -> None:
    lane: Lane[Chunk] = Lane(limits=LIMITS)
    lane.offer(0, Chunk())
    (given_up,) = lane.expire(1000 * MS)
    assert given_up.error.outcome is Outcome.NOT_STORED
    assert lane.idle


def test_a_late_answer_of_a_given_up_batch_changes_nothing() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    lane.expire(1000 * MS)
    assert lane.failed(batch, NotLeader(), 1001 * MS) == []
    assert lane.state is LaneState.NEEDS_PRODUCER


def test_a_new_producer_never_takes_over_a_later_batch_that_was_perhaps_stored() -> None:
    lane = flowing()
    first, second = sent(lane, 0), sent(lane, 0)
    lane.failed(second, OutcomeUnknown("lost"), 0)
    (given_up,) = lane.failed(first, OutOfOrderSequence("who?"), 0)
    assert given_up.batch is second
    assert given_up.error.outcome is Outcome.UNKNOWN
    lane.producer_assigned(8)
    assert lane.next_batch(50 * MS) is first


def test_what_was_out_when_an_earlier_batch_was_given_up_is_not_stamped_anew_if_it_may_be_stored() -> None:
    lane = flowing()
    first, second, third = sent(lane, 0), sent(lane, 500 * MS), sent(lane, 510 * MS)
    (given_up,) = lane.expire(1000 * MS)
    assert given_up.batch is first
    (given_up,) = lane.failed(second, OutcomeUnknown("lost"), 1001 * MS)
    assert (given_up.batch, given_up.error.outcome) == (second, Outcome.UNKNOWN)
    assert lane.failed(third, NotLeader(), 1002 * MS) == []
    lane.producer_assigned(8)
    assert lane.next_batch(1100 * MS) is third


def impatient() -> Lane[Chunk]:
    """A lane that gives up what cannot be stored 100 ms after it was seen that no leader is there."""
    lane: Lane[Chunk] = Lane(limits=replace(LIMITS, patience_ns=100 * MS))
    lane.producer_assigned(7)
    return lane


def test_what_a_home_that_cannot_be_reached_refused_is_not_stored_and_told_at_once_with_all_that_waits() -> None:
    lane = impatient()
    batch = sent(lane, 0)
    lane.offer(1 * MS, Chunk())
    given_up = lane.failed(batch, HomeUnreachable("us is gone"), 3 * MS)
    assert [(lost.batch.record_count, lost.error.code, lost.error.outcome) for lost in given_up] == [
        (1, "HOME_UNREACHABLE", Outcome.NOT_STORED)
    ] * 2
    assert lane.idle


def test_batches_that_are_refused_together_are_given_up_when_the_last_of_them_has_its_answer() -> None:
    lane = impatient()
    first, second = sent(lane, 0), sent(lane, 0)
    assert lane.failed(first, HomeUnreachable("us is gone"), 1 * MS) == []
    assert [lost.batch for lost in lane.failed(second, HomeUnreachable("us is gone"), 1 * MS)] == [first, second]
    assert lane.state is LaneState.NEEDS_PRODUCER


def test_what_is_perhaps_stored_is_told_so_as_soon_as_its_home_is_known_to_be_gone() -> None:
    lane = impatient()
    batch = sent(lane, 0)
    lane.failed(batch, OutcomeUnknown("the link broke"), 0)
    assert lane.next_batch(50 * MS) is batch
    lane.offer(51 * MS, Chunk())
    unknown, refused = lane.failed(batch, HomeUnreachable("region us cannot be reached; nothing was stored"), 52 * MS)
    assert (unknown.batch, unknown.error.outcome) == (batch, Outcome.UNKNOWN)
    assert "region us cannot be reached" in str(unknown.error)
    assert "nothing was stored" not in str(unknown.error)
    assert (refused.batch is batch, refused.error.outcome) == (False, Outcome.NOT_STORED)
    assert lane.idle
    lane.offer(60 * MS, Chunk())
    lane.producer_assigned(8)  # the old one may have a gap
    again = lane.next_batch(60 * MS)
    assert again is not None
    assert (again.producer_id, again.sequence) == (8, 0)


def test_what_is_behind_a_batch_that_is_perhaps_stored_waits_for_all_that_is_on_its_way() -> None:
    lane = impatient()
    first, second = sent(lane, 0), sent(lane, 0)
    assert lane.failed(first, OutcomeUnknown("the link broke"), 1 * MS) == []
    told = lane.failed(second, HomeUnreachable("us is gone"), 2 * MS)
    assert [(lost.batch, lost.error.outcome) for lost in told] == [
        (first, Outcome.UNKNOWN),
        (second, Outcome.NOT_STORED),
    ]


def test_a_batch_that_is_perhaps_stored_is_sent_again_while_a_leader_is_missing() -> None:
    lane = impatient()
    batch = sent(lane, 0)
    lane.failed(batch, OutcomeUnknown("the leader was killed"), 0)
    for at in (50, 100, 150, 200):
        assert lane.next_batch(at * MS) is batch
        assert lane.failed(batch, NotLeader(), at * MS) == []
    assert lane.next_batch(250 * MS) is batch
    assert lane.acked(batch)


def test_an_election_is_waited_for_and_a_region_without_a_leader_is_not() -> None:
    lane = impatient()
    batch = sent(lane, 0)
    assert lane.failed(batch, NotLeader(), 0) == []
    assert lane.next_batch(60 * MS) is batch
    assert lane.failed(batch, NotLeader(), 60 * MS) == []
    assert lane.next_batch(110 * MS) is batch
    (given_up,) = lane.failed(batch, NotLeader(), 110 * MS)
    assert (given_up.batch, given_up.error.outcome) == (batch, Outcome.NOT_STORED)
    lane.producer_assigned(8)
    (at_once,) = lane.failed(sent(lane, 150 * MS), NotLeader(), 152 * MS)
    assert at_once.error.code == "NOT_LEADER"
    lane.producer_assigned(9)
    assert lane.acked(sent(lane, 200 * MS))
    assert lane.failed(sent(lane, 210 * MS), NotLeader(), 212 * MS) == []  # a new election is waited for again


def test_what_waits_for_a_producer_id_that_nobody_gives_out_is_refused_like_everything_else() -> None:
    lane: Lane[Chunk] = Lane(limits=replace(LIMITS, patience_ns=100 * MS))
    lane.offer(0, Chunk())
    nobody = Unavailable("no controller")
    assert lane.producer_refused(nobody, 0) == []
    assert [lost.error for lost in lane.producer_refused(nobody, 100 * MS)] == [nobody]


def test_a_lane_without_patience_of_its_own_waits_until_the_deadline() -> None:
    lane = flowing()
    batch = sent(lane, 0)
    assert lane.failed(batch, HomeUnreachable("us is gone"), 900 * MS) == []
    (given_up,) = lane.expire(1000 * MS)
    assert given_up.error.code == "HOME_UNREACHABLE"
