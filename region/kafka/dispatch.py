"""The table from Kafka requests to their handlers; it has a row for every API that is advertised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from georelay.wire.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from georelay.wire.cluster import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from georelay.wire.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from georelay.wire.group_membership import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from georelay.wire.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from georelay.wire.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from georelay.wire.requests import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from georelay.wire.scram_users import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from georelay.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from region.kafka.connection import Slot
from region.kafka.handlers.acls import AclsHandler
from region.kafka.handlers.admin_cluster import (
    DescribeClusterHandler,
    DescribeLogDirsHandler,
    ListPartitionReassignmentsHandler,
)
from region.kafka.handlers.api_versions import ApiVersionsHandler
from region.kafka.handlers.configs import AlterConfigsHandler, DescribeConfigsHandler
from region.kafka.handlers.fetch import FetchHandler
from region.kafka.handlers.find_coordinator import FindCoordinatorHandler
from region.kafka.handlers.group_admin import GroupAdminHandler
from region.kafka.handlers.group_offsets import GroupOffsetsHandler
from region.kafka.handlers.groups import GroupsHandler
from region.kafka.handlers.metadata import MetadataHandler
from region.kafka.handlers.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler
from region.kafka.handlers.partitions import CreatePartitionsHandler
from region.kafka.handlers.produce import ProduceHandler
from region.kafka.handlers.producer_ids import InitProducerIdHandler
from region.kafka.handlers.producers_admin import DescribeProducersHandler
from region.kafka.handlers.quotas import QuotasHandler
from region.kafka.handlers.records import DeleteRecordsHandler
from region.kafka.handlers.replicas_admin import AlterPartitionReassignmentsHandler, ElectLeadersHandler
from region.kafka.handlers.sasl import SaslHandler
from region.kafka.handlers.scram_users import ScramUsersHandler
from region.kafka.handlers.topic_partitions import DescribeTopicPartitionsHandler
from region.kafka.handlers.topics import CreateTopicsHandler, DeleteTopicsHandler
from region.kafka.handlers.transaction_offsets import TxnOffsetCommitHandler
from region.kafka.handlers.transactions import TransactionHandlers
from region.kafka.handlers.transactions_admin import TransactionsAdminHandler
from region.kafka.services import KafkaServices

Handle = Callable[[Slot, Any], None]


def handler_table(services: KafkaServices, sasl: SaslHandler) -> Mapping[type, Handle]:
    """Return the handler of every request class."""
    acls, quotas, scram_users = AclsHandler(services), QuotasHandler(services), ScramUsersHandler(services)
    configs = AlterConfigsHandler(services)
    transactions, transactions_admin = TransactionHandlers(services), TransactionsAdminHandler(services)
    groups = GroupsHandler(services)
    group_admin = GroupAdminHandler(services)
    group_offsets = GroupOffsetsHandler(services)
    return {
        ProduceRequest: ProduceHandler(services).handle,
        FetchRequest: FetchHandler(services).handle,
        ListOffsetsRequest: ListOffsetsHandler(services).handle,
        MetadataRequest: MetadataHandler(services).handle,
        FindCoordinatorRequest: FindCoordinatorHandler(services).handle,
        JoinGroupRequest: groups.join,
        SyncGroupRequest: groups.sync,
        HeartbeatRequest: groups.heartbeat,
        LeaveGroupRequest: groups.leave,
        OffsetCommitRequest: group_offsets.commit,
        OffsetFetchRequest: group_offsets.fetch,
        OffsetDeleteRequest: group_offsets.delete,
        ListGroupsRequest: group_admin.list_groups,
        DescribeGroupsRequest: group_admin.describe,
        DeleteGroupsRequest: group_admin.delete,
        SaslHandshakeRequest: sasl.handshake,
        ApiVersionsRequest: ApiVersionsHandler(services).handle,
        CreateTopicsRequest: CreateTopicsHandler(services).handle,
        DeleteTopicsRequest: DeleteTopicsHandler(services).handle,
        DeleteRecordsRequest: DeleteRecordsHandler(services).handle,
        InitProducerIdRequest: InitProducerIdHandler(services).handle,
        AddPartitionsToTxnRequest: transactions.add_partitions,
        AddOffsetsToTxnRequest: transactions.add_offsets,
        EndTxnRequest: transactions.end,
        TxnOffsetCommitRequest: TxnOffsetCommitHandler(services).handle,
        DescribeTransactionsRequest: transactions_admin.describe,
        ListTransactionsRequest: transactions_admin.list,
        OffsetForLeaderEpochRequest: OffsetForLeaderEpochHandler(services).handle,
        DescribeConfigsRequest: DescribeConfigsHandler(services).handle,
        AlterConfigsRequest: configs.replace,
        IncrementalAlterConfigsRequest: configs.change,
        DescribeLogDirsRequest: DescribeLogDirsHandler(services).handle,
        CreatePartitionsRequest: CreatePartitionsHandler(services).handle,
        ListPartitionReassignmentsRequest: ListPartitionReassignmentsHandler(services).handle,
        AlterPartitionReassignmentsRequest: AlterPartitionReassignmentsHandler(services).handle,
        ElectLeadersRequest: ElectLeadersHandler(services).handle,
        DescribeClusterRequest: DescribeClusterHandler(services).handle,
        DescribeProducersRequest: DescribeProducersHandler(services).handle,
        DescribeTopicPartitionsRequest: DescribeTopicPartitionsHandler(services).handle,
        SaslAuthenticateRequest: sasl.authenticate,
        DescribeAclsRequest: acls.describe,
        CreateAclsRequest: acls.create,
        DeleteAclsRequest: acls.delete,
        DescribeClientQuotasRequest: quotas.describe,
        AlterClientQuotasRequest: quotas.alter,
        DescribeUserScramCredentialsRequest: scram_users.describe,
        AlterUserScramCredentialsRequest: scram_users.alter,
    }
