"""Transactions: requests and responses as tables.

Field names are Kafka's (schemas AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, DescribeTransactions,
ListTransactions). Kafka renamed the fields of AddPartitionsToTxn that clients use when version 4, which only brokers
use, got others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from georelay.wire.schema import I16, I32, I64, At, Bool, Str, struct


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: Str
    partitions: Sequence[I32] = ()


@struct
class AddPartitionsToTxnRequest:
    """Take partitions into the transaction before the first batch goes to them."""

    v3_and_below_transactional_id: Str
    v3_and_below_producer_id: I64
    v3_and_below_producer_epoch: I16
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = ()


@struct
class AddPartitionsToTxnPartitionResult:
    """What became of one partition."""

    partition_index: I32
    partition_error_code: I16 = 0


@struct
class AddPartitionsToTxnTopicResult:
    """The partitions of one topic."""

    name: Str
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = ()


@struct
class AddPartitionsToTxnResponse:
    """Answer to AddPartitionsToTxn: all partitions were taken, or none."""

    throttle_time_ms: I32 = 0
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = ()


@struct
class AddOffsetsToTxnRequest:
    """Take the offsets of a group into the transaction."""

    transactional_id: Str
    producer_id: I64
    producer_epoch: I16
    group_id: Str


@struct
class AddOffsetsToTxnResponse:
    """Answer to AddOffsetsToTxn."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0


@struct
class EndTxnRequest:
    """Commit or abort."""

    transactional_id: Str
    producer_id: I64
    producer_epoch: I16
    committed: Bool


@struct
class EndTxnResponse:
    """Answer to EndTxn."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0


@struct
class TxnOffsetCommitRequestPartition:
    """The offset to continue at if the transaction commits."""

    partition_index: I32
    committed_offset: I64
    committed_leader_epoch: Annotated[I32, At(since=2)] = -1
    committed_metadata: Str | None = None


@struct
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[TxnOffsetCommitRequestPartition] = ()


@struct
class TxnOffsetCommitRequest:
    """Offsets of a group that count only if the transaction commits."""

    transactional_id: Str
    group_id: Str
    producer_id: I64
    producer_epoch: I16
    generation_id: Annotated[I32, At(since=3)] = -1
    member_id: Annotated[Str, At(since=3)] = ""
    group_instance_id: Annotated[Str | None, At(since=3, nullable=3)] = None
    topics: Sequence[TxnOffsetCommitRequestTopic] = ()


@struct
class TxnOffsetCommitResponsePartition:
    """What became of one offset."""

    partition_index: I32
    error_code: I16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: Str
    partitions: Sequence[TxnOffsetCommitResponsePartition] = ()


@struct
class TxnOffsetCommitResponse:
    """Answer to TxnOffsetCommit."""

    throttle_time_ms: I32 = 0
    topics: Sequence[TxnOffsetCommitResponseTopic] = ()


@struct
class DescribeTransactionsRequest:
    """Show these transactional ids."""

    transactional_ids: Sequence[Str] = ()


@struct
class TopicData:
    """Partitions of one topic that are in the transaction."""

    topic: Str
    partitions: Sequence[I32] = ()


@struct
class TransactionState:
    """A transactional id, and the transaction that is going on."""

    error_code: I16
    transactional_id: Str
    transaction_state: Str = ""
    transaction_timeout_ms: I32 = 0
    transaction_start_time_ms: I64 = -1
    producer_id: I64 = -1
    producer_epoch: I16 = -1
    topics: Sequence[TopicData] = ()


@struct
class DescribeTransactionsResponse:
    """Answer to DescribeTransactions."""

    throttle_time_ms: I32 = 0
    transaction_states: Sequence[TransactionState] = ()


@struct
class ListTransactionsRequest:
    """Which transactional ids does this broker coordinate? Empty filters: all."""

    state_filters: Sequence[Str] = ()
    producer_id_filters: Sequence[I64] = ()


@struct
class ListedTransaction:
    """One transactional id."""

    transactional_id: Str
    producer_id: I64 = -1
    transaction_state: Str = ""


@struct
class ListTransactionsResponse:
    """The transactional ids of one coordinator."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    unknown_state_filters: Sequence[Str] = ()
    transaction_states: Sequence[ListedTransaction] = ()
