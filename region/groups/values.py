"""What members ask and are answered, as values without versions of a protocol.

A ticket is whatever the caller wants back with the answer; a group only keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from georelay.wire.api import ErrorCode

NO_MEMBER = ""
NO_GENERATION = -1

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]  # name and metadata, the member's favourite first


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWish:
    """JoinGroup.

    Args:
        member_id: "" for a member that has none yet.
        new_member_id: the id that it gets then; random, made by the caller.
        needs_known_id: a dynamic member is told its id first and joins with it (KIP-394).
        can_skip_assignment: a leader that comes back may be told not to assign anew (KIP-814).
    """

    member_id: str
    new_member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool = False
    can_skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """What the leader is told of a member: its metadata for the protocol that was chosen."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to a JoinWish; `members` is for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWish:
    """SyncGroup.

    Args:
        protocol_type, protocol: None where the client's version does not say them.
        assignments: by member id; from the leader only.
    """

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to a SyncWish."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who says something in a group: a member of a generation, or (all defaults) a consumer without membership."""

    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as it is replicated: with the metadata of the protocol that was chosen."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group as it is replicated at the end of every rebalance; without members it is empty."""

    group_id: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswered:
    """Effect: give a join its answer."""

    ticket: object
    answer: JoinAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswered:
    """Effect: give a sync its answer."""

    ticket: object
    answer: SyncAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Effect: replicate a record; `done` must be told once how it ended and returns what follows."""

    record: GroupRecord
    done: Callable[[ErrorCode, int], list[Effect]]  # error, now_ns


Effect: TypeAlias = JoinAnswered | SyncAnswered | Store
