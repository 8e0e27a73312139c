"""The members of one group: who they are, what they support, who waits. Pure; decides nothing about rebalances.

Rule 1: members keep the order in which they joined: the oldest one that is left is the next leader.
Rule 2: an instance id (KIP-345) names one member at a time; replacing it answers what the old one waits for with
        FENCED_INSTANCE_ID.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from georelay.wire.api import ErrorCode
from region.groups.barrier_core import MS
from region.groups.settings import GROUP_BYTES_MAX, MEMBERS_MAX, PENDING_MEMBERS_MAX
from region.groups.values import (
    NO_GENERATION,
    NO_MEMBER,
    Effect,
    JoinAnswer,
    JoinAnswered,
    JoinedMember,
    JoinWish,
    Protocols,
    StoredMember,
    SyncAnswer,
    SyncAnswered,
)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. It waits in a join (`join_ticket`) or in a sync (`sync_ticket`) or in neither."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    deadline_ns: int = 0  # of its session
    assignment: bytes = b""
    join_ticket: object | None = None
    sync_ticket: object | None = None
    is_new: bool = False  # it has never been told a generation, so it cannot send heartbeats

    @property
    def is_static(self) -> bool:
        """Return whether it has an instance id."""
        return self.instance_id is not None

    @property
    def is_joining(self) -> bool:
        """Return whether a join of it waits."""
        return self.join_ticket is not None

    @property
    def session_ends_ns(self) -> int | None:
        """Return when it counts as gone; None while it waits for others: then its client cannot send heartbeats."""
        if not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None):
            return None
        return self.deadline_ns

    def heard(self, now_ns: int) -> None:
        """Begin its session anew."""
        self.deadline_ns = now_ns + self.session_timeout_ms * MS

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return what it says for a protocol, b"" for one that it does not support."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def size_bytes(self) -> int:
        """Return what it costs to replicate, about."""
        return len(self.assignment) + max((len(metadata) for _, metadata in self.protocols), default=0)


class MemberBook:
    """Members by id, static ones by instance id, and ids that were given out and not used yet."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self.pending: dict[str, int] = {}  # member id -> when it is forgotten, ns
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    @property
    def joining(self) -> int:
        """Return how many wait in a join."""
        return sum(member.join_ticket is not None for member in self._members.values())

    @property
    def size_bytes(self) -> int:
        """Return what they cost to replicate, about."""
        return sum(member.size_bytes for member in self._members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def holder_of(self, instance_id: str) -> str | None:
        """Return the member that an instance id names."""
        return self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return why this is not a member, NONE when it is."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Enter a member; the first one leads."""
        assert member.member_id not in self._members, member.member_id
        self.pending.pop(member.member_id, None)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._static, member.instance_id
            self._static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Forget a member; harmless for an unknown one."""
        member = self._members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def replace(self, old_id: str, new_id: str) -> list[Effect]:
        """Let a static member have a new id; whoever still waits under the old one is fenced."""
        member = self._members[old_id]
        assert member.instance_id is not None, old_id
        effects: list[Effect] = []
        if member.join_ticket is not None:
            answer = JoinAnswer(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old_id, generation=NO_GENERATION)
            effects.append(JoinAnswered(ticket=member.join_ticket, answer=answer))
        if member.sync_ticket is not None:
            fenced = SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID)
            effects.append(SyncAnswered(ticket=member.sync_ticket, answer=fenced))
        member.join_ticket = member.sync_ticket = None
        member.member_id = new_id
        self._members = {row.member_id: row for row in self._members.values()}  # its place in the order stays
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return effects

    def elect_joined(self) -> bool:
        """Let a member that has joined lead; False when nobody has."""
        joined = [member.member_id for member in self._members.values() if member.is_joining]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def has_room_for(self, wish: JoinWish) -> bool:
        """Return whether the group stays within its limits with this member, new or known."""
        known_id = wish.member_id if wish.instance_id is None else self._static.get(wish.instance_id, wish.member_id)
        known = self._members.get(known_id)
        if known is None and len(self._members) >= MEMBERS_MAX:
            return False
        if wish.member_id == NO_MEMBER and len(self.pending) >= PENDING_MEMBERS_MAX:
            return False
        asked_bytes = max((len(metadata) for _, metadata in wish.protocols), default=0)
        held_bytes = 0 if known is None else known.size_bytes
        return self.size_bytes - held_bytes + asked_bytes <= GROUP_BYTES_MAX

    def supports(self, protocols: Protocols) -> bool:
        """Return whether at least one of these is supported by every member."""
        return bool(self._common() & {name for name, _ in protocols})

    def _common(self) -> set[str]:
        rows = [{name for name, _ in member.protocols} for member in self._members.values()]
        return set.intersection(*rows) if rows else set()

    def vote(self) -> str | None:
        """Return the protocol that most members like best of those that all support; the first voter breaks ties."""
        common = self._common()
        votes: dict[str, int] = {}
        for member in self._members.values():
            favourite = next((name for name, _ in member.protocols if name in common), None)
            if favourite is not None:
                votes[favourite] = votes.get(favourite, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    def metadata(self, protocol: str | None) -> list[JoinedMember]:
        """Return what the leader is told."""
        return [
            JoinedMember(member_id=row.member_id, instance_id=row.instance_id, metadata=row.metadata_for(protocol))
            for row in self._members.values()
        ]

    def stored(self, protocol: str | None, assignments: dict[str, bytes] | None = None) -> tuple[StoredMember, ...]:
        """Return the members as they are replicated, with these assignments or those that they have."""
        return tuple(
            StoredMember(
                member_id=row.member_id,
                instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                session_timeout_ms=row.session_timeout_ms,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                metadata=row.metadata_for(protocol),
                assignment=row.assignment if assignments is None else assignments.get(row.member_id, b""),
            )
            for row in self._members.values()
        )
