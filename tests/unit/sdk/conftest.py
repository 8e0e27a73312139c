"""A broker's real native API over the in-memory region of the Kafka tests, and clients of the SDK against it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from region.api.admin_service import AdminService
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
from region.kafka.ports import BrokerInfo
from tests.unit.kafka import region_in_memory

cluster = region_in_memory.cluster
credentials = region_in_memory.credentials
recorder = region_in_memory.recorder


class Broker:
    """One broker: its native API on loopback; `stop` and `start` again at the same port."""

    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.cluster = cluster
        self.port = 0
        self.coordinators: Any = None
        self._credentials = credentials
        self._recorder = recorder
        self._listener: GrpcListener | None = None
        self._coalescer: Coalescer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        coalescer = Coalescer(self.cluster, entry_region=1, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
        metrics = BrokerMetrics(self.cluster, KafkaCounters())
        calls = GrpcCalls(self._credentials, metrics)
        streams = StreamsService(
            StreamsServices(
                cluster=self.cluster,
                publisher=RecordPublisher(self.cluster, coalescer),
                reader=StreamReader(self.cluster),
                recorder=self._recorder,
                metrics=metrics,
                access=calls.access,
                wall_ns=time.time_ns,
                monotonic_ns=time.monotonic_ns,
                region_name=lambda _: "us",
                coordinators=self.coordinators,
            ),
            calls,
        )
        admin = AdminService(cluster=self.cluster, calls=calls, region_name=lambda _: "us")
        handlers = grpc_handlers([streams, admin], ready=self.cluster.ready)
        self._listener = GrpcListener(handlers, host="127.0.0.1", port=self.port, admit=calls.admit)
        self._coalescer = coalescer
        self.port = await self._listener.start()
        row = BrokerInfo(id=1001, kafka_host="127.0.0.1", kafka_port=9092, grpc=self.address)
        self.cluster.brokers = lambda: [row]

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None and self._coalescer is not None:
            await listener.close()
            await self._coalescer.close()


@pytest.fixture
async def broker(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Broker]:
    running = Broker(cluster, credentials, recorder)
    await running.start()
    yield running
    await running.stop()
