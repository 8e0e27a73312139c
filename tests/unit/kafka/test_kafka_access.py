"""Every request of the Kafka protocol asks the access control lists, and what is denied looks as Kafka's does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from georelay.errors import Throttled
from georelay.wire import acls, cluster, group_admin, group_membership, group_offsets, quotas, scram_users, transactions
from georelay.wire.api import SUPPORTED, ApiKey, ErrorCode
from georelay.wire.batch import build_batch
from georelay.wire.requests import (
    AlterConfigsRequest,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from region.controller.security_book import SecurityBook
from region.controller.security_wishes import add_acls, plan, put_quota
from region.security.access import Access, Operation, Resource
from region.security.acl import AclEntry, ResourcePattern
from region.security.administration import SecurityAdmin
from region.security.audit import AuditLog
from region.security.quotas import Quotas
from region.security.rules import Authorization, BookRules

TOPIC, GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER, TXN = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
BATCH = build_batch([(b"x", None, ())], timestamps_ms=1)

# API -> (a request that would do something, its version, the code it must be denied with)
REQUESTS: dict[ApiKey, tuple[Any, int, ErrorCode]] = {
    ApiKey.PRODUCE: (
        ProduceRequest(None, -1, 1000, [TopicProduceData("orders", [PartitionProduceData(0, BATCH)])]),
        9,
        TOPIC,
    ),
    ApiKey.FETCH: (FetchRequest(topics=[FetchTopic("orders", [FetchPartition(partition=0)])]), 11, TOPIC),
    ApiKey.LIST_OFFSETS: (
        ListOffsetsRequest(
            topics=[ListOffsetsTopic("orders", [ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        ),
        5,
        TOPIC,
    ),
    ApiKey.METADATA: (MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9, TOPIC),
    ApiKey.OFFSET_COMMIT: (
        group_offsets.OffsetCommitRequest(
            group_id="g",
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    "orders", [group_offsets.OffsetCommitRequestPartition(0, 1, -1, None)]
                )
            ],
        ),
        7,
        GROUP,
    ),
    ApiKey.OFFSET_FETCH: (group_offsets.OffsetFetchRequest(group_id="g", topics=None), 7, GROUP),
    ApiKey.FIND_COORDINATOR: (group_membership.FindCoordinatorRequest(key="g"), 3, GROUP),
    ApiKey.JOIN_GROUP: (
        group_membership.JoinGroupRequest("g", 10_000, 10_000, protocol_type="consumer"),
        5,
        GROUP,
    ),
    ApiKey.HEARTBEAT: (group_membership.HeartbeatRequest("g", 1, "m"), 3, GROUP),
    ApiKey.LEAVE_GROUP: (group_membership.LeaveGroupRequest("g", "m"), 2, GROUP),
    ApiKey.SYNC_GROUP: (group_membership.SyncGroupRequest("g", 1, "m"), 3, GROUP),
    ApiKey.DESCRIBE_GROUPS: (group_admin.DescribeGroupsRequest(groups=["g"]), 4, GROUP),
    ApiKey.CREATE_TOPICS: (CreateTopicsRequest(topics=[CreatableTopic("new", 1, 1)]), 5, TOPIC),
    ApiKey.DELETE_TOPICS: (DeleteTopicsRequest(topic_names=["orders"]), 4, TOPIC),
    ApiKey.DELETE_RECORDS: (
        DeleteRecordsRequest(topics=[DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 0)])]),
        1,
        TOPIC,
    ),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest(), 3, TOPIC),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("orders", [OffsetForLeaderPartition(0, -1, 1)])]),
        3,
        TOPIC,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        transactions.AddPartitionsToTxnRequest("t", 1, 0, [transactions.AddPartitionsToTxnTopic("orders", [0])]),
        3,
        TOPIC,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (transactions.AddOffsetsToTxnRequest("t", 1, 0, "g"), 3, GROUP),
    ApiKey.END_TXN: (transactions.EndTxnRequest("t", 1, 0, True), 3, TXN),
    ApiKey.TXN_OFFSET_COMMIT: (
        transactions.TxnOffsetCommitRequest(
            "t",
            "g",
            1,
            0,
            topics=[
                transactions.TxnOffsetCommitRequestTopic("orders", [transactions.TxnOffsetCommitRequestPartition(0, 1)])
            ],
        ),
        3,
        TXN,
    ),
    ApiKey.DESCRIBE_ACLS: (acls.DescribeAclsRequest(1, pattern_type_filter=1), 2, CLUSTER),
    ApiKey.CREATE_ACLS: (
        acls.CreateAclsRequest([acls.AclCreation(2, "orders", 3, "User:ann", "*", 3, 3)]),
        2,
        CLUSTER,
    ),
    ApiKey.DELETE_ACLS: (acls.DeleteAclsRequest([acls.DeleteAclsFilter(1, pattern_type_filter=1)]), 2, CLUSTER),
    ApiKey.DESCRIBE_CONFIGS: (DescribeConfigsRequest([DescribeConfigsResource(2, "orders")]), 4, TOPIC),
    ApiKey.ALTER_CONFIGS: (AlterConfigsRequest([AlterConfigsResource(2, "orders", [])]), 2, TOPIC),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster.DescribeLogDirsRequest(topics=None), 3, CLUSTER),
    ApiKey.CREATE_PARTITIONS: (
        cluster.CreatePartitionsRequest([cluster.CreatePartitionsTopic("orders", 3)]),
        2,
        TOPIC,
    ),
    ApiKey.DELETE_GROUPS: (group_admin.DeleteGroupsRequest(["g"]), 2, GROUP),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        IncrementalAlterConfigsRequest([IncrementalAlterConfigsResource(2, "orders", [])]),
        1,
        TOPIC,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (cluster.ListPartitionReassignmentsRequest(topics=None), 0, CLUSTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (cluster.AlterPartitionReassignmentsRequest(), 1, CLUSTER),
    ApiKey.ELECT_LEADERS: (cluster.ElectLeadersRequest(), 2, CLUSTER),
    ApiKey.OFFSET_DELETE: (group_offsets.OffsetDeleteRequest("g"), 0, GROUP),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (quotas.DescribeClientQuotasRequest(), 1, CLUSTER),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        quotas.AlterClientQuotasRequest(
            [quotas.AlterEntryData([quotas.EntityData("user", "ann")], [quotas.OpData("producer_byte_rate", 1.0)])]
        ),
        1,
        CLUSTER,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (scram_users.DescribeUserScramCredentialsRequest(), 0, CLUSTER),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        scram_users.AlterUserScramCredentialsRequest([scram_users.ScramCredentialDeletion("ann", 1)]),
        0,
        CLUSTER,
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        cluster.DescribeProducersRequest([cluster.DescribeProducersTopic("orders", [0])]),
        0,
        TOPIC,
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        cluster.DescribeTopicPartitionsRequest([cluster.DescribeTopicPartitionsTopic("orders")]),
        0,
        TOPIC,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (transactions.DescribeTransactionsRequest(["t"]), 0, TXN),
}
# These ask too, and leave out what may not be seen instead of refusing.
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
# Before a sign-in, and the brokers themselves: no secret to who may connect.
OPEN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER}


class Home:
    """A book that wishes change at once."""

    def __init__(self) -> None:
        self.book = SecurityBook()

    async def change_security(self, wish: dict[str, object], *, by: str = "") -> None:
        for definition in plan(self.book, wish):
            self.book.remember(dataclasses.replace(definition, index=self.book.index + 1))

    def allow(self, operation: Operation, resource: Resource, name: str = "kafka-cluster") -> None:
        entry = AclEntry(principal="User:ANONYMOUS", operation=operation)
        wish = add_acls([(ResourcePattern(resource=resource, name=name), entry)])
        for definition in plan(self.book, wish):
            self.book.remember(dataclasses.replace(definition, index=self.book.index + 1))


@pytest.fixture
def home(bed: Any) -> Home:
    """Let the bed enforce lists that the returned home changes."""
    home = Home()
    audit = AuditLog()
    access = Access(BookRules(book=lambda: home.book, authorization=Authorization.ON), denied=audit.denied)
    admin = SecurityAdmin(
        controller=home,
        book=lambda: home.book,
        access=access,
        audit=audit,
        sign_in_needed=lambda: True,
        knows_brokers=True,
    )
    bed.services = dataclasses.replace(bed.services, access=access, security=admin)
    bed.cluster.add_topic("orders")
    bed.audit = audit
    return home


def codes(value: Any) -> Iterator[int]:
    """Return every error code in a response."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield inner
            yield from codes(inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from codes(item)


def test_every_api_is_in_one_of_the_tables_here() -> None:
    assert {*REQUESTS, *FILTERED, *OPEN} == set(SUPPORTED)


@pytest.mark.parametrize("key", sorted(REQUESTS), ids=lambda key: key.name)
async def test_a_request_that_nothing_was_granted_for_is_denied(bed: Any, home: Home, key: ApiKey) -> None:
    request, version, code = REQUESTS[key]
    client = await bed.client()
    response = await client.call(request, key, version)
    assert code in set(codes(response)), response
    assert bed.audit.denials > 0 and bed.audit.changes == 0
    assert bed.cluster.published == [] and bed.cluster.changes == []


@pytest.mark.parametrize("key", sorted({ApiKey.METADATA, *FILTERED}), ids=lambda key: key.name)
async def test_a_list_leaves_out_what_may_not_be_seen(bed: Any, home: Home, key: ApiKey) -> None:
    requests = {
        ApiKey.METADATA: (MetadataRequest(topics=None), 9, "topics"),
        ApiKey.LIST_GROUPS: (group_admin.ListGroupsRequest(), 4, "groups"),
        ApiKey.LIST_TRANSACTIONS: (transactions.ListTransactionsRequest(), 0, "transaction_states"),
    }
    request, version, rows = requests[key]
    client = await bed.client()
    assert list(getattr(await client.call(request, key, version), rows)) == []


async def test_a_topic_that_may_not_be_seen_looks_like_one_that_is_not_there(bed: Any, home: Home) -> None:
    client = await bed.client()
    wire_id = bed.cluster.views["orders"].wire_id
    named = await client.call(
        MetadataRequest(topics=[MetadataRequestTopic(name="orders"), MetadataRequestTopic(name="none")]),
        ApiKey.METADATA,
        9,
    )
    assert [row.error_code for row in named.topics] == [TOPIC, TOPIC]
    for version, nameless in ((12, None), (10, "")):
        by_id = await client.call(
            MetadataRequest(topics=[MetadataRequestTopic(topic_id=wire_id, name=None)]), ApiKey.METADATA, version
        )
        assert [(row.error_code, row.name) for row in by_id.topics] == [(ErrorCode.UNKNOWN_TOPIC_ID, nameless)]
    deleted = await client.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=wire_id)]), ApiKey.DELETE_TOPICS, 6
    )
    assert [(row.error_code, row.name) for row in deleted.responses] == [(ErrorCode.UNKNOWN_TOPIC_ID, None)]


