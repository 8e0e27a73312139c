"""What the leader of a queue knows of its open records: what is handed out when, in which order, and what is let go."""

from __future__ import annotations

import pytest

from georelay.errors import Busy
from georelay.wire.records import Record
from region.queues.definition import QueueDefinition
from region.queues.delivery_traces import BatchFacts
from region.queues.index_core import OpenRecord, Phase, QueueIndex
from region.queues.limits import CACHED_BYTES_PER_QUEUE_MAX, CONSUMERS_PER_QUEUE_MAX, OPEN_PER_PARTITION_MAX
from region.queues.queue_core import Claim, Passed, Place, QueueState
from region.queues.sessions_core import MS, Sessions

NOW_US = 1_000


class Desk:
    """One queue and its index."""

    def __init__(self) -> None:
        self.queue = QueueState(QueueDefinition(name="q", topic="t"), made_us=1)
        self.index = QueueIndex(self.queue)

    def add(
        self,
        offset: int,
        *,
        partition: int = 0,
        key: bytes | None = None,
        available_us: int = 0,
        expires_us: int = 0,
        size_bytes: int = 10,
        is_cached: bool = True,
    ) -> OpenRecord:
        record = OpenRecord(
            place=Place(partition, offset),
            key=key,
            batch=BatchFacts(append_us=100 + offset, epoch=1, received_ns=0, entry_region=1),
            available_us=available_us,
            expires_us=expires_us,
            size_bytes=size_bytes,
            content=Record(offset, 0, key, b"", ()) if is_cached else None,
        )
        self.index.add(record, NOW_US)
        return record

    def take(self, *, now_us: int = NOW_US, only_again: bool = False) -> Place | None:
        record = self.index.take(now_us, only_again=only_again)
        return None if record is None else record.place

    def lease(self, place: Place, *, until_us: int = 5_000, consumer: str = "c") -> Claim:
        (deliveries,) = self.queue.deliver(consumer, until_us, [place])
        self.index.refresh(place, NOW_US)
        return Claim(*place, deliveries)

    def give_back(self, claim: Claim, *, due_us: int = 0) -> None:
        self.queue.give_back(due_us, [claim])
        self.index.refresh(claim.place, NOW_US)

    def acknowledge(self, claim: Claim) -> None:
        self.queue.acknowledge([claim])
        self.index.refresh(claim.place, NOW_US)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_record_that_must_be_read_again_holds_no_cache(desk: Desk) -> None:
    desk.add(0, is_cached=False)
    assert (desk.index.open_count, desk.index.cached_bytes) == (1, 0)
    desk.add(1, size_bytes=7)
    assert desk.index.cached_bytes == 7
    desk.index.forget_from(0, 0)
    assert (desk.index.open_count, desk.index.cached_bytes) == (0, 0)


def test_a_record_that_is_leased_or_delayed_lets_its_content_go(desk: Desk) -> None:
    leased, delayed = desk.add(0), desk.add(1, available_us=NOW_US + 1)
    desk.take()
    desk.lease(leased.place)
    assert (leased.content, delayed.content, desk.index.cached_bytes) == (None, None, 0)


def test_no_more_is_read_while_the_cache_is_full_of_records_that_are_ready(desk: Desk) -> None:
    desk.add(0, size_bytes=CACHED_BYTES_PER_QUEUE_MAX)
    assert desk.index.room(0) == 0
    desk.take()
    assert desk.index.room(0) == OPEN_PER_PARTITION_MAX - 1


def test_a_partition_has_so_many_open_records_and_another_one_still_has_room(desk: Desk) -> None:
    for offset in range(OPEN_PER_PARTITION_MAX):
        desk.add(offset, size_bytes=0)
    assert (desk.index.room(0), desk.index.room(1)) == (0, OPEN_PER_PARTITION_MAX)
    assert (desk.index.open_in(0), desk.index.open_in(1)) == (OPEN_PER_PARTITION_MAX, 0)


def test_partitions_take_turns_and_within_one_the_lowest_offset_is_first(desk: Desk) -> None:
    for partition, offset in ((0, 0), (0, 1), (1, 0), (1, 1)):
        desk.add(offset, partition=partition)
    assert [desk.take() for _ in range(5)] == [Place(0, 0), Place(1, 0), Place(0, 1), Place(1, 1), None]


