"""Which requests of one connection may be handled while others are: what a client sees is what Kafka shows it. Pure.

Kafka handles the requests of a connection one after the other. Here they overlap, as far as nobody can tell:

Rule 1: behind a request that changes something nothing begins before it is answered: whatever a client sends behind a
        DeleteRecords or an OffsetCommit sees what that has done.
Rule 2: publishes behind publishes begin at once; their streams keep the order. What looks at records, or changes
        anything else, waits for the publishes before it.
Rule 3: behind requests that only look, or that wait for others (long polls, members of a group), everything begins.

Answers go out in the order of the requests anyhow, so who waits here is answered no later.
"""

from __future__ import annotations

from typing import Final

from georelay.wire.keys import ApiKey

PUBLISH: Final = ApiKey.PRODUCE
LOOKS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)
NOT_OF_RECORDS: Final = frozenset({ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT})


class RequestOrder:
    """The requests of one connection that are handled and not answered."""

    __slots__ = ("_changes", "_publishes")

    def __init__(self) -> None:
        self._changes = 0
        self._publishes = 0

    def may_begin(self, frame: bytes | memoryview) -> bool:
        """Return whether a request may be handled now; `frame` begins with its API key."""
        if not self._changes and not self._publishes:
            return True
        api_key = int.from_bytes(frame[:2], "big")
        return not self._changes and (api_key == PUBLISH or api_key in NOT_OF_RECORDS)

    def begun(self, api_key: int) -> None:
        """A request is handled now."""
        if api_key == PUBLISH:
            self._publishes += 1
        elif api_key not in LOOKS:
            self._changes += 1

    def ended(self, api_key: int) -> None:
        """A request that had begun is answered."""
        if api_key == PUBLISH:
            self._publishes -= 1
        elif api_key not in LOOKS:
            self._changes -= 1
