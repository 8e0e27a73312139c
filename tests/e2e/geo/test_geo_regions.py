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
from tests.closing_clients import started

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

REGIONS = ("us", "eu", "ap")
NOT_ENOUGH_REPLICAS = 19
LINK_DEAD_S = 3.0  # a link that is silent for 1.5 s is dead


@pytest.mark.parametrize("entry", ["us", "ap"])
async def test_geo_levels_are_reached_from_any_region(geo_mesh: Any, topic: str, entry: str) -> None:
    await geo_mesh.create(topic)
    async with geo_mesh.connect(entry) as mesh:
        for durability, regions in ((Durability.geo(2), 2), (Durability.geo(3), 3), (Durability.MAJORITY, 2)):
            async with mesh.producer(durability=durability, deadline_s=10) as producer:
                stored = await producer.publish(topic, b"v")
            assert (stored.regions[0], stored.durability.regions >= regions) == ("us", True), durability
        async with mesh.producer(durability=Durability.geo(4)) as producer:
            with pytest.raises(georelay.GeorelayError) as refused:
                await producer.publish(topic, b"v")
        assert refused.value.code == "POLICY_VIOLATION"


@pytest.mark.parametrize("entry", ["us", "eu"])
async def test_a_record_that_a_cut_off_region_lacks_is_pending_and_resolved_when_it_is_back(
    geo_mesh: Any, topic: str, entry: str
) -> None:
    await geo_mesh.create(topic)
    everywhere = Durability.geo(3)
    async with geo_mesh.connect(entry) as mesh:
        with geo_mesh.frozen("ap"):
            async with mesh.producer(durability=everywhere, deadline_s=1) as producer:
                with pytest.raises(DurabilityPending) as pending:
                    await producer.publish(topic, b"v")
            at = {"epoch": pending.value.epoch, "offset": pending.value.offset, "durability": everywhere}
            assert pending.value.regions == ("us", "eu")
            resolved = await mesh.resolve(topic, 0, **at)
            assert (resolved.is_reached, resolved.is_lost, resolved.regions) == (False, False, ("us", "eu"))
            async with mesh.producer(durability=Durability.geo(2), deadline_s=10) as producer:
                assert len((await producer.publish(topic, b"w")).regions) == 2  # two regions are left
        resolved = await mesh.resolve(topic, 0, wait_s=20, **at)
        assert (resolved.is_reached, set(resolved.regions)) == (True, set(REGIONS))


