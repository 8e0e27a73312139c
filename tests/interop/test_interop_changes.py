"""Settings and deleted records through other people's admin clients: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.closing_clients import started

SECONDS = 20
INVALID_CONFIG, OUT_OF_RANGE, POLICY_VIOLATION = 40, 1, 44
KEPT = 4  # first offset that the tests keep


@pytest.fixture(params=["us", pytest.param("eu", marks=pytest.mark.slow)])
def entry(request: pytest.FixtureRequest, mesh: Any) -> str:
    """Brokers of the home, and of a mirror."""
    return str(mesh.kafka(request.param))


def ten_records(mesh: Any, topic: str) -> None:
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", [{"value": str(number)} for number in range(10)])
    assert answer.status == 200, answer
    for region in mesh.regions:
        mesh.wait_for_records(topic, region=region, partitions=1, count=10)


def retention_ms(mesh: Any, topic: str, region: str) -> int:
    return int(mesh.http("GET", f"/v1/topics/{topic}?region={region}").document["retention_ms"])


def error_code(future: Any) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        future.result(SECONDS)
    return int(refused.value.args[0].code())


def librdkafka_settings(admin: Any, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings: dict[str, Any] = admin.describe_configs([resource])[resource].result(SECONDS)
    return settings


def test_librdkafka_changes_single_settings_in_every_region(mesh: Any, entry: str, until: Any) -> None:
    topic = mesh.new_topic("changed", partitions=1)
    admin = AdminClient({"bootstrap.servers": entry})
    set_it = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[set_it])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    shown = librdkafka_settings(admin, topic)
    assert (shown["retention.ms"].value, shown["retention.ms"].is_default) == ("3600000", False)
    assert (shown["georelay.homes"].value, shown["georelay.homes"].is_read_only) == ("one", True)
    for region in mesh.regions:
        until(lambda region=region: retention_ms(mesh, topic, region) == 3_600_000, lambda: "retention.ms is not there")
    delete_it = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[delete_it])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    assert librdkafka_settings(admin, topic)["retention.ms"].value == "-1"


@pytest.mark.parametrize(("name", "value"), [("retention.ms", "soon"), ("georelay.homes", "every"), ("no.such", "1")])
def test_librdkafka_is_told_what_is_not_allowed(mesh: Any, name: str, value: str) -> None:
    topic = mesh.new_topic("refused", partitions=1)
    admin = AdminClient({"bootstrap.servers": mesh.bootstrap})
    wrong = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[wrong])
    assert error_code(admin.incremental_alter_configs([resource])[resource]) == INVALID_CONFIG


def test_librdkafka_sees_a_broker_and_cannot_change_it(mesh: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("eu")})
    broker = min(admin.list_topics(timeout=SECONDS).brokers)
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    shown = admin.describe_configs([resource])[resource].result(SECONDS)
    assert (shown["broker.rack"].value, shown["broker.rack"].is_read_only) == ("eu", True)
    entry = ConfigEntry("broker.rack", "us", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    assert error_code(admin.incremental_alter_configs([resource])[resource]) == POLICY_VIOLATION


def test_librdkafka_deletes_records_in_every_region(mesh: Any, entry: str, until: Any) -> None:
    topic = mesh.new_topic("trimmed", partitions=1)
    ten_records(mesh, topic)
    admin = AdminClient({"bootstrap.servers": entry})
    place = confluent_kafka.TopicPartition(topic, 0, KEPT)
    assert admin.delete_records([place])[place].result(SECONDS).low_watermark == KEPT
    above = confluent_kafka.TopicPartition(topic, 0, 11)
    assert error_code(admin.delete_records([above])[above]) == OUT_OF_RANGE
    for region in mesh.regions:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": mesh.kafka(region), "group.id": "not-used"})
        until(
            lambda consumer=consumer: (
                consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=SECONDS) == (KEPT, 10)
            ),
            lambda region=region: f"the log start of {region} has not moved",
        )
        consumer.close()


def test_a_reader_from_the_beginning_begins_behind_deleted_records(mesh: Any) -> None:
    topic = mesh.new_topic("read-trimmed", partitions=1)
    ten_records(mesh, topic)
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    place = confluent_kafka.TopicPartition(topic, 0, KEPT)
    admin.delete_records([place])[place].result(SECONDS)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": mesh.kafka("us"),
            "group.id": "not-used",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 1)])  # deleted: out of range, so from the beginning
        records = consumer.consume(10 - KEPT, timeout=SECONDS)
        assert [(record.offset(), record.value()) for record in records] == [
            (offset, str(offset).encode()) for offset in range(KEPT, 10)
        ]
    finally:
        consumer.close()


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_changes_describes_and_deletes(
    mesh: Any, entry: str, kafka_python: Any, until: Any, incremental: bool
) -> None:
    topic = mesh.new_topic("changed-python", partitions=1)
    ten_records(mesh, topic)
    kinds = kafka_python.admin.ConfigResourceType
    admin = kafka_python.admin.KafkaAdminClient(bootstrap_servers=entry.split(","))
    try:
        resource = kafka_python.admin.ConfigResource(kinds.TOPIC, topic, {"retention.bytes": "1000000"})
        answer = admin.alter_configs([resource], incremental=incremental)
        assert answer == {"topic": {topic: "OK"}}
        resource = kafka_python.admin.ConfigResource(kinds.TOPIC, topic)
        shown = admin.describe_configs([resource], config_filter="all")["topic"][topic]
        assert (shown["retention.bytes"]["value"], shown["retention.ms"]["value"]) == ("1000000", "-1")
        deleted = admin.delete_records({kafka_python.TopicPartition(topic, 0): KEPT})
        assert [row["low_watermark"] for row in deleted.values()] == [KEPT]
        place = kafka_python.TopicPartition(topic, 0)
        until(lambda: admin.list_partition_offsets({place: -2})[place].offset == KEPT, lambda: "the log start is old")
    finally:
        admin.close()


def test_aiokafka_changes_describes_and_deletes(mesh: Any, entry: str) -> None:
    topic = mesh.new_topic("changed-aio", partitions=1)
    ten_records(mesh, topic)

    async def work() -> tuple[Any, Any, Any]:
        async with started(AIOKafkaAdminClient(bootstrap_servers=entry)) as admin:
            (altered,) = await admin.alter_configs([AioResource(AioType.TOPIC, topic, {"retention.ms": "7200000"})])
            (described,) = await admin.describe_configs([AioResource(AioType.TOPIC, topic)])
            place = AioPartition(topic, 0)
            deleted = await admin.delete_records({place: RecordsToDelete(before_offset=KEPT)})
        return altered.resources[0][0], described.resources[0], deleted[place]

    code, described, log_start = asyncio.run(work())
    assert (code, log_start) == (0, KEPT)
    assert {row[0]: row[1] for row in described[4]}["retention.ms"] == "7200000"
