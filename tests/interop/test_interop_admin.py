"""Topics and positions through other people's admin clients and consumers."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.tiers import first

SECONDS = 20
EXISTS, UNKNOWN_TOPIC, INVALID_TOPIC, POLICY_VIOLATION = 36, 3, 17, 44


@pytest.fixture(params=["gateway", *first(0, ["us", "eu"])])
def entry(request: pytest.FixtureRequest, mesh: Any) -> str:
    """Where an admin client connects."""
    return str(mesh.bootstrap if request.param == "gateway" else mesh.kafka(request.param))


def error_code(future: Any) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        future.result(SECONDS)
    return int(refused.value.args[0].code())


def consumer_of(brokers: str, **settings: Any) -> Any:
    fixed = {"group.id": "not-used", "enable.auto.commit": False, "auto.offset.reset": "error"}
    return confluent_kafka.Consumer({"bootstrap.servers": brokers, **fixed, **settings})


def next_record(consumer: Any) -> Any:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        record = consumer.poll(0.2)
        if record is not None:
            return record
    raise AssertionError("nothing was delivered")


def publish(mesh: Any, topic: str, records: list[dict[str, Any]]) -> None:
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", records)
    assert answer.status == 200, answer


def test_librdkafka_creates_lists_describes_and_deletes(mesh: Any, entry: str, until: Any) -> None:
    admin = AdminClient({"bootstrap.servers": entry})
    name = mesh.new_name("admin")
    admin.create_topics([NewTopic(name, 4)])[name].result(SECONDS)
    assert error_code(admin.create_topics([NewTopic(name, 4)])[name]) == EXISTS
    for region in mesh.regions:
        mesh.wait_for_topic(name, region=region)
    listed = admin.list_topics(timeout=SECONDS).topics[name]
    assert sorted(listed.partitions) == [0, 1, 2, 3]
    described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(SECONDS)
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    assert all(partition.leader is not None for partition in described.partitions)
    admin.delete_topics([name])[name].result(SECONDS)
    assert error_code(admin.delete_topics([name])[name]) == UNKNOWN_TOPIC
    for region in mesh.regions:
        there = AdminClient({"bootstrap.servers": mesh.kafka(region)})
        until(
            lambda there=there: name not in there.list_topics(timeout=SECONDS).topics,
            lambda region=region: f"{name} is still in {region}",
        )


def test_kafka_python_creates_lists_describes_and_deletes(mesh: Any, entry: str, kafka_python: Any) -> None:
    admin = kafka_python.admin.KafkaAdminClient(bootstrap_servers=entry.split(","))
    name = mesh.new_name("admin-python")
    try:
        admin.create_topics([kafka_python.admin.NewTopic(name, 2, -1)])
        with pytest.raises(kafka_python.errors.TopicAlreadyExistsError):
            admin.create_topics([kafka_python.admin.NewTopic(name, 2, -1)])
        for region in mesh.regions:
            mesh.wait_for_topic(name, region=region)
        assert name in admin.list_topics()
        (described,) = admin.describe_topics([name])
        assert sorted(row["partition_index"] for row in described["partitions"]) == [0, 1]
        places = {kafka_python.TopicPartition(name, number): -1 for number in range(2)}
        assert [place.offset for place in admin.list_partition_offsets(places).values()] == [0, 0]
        admin.delete_topics([name])
        with pytest.raises(kafka_python.errors.UnknownTopicOrPartitionError):
            admin.delete_topics([name])
    finally:
        admin.close()


@pytest.mark.parametrize("entry_region", first(2, ["us", "eu", "ap"]))
def test_a_cluster_shows_the_brokers_of_the_region_that_was_asked(mesh: Any, entry_region: str) -> None:
    answer = AdminClient({"bootstrap.servers": mesh.kafka(entry_region)}).list_topics(timeout=SECONDS)
    shown = sorted(f"{broker.host}:{broker.port}" for broker in answer.brokers.values())
    assert shown == sorted(mesh.addresses(entry_region, "kafka"))
    assert answer.cluster_id == mesh.process.endpoints["mesh"]
    number = mesh.regions.index(entry_region) + 1
    assert {broker // 1000 for broker in answer.brokers} == {number}


@pytest.mark.parametrize("home", first(1, ["us", "ap"]))
def test_a_topic_can_be_created_in_eu_with_its_home_elsewhere(
    mesh: Any, clients: Any, keyed_records: Any, home: str
) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("eu")})
    name = mesh.new_name(f"home-in-{home}")
    admin.create_topics([NewTopic(name, 1, config={"georelay.home": home})])[name].result(SECONDS)
    mesh.wait_for_topic(name, region="us")
    assert mesh.http("GET", f"/v1/topics/{name}?region=us").document["home"] == mesh.regions.index(home) + 1
    sent = keyed_records(name, 20)
    clients["confluent-kafka"].produce(mesh.kafka("eu"), name, sent, compression="none")
    mesh.wait_for_records(name, region="us", partitions=1, count=20)
    received = clients["confluent-kafka"].consume(mesh.kafka("us"), name, 1, 20)
    assert [(key, value) for *_, key, value in received] == sent


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("us.taken", 1), INVALID_TOPIC),
        (NewTopic("not a name", 1), INVALID_TOPIC),
        (NewTopic("too-many-partitions", 5000), 37),
        (NewTopic("too-many-replicas", 1, 99), 38),
        (NewTopic("bad-setting", 1, config={"no.such.setting": "1"}), 40),
        (NewTopic("bad-home", 1, config={"georelay.home": "mars"}), 40),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else "",
)
def test_a_definition_that_is_not_allowed_is_refused_with_kafkas_code(mesh: Any, topic: Any, code: int) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.bootstrap})
    assert error_code(admin.create_topics([topic])[topic.topic]) == code
    assert topic.topic not in admin.list_topics(timeout=SECONDS).topics


def test_what_is_not_served_is_said_at_once(mesh: Any, kafka_python: Any) -> None:
    admin = kafka_python.admin.KafkaAdminClient(bootstrap_servers=mesh.bootstrap.split(","))
    try:
        started = time.monotonic()
        with pytest.raises(kafka_python.errors.KafkaError):
            admin.describe_metadata_quorum()
        assert time.monotonic() - started < SECONDS / 2
    finally:
        admin.close()


def test_offsets_are_found_by_timestamp_in_every_region(mesh: Any, clients: Any) -> None:
    topic = mesh.new_topic("by-time", partitions=1)
    publish(mesh, topic, [{"value": str(n), "timestamp_ms": 1_700_000_000_000 + 1000 * n} for n in range(10)])
    for region in mesh.regions:
        mesh.wait_for_records(topic, region=region, partitions=1, count=10)
        consumer = consumer_of(mesh.kafka(region))
        wanted = {1_600_000_000_000: 0, 1_700_000_004_000: 4, 1_700_000_004_001: 5, 1_800_000_000_000: -1}
        for timestamp, offset in wanted.items():
            place = confluent_kafka.TopicPartition(topic, 0, timestamp)
            assert consumer.offsets_for_times([place], timeout=SECONDS)[0].offset == offset, (region, timestamp)
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=SECONDS) == (0, 10)
        consumer.close()


def test_a_consumer_seeks_anywhere_and_a_position_above_the_end_waits(mesh: Any) -> None:
    topic = mesh.new_topic("seeking", partitions=1)
    publish(mesh, topic, [{"value": str(number)} for number in range(10)])
    mesh.wait_for_records(topic, region=mesh.regions[-1], partitions=1, count=10)
    consumer = consumer_of(mesh.kafka(mesh.regions[-1]))
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 7)])
        assert next_record(consumer).value() == b"7"
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, 2))
        assert next_record(consumer).value() == b"2"
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, 12))  # above: the mirror may only be behind
        assert consumer.poll(0.5) is None
        publish(mesh, topic, [{"value": str(number)} for number in range(10, 15)])
        record = next_record(consumer)
        assert (record.error(), record.offset(), record.value()) == (None, 12, b"12")
    finally:
        consumer.close()


def test_an_unknown_topic_is_made_by_a_producer_and_only_reported_to_a_careful_consumer(
    mesh: Any, clients: Any
) -> None:
    name = mesh.new_name("made-by-producer")
    careful = clients["kcat"].run("-C", "-b", mesh.kafka("eu"), "-t", name, "-e", "-Xallow.auto.create.topics=false")
    assert careful.returncode == 1
    assert "Unknown topic or partition" in careful.stderr
    assert name not in AdminClient({"bootstrap.servers": mesh.kafka("eu")}).list_topics(timeout=SECONDS).topics
    producer = confluent_kafka.Producer({"bootstrap.servers": mesh.kafka("eu"), "enable.idempotence": True})
    producer.produce(name, b"first")
    assert producer.flush(SECONDS) == 0
    answer = mesh.http("GET", f"/v1/topics/{name}?region=eu").document
    assert (answer["partitions"], answer["homes"], answer["home"]) == (1, "one", mesh.regions.index("eu") + 1)


def test_an_idempotent_producer_away_from_the_home_is_exact(
    mesh: Any, clients: Any, records_per_producer: int, keyed_records: Any, check_received: Any
) -> None:
    topic = mesh.new_topic("forwarded", partitions=3)
    sent = keyed_records(topic, records_per_producer)
    clients["confluent-kafka"].produce(mesh.kafka("eu"), topic, sent, compression="lz4")
    for region in mesh.regions:
        mesh.wait_for_records(topic, region=region, partitions=3, count=len(sent))
        check_received(sent, clients["confluent-kafka"].consume(mesh.kafka(region), topic, 3, len(sent)))


def test_producer_ids_of_two_regions_never_collide(mesh: Any, clients: Any, keyed_records: Any) -> None:
    topic = mesh.new_topic("two-regions-write", partitions=1)
    ours, theirs = keyed_records("from-us", 200), keyed_records("from-afar", 200)
    clients["aiokafka"].produce(mesh.kafka("us"), topic, ours, compression="gzip")
    clients["aiokafka"].produce(mesh.kafka(mesh.regions[-1]), topic, theirs, compression="gzip")
    mesh.wait_for_records(topic, region="eu", partitions=1, count=400)
    received = clients["aiokafka"].consume(mesh.kafka("eu"), topic, 1, 400)
    assert [offset for _, offset, _, _ in received] == list(range(400))
    assert [(key, value) for *_, key, value in received] == ours + theirs


@pytest.fixture(scope="module")
def every_topic(mesh: Any, clients: Any, keyed_records: Any) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """A topic that every region is home of, and what was written in each."""
    topic = mesh.new_topic("every", partitions=2, homes="every")
    sent = {region: keyed_records(f"from-{region}", 300) for region in mesh.regions}
    for region, records in sent.items():
        clients["confluent-kafka"].produce(mesh.kafka(region), topic, records, compression="zstd")
    return topic, sent


@pytest.mark.parametrize("region", first(2, ["us", "eu", "ap"]))
def test_every_origin_of_a_homes_every_topic_is_read_by_its_qualified_name(
    mesh: Any, clients: Any, every_topic: Any, region: str, check_received: Any
) -> None:
    topic, sent = every_topic
    for origin, records in sent.items():
        name = f"{origin}.{topic}"
        mesh.wait_for_records(name, region=region, partitions=2, count=len(records))
        check_received(records, clients["confluent-kafka"].consume(mesh.kafka(region), name, 2, len(records)))


@pytest.mark.parametrize("region", first(2, ["us", "eu", "ap"]))
def test_the_plain_name_of_a_homes_every_topic_is_the_regions_own_stream(
    mesh: Any, clients: Any, every_topic: Any, region: str, check_received: Any
) -> None:
    topic, sent = every_topic
    received = clients["confluent-kafka"].consume(mesh.kafka(region), topic, 2, len(sent[region]))
    check_received(sent[region], received)


@pytest.mark.parametrize("origin", first(2, ["us", "eu", "ap"]))
def test_a_mirror_name_cannot_be_written(mesh: Any, every_topic: Any, origin: str) -> None:
    region = "eu" if origin == "us" else "us"
    codes: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": mesh.kafka(region), "message.timeout.ms": 10_000})
    producer.produce(f"{origin}.{every_topic[0]}", b"x", on_delivery=lambda error, _: codes.append(error.code()))
    assert producer.flush(SECONDS) == 0
    assert codes == [POLICY_VIOLATION]
