"""Responses of the Kafka protocol, as tables (see `georelay.wire.schema`). Field names are Kafka's.

Rule: `error_code` is a plain number, so that a client can show one it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from georelay.wire.schema import I8, I16, I32, I64, NO_UUID, At, Bool, Buffers, Bytes, Str, Uuid, struct

NO_OPERATIONS: Final = -(2**31)  # "authorized operations" that were not asked for


@struct
class ApiVersion:
    """One API and the versions of it that are spoken."""

    api_key: I16
    min_version: I16
    max_version: I16


@struct
class SupportedFeatureKey:
    """A feature of the cluster and its levels."""

    name: Str
    min_version: I16
    max_version: I16


@struct
class FinalizedFeatureKey:
    """A feature level that is switched on."""

    name: Str
    max_version_level: I16
    min_version_level: I16


@struct
class ApiVersionsResponse:
    """The APIs spoken; error 35 in version 0 answers a request of an unknown version."""

    error_code: I16 = 0
    api_keys: Sequence[ApiVersion] = ()
    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], At(since=3, tag=0)] = ()
    finalized_features_epoch: Annotated[I64, At(since=3, tag=1)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], At(since=3, tag=2)] = ()
    zk_migration_ready: Annotated[Bool, At(since=3, tag=3)] = False


@struct
class MetadataResponseBroker:
    """Where a broker listens."""

    node_id: I32
    host: Str
    port: I32
    rack: Annotated[Str | None, At(since=1)] = None


@struct
class MetadataResponsePartition:
    """Leader and replicas of a partition; `leader_epoch` is the home epoch."""

    error_code: I16
    partition_index: I32
    leader_id: I32
    leader_epoch: Annotated[I32, At(since=7)] = -1
    replica_nodes: Sequence[I32] = ()
    isr_nodes: Sequence[I32] = ()
    offline_replicas: Annotated[Sequence[I32], At(since=5)] = ()


@struct
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: I16
    name: Annotated[Str | None, At(nullable=12)]
    topic_id: Annotated[Uuid, At(since=10)] = NO_UUID
    is_internal: Annotated[Bool, At(since=1)] = False
    partitions: Sequence[MetadataResponsePartition] = ()
    topic_authorized_operations: Annotated[I32, At(since=8)] = NO_OPERATIONS


@struct
class MetadataResponse:
    """Brokers of the region and the topics asked for."""

    throttle_time_ms: Annotated[I32, At(since=3)] = 0
    brokers: Sequence[MetadataResponseBroker] = ()
    cluster_id: Annotated[Str | None, At(since=2)] = None
    controller_id: Annotated[I32, At(since=1)] = -1
    topics: Sequence[MetadataResponseTopic] = ()
    cluster_authorized_operations: Annotated[I32, At(since=8, until=10)] = NO_OPERATIONS
    error_code: Annotated[I16, At(since=13)] = 0


@struct
class BatchIndexAndErrorMessage:
    """Why one record of a batch was refused."""

    batch_index: I32
    batch_index_error_message: Str | None = None


@struct
class PartitionProduceResponse:
    """What became of one partition's batch."""

    index: I32
    error_code: I16 = 0
    base_offset: I64 = -1
    log_append_time_ms: I64 = -1
    log_start_offset: Annotated[I64, At(since=5)] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], At(since=8)] = ()
    error_message: Annotated[Str | None, At(since=8)] = None


@struct
class TopicProduceResponse:
    """The partitions of one topic."""

    name: Str
    partition_responses: Sequence[PartitionProduceResponse]


@struct
class ProduceResponse:
    """Answer to a Produce with acks 1 or -1."""

    responses: Sequence[TopicProduceResponse] = ()
    throttle_time_ms: I32 = 0


@struct
class DivergingEpoch:
    """Where the reader's log and the leader's part."""

    epoch: I32 = -1
    end_offset: I64 = -1


@struct
class LeaderIdAndEpoch:
    """A leader to go to."""

    leader_id: I32 = -1
    leader_epoch: I32 = -1


@struct
class SnapshotId:
    """A snapshot of a metadata log; never sent by georelay."""

    end_offset: I64 = -1
    epoch: I32 = -1


@struct
class AbortedTransaction:
    """A transaction whose records a reader must skip."""

    producer_id: I64
    first_offset: I64


@struct
class FetchPartitionData:
    """Batches of one partition, as buffers sent one after the other; empty when there is nothing to read."""

    partition_index: I32
    error_code: I16 = 0
    high_watermark: I64 = -1
    last_stable_offset: I64 = -1
    log_start_offset: Annotated[I64, At(since=5)] = -1
    diverging_epoch: Annotated[DivergingEpoch | None, At(since=12, tag=0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, At(since=12, tag=1)] = None
    snapshot_id: Annotated[SnapshotId | None, At(since=12, tag=2)] = None
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[I32, At(since=11)] = -1
    records: Buffers | None = ()


@struct
class FetchableTopicResponse:
    """The partitions of one topic."""

    topic: Str
    partitions: Sequence[FetchPartitionData]


@struct
class FetchResponse:
    """Batches read."""

    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, At(since=7)] = 0
    session_id: Annotated[I32, At(since=7)] = 0
    responses: Sequence[FetchableTopicResponse] = ()


