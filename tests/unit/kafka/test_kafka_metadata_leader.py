"""Metadata of a partition that has no leader at the moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import MetadataRequest, MetadataRequestTopic
from region.kafka.handlers import metadata

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


async def test_metadata_does_not_wait_for_a_partition_that_stays_without_a_leader(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "LEADER_WAIT_S", 0.05)
    bed.cluster.add_topic("orders")
    del bed.cluster.streams["orders", 0]
    client = await bed.client()
    row = (await client.call(REQUEST, ApiKey.METADATA, VERSION)).topics[0].partitions[0]
    assert (row.error_code, row.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    began = asyncio.get_running_loop().time()
    await client.call(REQUEST, ApiKey.METADATA, VERSION)
    assert asyncio.get_running_loop().time() - began < 0.04


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
