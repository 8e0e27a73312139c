"""A Kafka listener over an in-memory region (region_in_memory), and clients that speak the wire codec to it."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from georelay.wire import api
from region.kafka.listener import KafkaListener
from region.kafka.services import KafkaServices
from tests.unit.kafka import region_in_memory
from tests.unit.kafka.region_in_memory import FakeCluster, FakeCredentials, FakeRecorder


class KafkaClient:
    """A client of the wire codec: one connection, requests by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation = itertools.count(1)

    def send(self, request: Any, version: int) -> int:
        correlation = next(self._correlation)
        buffers = api.encode_request(request, api_version=version, correlation_id=correlation, client_id="test")
        self.writer.write(b"".join(buffers))
        return correlation

    async def receive(self, key: api.ApiKey, version: int) -> tuple[int, Any]:
        async with asyncio.timeout(5):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(size)
        return api.decode_response(key, version, frame)

    async def call(self, request: Any, key: api.ApiKey, version: int) -> Any:
        correlation = self.send(request, version)
        answered, response = await self.receive(key, version)
        assert answered == correlation
        return response

    async def is_closed(self) -> bool:
        """Wait for the broker to close; False if it sends bytes instead."""
        try:
            async with asyncio.timeout(5):
                return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


class KafkaBed:
    """A listener over a fake region, and clients of it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.credentials = FakeCredentials()
        self.recorder = FakeRecorder()
        self.services = KafkaServices(
            cluster=self.cluster,
            credentials=self.credentials,
            recorder=self.recorder,
            wall_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
        )
        self.listener: KafkaListener | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self, **options: Any) -> None:
        self.listener = KafkaListener(self.services, host="127.0.0.1", port=0, **options)
        self.cluster.kafka_port = await self.listener.start()

    async def client(self) -> KafkaClient:
        if self.listener is None:
            await self.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.cluster.kafka_port)
        self._writers.append(writer)
        return KafkaClient(reader, writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if self.listener is not None:
            await self.listener.close()


@pytest.fixture
async def bed() -> Any:
    """A Kafka listener over an in-memory region."""
    bed = KafkaBed()
    yield bed
    await bed.close()


cluster = region_in_memory.cluster
credentials = region_in_memory.credentials
recorder = region_in_memory.recorder
