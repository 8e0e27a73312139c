"""A gap that a broker made itself, by refusing a batch, is not told as a producer's error: it would send anew what is
stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, NotLeader, OutcomeUnknown, OutOfOrderSequence, PolicyViolation, UnknownProducer
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import validate
from georelay.wire.header import BatchHeader
from region.kafka.refused_sequences_core import COMES_WITHIN_S, REFUSALS_MAX, RefusedSequences
from tests.unit.kafka.test_kafka_produce_fetch import batch, call_produce, produce, produced, wait_until

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
GAP = OutOfOrderSequence("sequence 5, 2 was expected")


def of(sequence: int, epoch: int = 0) -> Any:
    raw = batch(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return produce(("orders", 0, raw))


async def test_what_a_dead_leader_stored_is_not_stored_again_when_the_next_one_leads_in_the_middle_of_the_retries(
    bed: Any,
) -> None:
    bed.cluster.add_topic("orders")
    before = await bed.client()
    assert await call_produce(before, of(0)) == [(0, 0)]  # its answer is lost
    bed.cluster.publish_errors = [NotLeader()]  # nobody leads yet
    client = await bed.client()
    answers = [await call_produce(client, of(sequence)) for sequence in (0, 1, 2)]
    assert answers == [[(NOT_LEADER, -1)]] * 3, "OUT_OF_ORDER_SEQUENCE_NUMBER begins a new epoch: all are sent as new"
    answers = [await call_produce(client, of(sequence)) for sequence in (0, 1, 2)]
    assert answers == [[(0, 0)], [(0, 1)], [(0, 2)]]


async def test_a_gap_behind_a_batch_that_was_stored_in_the_end_is_the_producers(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.publish_errors = [Busy("full")]
    client = await bed.client()
    codes = [(await call_produce(client, of(sequence)))[0][0] for sequence in (0, 0, 2)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_batch_that_came_to_nothing_after_its_time_was_over_leaves_no_gap_of_its_producer(
    bed: Any, is_cancelled: bool
) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    client.send(of(0), 9)
    await wait_until(lambda: bed.cluster.published)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 60_000_000_000)
    assert produced((await client.receive(ApiKey.PRODUCE, 9))[1]) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    stream.sequences.clear()  # another leader's log is without it
    if is_cancelled:
        stream._pending.pop()[0].cancel()
        await asyncio.sleep(0)
    else:
        stream.fail_pending(OutcomeUnknown("the leader changed"))
    assert await call_produce(client, of(1)) == [(NOT_LEADER, -1)]


async def test_what_was_published_before_is_not_left_out_where_a_lossy_home_epoch_lets_its_producer_jump(
    bed: Any,
) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.lets_jump = True
    stream.publish_errors = [NotLeader()]
    client = await bed.client()
    answers = [await call_produce(client, of(sequence)) for sequence in (0, 1)]
    assert answers == [[(NOT_LEADER, -1)]] * 2, "librdkafka takes 0 for stored when it hears that 1 is"
    assert not stream.entries
    assert [await call_produce(client, of(sequence)) for sequence in (0, 1)] == [[(0, 0)], [(0, 1)]]


async def test_a_producer_that_learns_of_a_late_batch_by_the_one_behind_it_goes_on(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    client.send(of(0), 9)
    await wait_until(lambda: stream._pending)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 60_000_000_000)
    client.send(of(1), 9)
    assert [produced((await client.receive(ApiKey.PRODUCE, 9))[1]) for _ in range(2)] == [
        [(ErrorCode.REQUEST_TIMED_OUT, -1)],
        [(NOT_LEADER, -1)],
    ]
    stream.auto_commit = True
    stream.commit()  # it is stored, late
    assert [await call_produce(client, of(sequence)) for sequence in (1, 2)] == [[(0, 1)], [(0, 2)]]


async def test_an_attempt_that_ends_long_after_the_next_one_was_stored_refuses_nothing(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    client.send(of(0), 9)
    await wait_until(lambda: stream._pending)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 60_000_000_000)
    await client.receive(ApiKey.PRODUCE, 9)
    ((first, _),) = stream._pending
    stream._pending.clear()
    stream.auto_commit = True
    assert await call_produce(client, of(0)) == [(0, 0)]
    first.set_exception(OutcomeUnknown("the link broke"))
    assert await call_produce(client, of(1)) == [(0, 1)]


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    raw = batch(b"a", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return validate(raw, from_client=True)


@pytest.mark.parametrize("error", [NotLeader(), Busy("full"), OutcomeUnknown("lost")], ids=lambda error: error.code)
@pytest.mark.parametrize("gap", [GAP, UnknownProducer("unknown here")], ids=lambda error: error.code)
def test_a_gap_behind_a_batch_that_comes_again_comes_again_too(error: Exception, gap: Exception) -> None:
    refused = RefusedSequences(lambda: 0)
    assert refused.told("orders", 0, header(2**31 - 1), error) is error
    assert isinstance(refused.told("orders", 0, header(3), gap), NotLeader), "sequences wrap"


def test_a_gap_is_its_producers_where_nothing_before_it_was_refused_for_a_moment() -> None:
    refused = RefusedSequences(lambda: 0)
    refused.told("orders", 0, header(2), PolicyViolation("never"))
    assert refused.told("orders", 0, header(5), GAP) is GAP
    refused.told("orders", 0, header(2), NotLeader())
    for place, other in (
        (("orders", 1), header(5)), (("bills", 0), header(5)), (("orders", 0), header(1)), (("orders", 0), None),
        (("orders", 0), header(5, epoch=1)), (("orders", 0), header(5, producer_id=8)),
    ):  # fmt: skip
        assert refused.told(*place, other, GAP) is GAP


def test_the_lowest_refused_sequence_counts_and_earlier_ones_that_are_stored_change_nothing() -> None:
    refused = RefusedSequences(lambda: 0)
    refused.told("orders", 0, header(3), NotLeader())
    refused.told("orders", 0, header(2), NotLeader())
    refused.stored("orders", 0, header(1))
    assert isinstance(refused.told("orders", 0, header(4), GAP), NotLeader)
    refused.stored("orders", 0, header(2))
    assert isinstance(refused.told("orders", 0, header(5), GAP), NotLeader), "3 has to come again, too"
    refused.stored("orders", 0, header(5))
    assert refused.told("orders", 0, header(7), GAP) is GAP


def test_refusals_are_bounded_by_forgetting_the_oldest() -> None:
    refused = RefusedSequences(lambda: 0)
    first, behind = header(0), header(1)
    for partition in range(REFUSALS_MAX + 1):
        refused.told("orders", partition, first, NotLeader())
    assert refused.told("orders", 0, behind, GAP) is GAP
    assert isinstance(refused.told("orders", 1, behind, GAP), NotLeader)


def test_who_goes_on_without_the_refused_batch_learns_of_its_gap() -> None:
    now_s = [0]
    refused = RefusedSequences(lambda: now_s[0] * 10**9)
    refused.told("orders", 0, header(2), NotLeader())
    now_s[0] = COMES_WITHIN_S
    told = [refused.told("orders", 0, header(sequence), GAP) for sequence in range(3, 30)]
    assert all(isinstance(error, NotLeader) for error in told), "librdkafka sends the next while the first waits"
    now_s[0] += 1
    assert refused.told("orders", 0, header(30), GAP) is GAP
