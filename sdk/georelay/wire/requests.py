"""Requests of the Kafka protocol, as tables (see `georelay.wire.schema`). Field names are Kafka's.

Rule: defaults are what a version without the field means; a class never validates, the codec and the broker do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from georelay.wire.schema import I8, I16, I32, I64, NO_UUID, At, Bool, Bytes, Records, Str, Uuid, struct


@struct
class ApiVersionsRequest:
    """Which APIs and versions do you speak? Versions below 3 have no body."""

    client_software_name: Annotated[Str, At(since=3)] = ""
    client_software_version: Annotated[Str, At(since=3)] = ""
    cluster_id: Annotated[Str | None, At(since=5)] = None  # whom the client wants to speak to, with node_id (KIP-1242)
    node_id: Annotated[I32, At(since=5)] = -1


@struct
class MetadataRequestTopic:
    """A topic by name; by id (versions 10 and up) when the name is null."""

    topic_id: Annotated[Uuid, At(since=10)] = NO_UUID
    name: Annotated[Str | None, At(nullable=10)] = None


@struct
class MetadataRequest:
    """`topics` null asks for all topics; in version 0 an empty list does."""

    topics: Annotated[Sequence[MetadataRequestTopic] | None, At(nullable=1)] = ()
    allow_auto_topic_creation: Annotated[Bool, At(since=4)] = True
    include_cluster_authorized_operations: Annotated[Bool, At(since=8, until=10)] = False
    include_topic_authorized_operations: Annotated[Bool, At(since=8)] = False


@struct
class PartitionProduceData:
    """One partition's batches, one after the other; decoded as a view of the frame."""

    index: I32
    records: Records | None


@struct
class TopicProduceData:
    """The partitions of one topic."""

    name: Str
    partition_data: Sequence[PartitionProduceData]


@struct
class ProduceRequest:
    """Append batches. `acks` is 0 (no answer), 1 or -1 (all)."""

    transactional_id: Str | None
    acks: I16
    timeout_ms: I32
    topic_data: Sequence[TopicProduceData]


@struct
class FetchPartition:
    """Read from `fetch_offset`; at most `partition_max_bytes`, but always one whole batch if it comes first."""

    partition: I32
    current_leader_epoch: Annotated[I32, At(since=9)] = -1
    fetch_offset: I64 = 0
    last_fetched_epoch: Annotated[I32, At(since=12)] = -1
    log_start_offset: Annotated[I64, At(since=5)] = -1
    partition_max_bytes: I32 = 0


@struct
class FetchTopic:
    """The partitions of one topic."""

    topic: Str
    partitions: Sequence[FetchPartition]


@struct
class ForgottenTopic:
    """Partitions that leave a fetch session."""

    topic: Str
    partitions: Sequence[I32]


@struct
class FetchRequest:
    """Read batches, waiting at most `max_wait_ms` for `min_bytes`."""

    replica_id: I32 = -1
    max_wait_ms: I32 = 0
    min_bytes: I32 = 0
    max_bytes: I32 = 0x7FFFFFFF
    isolation_level: I8 = 0
    session_id: Annotated[I32, At(since=7)] = 0
    session_epoch: Annotated[I32, At(since=7)] = -1
    topics: Sequence[FetchTopic] = ()
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], At(since=7)] = ()
    rack_id: Annotated[Str, At(since=11)] = ""
    cluster_id: Annotated[Str | None, At(since=12, tag=0)] = None


@struct
class ListOffsetsPartition:
    """`timestamp` in ms since the Unix epoch; -1 asks for the end, -2 for the start, -3 for the largest timestamp."""

    partition_index: I32
    current_leader_epoch: Annotated[I32, At(since=4)] = -1
    timestamp: I64 = -1


@struct
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ListOffsetsPartition]


@struct
class ListOffsetsRequest:
    """Offsets by timestamp."""

    replica_id: I32 = -1
    isolation_level: Annotated[I8, At(since=2)] = 0
    topics: Sequence[ListOffsetsTopic] = ()


@struct
class CreatableReplicaAssignment:
    """Replicas chosen by hand."""

    partition_index: I32
    broker_ids: Sequence[I32]


@struct
class CreatableTopicConfig:
    """One setting of a topic."""

    name: Str
    value: Str | None


