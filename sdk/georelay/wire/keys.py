"""Numbers of the Kafka protocol: APIs, the versions spoken, and error codes.

Rule: SUPPORTED is what brokers advertise, so it holds only what is whole.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from georelay.limits import FETCH_RESPONSE_BYTES_MAX, KAFKA_FRAME_BYTES_MAX, MIB, PRODUCE_FRAME_BYTES_MAX


class ApiKey(enum.IntEnum):
    """The APIs of this codec."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    INCREMENTAL_ALTER_CONFIGS = 44


SUPPORTED: Final[Mapping[ApiKey, range]] = MappingProxyType(
    {
        ApiKey.PRODUCE: range(3, 10),
        ApiKey.FETCH: range(4, 13),
        ApiKey.LIST_OFFSETS: range(1, 8),
        ApiKey.METADATA: range(13),
        ApiKey.SASL_HANDSHAKE: range(2),
        ApiKey.API_VERSIONS: range(4),
        ApiKey.CREATE_TOPICS: range(2, 8),
        ApiKey.DELETE_TOPICS: range(1, 7),
        ApiKey.DELETE_RECORDS: range(3),
        ApiKey.INIT_PRODUCER_ID: range(5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
        ApiKey.DESCRIBE_CONFIGS: range(1, 5),
        ApiKey.ALTER_CONFIGS: range(3),
        ApiKey.SASL_AUTHENTICATE: range(3),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: range(2),
    }
)

_NEVER_FLEXIBLE: Final = 1 << 15
_FLEXIBLE_SINCE: Final[Mapping[int, int]] = MappingProxyType(
    {
        ApiKey.PRODUCE: 9,
        ApiKey.FETCH: 12,
        ApiKey.LIST_OFFSETS: 6,
        ApiKey.METADATA: 9,
        ApiKey.SASL_HANDSHAKE: _NEVER_FLEXIBLE,
        ApiKey.API_VERSIONS: 3,
        ApiKey.CREATE_TOPICS: 5,
        ApiKey.DELETE_TOPICS: 4,
        ApiKey.DELETE_RECORDS: 2,
        ApiKey.INIT_PRODUCER_ID: 2,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
        ApiKey.DESCRIBE_CONFIGS: 4,
        ApiKey.ALTER_CONFIGS: 2,
        ApiKey.SASL_AUTHENTICATE: 2,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    }
)


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether this version uses compact lengths and tagged fields; False for APIs this codec does not know."""
    return api_version >= _FLEXIBLE_SINCE.get(api_key, _NEVER_FLEXIBLE)


def is_supported(api_key: int, api_version: int) -> bool:
    """Return whether this codec speaks that version of that API."""
    return (api_key, api_version) in SPOKEN


# (API key, version) -> whether it is flexible, for all that is spoken: one look-up answers both for every request.
SPOKEN: Final[Mapping[tuple[int, int], bool]] = {
    (int(key), version): is_flexible(key, version) for key, versions in SUPPORTED.items() for version in versions
}

RESPONSE_FRAME_BYTES_MAX: Final = FETCH_RESPONSE_BYTES_MAX + MIB  # records, plus names and numbers around them

FrameCap = Callable[[int], int]


def frame_bytes_max(api_key: int) -> int:
    """Return the largest request frame of an API, length prefix not counted."""
    return PRODUCE_FRAME_BYTES_MAX if api_key == 0 else KAFKA_FRAME_BYTES_MAX


def response_frame_bytes_max(_: int) -> int:
    """Return the largest response frame a client reads; a response does not name its API."""
    return RESPONSE_FRAME_BYTES_MAX


class ErrorCode(enum.IntEnum):
    """Kafka's error numbers that georelay answers or that a client of it can meet."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    REBOOTSTRAP_REQUIRED = 129

    @property
    def retriable(self) -> bool:
        """Return whether a client may send the same request again, perhaps elsewhere."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
