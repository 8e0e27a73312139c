"""Geo levels in three real regions: reached, pending and resolved, refused before append, visible in every region."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import georelay
from georelay import Durability, DurabilityPending

pytestmark = pytest.mark.timeout(240)

REGIONS = ("us", "eu", "ap")
NOT_ENOUGH_REPLICAS = 19
LINK_DEAD_S = 3.0  # a link that is silent for 1.5 s is dead


@pytest.mark.parametrize("entry", ["us", "ap"])
async def test_geo_levels_are_reached_from_any_region(geo_mesh: Any, entry: str) -> None:
    await geo_mesh.create("orders")
    async with geo_mesh.connect(entry) as mesh:
        for durability, regions in ((Durability.geo(2), 2), (Durability.geo(3), 3), (Durability.MAJORITY, 2)):
            async with mesh.producer(durability=durability, deadline_s=10) as producer:
                stored = await producer.publish("orders", b"v")
            assert (stored.regions[0], stored.durability.regions >= regions) == ("us", True), durability
        async with mesh.producer(durability=Durability.geo(4)) as producer:
            with pytest.raises(georelay.GeorelayError) as refused:
                await producer.publish("orders", b"v")
        assert refused.value.code == "POLICY_VIOLATION"


@pytest.mark.parametrize("entry", ["us", "eu"])
async def test_a_record_that_a_cut_off_region_lacks_is_pending_and_resolved_when_it_is_back(
    geo_mesh: Any, entry: str
) -> None:
    await geo_mesh.create("orders")
    everywhere = Durability.geo(3)
    async with geo_mesh.connect(entry) as mesh:
        with geo_mesh.frozen("ap"):
            async with mesh.producer(durability=everywhere, deadline_s=1) as producer:
                with pytest.raises(DurabilityPending) as pending:
                    await producer.publish("orders", b"v")
            at = {"epoch": pending.value.epoch, "offset": pending.value.offset, "durability": everywhere}
            assert pending.value.regions == ("us", "eu")
            resolved = await mesh.resolve("orders", 0, **at)
            assert (resolved.is_reached, resolved.is_lost, resolved.regions) == (False, False, ("us", "eu"))
            async with mesh.producer(durability=Durability.geo(2), deadline_s=10) as producer:
                assert len((await producer.publish("orders", b"w")).regions) == 2  # two regions are left
        resolved = await mesh.resolve("orders", 0, wait_s=20, **at)
        assert (resolved.is_reached, set(resolved.regions)) == (True, set(REGIONS))


def confluent_producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20_000, "linger.ms": 0, **settings}
    )


def confluent_publish(producer: Producer) -> list[Any]:
    """Publish one record and return (error, offset) of its delivery report."""
    reports: list[Any] = []
    producer.produce(
        "orders", b"v", partition=0, on_delivery=lambda error, sent: reports.append((error, sent.offset()))
    )
    producer.flush(30)
    return reports


async def test_kafka_producers_wait_for_the_topics_regions_and_are_refused_before_append(geo_mesh: Any) -> None:
    await geo_mesh.create("orders", **{"min.insync.regions": "3"})
    bootstrap = geo_mesh.kafka("us")
    producer = confluent_producer(bootstrap)
    ((error, first),) = await asyncio.to_thread(confluent_publish, producer)
    assert error is None
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as other:
        assert (await other.send_and_wait("orders", b"v", partition=0)).offset == first + 1
    with geo_mesh.frozen("ap"):
        await asyncio.sleep(LINK_DEAD_S)
        impatient = confluent_producer(bootstrap, **{"retries": 0, "message.timeout.ms": 5_000})
        ((error, _),) = await asyncio.to_thread(confluent_publish, impatient)
        assert error is not None
        assert error.code() in (NOT_ENOUGH_REPLICAS, -192), error  # or its own time was over, with 19 inside
        at_home = confluent_producer(bootstrap, acks="1")
        ((error, offset),) = await asyncio.to_thread(confluent_publish, at_home)
        assert (error, offset) == (None, first + 2)  # the refused one was not appended
        assert await asyncio.to_thread(end_of, bootstrap) == first + 2  # not shown: two regions have it
    deadline = time.monotonic() + 30
    for region in REGIONS:
        while await asyncio.to_thread(end_of, geo_mesh.kafka(region)) < first + 3:
            assert time.monotonic() < deadline, region
            await asyncio.sleep(0.1)


def end_of(bootstrap: str) -> int:
    """Return the end of the partition as a consumer of this region is told, -1 while nobody knows."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=5)[1])
    except KafkaException:
        return -1
    finally:
        consumer.close()


def read_all(bootstrap: str, seconds: float) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            record = consumer.poll(0.2)
            if record is not None and record.error() is None:
                offsets.append(record.offset())
    finally:
        consumer.close()
    return offsets


@pytest.mark.parametrize("regions", ["2", "3"])
async def test_consumers_of_every_region_see_only_what_enough_regions_have(geo_mesh: Any, regions: str) -> None:
    await geo_mesh.create("orders", **{"min.insync.regions": regions})
    async with geo_mesh.connect("us") as mesh:
        with geo_mesh.frozen("eu"), geo_mesh.frozen("ap"):
            async with mesh.producer() as producer:
                hidden = await producer.publish("orders", b"home only")
            seen = await asyncio.to_thread(read_all, geo_mesh.kafka("us"), 2.0)
            assert hidden.offset not in seen
            assert seen == list(range(hidden.offset))
        found = await asyncio.gather(*(asyncio.to_thread(read_all, geo_mesh.kafka(region), 8.0) for region in REGIONS))
        assert found == [list(range(hidden.offset + 1))] * 3


async def test_a_home_that_was_killed_shows_again_what_it_showed_and_nothing_else(restarting_mesh: Any) -> None:
    """Its new leader has heard nobody: consumers wait until it knows, and are never told a smaller end."""
    await restarting_mesh.create("orders", **{"min.insync.regions": "3"})
    home = restarting_mesh.kafka("us")
    async with restarting_mesh.connect("us") as mesh:
        async with mesh.producer(durability=Durability.ALL, deadline_s=10) as producer:
            shown = [(await producer.publish("orders", b"v")).offset for _ in range(5)][-1]
        assert await asyncio.to_thread(end_of, home) == shown + 1
        with restarting_mesh.frozen("ap"):
            async with mesh.producer() as producer:
                hidden = (await producer.publish("orders", b"hidden")).offset
            restarting_mesh.process.kill("us-1")
            ends = []
            deadline = time.monotonic() + 12
            while time.monotonic() < deadline:
                ends.append(await asyncio.to_thread(end_of, home))
            assert set(ends) <= {-1, shown + 1}, ends  # nobody knows, or what was shown
        deadline = time.monotonic() + 30
        while await asyncio.to_thread(end_of, home) != hidden + 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
