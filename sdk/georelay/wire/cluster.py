"""The cluster as operators and web consoles see it: requests and responses as tables.

Field names are Kafka's (schemas DescribeCluster, CreatePartitions, DescribeProducers, DescribeLogDirs,
ListPartitionReassignments, AlterPartitionReassignments, ElectLeaders, DescribeTopicPartitions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from georelay.wire.responses import NO_OPERATIONS
from georelay.wire.schema import I8, I16, I32, I64, NO_UUID, At, Bool, Str, Uuid, struct

BROKER_ENDPOINTS: Final = 1  # DescribeCluster: the listeners of brokers; 2 would be a controller quorum's


@struct
class DescribeClusterRequest:
    """Who are the brokers?"""

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[I8, At(since=1)] = BROKER_ENDPOINTS


@struct
class DescribeClusterBroker:
    """Where a broker listens."""

    broker_id: I32
    host: Str
    port: I32
    rack: Str | None = None


@struct
class DescribeClusterResponse:
    """Answer to DescribeCluster."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Str | None = None
    endpoint_type: Annotated[I8, At(since=1)] = BROKER_ENDPOINTS
    cluster_id: Str = ""
    controller_id: I32 = -1
    brokers: Sequence[DescribeClusterBroker] = ()
    cluster_authorized_operations: I32 = NO_OPERATIONS


@struct
class CreatePartitionsAssignment:
    """The brokers of one new partition."""

    broker_ids: Sequence[I32] = ()


@struct
class CreatePartitionsTopic:
    """The number of partitions that a topic shall have."""

    name: Str
    count: I32
    assignments: Sequence[CreatePartitionsAssignment] | None = None


@struct
class CreatePartitionsRequest:
    """Let topics grow."""

    topics: Sequence[CreatePartitionsTopic] = ()
    timeout_ms: I32 = 60_000
    validate_only: Bool = False


@struct
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: Str
    error_code: I16 = 0
    error_message: Str | None = None


@struct
class CreatePartitionsResponse:
    """Answer to CreatePartitions."""

    throttle_time_ms: I32 = 0
    results: Sequence[CreatePartitionsTopicResult] = ()


@struct
class DescribeProducersTopic:
    """Partitions of one topic."""

    name: Str
    partition_indexes: Sequence[I32] = ()


@struct
class DescribeProducersRequest:
    """Which producers does the leader of a partition remember?"""

    topics: Sequence[DescribeProducersTopic] = ()


@struct
class ProducerState:
    """A producer that a partition remembers; -1 where there is no transaction."""

    producer_id: I64
    producer_epoch: I32
    last_sequence: I32 = -1
    last_timestamp: I64 = -1
    coordinator_epoch: I32 = -1
    current_txn_start_offset: I64 = -1


@struct
class DescribedProducersPartition:
    """The producers of one partition."""

    partition_index: I32
    error_code: I16 = 0
    error_message: Str | None = None
    active_producers: Sequence[ProducerState] = ()


@struct
class DescribedProducersTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DescribedProducersPartition] = ()


@struct
class DescribeProducersResponse:
    """Answer to DescribeProducers."""

    throttle_time_ms: I32 = 0
    topics: Sequence[DescribedProducersTopic] = ()


@struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: Str
    partitions: Sequence[I32] = ()


@struct
class DescribeLogDirsRequest:
    """How much disk do partitions take on this broker? Null asks for all."""

    topics: Sequence[DescribableLogDirTopic] | None = None


@struct
class DescribeLogDirsPartition:
    """One replica: its bytes, and how far it is behind in offsets."""

    partition_index: I32
    partition_size: I64
    offset_lag: I64 = 0
    is_future_key: Bool = False


@struct
class DescribeLogDirsTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[DescribeLogDirsPartition] = ()


@struct
class DescribeLogDirsResult:
    """One data directory and its disk; -1 bytes when not known."""

    error_code: I16
    log_dir: Str
    topics: Sequence[DescribeLogDirsTopic] = ()
    total_bytes: Annotated[I64, At(since=4)] = -1
    usable_bytes: Annotated[I64, At(since=4)] = -1


