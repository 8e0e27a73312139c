"""What a topic's settings do to what clients of the Kafka protocol send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import build_batch
from georelay.wire.requests import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


async def produce(bed: Any, value: bytes, *, acks: int = -1) -> Any:
    client = await bed.client()
    raw = build_batch([(value, None, ())], timestamps_ms=5)
    topics = (TopicProduceData(name="orders", partition_data=(PartitionProduceData(index=0, records=raw),)),)
    request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=5_000, topic_data=topics)
    return (await client.call(request, ApiKey.PRODUCE, 9)).responses[0].partition_responses[0]


async def test_a_batch_over_the_topics_size_is_refused_and_a_smaller_one_is_stored(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"max.message.bytes": "200"})
    refused = await produce(bed, b"x" * 200)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)
    assert "max.message.bytes=200" in refused.error_message
    assert (await produce(bed, b"x" * 100)).error_code == 0
    assert len(bed.cluster.stream("orders", 0).entries) == 1


@pytest.mark.parametrize(("kind", "told"), [("LogAppendTime", 1000), ("CreateTime", -1)])
async def test_a_producer_is_told_the_time_that_its_records_got(bed: Any, kind: str, told: int) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"message.timestamp.type": kind})
    stream = bed.cluster.stream("orders", 0)
    assert (await produce(bed, b"at once")).log_append_time_ms == told
    stream.auto_commit = False
    later = asyncio.create_task(produce(bed, b"when it is committed"))
    while len(stream.entries) < 2:
        await asyncio.sleep(0)
    stream.commit()
    assert (await later).log_append_time_ms == told


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE), ("delete", ErrorCode.NONE)],
)
async def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(
    bed: Any, policy: str, code: ErrorCode
) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"cleanup.policy": policy})
    bed.cluster.stream("orders", 0).add(b"x")
    client = await bed.client()
    topics = (DeleteRecordsTopic("orders", (DeleteRecordsPartition(0, -1),)),)
    (topic,) = (await client.call(DeleteRecordsRequest(topics, 5_000), ApiKey.DELETE_RECORDS, 2)).topics
    assert topic.partitions[0].error_code == code
    assert bed.cluster.stream("orders", 0).log_start == (0 if code else 1)