def test_where_there_is_no_room_for_rows_only_what_was_delivered_before_is_handed_out(desk: Desk) -> None:
    first, second = desk.add(0), desk.add(1)
    desk.take()
    claim = desk.lease(first.place)
    assert desk.take(only_again=True) is None
    desk.give_back(claim)
    assert desk.take(only_again=True) == first.place
    assert desk.take(only_again=True) is None
    assert desk.take() == second.place


def test_a_record_that_was_delivered_before_comes_in_order_of_its_offset_not_first(desk: Desk) -> None:
    low, high = desk.add(0), desk.add(1)
    for _ in range(2):
        desk.take()
    desk.give_back(desk.lease(high.place))
    desk.index.untake(low.place, NOW_US)
    assert [desk.take(), desk.take()] == [low.place, high.place]


def test_a_record_that_was_put_back_is_handed_out_again_and_a_leased_one_is_not_put_back(desk: Desk) -> None:
    record = desk.add(0)
    assert (desk.take(), desk.take()) == (record.place, None)
    desk.index.untake(record.place, NOW_US)
    assert desk.take() == record.place
    desk.lease(record.place)
    desk.index.untake(record.place, NOW_US)
    desk.index.untake(Place(3, 3), NOW_US)
    assert (desk.take(), record.phase) == (None, Phase.LEASED)


def test_a_delay_that_is_over_makes_a_record_ready_once(desk: Desk) -> None:
    record = desk.add(0, available_us=2_000)
    assert (desk.take(), desk.index.next_due_us()) == (None, 2_000)
    desk.index.due(1_999)
    assert record.phase is Phase.DELAYED
    desk.index.due(2_000)
    assert (desk.take(now_us=2_000), desk.take(now_us=2_000)) == (record.place, None)


def test_the_end_of_a_delay_says_nothing_about_a_record_that_was_purged_or_leased_since(desk: Desk) -> None:
    gone, leased = desk.add(0, available_us=2_000), desk.add(1, available_us=2_000)
    desk.queue.pass_over(0, [(0, 1)], Passed.PURGE)
    desk.index.refresh_partition(0, NOW_US)
    desk.lease(leased.place, until_us=9_000)
    desk.index.due(2_000)
    assert (desk.index.find(gone.place), leased.phase) == (None, Phase.LEASED)
    assert desk.take(now_us=2_000) is None


def test_a_lease_that_is_over_is_returned_once_and_one_that_was_extended_later(desk: Desk) -> None:
    desk.add(0)
    desk.take()
    claim = desk.lease(Place(0, 0), until_us=2_000)
    desk.queue.extend(3_000, [claim])
    desk.index.refresh(claim.place, NOW_US)
    assert desk.index.due(2_500) == ([], [])
    assert desk.index.due(3_000) == ([claim], [])
    assert desk.index.due(3_000) == ([], [])


def test_a_lease_that_was_extended_without_the_index_being_told_is_not_over(desk: Desk) -> None:
    desk.add(0)
    desk.take()
    claim = desk.lease(Place(0, 0), until_us=2_000)
    desk.queue.extend(3_000, [claim])
    assert desk.index.due(2_000) == ([], [])


def test_the_end_of_a_lease_says_nothing_about_the_next_delivery_of_the_record(desk: Desk) -> None:
    desk.add(0)
    desk.take()
    desk.give_back(desk.lease(Place(0, 0), until_us=2_000))
    desk.take()
    again = desk.lease(Place(0, 0), until_us=9_000)
    assert desk.index.due(2_000) == ([], [])
    assert desk.index.due(9_000) == ([again], [])


def test_a_record_that_expired_is_taken_once_and_never_handed_out(desk: Desk) -> None:
    record = desk.add(0, expires_us=2_000)
    assert desk.take(now_us=2_000) is None
    assert desk.index.due(2_000) == ([], [Claim(0, 0, 0)])
    assert record.phase is Phase.TAKEN
    assert desk.index.due(2_000) == ([], [])


def test_a_record_that_is_leased_when_it_expires_stays_with_its_consumer(desk: Desk) -> None:
    record = desk.add(0, expires_us=2_000)
    desk.take()
    claim = desk.lease(record.place, until_us=9_000)
    assert desk.index.due(2_000) == ([], [])
    desk.give_back(claim)
    assert desk.index.due(2_000) == ([], [Claim(0, 0, 1)])


def test_of_one_key_only_the_oldest_is_handed_out_and_the_next_when_it_is_done(desk: Desk) -> None:
    for offset in range(3):
        desk.add(offset, key=b"k")
    desk.add(3)
    assert (desk.take(), desk.take(), desk.take()) == (Place(0, 0), Place(0, 3), None)
    desk.acknowledge(desk.lease(Place(0, 0)))
    assert desk.take() == Place(0, 1)


