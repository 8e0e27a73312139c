"""DeleteRecords, and the log start that ListOffsets, Fetch and Produce answer afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import HomeUnreachable, NotHome
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from region.controller.topic import Homes


@pytest.fixture
def orders(bed: Any) -> Any:
    """The stream of a topic with ten records in two partitions."""
    bed.cluster.add_topic("orders", 2)
    for partition in range(2):
        for _ in range(10):
            bed.cluster.stream("orders", partition).add(b"x")
    return bed.cluster.stream("orders", 0)


async def delete(bed: Any, *wanted: tuple[int, int], topic: str = "orders", version: int = 2) -> list[tuple[int, ...]]:
    client = await bed.client()
    partitions = [DeleteRecordsPartition(*each) for each in wanted]
    request = DeleteRecordsRequest((DeleteRecordsTopic(topic, partitions),), 5000)
    (answer,) = (await client.call(request, ApiKey.DELETE_RECORDS, version)).topics
    return [(row.partition_index, row.low_watermark, row.error_code) for row in answer.partitions]


@pytest.mark.parametrize("version", range(3))
async def test_records_below_the_offset_are_deleted(bed: Any, orders: Any, version: int) -> None:
    assert await delete(bed, (0, 4), (1, -1), version=version) == [(0, 4, 0), (1, 10, 0)]
    assert orders.log_start == 4
    assert await delete(bed, (0, 2), version=version) == [(0, 4, 0)]


async def test_every_partition_has_its_own_outcome(bed: Any, orders: Any) -> None:
    rows = await delete(bed, (0, 11), (1, 5), (7, 0), (0, -2))
    assert rows == [
        (0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, 5, 0),
        (7, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ]


async def test_only_the_leader_of_the_region_takes_it(bed: Any, orders: Any) -> None:
    orders.is_leader = False
    assert await delete(bed, (0, 4)) == [(0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert bed.cluster.changes == []


async def test_a_mirrors_name_is_refused(bed: Any) -> None:
    bed.cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    assert await delete(bed, (0, 0), topic="eu.clicks") == [(0, -1, ErrorCode.POLICY_VIOLATION)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HomeUnreachable("gone"), ErrorCode.NOT_ENOUGH_REPLICAS),
        (NotHome("moved", epoch=2, home=2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_a_home_that_cannot_decide_is_a_code_that_clients_retry(
    bed: Any, orders: Any, error: Any, code: ErrorCode
) -> None:
    bed.cluster.admin_errors.append(error)
    assert await delete(bed, (0, 4)) == [(0, -1, code)]
    assert code.retriable


async def test_readers_are_answered_the_new_log_start(bed: Any, orders: Any) -> None:
    await delete(bed, (0, 4))
    client = await bed.client()
    listed = await client.call(
        ListOffsetsRequest(topics=[ListOffsetsTopic("orders", [ListOffsetsPartition(0, -1, -2)])]),
        ApiKey.LIST_OFFSETS,
        7,
    )
    assert listed.topics[0].partitions[0].offset == 4
    below, at = FetchPartition(0, -1, 3, -1, -1, 1000), FetchPartition(0, -1, 4, -1, -1, 1000)
    for wanted, code in ((below, ErrorCode.OFFSET_OUT_OF_RANGE), (at, ErrorCode.NONE)):
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=(FetchTopic("orders", (wanted,)),))
        (row,) = (await client.call(request, ApiKey.FETCH, 12)).responses[0].partitions
        assert (row.error_code, row.log_start_offset) == (code, 4)
