"""Clusters, growth, sizes, moves and producers through other people's admin clients."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

SECONDS = 20
INVALID_PARTITIONS, INVALID_CONFIG, POLICY_VIOLATION, UNKNOWN_TOPIC = 37, 40, 44, 3


def refusal(future: Any) -> tuple[int, str]:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        future.result(SECONDS)
    error = refused.value.args[0]
    return int(error.code()), str(error.str())


@pytest.fixture
def kafka_python_admin(mesh: Any, kafka_python: Any) -> Any:
    """kafka-python's admin client in us."""
    admin = kafka_python.admin.KafkaAdminClient(bootstrap_servers=mesh.kafka("us").split(","))
    yield admin
    admin.close()


def test_librdkafka_and_kafka_python_see_the_same_cluster(mesh: Any, kafka_python_admin: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    cluster = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    theirs = kafka_python_admin.describe_cluster()
    assert cluster.cluster_id == theirs["cluster_id"] == mesh.process.endpoints["mesh"]
    assert cluster.controller.id == theirs["controller_id"]
    shown = sorted((node.id, f"{node.host}:{node.port}", node.rack) for node in cluster.nodes)
    assert [address for _, address, _ in shown] == sorted(mesh.addresses("us", "kafka"))
    assert {rack for *_, rack in shown} == {"us"}
    assert sorted(row["broker_id"] for row in theirs["brokers"]) == [number for number, *_ in shown]
    assert len(cluster.authorized_operations) == len(theirs["authorized_operations"]) > 0


def test_kafka_python_describes_a_topic_page_by_page(mesh: Any, kafka_python_admin: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    name = mesh.new_name("paged")
    admin.create_topics([NewTopic(name, 3)])[name].result(SECONDS)
    first = kafka_python_admin.describe_topic_partitions([name], response_partition_limit=2)
    assert first["next_cursor"] == {"topic_name": name, "partition_index": 2}
    rest = kafka_python_admin.describe_topic_partitions([name], cursor=first["next_cursor"])
    rows = [row for page in (first, rest) for row in page["topics"][0]["partitions"]]
    assert ([row["partition_index"] for row in rows], rest["next_cursor"]) == ([0, 1, 2], None)
    leaders = {
        part.id: part.leader for part in admin.list_topics(name, timeout=SECONDS).topics[name].partitions.values()
    }
    assert {row["partition_index"]: row["leader_id"] for row in rows} == leaders


@pytest.mark.parametrize("entry", [0, -1], ids=["home", "mirror"])
def test_a_topic_grows_in_every_region_and_the_new_partitions_take_records(mesh: Any, until: Any, entry: int) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka(mesh.regions[entry])})
    name = mesh.new_name("grows")
    admin.create_topics([NewTopic(name, 2)])[name].result(SECONDS)
    admin.create_partitions([NewPartitions(name, 5)], validate_only=True)[name].result(SECONDS)
    assert len(admin.list_topics(name, timeout=SECONDS).topics[name].partitions) == 2
    admin.create_partitions([NewPartitions(name, 5)])[name].result(SECONDS)
    for region in mesh.regions:
        there = AdminClient({"bootstrap.servers": mesh.kafka(region)})
        until(
            lambda there=there: len(there.list_topics(name, timeout=SECONDS).topics[name].partitions) == 5,
            lambda region=region: f"{name} has not grown in {region}",
        )
    producer = confluent_kafka.Producer({"bootstrap.servers": mesh.kafka("eu")})
    outcomes: list[Any] = []
    for partition in range(5):
        producer.produce(name, b"x", partition=partition, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(SECONDS) == 0
    assert outcomes == [None] * 5


def test_a_topic_never_shrinks_and_a_mirrors_name_never_grows(mesh: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    name = mesh.new_name("every")
    admin.create_topics([NewTopic(name, 3, config={"georelay.homes": "every"})])[name].result(SECONDS)
    for count in (3, 2):
        code, text = refusal(admin.create_partitions([NewPartitions(name, count)])[name])
        assert (code, "3 partitions" in text) == (INVALID_PARTITIONS, True)
    mesh.wait_for_topic(name, region="us")
    mirror = f"eu.{name}"
    assert refusal(admin.create_partitions([NewPartitions(mirror, 9)])[mirror])[0] == POLICY_VIOLATION
    ghost = mesh.new_name("ghost")
    assert refusal(admin.create_partitions([NewPartitions(ghost, 9)])[ghost])[0] == UNKNOWN_TOPIC


def test_compaction_is_taken_and_shown_and_what_cannot_be_is_refused_with_what_to_use(mesh: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    name = mesh.new_name("compact")
    wanted = NewTopic(name, 1, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    admin.create_topics([wanted])[name].result(SECONDS)
    mesh.wait_for_topic(name, region="us")
    resource = ConfigResource("topic", name)
    settings = admin.describe_configs([resource])[resource].result(SECONDS)
    assert (settings["cleanup.policy"].value, settings["min.cleanable.dirty.ratio"].value) == ("compact", "0.1")
    tiered = mesh.new_name("tiered")
    refused = NewTopic(tiered, 1, config={"remote.storage.enable": "true"})
    code, text = refusal(admin.create_topics([refused])[tiered])
    assert (code, "retention.ms" in text) == (INVALID_CONFIG, True)


def test_kafka_python_lets_a_topic_grow_and_sees_its_sizes_moves_and_producers(
    mesh: Any, kafka_python: Any, kafka_python_admin: Any
) -> None:
    name = mesh.new_name("seen")
    kafka_python_admin.create_topics([kafka_python.admin.NewTopic(name, 1, -1)])
    kafka_python_admin.create_partitions({name: kafka_python.admin.NewPartitions(2)})
    mesh.wait_for_topic(name, region="us")
    producer = confluent_kafka.Producer({"bootstrap.servers": mesh.kafka("us"), "enable.idempotence": True})
    for _ in range(3):
        producer.produce(name, b"x" * 1000, partition=1)
    assert producer.flush(SECONDS) == 0
    sizes = {
        row["partition_index"]: row["partition_size"]
        for broker in kafka_python_admin.describe_log_dirs()
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        if topic["name"] == name
        for row in topic["partitions"]
    }
    assert sizes[1] > 3_000
    assert kafka_python_admin.list_partition_reassignments() == {}
    place = kafka_python.TopicPartition(name, 1)
    (state,) = kafka_python_admin.describe_producers([place])[place].active_producers
    assert (state.producer_epoch, state.last_sequence, state.current_transaction_start_offset) == (0, 2, -1)


def test_a_broker_shows_its_own_settings(mesh: Any) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    number = admin.describe_cluster().result(SECONDS).nodes[0].id
    resource = ConfigResource("broker", str(number))
    settings = admin.describe_configs([resource])[resource].result(SECONDS)
    assert settings["broker.id"].value == str(number)
    assert settings["broker.rack"].value == "us"