async def test_an_unknown_topic_is_made_for_who_may_create_it_only(bed: Any, home: Home) -> None:
    home.allow(Operation.DESCRIBE, Resource.TOPIC, "*")
    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    assert (await client.call(request, ApiKey.METADATA, 9)).topics[0].error_code == TOPIC
    assert "new" not in bed.cluster.views
    home.allow(Operation.CREATE, Resource.CLUSTER)
    assert (await client.call(request, ApiKey.METADATA, 9)).topics[0].error_code == 0
    assert "new" in bed.cluster.views


async def test_a_topic_takes_a_share_of_who_made_it_unless_that_is_an_administrator(bed: Any, home: Home) -> None:
    home.allow(Operation.DESCRIBE, Resource.TOPIC, "*")
    home.allow(Operation.CREATE, Resource.CLUSTER)
    client = await bed.client()

    async def make(name: str) -> None:
        await client.call(CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1)]), ApiKey.CREATE_TOPICS, 5)
        wanted = [MetadataRequestTopic(name=f"{name}-by-itself")]
        await client.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), ApiKey.METADATA, 9)

    await make("a")
    home.allow(Operation.ALTER, Resource.CLUSTER)
    await make("b")
    assert bed.cluster.created_by == ["User:ANONYMOUS", "User:ANONYMOUS", "", ""]


