"""One table from errors of georelay to Kafka's error numbers.

Rule: a code that Kafka clients retry is only used when a retry can help, and "not stored" errors never map to a
code that means "perhaps stored" (7, 20).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from georelay import errors
from georelay.wire.api import ErrorCode

KAFKA_CODE: Final[Mapping[type[errors.GeorelayError], ErrorCode]] = MappingProxyType(
    {
        errors.BadRequest: ErrorCode.INVALID_REQUEST,
        errors.CorruptRecordBatch: ErrorCode.CORRUPT_MESSAGE,
        errors.TooLarge: ErrorCode.MESSAGE_TOO_LARGE,
        errors.Unauthenticated: ErrorCode.SASL_AUTHENTICATION_FAILED,
        errors.AccessDenied: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,  # without the kind of resource; see kafka_code
        errors.PolicyViolation: ErrorCode.POLICY_VIOLATION,
        errors.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.InvalidTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
        errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
        errors.UnknownGroup: ErrorCode.GROUP_ID_NOT_FOUND,
        errors.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
        errors.UnknownQueue: ErrorCode.RESOURCE_NOT_FOUND,
        errors.QueueExists: ErrorCode.DUPLICATE_RESOURCE,
        errors.LeaseExpired: ErrorCode.INVALID_REQUEST,
        errors.UnknownBinding: ErrorCode.RESOURCE_NOT_FOUND,
        errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        errors.UnknownProducer: ErrorCode.UNKNOWN_PRODUCER_ID,
        errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
        errors.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
        errors.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
        errors.UnknownTransactionalId: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotHome: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.Busy: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.Throttled: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        errors.HomeUnreachable: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.ControlUnavailable: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.Unavailable: ErrorCode.LEADER_NOT_AVAILABLE,
        errors.CoordinatorUnavailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
        errors.NotEnoughRegions: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.DurabilityPending: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        errors.OutcomeUnknown: ErrorCode.REQUEST_TIMED_OUT,
        errors.Fenced: ErrorCode.FENCED_LEADER_EPOCH,
        errors.Diverged: ErrorCode.UNKNOWN_SERVER_ERROR,
        errors.TracesExpired: ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.ConfigError: ErrorCode.INVALID_CONFIG,
        errors.DataDirectoryError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


_DENIED: Final[Mapping[str, ErrorCode]] = MappingProxyType(
    {
        "topic": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "queue": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "cluster": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "transactional-id": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class RowRefused(Exception):
    """One row of a request (a topic, a partition, a user) is answered with a code that only Kafka has."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def kafka_code(error: BaseException) -> ErrorCode:
    """Return the Kafka code of an error (of its nearest base class in the table; -1 for foreign errors)."""
    if isinstance(error, RowRefused):
        return error.code
    if isinstance(error, errors.AccessDenied):
        return _DENIED.get(error.resource, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for kind in type(error).__mro__:
        code = KAFKA_CODE.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
