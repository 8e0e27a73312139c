"""Offsets that a consumer group has committed: requests and responses as tables.

Field names are Kafka's (schemas OffsetCommit, OffsetFetch, OffsetDelete). OffsetFetch asks for one group up to
version 7 and for several from version 8 on, in fields of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from georelay.wire.schema import I16, I32, I64, At, Bool, Str, struct


@struct
class OffsetCommitRequestPartition:
    """The offset to continue at, -1 for an unknown leader epoch."""

    partition_index: I32
    committed_offset: I64
    committed_leader_epoch: Annotated[I32, At(since=6)] = -1
    committed_metadata: Str | None = None


@struct
class OffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[OffsetCommitRequestPartition] = ()


@struct
class OffsetCommitRequest:
    """Commit as a member of a generation; generation -1 and member "" from outside of the group's protocol."""

    group_id: Str
    generation_id_or_member_epoch: I32 = -1
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, At(since=7, nullable=7)] = None
    retention_time_ms: Annotated[I64, At(until=4)] = -1
    topics: Sequence[OffsetCommitRequestTopic] = ()


@struct
class OffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: I32
    error_code: I16 = 0


@struct
class OffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[OffsetCommitResponsePartition] = ()


@struct
class OffsetCommitResponse:
    """Answer to OffsetCommit."""

    throttle_time_ms: Annotated[I32, At(since=3)] = 0
    topics: Sequence[OffsetCommitResponseTopic] = ()


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, up to version 7."""

    name: Str
    partition_indexes: Sequence[I32] = ()


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, from version 8 on."""

    name: Str
    partition_indexes: Sequence[I32] = ()


@struct
class OffsetFetchRequestGroup:
    """One group; topics null asks for all that it has committed."""

    group_id: Str
    topics: Sequence[OffsetFetchRequestTopics] | None = None


@struct
class OffsetFetchRequest:
    """What has been committed? `topics` null asks for everything; `require_stable` waits for transactions."""

    group_id: Annotated[Str, At(until=7)] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, At(until=7, nullable=2)] = ()
    groups: Annotated[Sequence[OffsetFetchRequestGroup], At(since=8)] = ()
    require_stable: Annotated[Bool, At(since=7)] = False


@struct
class OffsetFetchResponsePartition:
    """One committed offset up to version 7, -1 when there is none."""

    partition_index: I32
    committed_offset: I64 = -1
    committed_leader_epoch: Annotated[I32, At(since=5)] = -1
    metadata: Str | None = ""
    error_code: I16 = 0


@struct
class OffsetFetchResponseTopic:
    """The partitions of one topic, up to version 7."""

    name: Str
    partitions: Sequence[OffsetFetchResponsePartition] = ()


@struct
class OffsetFetchResponsePartitions:
    """One committed offset from version 8 on, -1 when there is none."""

    partition_index: I32
    committed_offset: I64 = -1
    committed_leader_epoch: I32 = -1
    metadata: Str | None = ""
    error_code: I16 = 0


@struct
class OffsetFetchResponseTopics:
    """The partitions of one topic, from version 8 on."""

    name: Str
    partitions: Sequence[OffsetFetchResponsePartitions] = ()


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group, or its error."""

    group_id: Str
    topics: Sequence[OffsetFetchResponseTopics] = ()
    error_code: I16 = 0


@struct
class OffsetFetchResponse:
    """Answer to OffsetFetch."""

    throttle_time_ms: Annotated[I32, At(since=3)] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], At(until=7)] = ()
    error_code: Annotated[I16, At(since=2, until=7)] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], At(since=8)] = ()


@struct
class OffsetDeleteRequestPartition:
    """A partition by number."""

    partition_index: I32


@struct
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[OffsetDeleteRequestPartition] = ()


@struct
class OffsetDeleteRequest:
    """Forget committed offsets of topics that no member is subscribed to."""

    group_id: Str
    topics: Sequence[OffsetDeleteRequestTopic] = ()


@struct
class OffsetDeleteResponsePartition:
    """What became of one offset."""

    partition_index: I32
    error_code: I16 = 0


@struct
class OffsetDeleteResponseTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[OffsetDeleteResponsePartition] = ()


@struct
class OffsetDeleteResponse:
    """Answer to OffsetDelete; with an error of the group there are no topics."""

    error_code: I16 = 0
    throttle_time_ms: I32 = 0
    topics: Sequence[OffsetDeleteResponseTopic] = ()