async def told(address: str, *lines: str) -> list[str]:
    """Return what the text protocol answers to `lines`, one after the other."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        await reader.readline()  # the greeting
        answers = []
        for line in lines:
            writer.write(f"{line}\r\n".encode())
            answers.append((await reader.readline()).decode().strip())
        return answers
    finally:
        writer.close()


@pytest.mark.parametrize("entry", ["us", "eu"])
async def test_a_person_with_telnet_chooses_a_level_and_is_told_what_was_reached(
    geo_mesh: Any, topic: str, entry: str
) -> None:
    await geo_mesh.create(topic)
    text = geo_mesh.process.endpoints["regions"][entry]["text"][0]
    (stored,) = await told(text, f'PUBS {topic} geo:all {{"Key":"k","Body":"a"}}')
    ok, partition, at, outcome, level, regions, _, epoch = stored.split()
    assert (ok, partition, outcome, level, epoch) == ("OK", "0", "STORED", "geo:3", "1")
    assert set(regions.split(",")) == set(REGIONS)
    with geo_mesh.frozen("ap"):
        answers = await told(
            text, *(f"PUBS {topic} {rest}" for rest in ("geo:3 within 3s {}", "geo:4 {}", "region {}", "{}"))
        )
    first = int(at) + 1
    assert answers[0].startswith(
        f"ERR DURABILITY_PENDING PENDING 0 {first} geo:2 us,eu epoch 1: geo:3 was not reached within 3000 ms"
    )
    assert answers[1].startswith("ERR POLICY_VIOLATION NOT_STORED 4 regions are asked for")
    assert answers[2:] == [f"OK 0 {first + 1} STORED region us epoch 1", f"OK 0 {first + 2}"]


def confluent_producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20_000, "linger.ms": 0, **settings}
    )


def confluent_publish(producer: Producer, topic: str) -> list[Any]:
    """Publish one record and return (error, offset) of its delivery report."""
    reports: list[Any] = []
    producer.produce(topic, b"v", partition=0, on_delivery=lambda error, sent: reports.append((error, sent.offset())))
    producer.flush(30)
    return reports


async def test_kafka_producers_wait_for_the_topics_regions_and_are_refused_before_append(
    geo_mesh: Any, topic: str
) -> None:
    await geo_mesh.create(topic, **{"min.insync.regions": "3"})
    bootstrap = geo_mesh.kafka("us")
    producer = confluent_producer(bootstrap)
    ((error, first),) = await asyncio.to_thread(confluent_publish, producer, topic)
    assert error is None
    async with started(AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")) as other:
        assert (await other.send_and_wait(topic, b"v", partition=0)).offset == first + 1
    with geo_mesh.frozen("ap"):
        await asyncio.sleep(LINK_DEAD_S)
        impatient = confluent_producer(bootstrap, **{"retries": 0, "message.timeout.ms": 5_000})
        ((error, _),) = await asyncio.to_thread(confluent_publish, impatient, topic)
        assert error is not None
        assert error.code() in (NOT_ENOUGH_REPLICAS, -192), error  # or its own time was over, with 19 inside
        at_home = confluent_producer(bootstrap, acks="1")
        ((error, offset),) = await asyncio.to_thread(confluent_publish, at_home, topic)
        assert (error, offset) == (None, first + 2)  # the refused one was not appended
        assert await asyncio.to_thread(end_of, bootstrap, topic) == first + 2  # not shown: two regions have it
    deadline = time.monotonic() + 30
    for region in REGIONS:
        while await asyncio.to_thread(end_of, geo_mesh.kafka(region), topic) < first + 3:
            assert time.monotonic() < deadline, region
            await asyncio.sleep(0.1)


def end_of(bootstrap: str, topic: str) -> int:
    """Return the end of the partition as a consumer of this region is told, -1 while nobody knows."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1])
    except KafkaException:
        return -1
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str, *, wanted: int, seconds: float) -> list[int]:
    """Return the offsets that come within `seconds`, and up to a second after the last that is wanted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            record = consumer.poll(0.2)
            if record is not None and record.error() is None:
                offsets.append(record.offset())
                if len(offsets) == wanted:
                    deadline = min(deadline, time.monotonic() + 1)
    finally:
        consumer.close()
    return offsets


async def test_consumers_of_every_region_see_only_what_enough_regions_have(geo_mesh: Any, topic: str) -> None:
    await geo_mesh.create(topic, **{"min.insync.regions": "2"})
    async with geo_mesh.connect("us") as mesh:
        with geo_mesh.frozen("eu"), geo_mesh.frozen("ap"):
            async with mesh.producer() as producer:
                hidden = await producer.publish(topic, b"home only")
            seen = await asyncio.to_thread(read_all, geo_mesh.kafka("us"), topic, wanted=hidden.offset, seconds=3)
            assert seen == list(range(hidden.offset))
        count = hidden.offset + 1
        reading = (
            asyncio.to_thread(read_all, geo_mesh.kafka(region), topic, wanted=count, seconds=20) for region in REGIONS
        )
        assert await asyncio.gather(*reading) == [list(range(count))] * 3


async def test_a_home_that_was_killed_shows_again_what_it_showed_and_nothing_else(geo_mesh: Any, topic: str) -> None:
    """Its new leader has heard nobody: consumers wait until it knows, and are never told a smaller end."""
    await geo_mesh.create(topic, **{"min.insync.regions": "3"})
    home = geo_mesh.kafka("us")
    async with geo_mesh.connect("us") as mesh:
        async with mesh.producer(durability=Durability.ALL, deadline_s=10) as producer:
            shown = [(await producer.publish(topic, b"v")).offset for _ in range(5)][-1]
        assert await asyncio.to_thread(end_of, home, topic) == shown + 1
        with geo_mesh.frozen("ap"):
            async with mesh.producer() as producer:
                hidden = (await producer.publish(topic, b"hidden")).offset
            geo_mesh.process.kill("us-1")
            ends = []
            deadline = time.monotonic() + 12
            while time.monotonic() < deadline:
                ends.append(await asyncio.to_thread(end_of, home, topic))
            assert set(ends) <= {-1, shown + 1}, ends  # nobody knows, or what was shown
        deadline = time.monotonic() + 30
        while await asyncio.to_thread(end_of, home, topic) != hidden + 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
