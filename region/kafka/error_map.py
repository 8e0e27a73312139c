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
        errors.PolicyViolation: ErrorCode.POLICY_VIOLATION,
        errors.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.InvalidTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,
        errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
        errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        errors.UnknownProducer: ErrorCode.UNKNOWN_PRODUCER_ID,
        errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
        errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotHome: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.Busy: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.HomeUnreachable: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.Unavailable: ErrorCode.LEADER_NOT_AVAILABLE,
        errors.OutcomeUnknown: ErrorCode.REQUEST_TIMED_OUT,
        errors.Fenced: ErrorCode.FENCED_LEADER_EPOCH,
        errors.Diverged: ErrorCode.UNKNOWN_SERVER_ERROR,
        errors.ConfigError: ErrorCode.INVALID_CONFIG,
        errors.DataDirectoryError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def kafka_code(error: BaseException) -> ErrorCode:
    """Return the Kafka code of an error (of its nearest base class in the table; -1 for foreign errors)."""
    for kind in type(error).__mro__:
        code = KAFKA_CODE.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