async def test_who_creates_too_fast_is_told_when_to_go_on(bed: Any) -> None:
    client = await bed.client()
    request = CreateTopicsRequest(topics=[CreatableTopic("new", 1, 1)])
    bed.cluster.create_errors = [Throttled("too fast"), Throttled("too fast")]
    answer = await client.call(request, ApiKey.CREATE_TOPICS, 5)
    assert (answer.topics[0].error_code, answer.throttle_time_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 10_000)
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    (row,) = (await client.call(wanted, ApiKey.METADATA, 9)).topics
    assert row.error_code == ErrorCode.LEADER_NOT_AVAILABLE  # which every client repeats
    assert (await client.call(request, ApiKey.CREATE_TOPICS, 5)).throttle_time_ms == 0


async def test_a_right_counts_from_the_next_request_although_answers_are_cached(bed: Any, home: Home) -> None:
    client = await bed.client()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    assert (await client.call(request, ApiKey.METADATA, 9)).topics[0].error_code == TOPIC
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    assert (await client.call(request, ApiKey.METADATA, 9)).topics[0].error_code == 0


async def test_metadata_tells_what_the_client_may_do_when_it_asks(bed: Any, home: Home) -> None:
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    home.allow(Operation.DESCRIBE, Resource.CLUSTER)
    client = await bed.client()
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="orders")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    response = await client.call(request, ApiKey.METADATA, 9)
    assert response.topics[0].topic_authorized_operations == 1 << 3 | 1 << 8
    assert response.cluster_authorized_operations == 1 << 8
    plain = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), ApiKey.METADATA, 9)
    assert plain.topics[0].topic_authorized_operations == -(2**31)


