"""Records find their partition, and the coalescer stores them once and in order, whatever happens to an answer."""

from __future__ import annotations

import asyncio

import pytest

from georelay.errors import NotLeader, OutcomeUnknown, PolicyViolation, TooLarge
from georelay.ids import is_brokers_own
from region.api.coalescer import NewRecord
from region.api.partitioning import STAY_BYTES, STAY_NS, Partitioner
from tests.unit.api.edge_in_memory import Edge

# --- partitioning --------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_records_without_a_key_of_one_moment_share_a_partition_and_the_next_moment_has_the_next_one() -> None:
    clock = Clock()
    partitioner = Partitioner(clock)
    chosen = []
    for clock.now_ns in (0, STAY_NS - 1, STAY_NS, 2 * STAY_NS - 1, 2 * STAY_NS, 9 * STAY_NS):
        chosen.append(partitioner.choose("a", None, 3, 100))
    assert chosen == [0, 0, 1, 1, 2, 0]
    assert partitioner.choose("b", None, 3, 100) == 0


def test_many_bytes_without_a_key_go_round_the_partitions_in_one_moment() -> None:
    partitioner = Partitioner(Clock())
    assert [partitioner.choose("a", None, 3, STAY_BYTES // 2) for _ in range(8)] == [0, 0, 1, 1, 2, 2, 0, 0]


def test_a_key_always_goes_to_one_partition_even_an_empty_key() -> None:
    partitioner = Partitioner(Clock())
    assert len({partitioner.choose("a", b"k", 7, 1) for _ in range(5)}) == 1
    assert len({partitioner.choose("a", b"", 7, 1) for _ in range(5)}) == 1


async def test_single_records_without_a_key_of_one_moment_are_one_batch(edge: Edge) -> None:
    edge.cluster.add_topic("orders", 3)
    await asyncio.gather(*(edge.publisher.publish("orders", [(record, None)]) for record in records(*[b"x"] * 30)))
    assert [len(edge.cluster.stream("orders", partition).entries) for partition in range(3)] == [1, 0, 0]


# --- coalescer -----------------------------------------------------------------------------------


def records(*values: bytes) -> list[NewRecord]:
    return [NewRecord(value) for value in values]


async def test_publishes_of_one_turn_travel_in_one_batch(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    futures = [edge.coalescer.publish("orders", 0, records(b"%d" % n))[0] for n in range(50)]
    answers = await asyncio.gather(*futures)
    assert [answer.base_offset for answer in answers] == list(range(50))
    assert len(edge.cluster.stream("orders", 0).entries) == 1


async def test_records_of_callers_are_published_under_a_producer_id_that_clients_may_not_use(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    await edge.coalescer.publish("orders", 0, records(b"a"))[0]
    (entry,) = edge.cluster.stream("orders", 0).entries
    assert is_brokers_own(entry.header().producer_id)


async def test_a_resend_after_a_lost_answer_stores_once(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.auto_commit = False
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    while not stream.entries:
        await asyncio.sleep(0)
    stream.auto_commit = True
    stream.fail_pending(OutcomeUnknown("leader changed"))
    assert (await future).base_offset == 0
    assert len(edge.cluster.published) == 2
    assert len(stream.entries) == 1


async def test_a_leader_change_is_ridden_out_in_order(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors += [NotLeader(), NotLeader()]
    futures = [edge.coalescer.publish("orders", 0, records(b"%d" % n))[0] for n in range(3)]
    assert [(await future).base_offset for future in futures] == [0, 1, 2]


async def test_a_hopeless_publish_fails_at_once(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    with pytest.raises(PolicyViolation):
        await future
    (after,) = edge.coalescer.publish("orders", 0, records(b"b"))
    assert (await after).base_offset == 0


async def test_a_failed_producer_id_is_asked_for_again(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.api.coalescer.ALLOCATE_RETRY_S", 0)
    edge.cluster.add_topic("orders")
    edge.cluster.producer_errors.append(NotLeader())
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    assert (await future).base_offset == 0


async def test_a_record_larger_than_a_batch_is_refused(edge: Edge) -> None:
    with pytest.raises(TooLarge, match="record 0"):
        edge.coalescer.publish("orders", 0, records(b"x" * 9_000_000))


async def test_a_large_call_is_cut_into_batches_with_dense_offsets(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    places = await edge.publisher.publish("orders", [(record, 0) for record in records(*[b"x" * 1000] * 1000)])
    assert [place.offset for place in places] == list(range(1000))
    assert len(edge.cluster.stream("orders", 0).entries) == 4


async def test_records_are_gathered_into_batches_that_the_topic_allows(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    await edge.cluster.alter_topic("orders", {"max.message.bytes": "500"})
    calls = [edge.publisher.publish("orders", [(record, 0) for record in records(*[b"x" * 100] * 5)]) for _ in range(4)]
    offsets = [place.offset for places in await asyncio.gather(*calls) for place in places]
    assert offsets == list(range(20))
    sizes = [len(entry.payload) for entry in edge.cluster.stream("orders", 0).entries]
    assert max(sizes) <= 500
    assert len(sizes) < 20
    with pytest.raises(TooLarge, match="record 1 of 532 bytes is over the 439"):
        await edge.publisher.publish("orders", [(record, 0) for record in records(b"x", b"x" * 500)])
    await edge.cluster.alter_topic("orders", {"max.message.bytes": str(8 << 20)})
    await edge.publisher.publish("orders", [(record, 0) for record in records(*[b"x" * 100] * 20)])
    assert len(edge.cluster.stream("orders", 0).entries[-1].payload) > 2_000


async def test_closing_tells_those_who_wait_and_bytes_are_given_back(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.stream("orders", 0).auto_commit = False
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    await asyncio.sleep(0)
    await edge.coalescer.close()
    with pytest.raises(OutcomeUnknown):
        await future
    await asyncio.sleep(0)
    assert edge.coalescer.pending_bytes == 0


async def test_some_stored_and_some_not_is_an_unknown_outcome(edge: Edge) -> None:
    edge.cluster.add_topic("orders", 2)
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    with pytest.raises(OutcomeUnknown, match="1 of 2"):
        await edge.publisher.publish("orders", [(NewRecord(b"a"), 0), (NewRecord(b"b"), 1)])
