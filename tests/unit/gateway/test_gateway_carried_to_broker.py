"""Carried publishes between the two real ends: a gateway, and a broker's gRPC listener over the in-memory region."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from georelay.wire.batch import iterate_records
from region.api._pb import broker_pb2
from region.api.carried_calls import CarriedCalls
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from tests.unit.api.edge_in_memory import Edge
from tests.unit.gateway.test_gateway_grpc import open_channel
from tests.unit.kafka import region_in_memory

__all__ = ["open_channel"]

cluster = region_in_memory.cluster
credentials = region_in_memory.credentials
recorder = region_in_memory.recorder


class Broker:
    """A listener over an edge; `close` is that of a broker that stops."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        calls = GrpcCalls(edge.credentials, edge.metrics)
        self.carried = CarriedCalls(calls, edge.service.publish_handler())
        self.listener = GrpcListener(
            grpc_handlers([edge.service, self.carried], ready=lambda: True),
            host="127.0.0.1",
            port=0,
            admit=calls.admit,
            carried=self.carried,
        )


@pytest.fixture
async def broker(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Broker]:
    edge = Edge(cluster, credentials, recorder)
    edge.cluster.add_topic("orders", 3)
    broker = Broker(edge)
    yield broker
    await broker.listener.close()
    await edge.coalescer.close()


@pytest.fixture
async def channel(start_mesh: Any, start_broker: Any, open_channel: Any, broker: Broker) -> Any:
    us = await start_broker()
    us.grpc = f"127.0.0.1:{await broker.listener.start()}"
    return open_channel(await start_mesh(us=[us]))


async def publish(channel: Any, number: int) -> str:
    call = channel.unary_unary("/broker.Broker/Publish", response_deserializer=broker_pb2.PublishResponse.FromString)
    request = broker_pb2.PublishRequest(topic="orders", body=b"%d" % number)
    return str((await call(request.SerializeToString(), timeout=20)).id)


def stored(broker: Broker) -> list[tuple[str, bytes]]:
    """Return id and body of every record."""
    found = []
    for partition in range(3):
        for entry in broker.edge.cluster.stream("orders", partition).entries:
            for record in iterate_records(entry.payload):
                found.append((f"orders/{partition}/{record.offset}", bytes(record.value or b"")))
    return found


async def test_every_id_names_the_record_that_its_caller_sent(channel: Any, broker: Broker) -> None:
    await publish(channel, -1)
    ids = await asyncio.gather(*(publish(channel, number) for number in range(120)))
    bodies = dict(stored(broker))
    assert [bodies[one] for one in ids] == [b"%d" % number for number in range(120)]
    assert len(bodies) == 121


async def test_a_broker_that_stops_leaves_no_publish_unknown(channel: Any, broker: Broker) -> None:
    outcomes: Counter[str] = Counter()
    is_over = False

    async def client(number: int) -> None:
        while not is_over:
            try:
                await publish(channel, number)
                outcomes["stored"] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[dict(error.trailing_metadata() or ()).get("georelay-outcome", error.code().name)] += 1
                await asyncio.sleep(0.01)

    clients = [asyncio.create_task(client(number)) for number in range(20)]
    while outcomes["stored"] < 100:
        await asyncio.sleep(0.001)
    await broker.listener.close()
    while not outcomes["not_stored"]:
        await asyncio.sleep(0.001)
    is_over = True
    await asyncio.gather(*clients)
    assert set(outcomes) == {"stored", "not_stored"}
    assert len(stored(broker)) == outcomes["stored"]
    carried = {"listener": "grpc", "method": "carry", "code": "OK"}
    assert broker.edge.metrics.registry.get_sample_value("georelay_edge_requests_total", carried) == 1
