"""The native API `georelay.v1.Streams` without a stream: where things are, producer ids, and who may ask."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from georelay._pb import streams_pb2 as pb
from tests.unit.api.native_in_memory import Native, refusal
from tests.unit.api.native_in_memory import native as native  # a fixture


async def test_locate_names_brokers_leaders_and_streams(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    found = await native.unary("Locate", pb.LocateRequest(topics=["orders", "nowhere"]), pb.LocateResponse)
    assert (found.region, found.broker, [broker.id for broker in found.brokers]) == ("us", 1001, [1001])
    orders, nowhere = found.topics
    assert (list(orders.leaders), list(orders.streams), orders.home) == ([1001, 1001], ["orders"], "us")
    assert nowhere.refusal.code == "UNKNOWN_TOPIC"
    made = await native.unary("Locate", pb.LocateRequest(topics=["nowhere"], create=True), pb.LocateResponse)
    assert list(made.topics[0].leaders) == [1001]


async def test_find_offsets_tells_the_ends_and_the_first_since_a_time(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a")
    stream.now_us += 1_000
    stream.add(b"b")
    asked = [pb.StreamPartition(stream=name, partition=0) for name in ("orders", "nowhere")]
    request = pb.FindOffsetsRequest(partitions=asked, since_us=stream.now_us)
    found, missing = (await native.unary("FindOffsets", request, pb.FindOffsetsResponse)).found
    assert (found.log_start, found.high_watermark, found.first_since) == (0, 2, 1)
    assert missing.refusal.code == "UNKNOWN_TOPIC"


async def test_producer_ids_are_unique_and_transactions_need_coordinators(native: Native) -> None:
    ids = [
        (await native.unary("InitProducer", pb.InitProducerRequest(), pb.InitProducerResponse)).producer_id
        for _ in range(2)
    ]
    assert len(set(ids)) == 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await native.unary("InitProducer", pb.InitProducerRequest(transactional_id="t"), pb.InitProducerResponse)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_every_method_needs_credentials_when_users_are_set(native: Native, credentials: Any) -> None:
    credentials.users["ann"] = "secret"
    assert await refusal(native.subscribe()) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    assert await refusal(native.publish_stream()) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    for method in ("Locate", "FindOffsets", "InitProducer", "AddToTransaction", "EndTransaction"):
        asked, answered = getattr(pb, f"{method}Request"), getattr(pb, f"{method}Response")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await native.unary(method, asked(), answered)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
