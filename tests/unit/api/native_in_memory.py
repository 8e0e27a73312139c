"""A client of `georelay.v1.Streams` and the service it calls, against the in-memory region."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from georelay._pb import streams_pb2 as pb
from region.api.coalescer import Coalescer
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.streams.service import StreamsService
from region.api.streams.services import StreamsServices
from region.kafka.counters import KafkaCounters

REGIONS = {1: "us", 2: "eu", 3: "ap"}
SECONDS = 10


class Clock:
    """Time that only tests move."""

    now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Native:
    """A client of the service with one channel."""

    def __init__(self, channel: Any, clock: Clock) -> None:
        self.clock = clock
        self._channel = channel

    def unary(self, method: str, request: Any, answer: Any, **options: Any) -> Any:
        call = self._channel.unary_unary(
            f"/georelay.v1.Streams/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, **options)

    def publish_stream(self, **options: Any) -> Any:
        return self._channel.stream_stream(
            "/georelay.v1.Streams/PublishStream",
            request_serializer=pb.PublishStreamRequest.SerializeToString,
            response_deserializer=pb.PublishStreamResponse.FromString,
        )(**options)

    def subscribe(self, **options: Any) -> Any:
        return self._channel.stream_stream(
            "/georelay.v1.Streams/Subscribe",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.SubscribeResponse.FromString,
        )(**options)


@pytest.fixture
async def native(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Native]:
    clock = Clock()
    coalescer = Coalescer(cluster, entry_region=1, wall_ns=clock, monotonic_ns=clock)
    metrics = BrokerMetrics(cluster, KafkaCounters())
    calls = GrpcCalls(credentials, metrics)
    services = StreamsServices(
        cluster=cluster,
        publisher=RecordPublisher(cluster, coalescer),
        reader=StreamReader(cluster),
        recorder=recorder,
        metrics=metrics,
        access=calls.access,
        wall_ns=clock,
        monotonic_ns=clock,
        region_name=lambda number: REGIONS[number],
    )
    listener = GrpcListener(
        grpc_handlers([StreamsService(services, calls)], ready=cluster.ready), host="127.0.0.1", port=0
    )
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield Native(channel, clock)
    await listener.close()
    await coalescer.close()


async def refusal(call: Any) -> tuple[str, str]:
    """Return (status, georelay-code) that a call ends with."""
    async with asyncio.timeout(SECONDS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_all(call)
    trailing = dict(caught.value.trailing_metadata() or ())
    return caught.value.code().name, trailing.get("georelay-code", "")


async def _read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
