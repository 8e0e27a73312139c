"""One consumer group of Kafka's classic protocol. Pure: time comes in as arguments, what is to be done as effects out.

Theory: members join; when all have (or the rebalance timeout is over) the group begins a generation, everybody is told
it, the leader computes an assignment and everybody fetches his part with a sync. Any change of members or of what they
subscribe to begins that anew.

Rule 1: a member is given an assignment only after the generation was stored (effect Store) by its coordinator.
Rule 2: each member that is in a generation gets exactly one answer to its join and one assignment in it.
Rule 3: who belongs to an older generation is refused everything but joining.
Rule 4: a dynamic member that does not join again before the barrier falls is removed; a static one keeps its place
        until its session ends.
Rule 5: nobody is removed because a connection broke: sessions end, members leave.

Source: Kafka's protocol guide; KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members),
KIP-394 (member id required), KIP-559 (protocol type and name), KIP-814 (skip assignment).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from georelay.wire.api import ErrorCode
from region.groups.barrier_core import MS, Barrier
from region.groups.members_core import Member, MemberBook
from region.groups.settings import NEW_MEMBER_TIMEOUT_MS, SESSION_TIMEOUT_MS_MAX, GroupSettings
from region.groups.values import (
    NO_MEMBER,
    Effect,
    GroupRecord,
    Identity,
    JoinAnswer,
    JoinAnswered,
    JoinWish,
    Protocols,
    Store,
    SyncAnswer,
    SyncAnswered,
    SyncWish,
)


class GroupState(enum.Enum):
    """Where a group stands; the values are Kafka's names."""

    EMPTY = "Empty"  # no members; it may have offsets
    PREPARING = "PreparingRebalance"  # members are to join
    COMPLETING = "CompletingRebalance"  # a generation has begun; the leader's assignment is awaited or being stored
    STABLE = "Stable"  # everybody can have his assignment
    DEAD = "Dead"  # being deleted


MAY_FOLLOW: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
        GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
        GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.DEAD: frozenset(),
    }
)


