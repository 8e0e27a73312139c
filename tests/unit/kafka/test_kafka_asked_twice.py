"""What a request names again and again is answered once: an answer is much longer than a question."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import Busy
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.cluster import DescribeProducersRequest, DescribeProducersTopic
from georelay.wire.requests import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from region.kafka.handlers import metadata, sasl
from region.security.sign_in import SignInService

TIMES = 2_000


async def test_metadata_has_each_topic_once(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    names = [MetadataRequestTopic(name=name) for name in ("orders", "unknown") * TIMES]
    response = await client.call(MetadataRequest(topics=names), ApiKey.METADATA, 9)
    assert [topic.name for topic in response.topics] == ["orders", "unknown"]


async def test_producers_of_a_partition_are_told_once(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.add_topic("orders")
    asked: list[int] = []

    def producers_of(_: str, partition: int) -> list[object]:
        asked.append(partition)
        return []

    monkeypatch.setattr(bed.cluster, "producers_of", producers_of)
    client = await bed.client()
    rows = [DescribeProducersTopic(name="orders", partition_indexes=[0, 0])] * TIMES
    response = await client.call(DescribeProducersRequest(topics=rows), ApiKey.DESCRIBE_PRODUCERS, 0)
    assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("orders", 1)]
    assert asked == [0]


async def test_a_partition_whose_offset_is_asked_for_twice_is_not_looked_up(bed: Any) -> None:
    bed.cluster.add_topic("orders", partitions=2)
    client = await bed.client()
    rows = [ListOffsetsPartition(partition_index=partition, timestamp=-1) for partition in (0, 1, 0)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=rows)])
    (topic,) = (await client.call(request, ApiKey.LIST_OFFSETS, 5)).topics
    assert sorted((row.partition_index, row.error_code) for row in topic.partitions) == [
        (0, ErrorCode.INVALID_REQUEST),
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.NONE),
    ]


async def test_nobody_waits_for_leaders_when_too_many_partitions_have_none(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "LEADERLESS_PARTITIONS_MAX", 1)
    for name in ("orders", "stock"):
        bed.cluster.add_topic(name)
        bed.cluster.streams.pop((name, 0))
    client = await bed.client()
    asked = [MetadataRequestTopic(name=name) for name in ("orders", "stock")]
    response = await client.call(MetadataRequest(topics=asked), ApiKey.METADATA, 9)
    assert [topic.partitions[0].leader_id for topic in response.topics] == [-1, -1]


async def test_a_sign_in_without_a_place_is_closed_without_an_answer(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise Busy("too many sign-ins from this address at a time; try again later")

    bed.credentials.users["ann"] = "secret"
    monkeypatch.setattr(sasl, "REFUSAL_DELAY_S", 0.0)
    monkeypatch.setattr(SignInService, "password", full)
    client = await bed.client()
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret"), 1)
    assert await client.is_closed()
