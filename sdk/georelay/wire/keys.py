"""Numbers of the Kafka protocol: APIs, the versions spoken, and error codes.

Rule: CODED is what this codec reads and writes, for either end; SUPPORTED is the part of it that brokers serve and
advertise, so it holds only what is whole.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from georelay.limits import FETCH_RESPONSE_BYTES_MAX, KAFKA_FRAME_BYTES_MAX, KIB, MIB, PRODUCE_FRAME_BYTES_MAX


class ApiKey(enum.IntEnum):
    """The APIs of this codec."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75


_NEVER_FLEXIBLE: Final = 1 << 15
# (versions that this codec reads and writes, the first that is flexible)
_VERSIONS: Final[Mapping[ApiKey, tuple[range, int]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (range(3, 10), 9),
        ApiKey.FETCH: (range(4, 13), 12),
        ApiKey.LIST_OFFSETS: (range(1, 8), 6),
        ApiKey.METADATA: (range(14), 9),
        ApiKey.OFFSET_COMMIT: (range(2, 9), 8),
        ApiKey.OFFSET_FETCH: (range(1, 9), 6),
        ApiKey.FIND_COORDINATOR: (range(5), 3),
        ApiKey.JOIN_GROUP: (range(10), 6),
        ApiKey.HEARTBEAT: (range(5), 4),
        ApiKey.LEAVE_GROUP: (range(6), 4),
        ApiKey.SYNC_GROUP: (range(6), 4),
        ApiKey.DESCRIBE_GROUPS: (range(6), 5),
        ApiKey.LIST_GROUPS: (range(5), 3),
        ApiKey.SASL_HANDSHAKE: (range(2), _NEVER_FLEXIBLE),
        ApiKey.API_VERSIONS: (range(6), 3),
        ApiKey.CREATE_TOPICS: (range(2, 8), 5),
        ApiKey.DELETE_TOPICS: (range(1, 7), 4),
        ApiKey.DELETE_RECORDS: (range(3), 2),
        ApiKey.INIT_PRODUCER_ID: (range(5), 2),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (range(2, 5), 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: (range(4), 3),
        ApiKey.ADD_OFFSETS_TO_TXN: (range(4), 3),
        ApiKey.END_TXN: (range(4), 3),
        ApiKey.TXN_OFFSET_COMMIT: (range(4), 3),
        ApiKey.DESCRIBE_ACLS: (range(1, 4), 2),
        ApiKey.CREATE_ACLS: (range(1, 4), 2),
        ApiKey.DELETE_ACLS: (range(1, 4), 2),
        ApiKey.DESCRIBE_CONFIGS: (range(1, 5), 4),
        ApiKey.ALTER_CONFIGS: (range(3), 2),
        ApiKey.DESCRIBE_LOG_DIRS: (range(1, 5), 2),
        ApiKey.SASL_AUTHENTICATE: (range(3), 2),
        ApiKey.CREATE_PARTITIONS: (range(4), 2),
        ApiKey.DELETE_GROUPS: (range(3), 2),
        ApiKey.ELECT_LEADERS: (range(3), 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (range(2), 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (range(2), 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (range(1), 0),
        ApiKey.OFFSET_DELETE: (range(1), _NEVER_FLEXIBLE),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (range(2), 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (range(2), 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (range(1), 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (range(1), 0),
        ApiKey.DESCRIBE_CLUSTER: (range(2), 0),
        ApiKey.DESCRIBE_PRODUCERS: (range(1), 0),
        ApiKey.DESCRIBE_TRANSACTIONS: (range(1), 0),
        ApiKey.LIST_TRANSACTIONS: (range(1), 0),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (range(1), 0),
    }
)

CODED: Final[Mapping[ApiKey, range]] = MappingProxyType({key: versions for key, (versions, _) in _VERSIONS.items()})

# The APIs that brokers serve: each has a row in region/kafka/dispatch.py.
_SERVED: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
)
SUPPORTED: Final[Mapping[ApiKey, range]] = MappingProxyType({key: CODED[key] for key in sorted(_SERVED)})


# (API key, version) -> whether it is flexible, for all that is coded: one look-up answers both for every request.
SPOKEN: Final[Mapping[tuple[int, int], bool]] = {
    (int(key), version): version >= flexible_since
    for key, (versions, flexible_since) in _VERSIONS.items()
    for version in versions
}
_SERVED_VERSIONS: Final = frozenset((int(key), version) for key, versions in SUPPORTED.items() for version in versions)


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether this version uses compact lengths and tagged fields; False for APIs this codec does not know."""
    return api_key in _VERSIONS and api_version >= _VERSIONS[ApiKey(api_key)][1]


def is_coded(api_key: int, api_version: int) -> bool:
    """Return whether this codec reads and writes that version of that API."""
    return (api_key, api_version) in SPOKEN


def is_supported(api_key: int, api_version: int) -> bool:
    """Return whether brokers serve that version of that API."""
    return (api_key, api_version) in _SERVED_VERSIONS


RESPONSE_FRAME_BYTES_MAX: Final = FETCH_RESPONSE_BYTES_MAX + MIB  # records, plus names and numbers around them
SYNC_GROUP_FRAME_BYTES_MAX: Final = MIB  # a group's leader sends the assignments of all members in one frame
SIGN_IN_FRAME_BYTES_MAX: Final = 64 * KIB  # what anybody may send: room for the longest client id, and a token
_FRAME_BYTES_MAX: Final[Mapping[int, int]] = {
    ApiKey.PRODUCE: PRODUCE_FRAME_BYTES_MAX,
    ApiKey.SYNC_GROUP: SYNC_GROUP_FRAME_BYTES_MAX,
    ApiKey.SASL_HANDSHAKE: SIGN_IN_FRAME_BYTES_MAX,
    ApiKey.API_VERSIONS: SIGN_IN_FRAME_BYTES_MAX,
    ApiKey.SASL_AUTHENTICATE: SIGN_IN_FRAME_BYTES_MAX,
}

FrameCap = Callable[[int], int]


def frame_bytes_max(api_key: int) -> int:
    """Return the largest request frame of an API, length prefix not counted."""
    return _FRAME_BYTES_MAX.get(api_key, KAFKA_FRAME_BYTES_MAX)


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
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
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
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
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
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