async def test_a_producer_id_needs_the_right_to_write_some_topic(bed: Any, home: Home) -> None:
    client = await bed.client()
    home.allow(Operation.WRITE, Resource.TOPIC, "whatever")
    assert (await client.call(InitProducerIdRequest(), ApiKey.INIT_PRODUCER_ID, 3)).error_code == 0


async def test_lists_are_added_shown_and_deleted_by_kafkas_requests(bed: Any, home: Home) -> None:
    home.allow(Operation.ALL, Resource.CLUSTER)
    client = await bed.client()
    creations = [
        acls.AclCreation(2, "orders.", 4, "User:ann", "*", 3, 3),
        acls.AclCreation(2, "x", 3, "nobody", "*", 3, 3),
        acls.AclCreation(9, "x", 3, "User:ann", "*", 3, 3),
    ]
    created = await client.call(acls.CreateAclsRequest(creations), ApiKey.CREATE_ACLS, 2)
    assert [row.error_code for row in created.results] == [0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    for kind, name, found in ((1, None, 1), (2, "orders.eu", 1), (3, "orders.", 0), (4, "orders.", 1), (2, "o", 0)):
        request = acls.DescribeAclsRequest(2, name, kind)
        shown = await client.call(request, ApiKey.DESCRIBE_ACLS, 2)
        assert len(shown.resources) == found, (kind, name)
    gone = await client.call(
        acls.DeleteAclsRequest([acls.DeleteAclsFilter(2, pattern_type_filter=1)]), ApiKey.DELETE_ACLS, 2
    )
    assert [row.principal for row in gone.filter_results[0].matching_acls] == ["User:ann"]
    assert len(list(home.book.acls())) == 1  # the cluster's own


async def test_quotas_are_set_shown_and_removed_by_kafkas_requests(bed: Any, home: Home) -> None:
    home.allow(Operation.ALL, Resource.CLUSTER)
    client = await bed.client()

    async def alter(entity: Any, *ops: Any) -> int:
        request = quotas.AlterClientQuotasRequest([quotas.AlterEntryData([entity], ops)])
        return int((await client.call(request, ApiKey.ALTER_CLIENT_QUOTAS, 1)).entries[0].error_code)

    ann, everybody = quotas.EntityData("user", "ann"), quotas.EntityData("user", None)
    assert await alter(ann, quotas.OpData("producer_byte_rate", 1e6), quotas.OpData("request_percentage", 12.5)) == 0
    assert await alter(everybody, quotas.OpData("consumer_byte_rate", 5.0)) == 0
    assert await alter(quotas.EntityData("client-id", "c"), quotas.OpData("producer_byte_rate", 1.0)) == 42
    assert await alter(ann, quotas.OpData("producer_byte_rate", float("nan"))) == 42
    assert await alter(ann, quotas.OpData("controller_mutation_rate", 1.0)) == 42
    shown = await client.call(quotas.DescribeClientQuotasRequest(), ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
    rows = {row.entity[0].entity_name: {v.key: v.value for v in row.values} for row in shown.entries}
    assert rows == {"ann": {"producer_byte_rate": 1e6, "request_percentage": 12.5}, None: {"consumer_byte_rate": 5.0}}
    for match_type, match, found in ((0, "ann", 1), (0, "bob", 0), (1, None, 1), (2, None, 2)):
        request = quotas.DescribeClientQuotasRequest([quotas.ComponentData("user", match_type, match)])
        shown = await client.call(request, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
        assert len(shown.entries) == found, match_type
    assert await alter(everybody, quotas.OpData("consumer_byte_rate", 0.0, True)) == 0
    assert home.book.quota("User:*") is None


async def test_users_are_made_shown_and_unmade_by_kafkas_requests(bed: Any, home: Home) -> None:
    home.allow(Operation.ALL, Resource.CLUSTER)
    client = await bed.client()
    upsert = scram_users.ScramCredentialUpsertion("ann", 1, 8192, b"0123456789abcdef", bytes(32))

    async def alter(deletions: Any = (), upsertions: Any = ()) -> list[int]:
        request = scram_users.AlterUserScramCredentialsRequest(deletions, upsertions)
        response = await client.call(request, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
        return [row.error_code for row in response.results]

    assert await alter(upsertions=[upsert]) == [0]
    assert await alter(upsertions=[upsert, upsert]) == [ErrorCode.DUPLICATE_RESOURCE]
    for wrong in (
        dataclasses.replace(upsert, iterations=100),
        dataclasses.replace(upsert, salted_password=bytes(31)),
        dataclasses.replace(upsert, salt=b""),
    ):
        assert await alter(upsertions=[wrong]) == [ErrorCode.UNACCEPTABLE_CREDENTIAL]
    assert await alter(upsertions=[dataclasses.replace(upsert, mechanism=9)]) == [33]
    asked = scram_users.DescribeUserScramCredentialsRequest(
        [scram_users.UserName(name) for name in ("ann", "bob", "eve", "eve")]
    )
    shown = await client.call(asked, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0)
    assert [(row.user, row.error_code) for row in shown.results] == [("ann", 0), ("bob", 91), ("eve", 92)]
    assert [(info.mechanism, info.iterations) for info in shown.results[0].credential_infos] == [(1, 8192)]
    deletion = scram_users.ScramCredentialDeletion("ann", 1)
    assert await alter(deletions=[deletion]) == [0]
    assert await alter(deletions=[deletion]) == [ErrorCode.RESOURCE_NOT_FOUND]


async def test_a_producer_over_its_quota_is_told_and_not_read_for_so_long(bed: Any, home: Home) -> None:
    home.allow(Operation.ALL, Resource.TOPIC, "orders")
    now_s = [0.0]
    bed.services = dataclasses.replace(
        bed.services, quotas=Quotas(book=lambda: home.book, monotonic_s=lambda: now_s[0])
    )
    await home.change_security(put_quota("User:ANONYMOUS", produce_bytes_per_s=len(BATCH)))
    client = await bed.client()
    request, version, _ = REQUESTS[ApiKey.PRODUCE]
    assert (await client.call(request, ApiKey.PRODUCE, version)).throttle_time_ms == 0
    answer = await client.call(request, ApiKey.PRODUCE, version)
    assert answer.throttle_time_ms == 1_000
    assert [row.error_code for row in answer.responses[0].partition_responses] == [0]  # stored all the same
    (connection,) = bed.listener._connections
    assert connection._muted_until_ns > 0
    connection._go_on()
    assert (await client.call(MetadataRequest(topics=None), ApiKey.METADATA, 9)).topics


async def test_a_consumer_over_its_quota_is_told_with_its_records(bed: Any, home: Home) -> None:
    home.allow(Operation.ALL, Resource.TOPIC, "orders")
    bed.services = dataclasses.replace(bed.services, quotas=Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0))
    await home.change_security(put_quota("User:*", fetch_bytes_per_s=1))
    client = await bed.client()
    produce, version, _ = REQUESTS[ApiKey.PRODUCE]
    await client.call(produce, ApiKey.PRODUCE, version)
    fetch, version, _ = REQUESTS[ApiKey.FETCH]
    answer = await client.call(fetch, ApiKey.FETCH, version)
    assert answer.throttle_time_ms > 0
    assert answer.responses[0].partitions[0].records


async def test_a_batch_with_a_transactional_id_needs_the_right_to_that_id(bed: Any, home: Home) -> None:
    home.allow(Operation.WRITE, Resource.TOPIC, "orders")
    client = await bed.client()
    request = ProduceRequest("bank", -1, 1000, [TopicProduceData("orders", [PartitionProduceData(0, BATCH)])])
    answer = await client.call(request, ApiKey.PRODUCE, 9)
    assert [row.error_code for row in answer.responses[0].partition_responses] == [TXN]
    assert bed.cluster.published == []
    home.allow(Operation.WRITE, Resource.TRANSACTIONAL_ID, "bank")
    answer = await client.call(request, ApiKey.PRODUCE, 9)
    assert [row.error_code for row in answer.responses[0].partition_responses] == [0]


@pytest.mark.parametrize("version", [5, 7])
async def test_the_settings_of_a_new_topic_are_answered_to_who_may_see_them(bed: Any, home: Home, version: int) -> None:
    home.allow(Operation.CREATE, Resource.CLUSTER)
    client = await bed.client()
    request = CreateTopicsRequest(topics=[CreatableTopic("new", 1, 1)])
    (row,) = (await client.call(request, ApiKey.CREATE_TOPICS, version)).topics
    assert (row.error_code, row.topic_config_error_code) == (0, TOPIC)
    assert (row.num_partitions, row.replication_factor, row.configs) == (-1, -1, ())
    home.allow(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "newer")
    request = CreateTopicsRequest(topics=[CreatableTopic("newer", 1, 1)])
    (row,) = (await client.call(request, ApiKey.CREATE_TOPICS, version)).topics
    assert (row.topic_config_error_code, row.num_partitions, bool(row.configs)) == (0, 1, True)


@pytest.mark.parametrize("key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.CREATE_TOPICS], ids=lambda key: key.name)
async def test_as_many_names_as_a_request_can_hold_are_denied_before_a_client_gives_up(
    bed: Any, home: Home, key: ApiKey
) -> None:
    names = [f"{number:x}" for number in range(4_000)]
    request: Any = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1) for name in names])
    version = 5
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        topics = [transactions.AddPartitionsToTxnTopic(name, [0]) for name in names]
        request, version = transactions.AddPartitionsToTxnRequest("t", 1, 0, topics), 3
    client = await bed.client()
    began_s = time.process_time()
    assert set(codes(await client.call(request, key, version))) - {0} == {TOPIC}
    assert time.process_time() - began_s < 1
