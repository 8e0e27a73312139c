"""Every Kafka client with every compression: published at the gateway, read by assignment in every region."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiers import first

PARTITIONS = 3
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("compression", first(1, ["zstd", "gzip", "snappy", "lz4"]))
def test_a_client_reads_in_every_region_exactly_what_it_produced_at_the_gateway(
    mesh: Any,
    client: Any,
    compression: str,
    records_per_producer: int,
    keyed_records: Any,
    check_received: Any,
    header_of: Any,
    tally: Any,
) -> None:
    topic = mesh.new_topic(f"{client.name}-{compression}", partitions=PARTITIONS)
    sent = keyed_records(topic, records_per_producer)
    client.produce(mesh.bootstrap, topic, sent, compression=compression)
    read: dict[str, int] = {}
    for region in mesh.regions:
        mesh.wait_for_records(topic, region=region, partitions=PARTITIONS, count=len(sent))
        received = client.consume(mesh.kafka(region), topic, PARTITIONS, len(sent))
        check_received(sent, received)
        read[region] = len(received)
    tally.append((client.name, compression, len(sent), read))
    for partition in range(PARTITIONS):
        stored = mesh.raw_batches(topic, region="us", partition=partition)
        headers = [header_of(batch) for batch in stored]
        assert {header.compression for header in headers} == {CODECS[compression]}
        assert all(header.producer_id >= 0 for header in headers), "the idempotent producer was not on"
        for region in mesh.regions[1:]:
            assert mesh.raw_batches(topic, region=region, partition=partition) == stored


@pytest.fixture(scope="module")
def shared_topic(mesh: Any, clients: Any, keyed_records: Any) -> tuple[str, list[tuple[str, str]]]:
    """A topic into which every client wrote, each with another compression."""
    topic = mesh.new_topic("written-by-all", partitions=PARTITIONS)
    sent: list[tuple[str, str]] = []
    for producer, compression in zip(clients.values(), ("zstd", "gzip", "snappy", "lz4"), strict=True):
        part = keyed_records(producer.name, 50)
        producer.produce(mesh.kafka("eu"), topic, part, compression=compression)
        sent += part
    return topic, sent


@pytest.mark.parametrize("region", first(2, ["us", "eu", "ap"]))
def test_every_client_reads_what_every_client_wrote_away_from_the_home(
    mesh: Any, client: Any, region: str, shared_topic: tuple[str, list[tuple[str, str]]], check_received: Any
) -> None:
    topic, sent = shared_topic
    mesh.wait_for_records(topic, region=region, partitions=PARTITIONS, count=len(sent))
    check_received(sent, client.consume(mesh.kafka(region), topic, PARTITIONS, len(sent)))


def test_a_key_has_one_partition_whoever_hashes_it(mesh: Any, clients: Any, keyed_records: Any) -> None:
    topic = mesh.new_topic("hashing", partitions=7)
    sent = keyed_records("h", 40)
    for producer in clients.values():
        producer.produce(mesh.bootstrap, topic, sent, compression="lz4")
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", [{"key": key, "value": value} for key, value in sent])
    assert answer.status == 200, answer
    by_rest = {key: row["partition"] for (key, _), row in zip(sent, answer.document["records"], strict=True)}
    mesh.wait_for_records(topic, region="us", partitions=7, count=5 * len(sent))
    received = clients["confluent-kafka"].consume(mesh.kafka("us"), topic, 7, 5 * len(sent))
    assert {(key, partition) for partition, _, key, _ in received} == set(by_rest.items())
