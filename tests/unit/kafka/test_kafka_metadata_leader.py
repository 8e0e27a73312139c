"""Metadata of a partition that has no leader at the moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.cluster import CreatePartitionsRequest, CreatePartitionsTopic
from georelay.wire.requests import CreatableTopic, CreateTopicsRequest, MetadataRequest, MetadataRequestTopic
from region.kafka.handlers import first_leaders, metadata

VERSION = 9
REQUEST = MetadataRequest(topics=(MetadataRequestTopic(name="orders"),), allow_auto_topic_creation=False)


async def test_metadata_waits_for_the_election_of_the_next_leader(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.streams.pop(("orders", 0))
    client = await bed.client()
    answer = asyncio.create_task(client.call(REQUEST, ApiKey.METADATA, VERSION))
    done, _ = await asyncio.wait([answer], timeout=0.05)
    assert not done
    bed.cluster.streams["orders", 0] = stream
    bed.cluster.metadata_epoch += 1
    row = (await answer).topics[0].partitions[0]
    assert (row.error_code, row.leader_id) == (ErrorCode.NONE, 1001)


AUTO = MetadataRequest(topics=(MetadataRequestTopic(name="new"),), allow_auto_topic_creation=True)
CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="new")], timeout_ms=5_000)
GROW = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="new", count=2)], timeout_ms=5_000)
MAKING = [
    pytest.param(AUTO, ApiKey.METADATA, VERSION, id="auto-created"),
    pytest.param(CREATE, ApiKey.CREATE_TOPICS, 7, id="created"),
    pytest.param(GROW, ApiKey.CREATE_PARTITIONS, 3, id="grown"),
]


def made(bed: Any, key: ApiKey) -> None:
    if key is ApiKey.CREATE_PARTITIONS:
        bed.cluster.add_topic("new")


@pytest.mark.parametrize(("request_", "key", "version"), MAKING)
async def test_who_makes_a_topic_is_answered_when_it_has_its_leaders(
    bed: Any, monkeypatch: pytest.MonkeyPatch, request_: Any, key: ApiKey, version: int
) -> None:
    made(bed, key)
    elected = bed.cluster.leader_of
    monkeypatch.setattr(bed.cluster, "leader_of", lambda name, partition: -1)
    client = await bed.client()
    answer = asyncio.create_task(client.call(request_, key, version))
    done, _ = await asyncio.wait([answer], timeout=0.05)
    assert not done
    monkeypatch.setattr(bed.cluster, "leader_of", elected)
    response = await answer
    if key is ApiKey.METADATA:
        row = response.topics[0].partitions[0]
        assert (row.error_code, row.leader_id) == (ErrorCode.NONE, 1001)


@pytest.mark.parametrize(("request_", "key", "version"), MAKING)
async def test_a_topic_that_elects_no_leader_is_answered_all_the_same(
    bed: Any, monkeypatch: pytest.MonkeyPatch, request_: Any, key: ApiKey, version: int
) -> None:
    made(bed, key)
    monkeypatch.setattr(first_leaders, "FIRST_LEADERS_WAIT_S", 0.02)
    monkeypatch.setattr(bed.cluster, "leader_of", lambda name, partition: -1)
    client = await bed.client()
    response = await client.call(request_, key, version)
    rows = response.results if key is ApiKey.CREATE_PARTITIONS else response.topics
    assert rows[0].error_code == ErrorCode.NONE


async def test_metadata_does_not_wait_for_a_partition_that_stays_without_a_leader(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "LEADER_WAIT_S", 0.05)
    bed.cluster.add_topic("orders")
    del bed.cluster.streams["orders", 0]
    client = await bed.client()
    row = (await client.call(REQUEST, ApiKey.METADATA, VERSION)).topics[0].partitions[0]
    assert (row.error_code, row.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    monkeypatch.setattr(metadata, "LEADER_POLL_S", 3600)  # who waits sleeps that long
    async with asyncio.timeout(60):
        await client.call(REQUEST, ApiKey.METADATA, VERSION)


async def test_metadata_of_a_broker_that_has_just_started_waits_until_it_knows_its_region(bed: Any) -> None:
    bed.cluster.is_ready = False
    client = await bed.client()
    answer = asyncio.create_task(client.call(REQUEST, ApiKey.METADATA, VERSION))
    done, _ = await asyncio.wait([answer], timeout=0.05)
    assert not done
    bed.cluster.add_topic("orders")
    bed.cluster.is_ready = True
    assert (await answer).topics[0].error_code == ErrorCode.NONE


async def test_metadata_of_a_region_that_does_not_come_back_is_what_there_is(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "READY_WAIT_S", 0.05)
    bed.cluster.is_ready = False
    client = await bed.client()
    row = (await client.call(REQUEST, ApiKey.METADATA, VERSION)).topics[0]
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
