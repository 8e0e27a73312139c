"""Requests that a client sends without waiting see what those before them did, as with Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.api import ApiKey
from georelay.wire.batch import build_batch
from georelay.wire.keys import SUPPORTED
from georelay.wire.requests import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from region.kafka.request_order_core import LOOKS, NOT_OF_RECORDS, RequestOrder
from tests.tiers import in_one_test

EARLIEST, LATEST = -2, -1


def list_offsets(timestamp: int) -> ListOffsetsRequest:
    row = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[row])])


def offset_in(response: Any) -> int:
    return int(response.topics[0].partitions[0].offset)


def slowed(cluster: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a change take some turns of the loop, as its commit does."""
    change = getattr(cluster, name)

    async def later(*arguments: Any, **named: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(0)
        return await change(*arguments, **named)

    monkeypatch.setattr(cluster, name, later)


async def test_the_log_start_behind_a_deletion_is_the_new_one(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).add(b"a", b"b", b"c")
    slowed(bed.cluster, "delete_records", monkeypatch)
    client = await bed.client()
    row = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    client.send(DeleteRecordsRequest(topics=[row], timeout_ms=5_000), 2)
    client.send(list_offsets(EARLIEST), 7)
    assert (await client.receive(ApiKey.DELETE_RECORDS, 2))[1].topics[0].partitions[0].low_watermark == 2
    assert offset_in((await client.receive(ApiKey.LIST_OFFSETS, 7))[1]) == 2


async def test_the_end_behind_a_publish_is_behind_its_records(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    raw = build_batch([(b"a", None, ())], timestamps_ms=1)
    data = [TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=raw)])]
    client.send(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=data), 9)
    client.send(list_offsets(LATEST), 7)
    async with asyncio.timeout(5):
        while not bed.cluster.published:
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    stream.commit()
    await client.receive(ApiKey.PRODUCE, 9)
    assert offset_in((await client.receive(ApiKey.LIST_OFFSETS, 7))[1]) == 1


async def test_a_topic_is_there_behind_its_creation(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(bed.cluster, "create_topic", monkeypatch)
    client = await bed.client()
    client.send(CreateTopicsRequest(topics=[CreatableTopic(name="new")], timeout_ms=5_000), 7)
    client.send(MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=False), 12)
    await client.receive(ApiKey.CREATE_TOPICS, 7)
    assert (await client.receive(ApiKey.METADATA, 12))[1].topics[0].error_code == 0


def frame(key: int) -> bytes:
    return key.to_bytes(2, "big") + b"rest"


@in_one_test("key", sorted(SUPPORTED))
def test_nothing_begins_behind_a_change_and_everything_behind_a_look(key: int) -> None:
    order = RequestOrder()
    order.begun(key)
    begins = {other for other in SUPPORTED if order.may_begin(frame(other))}
    if key == ApiKey.PRODUCE:
        assert begins == {ApiKey.PRODUCE} | NOT_OF_RECORDS
    else:
        assert begins == (set(SUPPORTED) if key in LOOKS else set())
    order.ended(key)
    assert all(order.may_begin(frame(other)) for other in SUPPORTED)
