"""The small gRPC contract: publish and subscribe, by timestamp, over all origins, with and without users."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from georelay import errors
from georelay.errors import PolicyViolation
from georelay.wire.batch import build_batch
from mesh.listening.grpc_status import GRPC_STATUS, grpc_status
from region.api._pb import broker_pb2
from region.controller.topic import Homes
from tests.unit.api.edge_in_memory import Edge, basic


async def receive(call: Any, count: int) -> list[Any]:
    async with asyncio.timeout(5):
        return [await call.read() for _ in range(count)]


async def test_published_records_are_delivered_in_order_with_their_ids(edge: Edge, stub: Any) -> None:
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}))
    ids = [
        (await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"%d" % number))).id for number in range(3)
    ]
    got = await receive(call, 3)
    call.cancel()
    assert ids == ["orders/0/0", "orders/0/1", "orders/0/2"]
    assert [(item.id, item.body, item.topic) for item in got] == [
        (identity, b"%d" % number, "orders") for number, identity in enumerate(ids)
    ]
    assert [item.timestamp for item in got] == [1_000_000] * 3


async def test_a_subscription_starts_at_its_timestamp(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    for number in range(9):
        stream.now_us = 1000 + number * 10
        stream.add(b"%d" % number, b"again")
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 1035}))
    got = await receive(call, 3)
    call.cancel()
    assert [(item.body, item.timestamp) for item in got] == [(b"4", 1040), (b"again", 1040), (b"5", 1050)]


async def test_a_batch_that_cannot_be_read_ends_no_subscription(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.add(b"before")
    stream.add_raw(build_batch([(b"x", None, ())] * 2, timestamps_ms=1)[:-4] + bytes(4))
    stream.add(b"behind")
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}))
    got = await receive(call, 3)
    call.cancel()
    assert [item.id for item in got] == ["orders/0/0", "orders/0/1", "orders/0/3"]


async def test_a_timestamp_in_the_future_waits_for_records_of_that_time(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.add(b"old")
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 5_000_000}))
    while not stream.waiter_count:
        await asyncio.sleep(0.001)
    stream.add(b"early")
    stream.now_us = 5_000_000
    stream.add(b"due")
    (got,) = await receive(call, 1)
    call.cancel()
    assert got.body == b"due"


async def test_all_origins_are_merged_and_timestamps_never_go_back(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("clicks", homes=Homes.EVERY)
    for name, at_us in (("us.clicks", 2000), ("eu.clicks", 1000)):
        edge.cluster.add_topic(name, homes=Homes.EVERY, mirror_of="clicks")
        edge.cluster.stream(name, 0).now_us = at_us
        edge.cluster.stream(name, 0).add(name.encode())
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"clicks": 0}))
    got = await receive(call, 2)
    call.cancel()
    assert {item.id for item in got} == {"us.clicks/0/0", "eu.clicks/0/0"}
    assert got[0].timestamp <= got[1].timestamp
    assert {topic for topic, *_ in edge.recorder.sessions} == {"clicks"}


async def test_cancelling_a_subscription_leaves_nothing_behind(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}))
    while not stream.waiter_count:
        await asyncio.sleep(0.001)
    call.cancel()
    async with asyncio.timeout(5):
        while stream.waiter_count:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("topics", "status"), [({}, "INVALID_ARGUMENT"), ({"": 0}, "INVALID_ARGUMENT"), ({"ghost": 0}, "NOT_FOUND")]
)
async def test_a_bad_subscription_has_a_status(edge: Edge, stub: Any, topics: dict[str, int], status: str) -> None:
    edge.cluster.auto_create_topics = False
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.subscribe(broker_pb2.SubscribeRequest(topics=topics)):
            pass
    assert caught.value.code().name == status


async def test_a_failed_publish_tells_its_outcome(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert dict(caught.value.trailing_metadata())["georelay-outcome"] == "not_stored"


@pytest.mark.parametrize("authorization", [None, basic("ann", "wrong"), "Bearer x", "basic %"])
async def test_with_users_nothing_is_served_without_credentials(
    edge: Edge, stub: Any, authorization: str | None
) -> None:
    edge.credentials.users["ann"] = "secret"
    metadata = () if authorization is None else (("authorization", authorization),)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}), metadata=metadata).read()
    assert not edge.cluster.views


async def test_the_right_credentials_are_accepted(edge: Edge, stub: Any) -> None:
    edge.credentials.users["ann"] = "secret"
    metadata = (("authorization", basic("ann", "secret")),)
    answer = await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"), metadata=metadata)
    assert answer.id == "orders/0/0"


def test_every_status_is_one_of_grpc_and_unknown_outcomes_are_never_unavailable() -> None:
    for kind, name in GRPC_STATUS.items():
        assert hasattr(grpc.StatusCode, name)
        may_have_completed = kind.outcome in (errors.Outcome.UNKNOWN, errors.Outcome.PENDING)
        assert may_have_completed == (name == "DEADLINE_EXCEEDED")
    assert grpc_status(errors.StorageFailed("disk")) == "INTERNAL"
