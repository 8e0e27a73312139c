"""Single-record publishes at a steady rate over eight topics: publish -> deliver, in the region and at a mirror.

Open model: every record has an intended send time and its latency counts from there, so a slow broker cannot
hide behind a waiting publisher. Publisher and readers are one process of the SDK's own connections, because both
ends must read one clock; its own scheduling lag is measured and printed.
"""

from __future__ import annotations

import asyncio
import time

from georelay.client.broker_connection import BrokerConnection
from georelay.client.stream_reader import LATEST, StreamReader
from georelay.wire.api import ApiKey
from georelay.wire.batch import RecordDraft, build_batch
from georelay.wire.requests import (
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from loadtest.bench.batched import create_topic
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.mesh_process import MeshProcess

TOPICS = 8
RATE_PER_SECOND = 1_000
SECONDS = 10
WARM_UP_SECONDS = 2
PRODUCE_VERSION = 7
TIMEOUT_MS = 10_000


class Publisher:
    """One connection per leader, one record per Produce request, pipelined."""

    def __init__(self) -> None:
        self._leaders: dict[str, BrokerConnection] = {}
        self._dialled: dict[tuple[str, int], BrokerConnection] = {}

    async def find(self, bootstrap: str, topic: str) -> None:
        """Connect to the leader of partition 0."""
        host, _, port = bootstrap.rpartition(":")
        asked = await BrokerConnection.dial(host, int(port))
        for _ in range(100):
            wanted = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
            answer = await asked.request(ApiKey.METADATA, 9, wanted)
            brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
            address = brokers.get(answer.topics[0].partitions[0].leader_id) if answer.topics[0].partitions else None
            if address is not None:
                break
            await asyncio.sleep(0.1)
        else:
            raise RuntimeError(f"topic {topic} got no leader")
        asked.close()
        if address not in self._dialled:
            self._dialled[address] = await BrokerConnection.dial(*address)
        self._leaders[topic] = self._dialled[address]

    async def publish(self, topic: str, due_ns: int) -> None:
        """Publish one 100 B record that carries its intended send time."""
        batch = build_batch([RecordDraft(b"%020d" % due_ns + b"x" * 80)], timestamps_ms=due_ns // 1_000_000)
        data = (
            TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=memoryview(batch)),)),
        )
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=data)
        answer = await self._leaders[topic].request(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            raise RuntimeError(f"publish to {topic} failed with error {code}")


async def run(mesh: MeshProcess, *, seconds: int = SECONDS) -> list[str]:
    """Return report lines for the home region and the mirror region."""
    topics = [f"single-{number}" for number in range(TOPICS)]
    for topic in topics:
        await asyncio.to_thread(create_topic, mesh, topic, 1)
    publisher = Publisher()
    for topic in topics:
        await publisher.find(mesh.endpoints["regions"]["us"]["kafka"][0], topic)
    latencies: dict[str, list[int]] = {region: [] for region in mesh.endpoints["regions"]}
    readers = [
        asyncio.create_task(_read(mesh, region, topic, latencies[region])) for region in latencies for topic in topics
    ]
    await asyncio.sleep(1)
    pids = {region: _pids(mesh, region) for region in latencies}
    watch = IdleWatch()
    lag_ms: list[float] = []
    before: dict[str, float] = {}
    tasks: set[asyncio.Task[None]] = set()
    began = time.monotonic_ns()
    warm = WARM_UP_SECONDS * RATE_PER_SECOND
    for number in range(warm + seconds * RATE_PER_SECOND):
        if number == warm:
            before = {region: sum(map(cpu_seconds, rows)) for region, rows in pids.items()}
            for rows in latencies.values():
                rows.clear()
            watch.start()
        due = began + number * 1_000_000_000 // RATE_PER_SECOND
        wait_s = (due - time.monotonic_ns()) / 1e9
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        lag_ms.append((time.monotonic_ns() - due) / 1e6)
        task = asyncio.ensure_future(publisher.publish(topics[number % TOPICS], due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    await asyncio.sleep(1)
    idle = watch.share()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    lines = []
    for region, rows in latencies.items():
        cpu = (sum(map(cpu_seconds, pids[region])) - before[region]) / (seconds + 1)
        kind = "home region" if region == "us" else "mirror region"
        lines.append(
            f"single records at {RATE_PER_SECOND}/s over {TOPICS} topics, {kind} ({region}): publish->deliver "
            f"p50 {quantile_ms(rows, 0.5):.2f} ms, p99 {quantile_ms(rows, 0.99):.2f} ms, {len(rows):,} records, "
            f"{len(pids[region])} broker(s) use {cpu:.0%} of a core"
        )
    lines.append(
        f"  publisher's own lag p99 {quantile_ms([int(row * 1e6) for row in lag_ms], 0.99):.2f} ms; idle CPU {idle:.0%}"
        + ("; note: less than 10 % idle" if idle < 0.1 else "")
    )
    return lines


async def _read(mesh: MeshProcess, region: str, topic: str, latencies: list[int]) -> None:
    reader = StreamReader(brokers=mesh.endpoints["regions"][region]["kafka"], topic=topic, partition=0, offset=LATEST)
    try:
        async for batch in reader.batches():
            now = time.monotonic_ns()
            latencies.extend(now - int((record.value or b"0")[:20]) for record in batch.records)
    finally:
        reader.close()


def _pids(mesh: MeshProcess, region: str) -> list[int]:
    return [mesh.pid_of(f"{region}-{row + 1}") for row in range(len(mesh.endpoints["regions"][region]["kafka"]))]


def quantile_ms(rows: list[int], share: float) -> float:
    """Return a quantile of nanosecond samples in ms; 0 without samples."""
    if not rows:
        return 0.0
    ordered = sorted(rows)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6
