"""Opaque batches over the native API beside Kafka's produce: CPU of the brokers per 100,000 records of 100 B.

The same batches (the same number of records, neither compressed nor idempotent, one of each producer process per
partition) go once through Produce and once through PublishStream to the partitions' leaders, run after run in turn, so
that both see the same machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.client.broker_connection import BrokerConnection
from georelay.publish_stream import PublishStream
from georelay.region_map import Route
from georelay.wire.api import ApiKey
from georelay.wire.records import build_batch
from georelay.wire.requests import (
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from loadtest.bench import client_process
from loadtest.bench.machine import Meter
from loadtest.bench.mesh_asks import create_topic, pids_of
from loadtest.mesh_process import MeshProcess

RECORDS_PER_BATCH: Final = 1_000
BATCHES: Final = 400  # per partition and run
PARTITIONS: Final = 3
IN_FLIGHT: Final = 5  # per partition, as Kafka clients
RUNS: Final = 5
VALUE: Final = b"x" * 100
PRODUCE_VERSION: Final = 7

Publish = Callable[[], Awaitable[None]]


def run(mesh: MeshProcess) -> list[str]:
    """Return report lines: medians of both paths and their ratio."""
    topic = "bench-native"
    create_topic(mesh, topic, PARTITIONS)
    region = mesh.endpoints["regions"]["us"]
    costs: dict[str, list[float]] = {"kafka": [], "native": []}
    rates: dict[str, list[float]] = {"kafka": [], "native": []}
    for round_ in range(RUNS + 1):
        for path in ("kafka", "native"):
            meter = Meter(pids_of(mesh))
            places = (region[{"kafka": "kafka", "native": "grpc"}[path]], region["kafka"])
            words = ("loadtest.bench.native", path, topic, *map(",".join, places))
            outcome = client_process.ask(*words)
            if round_:  # the first round opens files and connections
                costs[path].append(meter.cpu_s() / outcome["records"] * 1e5)
                rates[path].append(outcome["records"] / outcome["seconds"])
    lines = [
        f"batches of {RECORDS_PER_BATCH} x {len(VALUE)} B, {path}: {statistics.median(rates[path]):>9,.0f} records/s, "
        f"{statistics.median(costs[path]):.3f} CPU s per 100,000 records summed over 3 brokers "
        f"(runs {', '.join(f'{cost:.3f}' for cost in costs[path])})"
        for path in ("kafka", "native")
    ]
    ratio = statistics.median(costs["native"]) / statistics.median(costs["kafka"])
    return [*lines, f"  native / kafka: {ratio:.2f} times the CPU per record"]


async def _publish(path: str, topic: str, addresses: list[str], kafka: list[str]) -> dict[str, float]:
    """One client process: publish BATCHES to every partition through one path."""
    batch = build_batch([(VALUE, None, ())] * RECORDS_PER_BATCH, timestamps_ms=int(time.time() * 1000))
    leaders = await _leaders(kafka, topic)
    channels = Channels()
    senders: list[Publish] = []
    for partition, leader in enumerate(leaders):
        address = addresses[leader]
        make = _native_sender if path == "native" else _kafka_sender
        senders.append(await make(channels, address, topic, partition, batch))
    began = time.monotonic()
    await asyncio.gather(*(_drive(sender) for sender in senders))
    seconds = time.monotonic() - began
    await channels.close()
    return {"seconds": seconds, "records": BATCHES * RECORDS_PER_BATCH * len(senders)}


async def _drive(sender: Publish) -> None:
    left = BATCHES

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await sender()

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def _leaders(kafka: list[str], topic: str) -> list[int]:
    """Return the index of each partition's leader among the region's brokers."""
    host, _, port = kafka[0].rpartition(":")
    connection = await BrokerConnection.dial(host, int(port))
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
    while True:
        answer = await connection.request(ApiKey.METADATA, 9, request)
        order = {broker.node_id: kafka.index(f"{broker.host}:{broker.port}") for broker in answer.brokers}
        rows = sorted(answer.topics[0].partitions, key=lambda row: row.partition_index)
        if len(rows) == PARTITIONS and all(row.leader_id in order for row in rows):
            connection.close()
            return [order[row.leader_id] for row in rows]
        await asyncio.sleep(0.1)


async def _native_sender(channels: Channels, address: str, topic: str, partition: int, batch: bytes) -> Publish:
    stream = PublishStream(channels, Route(address), lost=lambda *_: None)

    async def send() -> None:
        answer = await stream.publish(pb.Publish(topic=topic, partition=partition, batch=batch, deadline_ms=30_000))
        if answer.outcome != pb.OUTCOME_STORED:
            raise RuntimeError(f"not stored: {answer.refusal.text}")

    return send


async def _kafka_sender(channels: Channels, address: str, topic: str, partition: int, batch: bytes) -> Publish:
    del channels
    host, _, port = address.rpartition(":")
    connection = await BrokerConnection.dial(host, int(port))
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=partition, records=batch),))
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=(data,))

    async def send() -> None:
        answer = await connection.request(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        if answer.responses[0].partition_responses[0].error_code:
            raise RuntimeError(f"not stored: {answer}")

    return send


if __name__ == "__main__":
    path, topic, addresses, kafka = sys.argv[1:]
    outcome = uvloop.run(_publish(path, topic, addresses.split(","), kafka.split(",")))
    sys.stdout.write(json.dumps(outcome) + "\n")
