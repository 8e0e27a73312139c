"""The native edge of one broker over the in-memory region of the Kafka tests, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import TestClient, TestServer

from region.api._pb import broker_pb2
from region.api.grpc_listener import GrpcListener
from tests.unit.api.edge_in_memory import Edge
from tests.unit.kafka import region_in_memory

cluster = region_in_memory.cluster
credentials = region_in_memory.credentials
recorder = region_in_memory.recorder


@pytest.fixture
async def edge(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Edge]:
    edge = Edge(cluster, credentials, recorder)
    yield edge
    await edge.coalescer.close()


@pytest.fixture
async def http(edge: Edge) -> AsyncIterator[Any]:
    async with TestClient(TestServer(edge.admin.app())) as client:
        yield client


@pytest.fixture
async def stub(edge: Edge) -> AsyncIterator[Any]:
    listener = GrpcListener([edge.service.handler()], host="127.0.0.1", port=0)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:

        class Stub:
            publish = channel.unary_unary(
                "/broker.Broker/Publish",
                request_serializer=broker_pb2.PublishRequest.SerializeToString,
                response_deserializer=broker_pb2.PublishResponse.FromString,
            )
            subscribe = channel.unary_stream(
                "/broker.Broker/Subscribe",
                request_serializer=broker_pb2.SubscribeRequest.SerializeToString,
                response_deserializer=broker_pb2.MessageResponse.FromString,
            )

        yield Stub
    await listener.close()
