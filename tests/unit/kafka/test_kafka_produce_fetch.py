"""Produce and Fetch over a real socket against an in-memory region."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import Busy, HomeUnreachable, NotHome, NotLeader, OutcomeUnknown, Unavailable, UnknownProducer
from georelay.limits import RECORDS_PER_BATCH_MAX
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import Compression, build_batch, iterate_records, split_batches
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from region.kafka.handlers import fetch as fetch_handler

MIB = 1024 * 1024


def batch(*values: bytes, **options: Any) -> bytes:
    return build_batch([(value, None, ()) for value in values], timestamps_ms=1_700_000_000_000, **options)


def produce(*rows: tuple[str, int, bytes | None], acks: int = -1, timeout_ms: int = 5_000) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=raw)])
            for name, index, raw in rows
        ],
    )


def fetch(
    *rows: tuple[str, int, int],
    max_bytes: int = MIB,
    partition_max_bytes: int = MIB,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    epoch: int = -1,
    last_epoch: int = -1,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        current_leader_epoch=epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=last_epoch,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
            for name, partition, offset in rows
        ],
    )


def produced(response: Any) -> list[tuple[int, int]]:
    return [(row.error_code, row.base_offset) for topic in response.responses for row in topic.partition_responses]


def fetched(response: Any) -> list[tuple[int, list[bytes | None]]]:
    rows = []
    for topic in response.responses:
        for part in topic.partitions:
            raw = b"".join(part.records or ())
            values = [record.value for one in split_batches(raw) for record in iterate_records(one)]
            rows.append((part.error_code, values))
    return rows


async def call_fetch(client: Any, request: FetchRequest, version: int = 12) -> Any:
    return await client.call(request, ApiKey.FETCH, version)


async def call_produce(client: Any, request: ProduceRequest, version: int = 9) -> list[tuple[int, int]]:
    return produced(await client.call(request, ApiKey.PRODUCE, version))


@pytest.mark.parametrize("version", range(3, 10))
async def test_produced_records_are_fetched_in_order(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    assert await call_produce(client, produce(("orders", 0, batch(b"a", b"b"))), version) == [(0, 0)]
    assert await call_produce(client, produce(("orders", 0, batch(b"c"))), version) == [(0, 2)]
    assert fetched(await call_fetch(client, fetch(("orders", 0, 0)))) == [(0, [b"a", b"b", b"c"])]


async def test_a_batch_of_more_records_than_clients_may_publish_is_too_large_and_not_stored(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    count = RECORDS_PER_BATCH_MAX + 1
    raw = build_batch([(b"", None, ())] * count, timestamps_ms=1, compression=Compression.GZIP, records_max=count)
    client = await bed.client()
    assert await call_produce(client, produce(("orders", 0, raw))) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]
    assert bed.cluster.stream("orders", 0).next_offset == 0


async def test_an_unknown_producer_is_told_the_log_start_without_which_javas_client_repeats_itself(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.add(b"a", b"b")
    stream.log_start = 1
    bed.cluster.publish_errors.append(UnknownProducer("another batch is stored under sequence 0"))
    client = await bed.client()
    answer = await client.call(produce(("orders", 0, batch(b"c"))), ApiKey.PRODUCE, 9)
    (row,) = answer.responses[0].partition_responses
    assert (row.error_code, row.log_start_offset) == (ErrorCode.UNKNOWN_PRODUCER_ID, 1)


@pytest.mark.parametrize("version", range(4, 13))
async def test_a_fetch_in_the_middle_of_a_batch_gets_the_whole_batch(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).add(b"a", b"b", b"c")
    client = await bed.client()
    assert fetched(await call_fetch(client, fetch(("orders", 0, 2)), version)) == [(0, [b"a", b"b", b"c"])]


async def test_produce_is_answered_only_after_the_commit(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"a")), acks=1), 9)
    client.send(fetch(("orders", 0, 0)), 12)
    await wait_until(lambda: len(bed.cluster.published) == 1)
    assert not client.reader._buffer
    stream.commit()
    assert produced((await client.receive(ApiKey.PRODUCE, 9))[1]) == [(0, 0)]


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_pipelined_requests_are_answered_in_their_order(bed: Any) -> None:
    bed.cluster.add_topic("slow")
    bed.cluster.add_topic("fast")
    bed.cluster.stream("slow", 0).auto_commit = False
    client = await bed.client()
    first = client.send(produce(("slow", 0, batch(b"s"))), 9)
    second = client.send(produce(("fast", 0, batch(b"f"))), 9)
    third = client.send(fetch(("fast", 0, 0)), 12)
    await wait_until(lambda: len(bed.cluster.published) == 2)
    bed.cluster.stream("slow", 0).commit()
    assert (await client.receive(ApiKey.PRODUCE, 9))[0] == first
    assert (await client.receive(ApiKey.PRODUCE, 9))[0] == second
    assert (await client.receive(ApiKey.FETCH, 12))[0] == third


async def test_two_hundred_pipelined_publishes_keep_their_order_over_the_slot_limit(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    for number in range(200):
        client.send(produce(("orders", 0, batch(b"%d" % number))), 9)
    for number in range(200):
        assert produced((await client.receive(ApiKey.PRODUCE, 9))[1]) == [(0, number)]


async def test_no_more_requests_are_handled_while_all_slots_are_taken(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    for _ in range(100):
        client.send(produce(("orders", 0, batch(b"x"))), 9)
    await wait_until(lambda: len(bed.cluster.published) >= 64)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bed.cluster.published) == 64
    stream.auto_commit = True
    stream.commit()
    for number in range(100):
        assert produced((await client.receive(ApiKey.PRODUCE, 9))[1]) == [(0, number)]


async def test_acks_zero_gets_no_answer(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"a")), acks=0), 9)
    correlation = client.send(fetch(("orders", 0, 0)), 12)
    answered, response = await client.receive(ApiKey.FETCH, 12)
    assert answered == correlation
    assert fetched(response) == [(0, [b"a"])]


async def test_an_error_with_acks_zero_closes_the_connection(bed: Any) -> None:
    client = await bed.client()
    client.send(produce(("nowhere", 0, batch(b"a")), acks=0), 9)
    assert await client.is_closed()


@pytest.mark.parametrize("acks", [-2, 65, 1000])
async def test_acks_that_are_no_number_of_regions_are_refused(bed: Any, acks: int) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    answer = await call_produce(client, produce(("orders", 0, batch(b"a")), acks=acks))
    assert answer == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]
    assert not bed.cluster.published


async def test_a_flipped_byte_is_refused_as_corrupt(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    raw = bytearray(batch(b"abc"))
    raw[-2] ^= 1
    client = await bed.client()
    assert await call_produce(client, produce(("orders", 0, bytes(raw)))) == [(ErrorCode.CORRUPT_MESSAGE, -1)]
    assert not bed.cluster.published


async def test_two_batches_for_one_partition_are_refused(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    answer = await call_produce(client, produce(("orders", 0, batch(b"a") + batch(b"b"))))
    assert answer == [(ErrorCode.INVALID_RECORD, -1)]
    assert not bed.cluster.published


@pytest.mark.parametrize("raw", [None, b"", b"short"])
async def test_no_batch_is_refused(bed: Any, raw: bytes | None) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    ((code, _),) = await call_produce(client, produce(("orders", 0, raw)))
    assert code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotLeader(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (NotHome("elsewhere", epoch=1, home=2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Busy("full"), ErrorCode.NOT_ENOUGH_REPLICAS),
        (HomeUnreachable("gone"), ErrorCode.NOT_ENOUGH_REPLICAS),
        (Unavailable("no leader"), ErrorCode.LEADER_NOT_AVAILABLE),
        (OutcomeUnknown("lost"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_errors_of_the_cluster_have_their_kafka_code(bed: Any, error: Exception, code: ErrorCode) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.publish_errors.append(error)
    client = await bed.client()
    assert await call_produce(client, produce(("orders", 0, batch(b"a")))) == [(code, -1)]


async def test_one_bad_partition_does_not_spoil_the_others(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    answer = await call_produce(client, produce(("orders", 7, batch(b"a")), ("orders", 0, batch(b"b"))))
    assert answer == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), (0, 0)]


async def test_a_topic_without_partitions_keeps_its_place_in_the_answer(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    empty = TopicProduceData(name="empty", partition_data=[])
    request = produce(("orders", 0, batch(b"a")))
    request = ProduceRequest(None, -1, 5_000, [empty, *request.topic_data])
    response = await client.call(request, ApiKey.PRODUCE, 9)
    assert [(topic.name, len(topic.partition_responses)) for topic in response.responses] == [
        ("empty", 0),
        ("orders", 1),
    ]


async def test_producing_to_a_mirror_name_is_a_policy_violation(bed: Any) -> None:
    from region.controller.topic import Homes

    bed.cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    client = await bed.client()
    assert await call_produce(client, produce(("eu.clicks", 0, batch(b"a")))) == [(ErrorCode.POLICY_VIOLATION, -1)]


async def test_an_idempotent_duplicate_gets_the_old_offset_and_a_gap_is_refused(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    first = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    gap = batch(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    assert await call_produce(client, produce(("orders", 0, first))) == [(0, 0)]
    assert await call_produce(client, produce(("orders", 0, first))) == [(0, 0)]
    assert await call_produce(client, produce(("orders", 0, gap))) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]


async def test_a_publish_past_its_timeout_is_answered(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).auto_commit = False
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"a")), timeout_ms=1), 9)
    await wait_until(lambda: bed.cluster.published)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 2_000_000_000)
    assert produced((await client.receive(ApiKey.PRODUCE, 9))[1]) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]


async def test_long_poll_wakes_at_the_commit(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    client.send(fetch(("orders", 0, 0), max_wait_ms=60_000), 12)
    await wait_until(lambda: stream.waiter_count == 1)
    stream.add(b"news")
    assert fetched((await client.receive(ApiKey.FETCH, 12))[1]) == [(0, [b"news"])]
    assert stream.waiter_count == 0


async def test_long_poll_waits_for_min_bytes(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    client.send(fetch(("orders", 0, 0), max_wait_ms=60_000, min_bytes=150), 12)
    await wait_until(lambda: stream.waiter_count == 1)
    stream.add(b"a")
    for _ in range(10):
        await asyncio.sleep(0)
    assert stream.waiter_count == 1
    stream.add(b"b" * 80)
    ((_, values),) = fetched((await client.receive(ApiKey.FETCH, 12))[1])
    assert values == [b"a", b"b" * 80]


async def test_long_poll_answers_empty_when_its_time_is_over(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    assert fetched(await call_fetch(client, fetch(("orders", 0, 0), max_wait_ms=1))) == [(0, [])]


async def test_a_wide_fetch_that_was_answered_a_moment_ago_waits_for_more_partitions_to_have_records(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_handler, "WIDE_PAUSE_NS_PER_PARTITION", 1_000_000)
    monkeypatch.setattr(fetch_handler, "WIDE_PAUSE_NS_MAX", 400_000_000)
    bed.services = replace(bed.services, monotonic_ns=lambda: 1)  # "a moment ago", however slow this machine is
    bed.cluster.add_topic("orders", partitions=400)
    first, second = bed.cluster.stream("orders", 0), bed.cluster.stream("orders", 399)
    client = await bed.client()

    async def fetch_all(offset: int) -> None:
        client.send(fetch(*(("orders", at, offset if at == 0 else 0) for at in range(400)), max_wait_ms=60_000), 12)
        await wait_until(lambda: second.waiter_count == 1)

    await fetch_all(0)
    first.add(b"a")
    assert (0, [b"a"]) in fetched((await client.receive(ApiKey.FETCH, 12))[1])  # nothing was answered before: at once
    await fetch_all(1)
    first.add(b"b")
    for _ in range(10):
        await asyncio.sleep(0)
    assert first.waiter_count == 1
    second.add(b"c")
    rows = fetched((await client.receive(ApiKey.FETCH, 12))[1])
    assert [values for _, values in rows if values] == [[b"b"], [b"c"]]


async def test_losing_the_leadership_ends_a_long_poll(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    client.send(fetch(("orders", 0, 0), max_wait_ms=60_000), 12)
    await wait_until(lambda: stream.waiter_count == 1)
    stream.is_leader = False
    stream.wake()
    ((code, _),) = fetched((await client.receive(ApiKey.FETCH, 12))[1])
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_long_poll_is_answered_although_a_topic_in_it_was_deleted_meanwhile(bed: Any) -> None:
    bed.cluster.add_topic("gone")
    bed.cluster.add_topic("orders")
    gone, orders = bed.cluster.stream("gone", 0), bed.cluster.stream("orders", 0)
    gone.add(b"last")
    client = await bed.client()
    client.send(fetch(("gone", 0, 0), ("orders", 0, 0), max_wait_ms=60_000, min_bytes=150), 12)
    await wait_until(lambda: orders.waiter_count == 1)
    del bed.cluster.views["gone"]
    orders.add(b"n" * 150)
    assert fetched((await client.receive(ApiKey.FETCH, 12))[1])[1] == (0, [b"n" * 150])


async def test_a_lost_connection_leaves_no_waiter(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    client.send(fetch(("orders", 0, 0), max_wait_ms=60_000), 12)
    await wait_until(lambda: stream.waiter_count == 1)
    client.writer.close()
    await wait_until(lambda: stream.waiter_count == 0)


async def test_uncommitted_records_are_not_delivered(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.add(b"committed")
    stream.auto_commit = False
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"not yet")), acks=0), 9)
    assert fetched(await call_fetch(client, fetch(("orders", 0, 0)))) == [(0, [b"committed"])]


async def test_only_the_first_batch_may_exceed_max_bytes(bed: Any) -> None:
    for name in ("big", "other"):
        bed.cluster.add_topic(name)
        bed.cluster.stream(name, 0).add(b"x" * 1000)
        bed.cluster.stream(name, 0).add(b"y" * 1000)
    client = await bed.client()
    request = fetch(("big", 0, 0), ("other", 0, 0), max_bytes=100)
    assert fetched(await call_fetch(client, request)) == [(0, [b"x" * 1000]), (0, [])]


async def test_a_later_partition_may_not_exceed_its_own_limit(bed: Any) -> None:
    for name in ("first", "second"):
        bed.cluster.add_topic(name)
        bed.cluster.stream(name, 0).add(b"x" * 1000)
    client = await bed.client()
    request = fetch(("first", 0, 0), ("second", 0, 0), partition_max_bytes=100)
    assert fetched(await call_fetch(client, request)) == [(0, [b"x" * 1000]), (0, [])]


async def test_an_empty_partition_does_not_take_the_place_of_the_first_batch(bed: Any) -> None:
    bed.cluster.add_topic("empty")
    bed.cluster.add_topic("big")
    bed.cluster.stream("big", 0).add(b"x" * 1000)
    client = await bed.client()
    request = fetch(("empty", 0, 0), ("big", 0, 0), max_bytes=10)
    assert fetched(await call_fetch(client, request)) == [(0, []), (0, [b"x" * 1000])]


async def test_max_bytes_is_over_the_whole_answer(bed: Any) -> None:
    for name in ("first", "second"):
        bed.cluster.add_topic(name)
        for _ in range(5):
            bed.cluster.stream(name, 0).add(b"x" * 1000)
    client = await bed.client()
    answer = fetched(await call_fetch(client, fetch(("first", 0, 0), ("second", 0, 0), max_bytes=7 * 1070 + 100)))
    assert [len(values) for _, values in answer] == [5, 2]


async def test_what_is_not_in_memory_is_read_from_disk(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.add(b"old")
    stream.in_memory = False
    client = await bed.client()
    assert fetched(await call_fetch(client, fetch(("orders", 0, 0)))) == [(0, [b"old"])]
    assert stream.cold_reads == 1


async def test_what_comes_from_disk_still_fits_when_more_was_committed_meanwhile(bed: Any) -> None:
    for name in ("first", "second"):
        bed.cluster.add_topic(name)
    hot, cold = bed.cluster.stream("first", 0), bed.cluster.stream("second", 0)
    hot.add(b"x" * 1000)
    for _ in range(5):
        cold.add(b"x" * 1000)
    cold.in_memory = False
    read = cold.read_cold

    async def read_while_others_publish(offset: int, max_bytes: int) -> Any:
        for _ in range(3):
            hot.add(b"x" * 1000)
        return await read(offset, max_bytes)

    cold.read_cold = read_while_others_publish
    client = await bed.client()
    answer = fetched(await call_fetch(client, fetch(("first", 0, 0), ("second", 0, 0), max_bytes=6 * 1070 + 100)))
    assert [len(values) for _, values in answer] == [4, 2]


@pytest.mark.parametrize(("offset", "code"), [(4, 1), (5, 0), (7, 0), (8, 1)])
async def test_offsets_outside_the_log_of_the_home_are_out_of_range(bed: Any, offset: int, code: int) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    for _ in range(7):
        stream.add(b"x")
    stream.log_start = 5
    client = await bed.client()
    ((answered, _),) = fetched(await call_fetch(client, fetch(("orders", 0, offset))))
    assert answered == code


async def test_above_the_end_of_a_mirror_a_reader_waits(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).is_home = False
    client = await bed.client()
    assert fetched(await call_fetch(client, fetch(("orders", 0, 100), max_wait_ms=1))) == [(0, [])]


@pytest.mark.parametrize(("epoch", "code"), [(0, 0), (1, 0), (2, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)])
async def test_the_client_epoch_is_compared_with_the_home_epoch(bed: Any, epoch: int, code: int) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    ((answered, _),) = fetched(await call_fetch(client, fetch(("orders", 0, 0), epoch=epoch)))
    assert answered == code


async def test_a_reader_of_an_ended_epoch_beyond_its_end_learns_where_it_diverged(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    for _ in range(5):
        stream.add(b"x")
    stream.epoch_ends[1] = (1, 3)
    client = await bed.client()
    response = await call_fetch(client, fetch(("orders", 0, 5), last_epoch=1))
    (row,) = response.responses[0].partitions
    assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (1, 3)


async def test_a_reader_of_an_epoch_that_has_not_begun_here_waits_for_it(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.is_home = False
    stream.epoch_ends[2] = (1, 2**63 - 1)
    client = await bed.client()
    response = await call_fetch(client, fetch(("orders", 0, 5), last_epoch=2))
    (row,) = response.responses[0].partitions
    assert (row.error_code, row.diverging_epoch) == (ErrorCode.UNKNOWN_LEADER_EPOCH, None)


async def test_beyond_an_ended_epoch_a_reader_learns_where_it_ended_and_is_not_reset(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    for _ in range(3):
        stream.add(b"x")
    stream.epoch = 2
    stream.epoch_ends[1] = (1, 3)
    client = await bed.client()
    response = await call_fetch(client, fetch(("orders", 0, 9), last_epoch=1))
    (row,) = response.responses[0].partitions
    assert (row.error_code, row.diverging_epoch.end_offset) == (0, 3)


async def test_fetch_always_answers_session_zero(bed: Any) -> None:
    client = await bed.client()
    assert (await call_fetch(client, fetch(("orders", 0, 0)))).session_id == 0


async def test_deliveries_are_recorded_per_partition_and_a_jump_opens_a_new_session(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.add(b"a", b"b")
    stream.add(b"c")
    client = await bed.client()
    await call_fetch(client, fetch(("orders", 0, 0)))
    await call_fetch(client, fetch(("orders", 0, 3)))
    await call_fetch(client, fetch(("orders", 0, 0)))
    sessions = [session for _, _, _, session in bed.recorder.sessions]
    assert [session.batches for session in sessions] == [[(0, 2), (2, 1)], [(0, 2), (2, 1)]]
    assert [session.caught_up_count for session in sessions] == [1, 0]


async def test_the_socket_is_not_read_while_the_client_does_not_read(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).add(b"x" * 4 * MIB)
    client = await bed.client()
    client.writer.transport.pause_reading()
    for _ in range(40):
        client.send(fetch(("orders", 0, 0)), 12)
    await wait_until(lambda: bed.services.counters.bytes_out > 0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert bed.services.counters.batches_out < 10


async def test_metadata_of_an_unknown_topic_creates_it(bed: Any) -> None:
    from georelay.wire.requests import MetadataRequestTopic

    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
    response = await client.call(request, ApiKey.METADATA, 12)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics] == [("fresh", 0, 1)]