@struct
class ListOffsetsPartitionResponse:
    """An offset and the timestamp of its record; -1 and -1 when there is none."""

    partition_index: I32
    error_code: I16 = 0
    timestamp: I64 = -1
    offset: I64 = -1
    leader_epoch: Annotated[I32, At(since=4)] = -1


@struct
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ListOffsetsPartitionResponse]


@struct
class ListOffsetsResponse:
    """Offsets by timestamp."""

    throttle_time_ms: Annotated[I32, At(since=2)] = 0
    topics: Sequence[ListOffsetsTopicResponse] = ()


@struct
class CreatableTopicConfigs:
    """A setting that a new topic got."""

    name: Str
    value: Str | None
    read_only: Bool = False
    config_source: I8 = -1
    is_sensitive: Bool = False


@struct
class CreatableTopicResult:
    """What became of one topic."""

    name: Str
    topic_id: Annotated[Uuid, At(since=7)] = NO_UUID
    error_code: I16 = 0
    error_message: Str | None = None
    topic_config_error_code: Annotated[I16, At(since=5, tag=0)] = 0
    num_partitions: Annotated[I32, At(since=5)] = -1
    replication_factor: Annotated[I16, At(since=5)] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, At(since=5)] = None


@struct
class CreateTopicsResponse:
    """Answer to CreateTopics."""

    throttle_time_ms: I32 = 0
    topics: Sequence[CreatableTopicResult] = ()


@struct
class DeletableTopicResult:
    """What became of one topic."""

    name: Annotated[Str | None, At(nullable=6)]
    topic_id: Annotated[Uuid, At(since=6)] = NO_UUID
    error_code: I16 = 0
    error_message: Annotated[Str | None, At(since=5)] = None


@struct
class DeleteTopicsResponse:
    """Answer to DeleteTopics."""

    throttle_time_ms: I32 = 0
    responses: Sequence[DeletableTopicResult] = ()


@struct
class DeleteRecordsPartitionResult:
    """The log start that resulted, -1 with an error."""

    partition_index: I32
    low_watermark: I64 = -1
    error_code: I16 = 0


@struct
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DeleteRecordsPartitionResult]


@struct
class DeleteRecordsResponse:
    """Answer to DeleteRecords."""

    throttle_time_ms: I32 = 0
    topics: Sequence[DeleteRecordsTopicResult] = ()


@struct
class InitProducerIdResponse:
    """A producer id, unique in the mesh."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    producer_id: I64 = -1
    producer_epoch: I16 = -1


@struct
class EpochEndOffset:
    """The end of the newest epoch that is not above the one asked for; -1 and -1 when unknown."""

    error_code: I16
    partition: I32
    leader_epoch: I32 = -1
    end_offset: I64 = -1


@struct
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: Str
    partitions: Sequence[EpochEndOffset]


@struct
class OffsetForLeaderEpochResponse:
    """Ends of epochs."""

    throttle_time_ms: I32 = 0
    topics: Sequence[OffsetForLeaderTopicResult] = ()


@struct
class DescribeConfigsSynonym:
    """Another place where the value of a setting may come from."""

    name: Str
    value: Str | None
    source: I8


@struct
class DescribeConfigsResourceResult:
    """One setting.

    `config_source` is 1 (set for the topic), 4 (the broker's file) or 5 (default); `config_type` is 1 (bool), 2 (text),
    3 (int), 5 (long) or 7 (list).
    """

    name: Str
    value: Str | None
    read_only: Bool = False
    config_source: I8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[DescribeConfigsSynonym] = ()
    config_type: Annotated[I8, At(since=3)] = 0
    documentation: Annotated[Str | None, At(since=3)] = None


@struct
class DescribeConfigsResult:
    """The settings of one resource."""

    error_code: I16
    error_message: Str | None
    resource_type: I8
    resource_name: Str
    configs: Sequence[DescribeConfigsResourceResult] = ()


@struct
class DescribeConfigsResponse:
    """Answer to DescribeConfigs."""

    throttle_time_ms: I32 = 0
    results: Sequence[DescribeConfigsResult] = ()


@struct
class AlterConfigsResourceResponse:
    """What became of the change of one resource."""

    error_code: I16
    error_message: Str | None
    resource_type: I8
    resource_name: Str


@struct
class AlterConfigsResponse:
    """Answer to AlterConfigs."""

    throttle_time_ms: I32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()


@struct
class IncrementalAlterConfigsResponse:
    """Answer to IncrementalAlterConfigs."""

    throttle_time_ms: I32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()


@struct
class SaslHandshakeResponse:
    """The mechanisms that are offered."""

    error_code: I16 = 0
    mechanisms: Sequence[Str] = ()


@struct
class SaslAuthenticateResponse:
    """The answer of one step."""

    error_code: I16 = 0
    error_message: Str | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[I64, At(since=1)] = 0


Response = (
    ApiVersionsResponse
    | MetadataResponse
    | ProduceResponse
    | FetchResponse
    | ListOffsetsResponse
    | CreateTopicsResponse
    | DeleteTopicsResponse
    | DeleteRecordsResponse
    | InitProducerIdResponse
    | OffsetForLeaderEpochResponse
    | DescribeConfigsResponse
    | AlterConfigsResponse
    | IncrementalAlterConfigsResponse
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
)