@struct
class DescribeLogDirsResponse:
    """Answer to DescribeLogDirs."""

    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, At(since=3)] = 0
    results: Sequence[DescribeLogDirsResult] = ()


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of one topic."""

    name: Str
    partition_indexes: Sequence[I32] = ()


@struct
class ListPartitionReassignmentsRequest:
    """Which partitions move? Null asks for all."""

    timeout_ms: I32 = 60_000
    topics: Sequence[ListPartitionReassignmentsTopics] | None = None


@struct
class OngoingPartitionReassignment:
    """A partition that moves: where it is, and the difference to where it goes."""

    partition_index: I32
    replicas: Sequence[I32] = ()
    adding_replicas: Sequence[I32] = ()
    removing_replicas: Sequence[I32] = ()


@struct
class OngoingTopicReassignment:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[OngoingPartitionReassignment] = ()


@struct
class ListPartitionReassignmentsResponse:
    """Answer to ListPartitionReassignments."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Str | None = None
    topics: Sequence[OngoingTopicReassignment] = ()


@struct
class ReassignablePartition:
    """The brokers that shall hold a partition; null takes back a move that is not done."""

    partition_index: I32
    replicas: Sequence[I32] | None = None


@struct
class ReassignableTopic:
    """Partitions of one topic."""

    name: Str
    partitions: Sequence[ReassignablePartition] = ()


@struct
class AlterPartitionReassignmentsRequest:
    """Move partitions to other brokers."""

    timeout_ms: I32 = 60_000
    allow_replication_factor_change: Annotated[Bool, At(since=1)] = True
    topics: Sequence[ReassignableTopic] = ()


@struct
class ReassignablePartitionResponse:
    """What became of one partition's wish."""

    partition_index: I32
    error_code: I16 = 0
    error_message: Str | None = None


@struct
class ReassignableTopicResponse:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[ReassignablePartitionResponse] = ()


@struct
class AlterPartitionReassignmentsResponse:
    """Answer to AlterPartitionReassignments."""

    throttle_time_ms: I32 = 0
    allow_replication_factor_change: Annotated[Bool, At(since=1)] = True
    error_code: I16 = 0
    error_message: Str | None = None
    responses: Sequence[ReassignableTopicResponse] = ()


@struct
class ElectLeadersTopic:
    """Partitions of one topic."""

    topic: Str
    partitions: Sequence[I32] = ()


@struct
class ElectLeadersRequest:
    """Let the preferred replicas (0), or any live ones (1), lead; null asks for all partitions."""

    election_type: Annotated[I8, At(since=1)] = 0
    topic_partitions: Sequence[ElectLeadersTopic] | None = None
    timeout_ms: I32 = 60_000


@struct
class PartitionElectionResult:
    """What became of one partition's election."""

    partition_id: I32
    error_code: I16 = 0
    error_message: Str | None = None


@struct
class ReplicaElectionResult:
    """The partitions of one topic."""

    topic: Str
    partition_result: Sequence[PartitionElectionResult] = ()


@struct
class ElectLeadersResponse:
    """Answer to ElectLeaders."""

    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, At(since=1)] = 0
    replica_election_results: Sequence[ReplicaElectionResult] = ()


@struct
class TopicPartitionsCursor:
    """Where a list of partitions goes on: this partition is its next one."""

    topic_name: Str
    partition_index: I32


@struct
class DescribeTopicPartitionsTopic:
    """A topic that is asked for."""

    name: Str


@struct
class DescribeTopicPartitionsRequest:
    """Which partitions have these topics, so many in one answer? No topic asks for all."""

    topics: Sequence[DescribeTopicPartitionsTopic] = ()
    response_partition_limit: I32 = 2_000
    cursor: TopicPartitionsCursor | None = None


@struct
class DescribedTopicPartition:
    """One partition. The replicas that KIP-966 lets lead without being in sync are none here."""

    error_code: I16
    partition_index: I32
    leader_id: I32
    leader_epoch: I32 = -1
    replica_nodes: Sequence[I32] = ()
    isr_nodes: Sequence[I32] = ()
    eligible_leader_replicas: Sequence[I32] | None = None
    last_known_elr: Sequence[I32] | None = None
    offline_replicas: Sequence[I32] = ()


@struct
class DescribedTopicPartitions:
    """Partitions of one topic, in order."""

    error_code: I16
    name: Str | None
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: Sequence[DescribedTopicPartition] = ()
    topic_authorized_operations: I32 = NO_OPERATIONS


@struct
class DescribeTopicPartitionsResponse:
    """Answer to DescribeTopicPartitions; null for a cursor says that nothing is left."""

    throttle_time_ms: I32 = 0
    topics: Sequence[DescribedTopicPartitions] = ()
    next_cursor: TopicPartitionsCursor | None = None
