"""Metadata, topics, offsets, producer ids, versions: everything that is not Produce or Fetch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay import errors
from georelay.errors import HomeUnreachable
from georelay.ids import BrokerId, Offset, RegionNumber
from georelay.wire.api import SUPPORTED, ApiKey, ErrorCode
from georelay.wire.requests import (
    ApiVersionsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from region.controller.definition_rules import define
from region.controller.topic import TopicSpec
from region.controller.topic_settings import TOPIC_SETTINGS
from region.controller.topology import RegionInfo, Topology
from region.kafka.dispatch import handler_table
from region.kafka.error_map import KAFKA_CODE, kafka_code
from region.kafka.handlers import topics
from region.kafka.handlers.sasl import SaslHandler
from tests.tiers import in_one_test


def all_errors() -> list[type[errors.GeorelayError]]:
    return [
        value for value in vars(errors).values() if isinstance(value, type) and errors.GeorelayError in value.__bases__
    ]


@in_one_test("kind", all_errors())
def test_every_error_has_a_kafka_code(kind: type[errors.GeorelayError]) -> None:
    assert kind in KAFKA_CODE


@in_one_test("kind", all_errors())
def test_only_unknown_outcomes_have_a_code_that_means_perhaps_stored(kind: type[errors.GeorelayError]) -> None:
    perhaps_stored = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert KAFKA_CODE[kind] not in perhaps_stored or kind.outcome is not errors.Outcome.NOT_STORED


def test_a_foreign_error_is_an_unknown_server_error() -> None:
    assert kafka_code(KeyError("x")) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_every_advertised_api_has_a_handler(bed: Any) -> None:
    assert len(handler_table(bed.services, SaslHandler(bed.services))) == len(SUPPORTED)


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),  # a bootstrap server, perhaps behind a gateway's relay
        ("mesh-test", 1001, ErrorCode.NONE),
        ("another", -1, ErrorCode.NONE),  # only who names both knows whom it wants
        (None, 1002, ErrorCode.NONE),
        ("mesh-test", 1002, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1001, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
async def test_a_client_that_reached_another_broker_than_it_named_begins_again(
    bed: Any, cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    client = await bed.client()
    request = ApiVersionsRequest("java", "4.4.0", cluster_id, node_id)
    response = await client.call(request, ApiKey.API_VERSIONS, 5)
    assert (response.error_code, len(response.api_keys)) == (code, len(SUPPORTED))


@pytest.mark.parametrize("version", range(6))
async def test_api_versions_lists_what_is_served(bed: Any, version: int) -> None:
    client = await bed.client()
    response = await client.call(ApiVersionsRequest(), ApiKey.API_VERSIONS, version)
    served = {row.api_key: range(row.min_version, row.max_version + 1) for row in response.api_keys}
    shown = {int(key): versions for key, versions in SUPPORTED.items()}
    assert served == shown | {int(ApiKey.PRODUCE): range(10)}  # 0-2 only for the eyes of old librdkafka


async def test_api_versions_of_a_newer_client_are_answered_in_version_zero(bed: Any) -> None:
    client = await bed.client()
    client.writer.write(bytes.fromhex("0000000a 0012 0063 00000007 ffff"))
    correlation, response = await client.receive(ApiKey.API_VERSIONS, 0)
    assert (correlation, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(
    "frame",
    [
        "ffffffff 0000 0000",  # negative length
        "7fffffff 0000 0009",  # 2 GiB
        "00100000 0003 0000",  # Metadata of 1 MiB
        "0000000a 0063 0000 00000007 ffff",  # an API nobody knows
        "0000000a 0000 0063 00000007 ffff",  # Produce version 99
        "0000000c 0003 0001 00000007 ffff 7fff",  # a truncated array
    ],
)
async def test_a_malformed_frame_closes_the_connection(bed: Any, frame: str) -> None:
    client = await bed.client()
    client.writer.write(bytes.fromhex(frame))
    assert await client.is_closed()
    assert bed.services.counters.wire_errors == 1


async def test_connections_over_the_limit_are_refused(bed: Any) -> None:
    await bed.listen(connections_max=1)
    first = await bed.client()
    await first.call(ApiVersionsRequest(), ApiKey.API_VERSIONS, 3)
    second = await bed.client()
    assert await second.is_closed()
    assert bed.services.counters.connections_refused == 1


@pytest.mark.parametrize("version", [12, 13])
async def test_a_region_that_was_removed_sends_its_clients_to_their_bootstrap_servers(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.has_left = True
    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    response = await client.call(request, ApiKey.METADATA, version)
    assert not response.brokers
    assert not response.topics
    assert response.error_code == (ErrorCode.REBOOTSTRAP_REQUIRED if version >= 13 else 0)


@pytest.mark.parametrize("version", range(14))
async def test_metadata_describes_topics_brokers_and_home_epochs(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders", 2)
    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    for _ in range(2):  # built, then cached
        response = await client.call(request, ApiKey.METADATA, version)
        assert [(broker.node_id, broker.port) for broker in response.brokers] == [(1001, bed.cluster.kafka_port)]
        (topic,) = response.topics
        assert [(part.partition_index, part.leader_id) for part in topic.partitions] == [(0, 1001), (1, 1001)]
        assert version < 7 or topic.partitions[0].leader_epoch == 1


async def test_metadata_is_built_anew_when_its_epoch_moves(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    request = MetadataRequest(topics=None)
    assert len((await client.call(request, ApiKey.METADATA, 12)).topics) == 1
    bed.cluster.add_topic("other")
    assert len((await client.call(request, ApiKey.METADATA, 12)).topics) == 2


async def test_an_answer_with_an_error_is_not_cached(bed: Any) -> None:
    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="late")], allow_auto_topic_creation=False)
    response = await client.call(request, ApiKey.METADATA, 12)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epoch = bed.cluster.metadata_epoch
    bed.cluster.add_topic("late")
    bed.cluster.metadata_epoch = epoch
    assert (await client.call(request, ApiKey.METADATA, 12)).topics[0].error_code == 0


@pytest.mark.parametrize("name", ["", "no spaces", "x" * 250])
async def test_metadata_refuses_a_name_that_is_not_allowed(bed: Any, name: str) -> None:
    client = await bed.client()
    response = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), ApiKey.METADATA, 9)
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not bed.cluster.views


async def test_nothing_is_created_when_automatic_creation_is_off(bed: Any) -> None:
    bed.cluster.auto_create_topics = False
    client = await bed.client()
    response = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="x")]), ApiKey.METADATA, 9)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not bed.cluster.views


@pytest.mark.parametrize("version", range(1, 14))
async def test_topics_of_the_brokers_themselves_are_internal_so_that_clients_can_leave_them_out(
    bed: Any, version: int
) -> None:
    bed.cluster.add_topic("orders")
    own = bed.cluster.add_topic("__georelay_coordinators")
    bed.cluster.views[own.name] = dataclasses.replace(own, internal=True)
    client = await bed.client()
    response = await client.call(MetadataRequest(topics=None), ApiKey.METADATA, version)
    assert {topic.name: topic.is_internal for topic in response.topics} == {"orders": False, own.name: True}


async def test_metadata_by_topic_id(bed: Any) -> None:
    view = bed.cluster.add_topic("orders")
    client = await bed.client()
    wanted = [
        MetadataRequestTopic(topic_id=view.wire_id, name=None),
        MetadataRequestTopic(topic_id=b"?" * 16),
        MetadataRequestTopic(topic_id=view.wire_id, name=""),  # as Java's Admin writes it
        MetadataRequestTopic(topic_id=b"?" * 16, name=""),
    ]
    response = await client.call(MetadataRequest(topics=wanted), ApiKey.METADATA, 12)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("orders", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ] * 2


def creatable(**fields: Any) -> CreatableTopic:
    return CreatableTopic(**{"name": "fresh", **fields})


def setting(name: str, value: str | None) -> tuple[CreatableTopicConfig, ...]:
    return (CreatableTopicConfig(name=name, value=value),)


async def create(bed: Any, topic: CreatableTopic, *, version: int = 7, validate_only: bool = False) -> Any:
    client = await bed.client()
    request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
    return (await client.call(request, ApiKey.CREATE_TOPICS, version)).topics[0]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created(bed: Any, version: int) -> None:
    assert (await create(bed, creatable(num_partitions=3), version=version)).error_code == 0
    assert bed.cluster.views["fresh"].partitions == 3


async def test_validate_only_creates_nothing(bed: Any) -> None:
    row = await create(bed, creatable(), validate_only=True)
    assert (row.error_code, row.num_partitions) == (0, 1)
    assert not bed.cluster.views


async def test_homes_every_is_a_setting(bed: Any) -> None:
    await create(bed, creatable(configs=setting("georelay.homes", "every")))
    assert bed.cluster.views["fresh"].homes == "every"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "no spaces"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": 1001}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            {"assignments": (CreatableReplicaAssignment(partition_index=0, broker_ids=(1001,)),)},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        ({"configs": setting("nonsense", "1")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("min.insync.regions", "no")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("retention.ms", "soon")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("retention.ms", None)}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("cleanup.policy", "shred")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("georelay.homes", "some")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("retention.ms", "1") * 2}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_wrong_definition_is_refused_and_explained(bed: Any, fields: dict[str, Any], code: ErrorCode) -> None:
    row = await create(bed, creatable(**fields))
    assert row.error_code == code
    assert row.error_message
    assert not bed.cluster.views


@pytest.mark.parametrize("version", [5, 7])
@pytest.mark.parametrize("validate_only", [True, False])
async def test_a_topic_is_answered_with_all_its_settings(bed: Any, version: int, validate_only: bool) -> None:
    given = {
        "min.insync.regions": "2",
        "failover": "auto",
        "max.geo.lag.ms": "500",
        "protect.k": "2",
        "cleanup.policy": "compact",
        "retention.ms": "1000",
        "flush.ms": "5",
    }
    configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in given.items())
    row = await create(bed, creatable(configs=configs), version=version, validate_only=validate_only)
    assert (row.error_code, row.topic_config_error_code, row.replication_factor) == (0, 0, 1)
    shown = {each.name: each for each in row.configs}
    assert shown.keys() == TOPIC_SETTINGS.keys()
    assert {name: shown[name].value for name in given} == given
    assert {shown[name].config_source for name in given} == {1}
    assert shown["segment.ms"].config_source == 5
    assert shown["georelay.homes"].read_only
    assert bool(bed.cluster.views) is not validate_only


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "eu.orders"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": setting("georelay.home", "mars"), "replication_factor": 2}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("min.insync.regions", "3")}, ErrorCode.INVALID_CONFIG),
        ({"configs": setting("min.insync.replicas", "3")}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_what_the_definitions_home_refuses_has_the_code_of_what_is_wrong(
    bed: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], code: ErrorCode, validate_only: bool
) -> None:
    regions = tuple(
        RegionInfo(number=RegionNumber(n), name=name, brokers=(BrokerId(n * 1000 + 1),))
        for n, name in ((1, "us"), (2, "eu"))
    )
    topology = Topology(mesh_id="m", region=RegionNumber(1), definitions_home=RegionNumber(1), regions=regions)

    def judged(spec: TopicSpec) -> TopicSpec:
        define(dataclasses.replace(spec, home=spec.home or "us"), topic_id=bytes(16), topology=topology)
        return spec

    monkeypatch.setattr(bed.cluster, "check_topic", judged)
    row = await create(bed, creatable(**fields), validate_only=validate_only)
    assert row.error_code == code
    assert row.error_message
    assert not bed.cluster.views


async def test_an_existing_topic_is_not_created_again(bed: Any) -> None:
    bed.cluster.add_topic("fresh")
    assert (await create(bed, creatable())).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_as_many_topics_as_a_request_can_hold_make_an_answer_that_a_client_reads(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "SETTINGS_ANSWERED_MAX", 2)
    client = await bed.client()
    wanted = [creatable(name=f"t{number}") for number in range(120)]
    request = CreateTopicsRequest(topics=wanted, validate_only=True)
    rows = (await client.call(request, ApiKey.CREATE_TOPICS, 7)).topics
    assert [bool(row.configs) for row in rows] == [True] * 2 + [False] * 118
    assert {(row.error_code, row.num_partitions) for row in rows} == {(0, 1)}


async def test_a_topic_twice_in_one_request_is_refused(bed: Any) -> None:
    client = await bed.client()
    request = CreateTopicsRequest(topics=[creatable(), creatable()])
    (row,) = (await client.call(request, ApiKey.CREATE_TOPICS, 7)).topics
    assert row.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    names = ("orders", "ghost")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], topic_names=names)
    response = await client.call(request, ApiKey.DELETE_TOPICS, version)
    assert [row.error_code for row in response.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not bed.cluster.views


@pytest.mark.parametrize("name", [None, ""])
async def test_a_topic_is_deleted_by_id(bed: Any, name: str | None) -> None:
    view = bed.cluster.add_topic("orders")
    client = await bed.client()
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=view.wire_id)])
    (row,) = (await client.call(request, ApiKey.DELETE_TOPICS, 6)).responses
    assert (row.name, row.error_code) == ("orders", 0)


def list_offsets(timestamp: int, *, epoch: int = -1, partition: int = 0) -> ListOffsetsRequest:
    row = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[row])])


@pytest.mark.parametrize(("timestamp", "offset"), [(-1, 3), (-2, 1), (-3, 2), (1500, 2), (0, 0), (9999, -1)])
async def test_offsets_are_found_by_timestamp(bed: Any, timestamp: int, offset: int) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    for at_ms in (1000, 1000, 2000):
        stream.add(b"x", timestamp_ms=at_ms)
    stream.log_start = 1
    client = await bed.client()
    (topic,) = (await client.call(list_offsets(timestamp), ApiKey.LIST_OFFSETS, 7)).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].offset) == (0, offset)


async def test_the_end_of_a_partition_is_confirmed_by_a_quorum_before_it_is_told(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    client = await bed.client()
    await client.call(list_offsets(-2), ApiKey.LIST_OFFSETS, 7)
    assert stream.ends_confirmed == 0  # the log start never goes back: it needs nobody's word
    await client.call(list_offsets(-1), ApiKey.LIST_OFFSETS, 7)
    assert stream.ends_confirmed == 1
    stream.is_cut_off = True
    (topic,) = (await client.call(list_offsets(-1), ApiKey.LIST_OFFSETS, 7)).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].offset) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("timestamp", [2000, -3])
async def test_no_record_of_a_time_is_said_only_once_the_end_is_known(bed: Any, timestamp: int) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    for at_ms in (1000, 2000):
        stream.add(b"x", timestamp_ms=at_ms)
    client = await bed.client()

    async def ask() -> tuple[int, int]:
        (topic,) = (await client.call(list_offsets(timestamp), ApiKey.LIST_OFFSETS, 7)).topics
        return topic.partitions[0].error_code, topic.partitions[0].offset

    stream.geo_end, stream.geo_end_confirmed = Offset(0), Offset(2)  # a new leader: too few regions were heard yet
    assert await ask() == (0, 1)
    stream.geo_end, stream.is_cut_off = Offset(0), True
    assert await ask() == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


async def test_a_record_of_a_time_that_is_shown_needs_nobodys_word(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.add(b"x", timestamp_ms=1000)
    stream.is_cut_off = True
    (topic,) = (await (await bed.client()).call(list_offsets(1000), ApiKey.LIST_OFFSETS, 7)).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].offset) == (0, 0)


async def test_list_offsets_refuses_what_it_does_not_know(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    codes = []
    for request in (list_offsets(-1, partition=9), list_offsets(-1, epoch=9), list_offsets(-4)):
        (topic,) = (await client.call(request, ApiKey.LIST_OFFSETS, 7)).topics
        codes.append(topic.partitions[0].error_code)
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNSUPPORTED_VERSION,
    ]


async def test_the_end_of_an_epoch_is_answered(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.stream("orders", 0).epoch_ends[1] = (1, 2**63 - 1)
    client = await bed.client()
    row = OffsetForLeaderPartition(partition=0, leader_epoch=1)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="orders", partitions=[row])])
    (topic,) = (await client.call(request, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)).topics
    assert (topic.partitions[0].leader_epoch, topic.partitions[0].end_offset) == (1, 2**63 - 1)


async def test_producer_ids_are_never_given_twice(bed: Any) -> None:
    client = await bed.client()
    request = InitProducerIdRequest()
    first = await client.call(request, ApiKey.INIT_PRODUCER_ID, 4)
    second = await client.call(request, ApiKey.INIT_PRODUCER_ID, 4)
    assert first.producer_id != second.producer_id
    assert first.producer_epoch == 0


async def test_a_transactional_producer_without_a_name_is_refused(bed: Any) -> None:
    client = await bed.client()
    response = await client.call(InitProducerIdRequest(transactional_id=""), ApiKey.INIT_PRODUCER_ID, 4)
    assert response.error_code == ErrorCode.INVALID_REQUEST


async def test_a_failed_allocation_has_its_code(bed: Any) -> None:
    bed.cluster.producer_errors.append(HomeUnreachable("gone"))
    client = await bed.client()
    response = await client.call(InitProducerIdRequest(), ApiKey.INIT_PRODUCER_ID, 4)
    assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