@struct
class CreatableTopic:
    """A topic to make; -1 partitions or replicas ask for the default."""

    name: Str
    num_partitions: I32 = -1
    replication_factor: I16 = -1
    assignments: Sequence[CreatableReplicaAssignment] = ()
    configs: Sequence[CreatableTopicConfig] = ()


@struct
class CreateTopicsRequest:
    """Make topics."""

    topics: Sequence[CreatableTopic] = ()
    timeout_ms: I32 = 60_000
    validate_only: Bool = False


@struct
class DeleteTopicState:
    """A topic by name, or by id when the name is null."""

    name: Str | None = None
    topic_id: Uuid = NO_UUID


@struct
class DeleteTopicsRequest:
    """Delete topics: `topics` from version 6 on, `topic_names` before."""

    topics: Annotated[Sequence[DeleteTopicState], At(since=6)] = ()
    topic_names: Annotated[Sequence[Str], At(until=5)] = ()
    timeout_ms: I32 = 60_000


@struct
class DeleteRecordsPartition:
    """Delete what is below `offset`; -1 is the high watermark."""

    partition_index: I32
    offset: I64


@struct
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DeleteRecordsPartition]


@struct
class DeleteRecordsRequest:
    """Delete the oldest records of partitions for ever."""

    topics: Sequence[DeleteRecordsTopic] = ()
    timeout_ms: I32 = 60_000


@struct
class InitProducerIdRequest:
    """Get a producer id (`transactional_id` null: for idempotence only)."""

    transactional_id: Str | None = None
    transaction_timeout_ms: I32 = 60_000
    producer_id: Annotated[I64, At(since=3)] = -1
    producer_epoch: Annotated[I16, At(since=3)] = -1


@struct
class OffsetForLeaderPartition:
    """Where does `leader_epoch` end?"""

    partition: I32
    current_leader_epoch: I32 = -1
    leader_epoch: I32 = -1


@struct
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: Str
    partitions: Sequence[OffsetForLeaderPartition]


@struct
class OffsetForLeaderEpochRequest:
    """Find the point up to which a client and the log agree."""

    replica_id: Annotated[I32, At(since=3)] = -2
    topics: Sequence[OffsetForLeaderTopic] = ()


@struct
class DescribeConfigsResource:
    """A topic (2) or a broker (4) by name; null keys ask for every setting."""

    resource_type: I8
    resource_name: Str
    configuration_keys: Sequence[Str] | None = None


@struct
class DescribeConfigsRequest:
    """What are the settings of these?"""

    resources: Sequence[DescribeConfigsResource] = ()
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, At(since=3)] = False


@struct
class AlterableConfig:
    """A setting and its new value."""

    name: Str
    value: Str | None


@struct
class AlterConfigsResource:
    """All settings of one resource: what is not named goes back to its default."""

    resource_type: I8
    resource_name: Str
    configs: Sequence[AlterableConfig] = ()


@struct
class AlterConfigsRequest:
    """Replace the settings of resources."""

    resources: Sequence[AlterConfigsResource] = ()
    validate_only: Bool = False


@struct
class IncrementalAlterableConfig:
    """A setting and what to do with it: set (0), delete (1), append (2) or subtract (3)."""

    name: Str
    config_operation: I8
    value: Str | None = None


@struct
class IncrementalAlterConfigsResource:
    """Some settings of one resource: what is not named stays."""

    resource_type: I8
    resource_name: Str
    configs: Sequence[IncrementalAlterableConfig] = ()


@struct
class IncrementalAlterConfigsRequest:
    """Change single settings of resources."""

    resources: Sequence[IncrementalAlterConfigsResource] = ()
    validate_only: Bool = False


@struct
class SaslHandshakeRequest:
    """Choose a mechanism."""

    mechanism: Str


@struct
class SaslAuthenticateRequest:
    """One step of the chosen mechanism. Holds a secret: never log it."""

    auth_bytes: Bytes

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest(<{len(self.auth_bytes)} bytes>)"


Request = (
    ApiVersionsRequest
    | MetadataRequest
    | ProduceRequest
    | FetchRequest
    | ListOffsetsRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | DeleteRecordsRequest
    | InitProducerIdRequest
    | OffsetForLeaderEpochRequest
    | DescribeConfigsRequest
    | AlterConfigsRequest
    | IncrementalAlterConfigsRequest
    | SaslHandshakeRequest
    | SaslAuthenticateRequest
)
