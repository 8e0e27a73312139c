"""Which classes the requests and responses of an API have: one row per API of `georelay.wire.keys`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from georelay.wire import (
    acls,
    cluster,
    group_admin,
    group_membership,
    group_offsets,
    quotas,
    requests,
    responses,
    scram_users,
    transactions,
)
from georelay.wire.keys import ApiKey

Request = (
    requests.Request
    | group_membership.FindCoordinatorRequest
    | group_membership.JoinGroupRequest
    | group_membership.SyncGroupRequest
    | group_membership.HeartbeatRequest
    | group_membership.LeaveGroupRequest
    | group_admin.ListGroupsRequest
    | group_admin.DescribeGroupsRequest
    | group_admin.DeleteGroupsRequest
    | group_offsets.OffsetCommitRequest
    | group_offsets.OffsetFetchRequest
    | group_offsets.OffsetDeleteRequest
    | transactions.AddPartitionsToTxnRequest
    | transactions.AddOffsetsToTxnRequest
    | transactions.EndTxnRequest
    | transactions.TxnOffsetCommitRequest
    | transactions.DescribeTransactionsRequest
    | transactions.ListTransactionsRequest
    | acls.DescribeAclsRequest
    | acls.CreateAclsRequest
    | acls.DeleteAclsRequest
    | quotas.DescribeClientQuotasRequest
    | quotas.AlterClientQuotasRequest
    | scram_users.DescribeUserScramCredentialsRequest
    | scram_users.AlterUserScramCredentialsRequest
    | cluster.DescribeClusterRequest
    | cluster.CreatePartitionsRequest
    | cluster.DescribeProducersRequest
    | cluster.DescribeLogDirsRequest
    | cluster.ListPartitionReassignmentsRequest
    | cluster.AlterPartitionReassignmentsRequest
    | cluster.ElectLeadersRequest
    | cluster.DescribeTopicPartitionsRequest
)
Response = (
    responses.Response
    | group_membership.FindCoordinatorResponse
    | group_membership.JoinGroupResponse
    | group_membership.SyncGroupResponse
    | group_membership.HeartbeatResponse
    | group_membership.LeaveGroupResponse
    | group_admin.ListGroupsResponse
    | group_admin.DescribeGroupsResponse
    | group_admin.DeleteGroupsResponse
    | group_offsets.OffsetCommitResponse
    | group_offsets.OffsetFetchResponse
    | group_offsets.OffsetDeleteResponse
    | transactions.AddPartitionsToTxnResponse
    | transactions.AddOffsetsToTxnResponse
    | transactions.EndTxnResponse
    | transactions.TxnOffsetCommitResponse
    | transactions.DescribeTransactionsResponse
    | transactions.ListTransactionsResponse
    | acls.DescribeAclsResponse
    | acls.CreateAclsResponse
    | acls.DeleteAclsResponse
    | quotas.DescribeClientQuotasResponse
    | quotas.AlterClientQuotasResponse
    | scram_users.DescribeUserScramCredentialsResponse
    | scram_users.AlterUserScramCredentialsResponse
    | cluster.DescribeClusterResponse
    | cluster.CreatePartitionsResponse
    | cluster.DescribeProducersResponse
    | cluster.DescribeLogDirsResponse
    | cluster.ListPartitionReassignmentsResponse
    | cluster.AlterPartitionReassignmentsResponse
    | cluster.ElectLeadersResponse
    | cluster.DescribeTopicPartitionsResponse
)

_CLASSES: Final[Mapping[ApiKey, tuple[type, type]]] = {
    ApiKey.PRODUCE: (requests.ProduceRequest, responses.ProduceResponse),
    ApiKey.FETCH: (requests.FetchRequest, responses.FetchResponse),
    ApiKey.LIST_OFFSETS: (requests.ListOffsetsRequest, responses.ListOffsetsResponse),
    ApiKey.METADATA: (requests.MetadataRequest, responses.MetadataResponse),
    ApiKey.OFFSET_COMMIT: (group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (group_membership.FindCoordinatorRequest, group_membership.FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: (group_membership.JoinGroupRequest, group_membership.JoinGroupResponse),
    ApiKey.HEARTBEAT: (group_membership.HeartbeatRequest, group_membership.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (group_membership.LeaveGroupRequest, group_membership.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (group_membership.SyncGroupRequest, group_membership.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (group_admin.DescribeGroupsRequest, group_admin.DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (group_admin.ListGroupsRequest, group_admin.ListGroupsResponse),
    ApiKey.SASL_HANDSHAKE: (requests.SaslHandshakeRequest, responses.SaslHandshakeResponse),
    ApiKey.API_VERSIONS: (requests.ApiVersionsRequest, responses.ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: (requests.CreateTopicsRequest, responses.CreateTopicsResponse),
    ApiKey.DELETE_TOPICS: (requests.DeleteTopicsRequest, responses.DeleteTopicsResponse),
    ApiKey.DELETE_RECORDS: (requests.DeleteRecordsRequest, responses.DeleteRecordsResponse),
    ApiKey.INIT_PRODUCER_ID: (requests.InitProducerIdRequest, responses.InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (requests.OffsetForLeaderEpochRequest, responses.OffsetForLeaderEpochResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: (transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: (transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    ApiKey.END_TXN: (transactions.EndTxnRequest, transactions.EndTxnResponse),
    ApiKey.TXN_OFFSET_COMMIT: (transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    ApiKey.DESCRIBE_ACLS: (acls.DescribeAclsRequest, acls.DescribeAclsResponse),
    ApiKey.CREATE_ACLS: (acls.CreateAclsRequest, acls.CreateAclsResponse),
    ApiKey.DELETE_ACLS: (acls.DeleteAclsRequest, acls.DeleteAclsResponse),
    ApiKey.DESCRIBE_CONFIGS: (requests.DescribeConfigsRequest, responses.DescribeConfigsResponse),
    ApiKey.ALTER_CONFIGS: (requests.AlterConfigsRequest, responses.AlterConfigsResponse),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse),
    ApiKey.SASL_AUTHENTICATE: (requests.SaslAuthenticateRequest, responses.SaslAuthenticateResponse),
    ApiKey.CREATE_PARTITIONS: (cluster.CreatePartitionsRequest, cluster.CreatePartitionsResponse),
    ApiKey.DELETE_GROUPS: (group_admin.DeleteGroupsRequest, group_admin.DeleteGroupsResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        requests.IncrementalAlterConfigsRequest,
        responses.IncrementalAlterConfigsResponse,
    ),
    ApiKey.ELECT_LEADERS: (cluster.ElectLeadersRequest, cluster.ElectLeadersResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        cluster.AlterPartitionReassignmentsRequest,
        cluster.AlterPartitionReassignmentsResponse,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        cluster.ListPartitionReassignmentsRequest,
        cluster.ListPartitionReassignmentsResponse,
    ),
    ApiKey.OFFSET_DELETE: (group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse),
    ApiKey.ALTER_CLIENT_QUOTAS: (quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        scram_users.DescribeUserScramCredentialsRequest,
        scram_users.DescribeUserScramCredentialsResponse,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        scram_users.AlterUserScramCredentialsRequest,
        scram_users.AlterUserScramCredentialsResponse,
    ),
    ApiKey.DESCRIBE_CLUSTER: (cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
    ApiKey.DESCRIBE_PRODUCERS: (cluster.DescribeProducersRequest, cluster.DescribeProducersResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: (transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse),
    ApiKey.LIST_TRANSACTIONS: (transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        cluster.DescribeTopicPartitionsRequest,
        cluster.DescribeTopicPartitionsResponse,
    ),
}
REQUESTS: Final[Mapping[ApiKey, type]] = MappingProxyType({key: pair[0] for key, pair in _CLASSES.items()})
RESPONSES: Final[Mapping[ApiKey, type]] = MappingProxyType({key: pair[1] for key, pair in _CLASSES.items()})
KEY_OF: Final[Mapping[type, ApiKey]] = MappingProxyType({cls: key for key, pair in _CLASSES.items() for cls in pair})
