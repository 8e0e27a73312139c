"""Geo levels over the Kafka protocol: what acks ask for, what is said when they are not reached, what is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from georelay.durability import Durability
from georelay.errors import NotEnoughRegions
from georelay.ids import Offset
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import build_batch
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


def produce(acks: int, *, timeout_ms: int = 5_000) -> ProduceRequest:
    records = build_batch([(b"v", None, ())], timestamps_ms=1)
    data = PartitionProduceData(index=0, records=records)
    topics = (TopicProduceData(name="orders", partition_data=(data,)),)
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=topics)


async def answer_of(bed: Any, request: ProduceRequest) -> Any:
    client = await bed.client()
    response = await client.call(request, ApiKey.PRODUCE, 9)
    return response.responses[0].partition_responses[0]


@pytest.fixture
def geo_bed(bed: Any) -> Any:
    """A bed whose topic asks for two regions."""
    view = bed.cluster.add_topic("orders")
    definition = replace(view.definition, config=(("min.insync.regions", "2"),))
    bed.cluster.views["orders"] = replace(view, definition=definition)
    return bed


@pytest.mark.parametrize(("acks", "asked"), [(1, Durability.REGION), (-1, Durability(2)), (3, Durability(3))])
async def test_acks_all_asks_for_the_topics_regions_and_acks_k_for_k(
    geo_bed: Any, acks: int, asked: Durability
) -> None:
    answer = await answer_of(geo_bed, produce(acks))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    (level,) = geo_bed.cluster.levels
    assert (level.durability, level.needs_live) == (asked, asked.is_geo)
    assert not asked.is_geo or level.deadline_ms == 4_500  # before its client gives up


async def test_acks_all_of_a_plain_topic_asks_for_the_home_only(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    await answer_of(bed, produce(-1))
    assert [level.durability for level in bed.cluster.levels] == [Durability.REGION]


async def test_too_few_live_regions_are_told_before_anything_is_stored(geo_bed: Any) -> None:
    geo_bed.cluster.publish_errors.append(NotEnoughRegions("1 is reached now; nothing was stored"))
    answer = await answer_of(geo_bed, produce(-1))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert geo_bed.cluster.stream("orders", 0).entries == []


async def test_what_is_stored_and_pending_is_told_as_after_append_only(geo_bed: Any) -> None:
    geo_bed.cluster.regions_reached = 1
    answer = await answer_of(geo_bed, produce(-1))
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert len(geo_bed.cluster.stream("orders", 0).entries) == 1


def fetch(offset: int, *, committed: bool = False) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic="orders", partitions=(partition,)),)
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=int(committed), topics=topics)


@pytest.mark.parametrize("committed", [False, True])
async def test_a_fetch_ends_where_enough_regions_end(bed: Any, committed: bool) -> None:
    bed.cluster.add_topic("orders")
    for _ in range(3):
        await answer_of(bed, produce(1))
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    for in_memory in (True, False):
        stream.in_memory, stream.geo_end = in_memory, Offset(2)
        row = (await client.call(fetch(0, committed=committed), ApiKey.FETCH, 11)).responses[0].partitions[0]
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (ErrorCode.NONE, 2, 2)
        assert sum(len(part) for part in row.records) == sum(len(entry.payload) for entry in stream.entries[:2])


async def test_a_reader_ahead_of_what_is_known_waits_and_is_not_told_to_go_back(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    for _ in range(3):
        await answer_of(bed, produce(1))
    stream = bed.cluster.stream("orders", 0)
    stream.geo_end = Offset(1)  # a new leader: what the old one showed is not known yet
    client = await bed.client()
    row = (await client.call(fetch(2), ApiKey.FETCH, 11)).responses[0].partitions[0]
    assert (row.error_code, row.high_watermark, list(row.records)) == (ErrorCode.NONE, 2, [])


async def test_the_end_that_is_listed_is_what_enough_regions_have(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    for _ in range(3):
        await answer_of(bed, produce(1))
    bed.cluster.stream("orders", 0).geo_end = Offset(1)
    client = await bed.client()
    asked = ListOffsetsTopic(name="orders", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),))
    row = (await client.call(ListOffsetsRequest(topics=(asked,)), ApiKey.LIST_OFFSETS, 5)).topics[0].partitions[0]
    assert (row.error_code, row.offset) == (ErrorCode.NONE, 1)