class Group:
    """See the module docstring. Every method that takes `now_ns` (monotonic) may move the group and returns effects."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = MemberBook()
        self._settings = settings
        self._barrier = Barrier()
        self._unsynced: set[str] = set()  # of this generation, have not asked for their assignment
        self._sync_until_ns: int | None = None
        self._effects: list[Effect] = []

    @classmethod
    def load(cls, record: GroupRecord, settings: GroupSettings, now_ns: int) -> Group:
        """Return the group of a record; sessions begin now, because nobody knows when members were heard last."""
        group = cls(record.group_id, settings)
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol = record.protocol
        for row in record.members:
            member = Member(
                member_id=row.member_id,
                instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                session_timeout_ms=row.session_timeout_ms,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                protocols=() if record.protocol is None else ((record.protocol, row.metadata),),
                assignment=row.assignment,
            )
            member.heard(now_ns)
            group.members.add(member)
        if record.members:
            if record.leader is not None and record.leader in group.members:
                group.members.leader = record.leader
            group.state = GroupState.STABLE
        return group

    @property
    def leader(self) -> str | None:
        """Return the member that assigns."""
        return self.members.leader

    def next_due_ns(self) -> int | None:
        """Return when `due` has to be called next, None for never."""
        times = [self._barrier.until_ns, self._sync_until_ns, *self.members.pending.values()]
        times += [member.session_ends_ns for member in self.members]
        return min((time for time in times if time is not None), default=None)

    # --- joining ----------------------------------------------------------------------------------

    def join(self, wish: JoinWish, ticket: object, now_ns: int) -> list[Effect]:
        """Let a member join; its answer is an effect, now or later."""
        error = self._join_error(wish)
        if error is not ErrorCode.NONE:
            self._answer_join(ticket, JoinAnswer(error=error, member_id=wish.member_id))
        elif wish.member_id == NO_MEMBER:
            self._join_new(wish, ticket, now_ns)
        elif wish.member_id in self.members.pending:
            self._add(wish, wish.member_id, ticket, now_ns)
        else:
            self._join_again(wish, ticket, now_ns)
        if self.state is GroupState.PREPARING:
            self._try_barrier(now_ns)
        return self._drain()

    def _join_error(self, wish: JoinWish) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._settings.session_timeout_ms_min <= wish.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self.members.has_room_for(wish):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._supports(wish.protocol_type, wish.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if wish.member_id == NO_MEMBER:
            return ErrorCode.NONE
        if wish.member_id in self.members.pending:  # given to a dynamic member: no static one has such an id
            return ErrorCode.NONE if wish.instance_id is None else ErrorCode.UNKNOWN_MEMBER_ID
        return self.members.check(wish.member_id, wish.instance_id)

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if not protocol_type or not protocols:
            return False
        if not len(self.members):
            return True
        return protocol_type == self.protocol_type and self.members.supports(protocols)

    def _join_new(self, wish: JoinWish, ticket: object, now_ns: int) -> None:
        if wish.instance_id is not None:
            old_id = self.members.holder_of(wish.instance_id)
            if old_id is None:
                self._add(wish, wish.new_member_id, ticket, now_ns)
            else:
                self._replace_static(wish, old_id, ticket, now_ns)
        elif wish.needs_known_id:
            self.members.pending[wish.new_member_id] = now_ns + wish.session_timeout_ms * MS
            self._answer_join(ticket, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=wish.new_member_id))
        else:
            self._add(wish, wish.new_member_id, ticket, now_ns)

    def _join_again(self, wish: JoinWish, ticket: object, now_ns: int) -> None:
        member = self.members[wish.member_id]
        is_leader = self.leader == member.member_id
        is_same = member.protocols == wish.protocols
        if self.state is GroupState.STABLE and is_same and not is_leader:
            self._answer_join(ticket, self._current(member))  # it lost the answer; it may sync
            member.heard(now_ns)
        elif self.state is GroupState.COMPLETING and is_same:
            self._answer_join(ticket, self._current(member))
            member.heard(now_ns)
        else:  # a leader that joins again wants a new assignment: it saw topics change
            self._update(member, wish, ticket)
            self._prepare(now_ns)

    def _current(self, member: Member, *, leader: str | None = None, skip: bool = False) -> JoinAnswer:
        """Return the answer for a member of the generation as it is."""
        told = self.leader if leader is None else leader
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=told or NO_MEMBER,
            skip_assignment=skip,
            members=self.members.metadata(self.protocol) if told == member.member_id else (),
        )

    def _update(self, member: Member, wish: JoinWish, ticket: object | None) -> None:
        if member.join_ticket is not None:  # the client gave up on that one and asks again
            self._answer_join(
                member.join_ticket, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )
        member.protocols = wish.protocols
        member.rebalance_timeout_ms = wish.rebalance_timeout_ms
        member.session_timeout_ms = wish.session_timeout_ms
        member.join_ticket = ticket

    def _add(self, wish: JoinWish, member_id: str, ticket: object, now_ns: int) -> None:
        if not len(self.members):
            self.protocol_type = wish.protocol_type
        self.members.add(
            Member(
                member_id=member_id,
                instance_id=wish.instance_id,
                client_id=wish.client_id,
                client_host=wish.client_host,
                session_timeout_ms=wish.session_timeout_ms,
                rebalance_timeout_ms=wish.rebalance_timeout_ms,
                protocols=wish.protocols,
                deadline_ns=now_ns + NEW_MEMBER_TIMEOUT_MS * MS,
                join_ticket=ticket,
                is_new=True,
            )
        )
        if self.state is GroupState.PREPARING:
            self._barrier.grew()
        self._prepare(now_ns)

    # --- static members ---------------------------------------------------------------------------

    def _replace_static(self, wish: JoinWish, old_id: str, ticket: object, now_ns: int) -> None:
        """Let a static member that came back take its own place; a stable group needs no rebalance for it."""
        leader_before = self.leader
        self._effects += self.members.replace(old_id, wish.new_member_id)
        member = self.members[wish.new_member_id]
        if old_id in self._unsynced:
            self._unsynced = (self._unsynced - {old_id}) | {member.member_id}
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update(member, wish, ticket)
        member.heard(now_ns)
        if self.state is not GroupState.STABLE or self.members.vote() != self.protocol:
            self._prepare(now_ns)
            return
        member.join_ticket = None  # it waits for the store, not for the others
        done = partial(
            self._static_stored,
            member=member,
            new_id=wish.new_member_id,
            old_id=old_id,
            before=before,
            ticket=ticket,
            leader_before=leader_before,
            can_skip=wish.can_skip_assignment,
        )
        self._effects.append(Store(record=self.record(), done=done))

    def _static_stored(
        self,
        error: ErrorCode,
        now_ns: int,
        *,
        member: Member,
        new_id: str,
        old_id: str,
        before: tuple[Protocols, int, int],
        ticket: object,
        leader_before: str | None,
        can_skip: bool,
    ) -> list[Effect]:
        is_there = new_id in self.members
        if error is not ErrorCode.NONE:
            if is_there:
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                self._effects += self.members.replace(new_id, old_id)
            self._answer_join(ticket, JoinAnswer(error=error))
        elif not is_there:
            # Removed meanwhile, or it came back once more: the process that came first must not share the other's id.
            self._answer_join(ticket, JoinAnswer(error=self.members.check(new_id, member.instance_id)))
        elif can_skip:
            self._answer_join(ticket, self._current(member, skip=self.leader == member.member_id))
        else:
            # Told the id that led before, a leader that came back does not take itself for the leader: an assignment
            # that it computed now would be handed to nobody.
            self._answer_join(ticket, self._current(member, leader=leader_before))
        if is_there:
            member.heard(now_ns)
        return self._drain()

    # --- the barrier ------------------------------------------------------------------------------

    def _prepare(self, now_ns: int) -> None:
        """Begin a rebalance, unless one has begun."""
        if self.state is GroupState.PREPARING:
            return
        was_empty = self.state is GroupState.EMPTY
        if self.state is GroupState.COMPLETING:
            self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ns)
        self._unsynced.clear()
        self._sync_until_ns = None
        self._move(GroupState.PREPARING)
        timeout_ms = self.members.rebalance_timeout_ms
        if was_empty:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._barrier.begin_first(now_ns, delay_ms=delay_ms, timeout_ms=timeout_ms)
        else:
            self._barrier.begin(now_ns, timeout_ms)

    def _try_barrier(self, now_ns: int) -> None:
        """End the rebalance if everybody has joined, or if it has lasted long enough."""
        all_joined = len(self.members) == self.members.joining and not self.members.pending
        if not self._barrier.may_fall(now_ns, all_joined=all_joined):
            return
        for member in [row for row in self.members if not row.is_joining and not row.is_static]:
            self.members.remove(member.member_id)
        if len(self.members) and not self.members.elect_joined():
            # Only static members are left and none is back: their sessions decide.
            self._barrier.begin(now_ns, self.members.rebalance_timeout_ms)
            return
        self._begin_generation(now_ns)

    def _begin_generation(self, now_ns: int) -> None:
        self._barrier.close()
        self.generation += 1
        if not len(self.members):
            self.protocol = None
            self._move(GroupState.EMPTY)
            self._effects.append(Store(record=self.record(), done=_nothing_follows))
            return
        self.protocol = self.members.vote()
        self._move(GroupState.COMPLETING)
        for member in self.members:
            self._unsynced.add(member.member_id)
            if member.join_ticket is not None:
                self._answer_join(member.join_ticket, self._current(member))
                member.join_ticket = None
                member.is_new = False
                member.heard(now_ns)
        self._sync_until_ns = now_ns + self.members.rebalance_timeout_ms * MS

    # --- assignments ------------------------------------------------------------------------------

    def sync(self, wish: SyncWish, ticket: object, now_ns: int) -> list[Effect]:
        """Hand in the leader's assignments, or ask for one's own; the answer is an effect, now or later."""
        error = self._sync_error(wish)
        if error is not ErrorCode.NONE:
            self._effects.append(SyncAnswered(ticket=ticket, answer=SyncAnswer(error=error)))
            return self._drain()
        member = self.members[wish.member_id]
        self._unsynced.discard(member.member_id)
        self._follow_syncs()
        if self.state is GroupState.STABLE:
            self._answer_sync(member, ticket, now_ns)
            return self._drain()
        if member.sync_ticket is not None:  # the client gave up on that one and asks again
            retried = SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)
            self._effects.append(SyncAnswered(ticket=member.sync_ticket, answer=retried))
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._store_assignments(wish)
        return self._drain()

    def _sync_error(self, wish: SyncWish) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(wish.member_id, wish.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if wish.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if wish.protocol_type is not None and wish.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if wish.protocol is not None and wish.protocol != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def _store_assignments(self, wish: SyncWish) -> None:
        assignments = {member.member_id: wish.assignments.get(member.member_id, b"") for member in self.members}
        done = partial(self._assignments_stored, generation=self.generation, assignments=assignments)
        self._effects.append(Store(record=self.record(assignments), done=done))

    def _assignments_stored(
        self, error: ErrorCode, now_ns: int, *, generation: int, assignments: dict[str, bytes]
    ) -> list[Effect]:
        if self.state is not GroupState.COMPLETING or generation != self.generation:
            return []  # somebody joined or left meanwhile: that rebalance has told everybody
        if error is not ErrorCode.NONE:
            self._fail_syncs(error, now_ns)
            self._prepare(now_ns)
            return self._drain()
        self._move(GroupState.STABLE)
        for member in self.members:
            member.assignment = assignments[member.member_id]
            if member.sync_ticket is not None:
                self._answer_sync(member, member.sync_ticket, now_ns)
                member.sync_ticket = None
        return self._drain()

    def _answer_sync(self, member: Member, ticket: object, now_ns: int) -> None:
        answer = SyncAnswer(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)
        self._effects.append(SyncAnswered(ticket=ticket, answer=answer))
        member.heard(now_ns)

    def _fail_syncs(self, error: ErrorCode, now_ns: int) -> None:
        for member in self.members:
            if member.sync_ticket is not None:
                self._effects.append(SyncAnswered(ticket=member.sync_ticket, answer=SyncAnswer(error=error)))
                member.sync_ticket = None
                member.heard(now_ns)
            member.assignment = b""

    def _follow_syncs(self) -> None:
        if not self._unsynced:
            self._sync_until_ns = None

    # --- staying and leaving ----------------------------------------------------------------------

    def heartbeat(self, who: Identity, now_ns: int) -> ErrorCode:
        """Keep a member's session; REBALANCE_IN_PROGRESS tells it to join again."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(who.member_id, who.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if who.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.members[who.member_id].heard(now_ns)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def leave(self, who: Identity, now_ns: int) -> tuple[ErrorCode, list[Effect]]:
        """Remove a member; one without a member id is named by its instance id, by an operator."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        member_id = who.member_id
        if member_id == NO_MEMBER and who.instance_id is not None:
            member_id = self.members.holder_of(who.instance_id) or NO_MEMBER
        if member_id in self.members.pending:
            del self.members.pending[member_id]
            if self.state is GroupState.PREPARING:
                self._try_barrier(now_ns)
            return ErrorCode.NONE, self._drain()
        error = self.members.check(member_id, who.instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id], now_ns)
        return error, self._drain()

    def due(self, now_ns: int) -> list[Effect]:
        """Do what time demands: sessions, the barrier, syncs that do not come."""
        for member_id in [row for row, until_ns in self.members.pending.items() if until_ns <= now_ns]:
            del self.members.pending[member_id]
        for member in list(self.members):
            ends_ns = member.session_ends_ns
            if ends_ns is not None and ends_ns <= now_ns and member.member_id in self.members:
                self._remove(member, now_ns)
        if self._sync_until_ns is not None and self._sync_until_ns <= now_ns:
            self._sync_until_ns = None
            for member_id in [row for row in self._unsynced if row in self.members]:
                self.members.remove(member_id)
            self._prepare(now_ns)
        if self.state is GroupState.PREPARING:
            self._try_barrier(now_ns)
        return self._drain()

    def kill(self) -> list[Effect]:
        """Let the group be deleted: whoever waits is told to ask for the coordinator again."""
        effects = self.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._move(GroupState.DEAD)
        return effects

    def fail(self, error: ErrorCode) -> list[Effect]:
        """Answer everybody who waits: this broker coordinates the group no longer."""
        for member in self.members:
            if member.join_ticket is not None:
                self._answer_join(member.join_ticket, JoinAnswer(error=error, member_id=member.member_id))
            if member.sync_ticket is not None:
                self._effects.append(SyncAnswered(ticket=member.sync_ticket, answer=SyncAnswer(error=error)))
            member.join_ticket = member.sync_ticket = None
        return self._drain()

    def _remove(self, member: Member, now_ns: int) -> None:
        if member.join_ticket is not None:
            self._answer_join(member.join_ticket, JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        if member.sync_ticket is not None:
            unknown = SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)
            self._effects.append(SyncAnswered(ticket=member.sync_ticket, answer=unknown))
        member.join_ticket = member.sync_ticket = None
        self.members.remove(member.member_id)
        self._unsynced.discard(member.member_id)
        self._prepare(now_ns)
        self._try_barrier(now_ns)

    # --- commits ----------------------------------------------------------------------------------

    def check_commit(self, who: Identity, now_ns: int, *, is_transactional: bool = False) -> ErrorCode:
        """Return why offsets may not be committed now, NONE when they may.

        During a rebalance the members of the generation that ends still commit. In the next one a member commits once
        the assignment is there. Without membership offsets are committed to groups without members only.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_member = who.generation >= 0 or who.member_id != NO_MEMBER or who.instance_id is not None
        if not is_member:
            is_free = is_transactional or self.state is GroupState.EMPTY
            return ErrorCode.NONE if is_free else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.members.check(who.member_id, who.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if who.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.members[who.member_id].heard(now_ns)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else ErrorCode.NONE

    # --- inside -----------------------------------------------------------------------------------

    def record(self, assignments: dict[str, bytes] | None = None) -> GroupRecord:
        """Return what is replicated of the group as it is, with these assignments or those that the members have."""
        return GroupRecord(
            group_id=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self.members.stored(self.protocol, assignments),
        )

    def _move(self, state: GroupState) -> None:
        assert state in MAY_FOLLOW[self.state], (self.group_id, self.state, state)
        self.state = state

    def _answer_join(self, ticket: object, answer: JoinAnswer) -> None:
        self._effects.append(JoinAnswered(ticket=ticket, answer=answer))

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _nothing_follows(_: ErrorCode, __: int) -> list[Effect]:
    return []
