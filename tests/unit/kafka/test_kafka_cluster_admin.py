"""What consoles ask of a cluster: brokers, sizes, moves, producers; and topics that grow."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest

from georelay.errors import HomeUnreachable
from georelay.ids import brokers_own
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.cluster import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    TopicPartitionsCursor,
)
from georelay.wire.keys import SUPPORTED
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.listeners import ListenerParts
from region.controller.topic import Homes
from region.kafka.ports import ProducerInfo
from region.security.access import Access
from region.security.acl_core import AclIndex
from tests.tiers import first

KEYS_OF_KAFKA = range(100)  # the newest is 92 in Apache Kafka 4.1


class NothingAllowed:
    version = 1
    enforced = True
    index = AclIndex()


@pytest.fixture
def denied(bed: Any) -> Any:
    """The same region, where nobody may do anything."""
    bed.services = dataclasses.replace(bed.services, access=Access(NothingAllowed()))
    return bed


@pytest.mark.parametrize("version", range(2))
async def test_the_cluster_is_the_region_and_its_brokers(bed: Any, version: int) -> None:
    client = await bed.client()
    response = await client.call(DescribeClusterRequest(True), ApiKey.DESCRIBE_CLUSTER, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "mesh-test", 1001)
    assert [(row.broker_id, row.port, row.rack) for row in response.brokers] == [(1001, bed.cluster.kafka_port, "us")]
    assert response.cluster_authorized_operations > 0


@pytest.mark.parametrize(("kind", "code"), [(2, 114), (0, 115), (9, 115)])
async def test_other_endpoints_than_brokers_are_refused(bed: Any, kind: int, code: int) -> None:
    client = await bed.client()
    response = await client.call(DescribeClusterRequest(False, kind), ApiKey.DESCRIBE_CLUSTER, 1)
    assert response.error_code == code


async def test_who_may_not_describe_the_cluster_sees_brokers_and_no_operations(denied: Any) -> None:
    client = await denied.client()
    response = await client.call(DescribeClusterRequest(True), ApiKey.DESCRIBE_CLUSTER, 1)
    assert (len(response.brokers), response.cluster_authorized_operations) == (1, 0)


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders", 2)
    client = await bed.client()
    request = CreatePartitionsRequest((CreatePartitionsTopic("orders", 5),))
    (row,) = (await client.call(request, ApiKey.CREATE_PARTITIONS, version)).results
    assert (row.name, row.error_code, row.error_message) == ("orders", 0, None)
    assert bed.cluster.changes == [("add_partitions", "orders", 5)]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("orders", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 1001, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 3, (CreatePartitionsAssignment((1001,)),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("ghost", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("eu.clicks", 3, None, ErrorCode.POLICY_VIOLATION),
    ],
)
async def test_what_cannot_grow_says_why_and_nothing_changes(
    bed: Any, name: str, count: int, assignments: Any, code: ErrorCode
) -> None:
    bed.cluster.add_topic("orders", 2)
    bed.cluster.add_topic("eu.clicks", 1, homes=Homes.EVERY, mirror_of="clicks")
    client = await bed.client()
    request = CreatePartitionsRequest((CreatePartitionsTopic(name, count, assignments),))
    (row,) = (await client.call(request, ApiKey.CREATE_PARTITIONS, 3)).results
    assert row.error_code == code
    assert row.error_message
    assert bed.cluster.changes == []


async def test_growth_can_be_tried_without_growing(bed: Any) -> None:
    bed.cluster.add_topic("orders", 2)
    client = await bed.client()
    request = CreatePartitionsRequest((CreatePartitionsTopic("orders", 3),), validate_only=True)
    (row,) = (await client.call(request, ApiKey.CREATE_PARTITIONS, 3)).results
    assert (row.error_code, bed.cluster.changes) == (0, [])


async def test_a_topic_twice_in_one_request_is_refused_and_another_grows(bed: Any) -> None:
    bed.cluster.add_topic("orders", 1)
    bed.cluster.add_topic("other", 1)
    client = await bed.client()
    rows = [CreatePartitionsTopic("orders", 2), CreatePartitionsTopic("other", 2), CreatePartitionsTopic("orders", 3)]
    response = await client.call(CreatePartitionsRequest(rows), ApiKey.CREATE_PARTITIONS, 3)
    assert [(row.name, row.error_code) for row in response.results] == [("orders", 42), ("other", 0)]
    assert bed.cluster.changes == [("add_partitions", "other", 2)]


async def test_a_definitions_home_that_cannot_be_reached_is_no_unknown_outcome(bed: Any) -> None:
    bed.cluster.add_topic("orders", 1)
    bed.cluster.admin_errors.append(HomeUnreachable("the definitions home cannot be reached"))
    client = await bed.client()
    request = CreatePartitionsRequest((CreatePartitionsTopic("orders", 2),))
    (row,) = (await client.call(request, ApiKey.CREATE_PARTITIONS, 3)).results
    assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_who_may_not_alter_a_topic_cannot_let_it_grow(denied: Any) -> None:
    denied.cluster.add_topic("orders", 1)
    client = await denied.client()
    for name in ("orders", "ghost"):  # nor find out whether it exists
        request = CreatePartitionsRequest((CreatePartitionsTopic(name, 2),))
        (row,) = (await client.call(request, ApiKey.CREATE_PARTITIONS, 3)).results
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert denied.cluster.changes == []


@pytest.mark.parametrize("version", range(1, 5))
async def test_sizes_are_shown_per_replica(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders", 2)
    bed.cluster.add_topic("clicks", 1)
    client = await bed.client()
    (result,) = (await client.call(DescribeLogDirsRequest(), ApiKey.DESCRIBE_LOG_DIRS, version)).results
    shown = {
        row.name: [(part.partition_index, part.partition_size) for part in row.partitions] for row in result.topics
    }
    assert shown == {"clicks": [(0, 100)], "orders": [(0, 100), (1, 101)]}
    assert (result.log_dir, result.total_bytes) == ("/data", 1000 if version == 4 else -1)
    wanted = DescribeLogDirsRequest((DescribableLogDirTopic("orders", (1, 7)), DescribableLogDirTopic("ghost", (0,))))
    (result,) = (await client.call(wanted, ApiKey.DESCRIBE_LOG_DIRS, version)).results
    assert [(row.name, len(row.partitions)) for row in result.topics] == [("orders", 1)]


async def test_moves_are_shown_and_what_rests_is_not(bed: Any) -> None:
    bed.cluster.add_topic("orders", 2)
    bed.cluster.add_topic("still", 1)
    bed.cluster.targets["orders", 1] = (1002, 1003)
    client = await bed.client()
    key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    (topic,) = (await client.call(ListPartitionReassignmentsRequest(), key, 0)).topics
    (row,) = topic.partitions
    assert (topic.name, row.partition_index) == ("orders", 1)
    assert (tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)) == (
        (1001, 1002, 1003),
        (1002, 1003),
        (1001,),
    )
    asked = (ListPartitionReassignmentsTopics("orders", (0,)), ListPartitionReassignmentsTopics("ghost", (0,)))
    response = await client.call(ListPartitionReassignmentsRequest(topics=asked), key, 0)
    assert (response.error_code, response.topics) == (0, ())


async def test_who_may_not_describe_the_cluster_sees_neither_sizes_nor_moves(denied: Any) -> None:
    denied.cluster.add_topic("orders", 1)
    client = await denied.client()
    sizes = await client.call(DescribeLogDirsRequest(), ApiKey.DESCRIBE_LOG_DIRS, 4)
    assert (sizes.error_code, sizes.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())
    moves = await client.call(ListPartitionReassignmentsRequest(), ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)
    assert (moves.error_code, moves.topics) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())


async def test_producers_are_shown_by_the_leader_without_those_of_the_brokers(bed: Any) -> None:
    bed.cluster.add_topic("orders", 2)
    bed.cluster.producers["orders", 0] = [
        ProducerInfo(producer_id=7, producer_epoch=1, last_sequence=41, newest_append_ms=5),
        ProducerInfo(
            producer_id=9,
            producer_epoch=0,
            last_sequence=3,
            newest_append_ms=6,
            transaction_number=2,
            transaction_start=17,
        ),
        ProducerInfo(producer_id=brokers_own(8), producer_epoch=0, last_sequence=3, newest_append_ms=6),
    ]
    bed.cluster.streams["orders", 1].is_leader = False
    client = await bed.client()
    request = DescribeProducersRequest((DescribeProducersTopic("orders", (0, 1, 2)),))
    (topic,) = (await client.call(request, ApiKey.DESCRIBE_PRODUCERS, 0)).topics
    first, second, third = topic.partitions
    assert [dataclasses.astuple(row) for row in first.active_producers] == [(7, 1, 41, 5, -1, -1), (9, 0, 3, 6, 2, 17)]
    assert (second.error_code, third.error_code) == (6, 3)


async def test_who_may_not_read_a_topic_does_not_see_its_producers(denied: Any) -> None:
    denied.cluster.add_topic("orders", 1)
    client = await denied.client()
    request = DescribeProducersRequest((DescribeProducersTopic("orders", (0,)),))
    (topic,) = (await client.call(request, ApiKey.DESCRIBE_PRODUCERS, 0)).topics
    assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def not_served(versions_max: int) -> list[tuple[int, int]]:
    """Return every API of Kafka in versions that are not served: below, above, and all of those that are not there.

    Args:
        versions_max: of each API, the lowest ones.
    """
    pairs: list[tuple[int, int]] = [(-1, 0), (1000, 0), (32_767, 0), (-32_768, -1)]
    for key in KEYS_OF_KAFKA:
        served = SUPPORTED.get(key, range(0))  # type: ignore[call-overload]
        pairs += [(key, version) for version in range(-1, 30) if version not in served][:versions_max]
    return [pair for pair in pairs if pair[0] != ApiKey.API_VERSIONS]


@pytest.mark.parametrize("versions_max", first(1, [2, 31]))
async def test_every_api_and_version_outside_the_table_closes_the_connection_and_nothing_else(
    bed: Any, versions_max: int
) -> None:
    many = AdmissionLimits(admits_per_address_per_s=100_000, admits_per_address_burst=100_000, accepts_per_s=100_000)
    await bed.listen(parts=ListenerParts(name="kafka", contexts=None, limits=many, counters=AdmissionCounters()))
    steady = await bed.client()
    pairs = not_served(versions_max)
    assert len(pairs) > (150 if versions_max == 2 else 2_000)
    for key, version in pairs:
        client = await bed.client()
        client.writer.write(struct.pack(">ihhih", 10, key, version, 7, -1))
        assert await client.is_closed(), (key, version)
        client.writer.close()
    response = await steady.call(DescribeClusterRequest(), ApiKey.DESCRIBE_CLUSTER, 0)
    assert response.error_code == 0


@pytest.mark.parametrize("version", [-1, 6, 7, 99, 32_767])
async def test_api_versions_outside_the_table_are_answered_with_the_table(bed: Any, version: int) -> None:
    client = await bed.client()
    client.writer.write(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, version, 7, -1))
    correlation, response = await client.receive(ApiKey.API_VERSIONS, 0)
    assert (correlation, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert {row.api_key for row in response.api_keys} == set(SUPPORTED)


async def pages(client: Any, request: DescribeTopicPartitionsRequest) -> list[list[tuple[str, int, list[int]]]]:
    """Ask for page after page; return the rows of each: a topic, its error, its partitions."""
    found = []
    while True:
        page = await client.call(request, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
        found.append([(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in page.topics])
        if page.next_cursor is None:
            return found
        request = dataclasses.replace(request, cursor=page.next_cursor)


async def test_topics_are_described_by_name_in_pages_of_partitions(bed: Any) -> None:
    for name, partitions in (("refunds", 1), ("orders", 5)):
        bed.cluster.add_topic(name, partitions=partitions)
    client = await bed.client()
    assert await pages(client, DescribeTopicPartitionsRequest(response_partition_limit=3)) == [
        [("orders", 0, [0, 1, 2])],
        [("orders", 0, [3, 4]), ("refunds", 0, [0])],
    ]
    topics = [DescribeTopicPartitionsTopic(name) for name in ("refunds", "no/name", "none", "orders", "orders")]
    assert await pages(client, DescribeTopicPartitionsRequest(topics)) == [
        [("no/name", 17, []), ("none", 3, []), ("orders", 0, [0, 1, 2, 3, 4]), ("refunds", 0, [0])]
    ]


async def test_a_described_partition_says_who_leads_it_and_what_the_client_may_do(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    page = await client.call(DescribeTopicPartitionsRequest(), ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    (topic,) = page.topics
    (row,) = topic.partitions
    assert (row.leader_id, row.replica_nodes, row.isr_nodes, row.offline_replicas) == (1001, (1001,), (1001,), ())
    assert (row.eligible_leader_replicas, row.last_known_elr) == ((), ())
    assert topic.topic_authorized_operations > 0


@pytest.mark.parametrize("bad", [{"cursor": TopicPartitionsCursor("orders", -1)}, {"response_partition_limit": 0}])
async def test_a_page_that_cannot_be_is_refused_by_topic(bed: Any, bad: dict[str, Any]) -> None:
    request = DescribeTopicPartitionsRequest([DescribeTopicPartitionsTopic("orders")], **bad)
    assert await pages(await bed.client(), request) == [[("orders", 42, [])]]
    assert await pages(await bed.client(), DescribeTopicPartitionsRequest(**bad)) == [[]]


async def test_all_topics_are_those_that_the_client_may_describe(denied: Any) -> None:
    denied.cluster.add_topic("orders")
    assert await pages(await denied.client(), DescribeTopicPartitionsRequest()) == [[]]
    request = DescribeTopicPartitionsRequest([DescribeTopicPartitionsTopic(name) for name in ("orders", "none")])
    assert await pages(await denied.client(), request) == [[("none", 29, []), ("orders", 29, [])]]
