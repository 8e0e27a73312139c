"""Words of access control: operations, resources, patterns and the entries of one access control list.

Numbers are Kafka's (AclOperation, ResourceType, PatternType, AclPermissionType; KIP-140, KIP-290). QUEUE is our own
and has no number on the Kafka wire: the entries of queues are seen and changed over HTTP and by `georelay acls`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

ANY_NAME: Final = "*"
ANY_HOST: Final = "*"
USER_PREFIX: Final = "User:"
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"  # the one name of Resource.CLUSTER, as Kafka's


class Operation(enum.Enum):
    """What somebody wants to do; the value is Kafka's AclOperation code."""

    ALL = 2  # only in entries: every operation of the resource
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(enum.Enum):
    """What it is done to; the value is the word of `georelay acls` and of HTTP."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional-id"
    QUEUE = "queue"


class Pattern(enum.Enum):
    """How a name of an entry is compared; the value is Kafka's PatternType code."""

    LITERAL = 3  # the name itself; "*" is every name
    PREFIXED = 4


class Permission(enum.Enum):
    """The value is Kafka's AclPermissionType code."""

    DENY = 2
    ALLOW = 3


KAFKA_RESOURCE: Final = {
    Resource.TOPIC: 2,
    Resource.GROUP: 3,
    Resource.CLUSTER: 4,
    Resource.TRANSACTIONAL_ID: 5,
}

_IMPLIES_DESCRIBE: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
_IMPLIES_DESCRIBE_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})

OPERATIONS_OF: Final = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Resource.QUEUE: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}


def granted_by(operation: Operation) -> frozenset[Operation]:
    """Return the operations whose ALLOW lets `operation` pass, itself and ALL included (Kafka's implications)."""
    if operation is Operation.DESCRIBE:
        implied = _IMPLIES_DESCRIBE
    elif operation is Operation.DESCRIBE_CONFIGS:
        implied = _IMPLIES_DESCRIBE_CONFIGS
    else:
        implied = frozenset({operation})
    return implied | {Operation.ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """One line of a list: this principal from that host may, or may not, do that.

    `principal` is "User:name", or "User:*" for everybody; `host` an IP address, or "*".
    """

    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    host: str = ANY_HOST

    def concerns(self, principal: str, host: str) -> bool:
        """Return whether the entry is about this principal at this host."""
        return self.principal in (principal, EVERYBODY) and self.host in (host, ANY_HOST)


@dataclass(frozen=True, slots=True, kw_only=True, order=False)
class ResourcePattern:
    """What a list is about: a name, every name with a prefix, or (literal "*") every name."""

    resource: Resource
    name: str
    pattern: Pattern = Pattern.LITERAL

    def matches(self, name: str) -> bool:
        """Return whether the list is about `name`."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)

    @property
    def key(self) -> str:
        """Return the text that is unique to the pattern, and orders patterns."""
        return f"{self.resource.value}:{self.pattern.name.lower()}:{self.name}"