def test_a_younger_record_of_a_key_that_ends_first_leaves_the_oldest_where_it_is(desk: Desk) -> None:
    for offset in range(3):
        desk.add(offset, key=b"k")
    desk.queue.pass_over(0, [(1, 2)], Passed.PURGE)
    desk.index.refresh_partition(0, NOW_US)
    assert (desk.take(), desk.take()) == (Place(0, 0), None)
    desk.acknowledge(desk.lease(Place(0, 0)))
    assert desk.take() == Place(0, 2)


def test_what_is_read_again_from_an_offset_is_forgotten_and_the_rest_keeps_its_order(desk: Desk) -> None:
    desk.add(0, key=b"k")
    desk.add(1, key=b"k", expires_us=9_000)
    desk.add(2, available_us=3_000)
    desk.add(1, partition=1)
    desk.index.forget_from(0, 1)
    assert (desk.index.open_in(0), desk.index.open_in(1), desk.index.next_due_us()) == (1, 1, None)
    assert {desk.take(), desk.take(), desk.take()} == {Place(0, 0), Place(1, 1), None}
    desk.acknowledge(desk.lease(Place(0, 0)))
    fresh = desk.add(1, key=b"k")
    assert desk.take() == fresh.place


def test_a_new_leader_knows_the_leases_of_records_that_it_has_not_read() -> None:
    queue = QueueState(QueueDefinition(name="q", topic="t"), made_us=1)
    queue.deliver("c", 2_000, [Place(0, 0), Place(0, 1)])
    queue.deliver("d", 3_000, [Place(1, 0)])
    index = QueueIndex(queue)
    assert (index.lease_count, index.held_by("c"), set(index.holders())) == (
        3,
        {Place(0, 0), Place(0, 1)},
        {"c", "d"},
    )
    assert index.due(2_000) == ([Claim(0, 0, 1), Claim(0, 1, 1)], [])
    queue.acknowledge([Claim(1, 0, 1)])
    index.refresh(Place(1, 0), NOW_US)
    assert (index.held_by("d"), set(index.holders())) == (set(), {"c"})


def test_the_oldest_open_record_is_that_of_any_partition(desk: Desk) -> None:
    assert desk.index.oldest_append_us() is None
    desk.add(5)
    desk.add(3, partition=1)
    assert desk.index.oldest_append_us() == 103


# --- consumers ------------------------------------------------------------------------------------


def test_a_consumer_is_lost_when_it_was_silent_for_its_own_timeout() -> None:
    sessions = Sessions()
    sessions.begin("a", 1_000, 0)
    sessions.begin("b", 5_000, 0)
    sessions.heard("a", 500 * MS)
    assert (sessions.next_due_ns(), sessions.pop_lost(1_499 * MS)) == (1_500 * MS, [])
    assert (sessions.pop_lost(1_500 * MS), len(sessions)) == (["a"], 1)


def test_a_consumer_that_says_another_timeout_has_that_one_from_then_on() -> None:
    sessions = Sessions()
    sessions.begin("a", 5_000, 0)
    sessions.begin("a", 1_000, 2 * MS)
    assert (len(sessions), sessions.next_due_ns()) == (1, 1_002 * MS)


def test_a_consumer_whose_receive_waits_is_not_lost() -> None:
    sessions = Sessions()
    sessions.begin("a", 1_000, 0).waits += 1
    assert (sessions.next_due_ns(), sessions.pop_lost(10**18)) == (None, [])


def test_who_has_no_session_is_not_given_one_by_being_heard_of() -> None:
    sessions = Sessions()
    sessions.heard("a", 5)
    assert list(sessions) == []
    sessions.end("a")
    assert list(sessions) == []


def test_a_queue_has_so_many_consumers_and_refuses_one_more_but_not_those_it_has() -> None:
    sessions = Sessions()
    for number in range(CONSUMERS_PER_QUEUE_MAX):
        sessions.begin(f"c{number}", 1_000, 0)
    with pytest.raises(Busy, match=str(CONSUMERS_PER_QUEUE_MAX)):
        sessions.begin("one more", 1_000, 0)
    sessions.begin("c0", 2_000, 0)
    sessions.end("c1")
    sessions.begin("one more", 1_000, 0)
    assert len(sessions) == CONSUMERS_PER_QUEUE_MAX
