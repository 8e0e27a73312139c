"""The groups of one coordinator: replicated state, and at its leader the groups themselves, with timers and answers.

Rule 1: what a client is told that it may rely on (an assignment, a commit) was applied here first.
Rule 2: groups live at the leader only. A new leader begins with what is stored: groups with members are stable, and
        the sessions of their members begin anew. A rebalance that was under way is lost with its leader: its members
        are told to ask for the coordinator and join again.
Rule 3: a heartbeat costs no task and no timer: a session's timer looks at the session when it fires.
Rule 4: a group that something was proposed for is not swept: whether it is in use is known when that is applied.
Rule 5: a group is its principal's: of whoever joined or committed to it first. The first command about it writes that
        down, once every region understands it. What a group keeps more has to fit into the share of its principal
        (region.groups.room); what replaces something of the same size always fits.
Never reads bytes of a client's protocol; region.kafka.handlers and region.groups.operations do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import structlog

from georelay.errors import GeorelayError, NotCoordinator, NotLeader, TooLarge
from georelay.ids import RaftIndex, StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.coordination.log import CoordinatorLog, TimerHandle
from region.coordination.part import JsonObject, Part
from region.coordination.shares_core import NOBODY
from region.groups.commands_core import (
    Command,
    CommitOffsets,
    DeleteOffsets,
    DropGroup,
    EndTransaction,
    HoldOffsets,
    StoreGroup,
    encode_command,
)
from region.groups.counters import GroupCounters
from region.groups.group_core import Group, GroupState
from region.groups.offsets_core import NO_NUMBER, CommittedOffset, GroupOffsets
from region.groups.operations import Operations
from region.groups.room import END_OF_TRANSACTION, GroupRoom
from region.groups.settings import GroupSettings
from region.groups.state_core import GroupsState, StoredGroup
from region.groups.subscriptions import CONSUMER, subscribed_topics
from region.groups.sweep import Sweep
from region.groups.topic_names import TopicNames
from region.groups.values import (
    NO_MEMBER,
    Effect,
    GroupRecord,
    Identity,
    JoinAnswer,
    JoinAnswered,
    JoinWish,
    Store,
    SyncAnswer,
    SyncAnswered,
    SyncWish,
)

log = structlog.get_logger()

TIMER_S_MIN: Final = 0.001

Codes = Mapping[StreamKey, ErrorCode]


class LiveGroup:
    """A group at the leader, and whose it is. `proposing` counts commands that are not applied yet."""

    __slots__ = ("group", "principal", "proposing", "timer", "timer_ns")

    def __init__(self, group: Group, principal: str) -> None:
        self.group = group
        self.principal = principal
        self.proposing = 0
        self.timer: TimerHandle | None = None
        self.timer_ns = 0

    def stop_timer(self) -> None:
        """Forget the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class GroupsPart:
    """Implements region.coordination.part.CoordinatorPart.

    Args:
        new_id: returns a random text, the tail of a new member's id.
    """

    part = Part.GROUPS

    def __init__(
        self,
        coordinator: CoordinatorLog,
        *,
        names: TopicNames,
        settings: GroupSettings,
        new_id: Callable[[], str],
        counters: GroupCounters | None = None,
    ) -> None:
        self.names = names
        self.settings = settings
        self.new_id = new_id
        self.counters = GroupCounters() if counters is None else counters
        self._log = coordinator
        self._state = GroupsState()
        self._groups: dict[str, LiveGroup] = {}
        self._room = GroupRoom(self._state, self.counters, coordinator.monotonic_ns)
        self._operations = Operations(self)
        self._sweep = Sweep(self, coordinator)

    # --- replicated state -------------------------------------------------------------------------

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        """Follow one committed command."""
        del index  # the state does not depend on where the log has it
        applied = self._state.apply(command, append_us=append_us)
        if isinstance(applied, DropGroup):
            live = self._groups.pop(applied.group_id, None)
            if live is not None:
                live.stop_timer()
                self._room.groups.add(live.principal, -1)

    def snapshot(self) -> bytes:
        """Return the replicated state."""
        return self._state.snapshot()

    def restore(self, raw: bytes) -> None:
        """Replace the replicated state (ValueError: not a snapshot)."""
        self._state.restore(raw)

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        """Let every group begin anew without members, in a generation that no region has reached."""
        del epoch  # generations rise by more than anybody can have given out unheard
        self._state.fence(append_us=append_us)

    def claim(self, name: str) -> int:
        """Return when a group was last used, 0 for an unknown one; one with members is in use."""
        stored = self._state.find(name)
        return 0 if stored is None else stored.used_us

    # --- leading ----------------------------------------------------------------------------------

    def elected(self) -> None:
        """Serve the groups that are stored."""
        now_ns = self._log.monotonic_ns()
        self._groups = {}
        self._room = GroupRoom(self._state, self.counters, self._log.monotonic_ns)
        for group_id, stored in self._state:
            self._groups[group_id] = LiveGroup(self._loaded(group_id, stored, now_ns), stored.principal)
            self._room.groups.add(stored.principal, 1)
        for live in self._groups.values():
            self._arm(live)
        self._sweep.start()
        log.info("groups.loaded", coordinator=self._log.partition, groups=len(self._groups))

    def deposed(self) -> None:
        """Tell everybody who waits to ask for the coordinator again."""
        self._sweep.stop()
        groups, self._groups = self._groups, {}
        for live in groups.values():
            live.stop_timer()
            self._perform(live, live.group.fail(ErrorCode.NOT_COORDINATOR))

    def close(self) -> None:
        """End timers."""
        self._sweep.stop()
        for live in self._groups.values():
            live.stop_timer()
        self._groups.clear()

    async def call(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation; see region.groups.operations."""
        return await self._operations.answer(operation, body, principal=principal)

    def _loaded(self, group_id: str, stored: StoredGroup | None, now_ns: int) -> Group:
        if stored is None or stored.record is None:
            return Group(group_id, self.settings)
        return Group.load(stored.record, self.settings, now_ns)

    # --- membership -------------------------------------------------------------------------------

    def join(
        self, group_id: str, wish: JoinWish, answer: Callable[[JoinAnswer], None], *, principal: str = NOBODY
    ) -> None:
        """Let a member join; `answer` is called once, now or when the rebalance is over."""
        live = self._live(group_id, principal, may_create=wish.member_id == NO_MEMBER)
        if isinstance(live, ErrorCode):
            answer(JoinAnswer(error=live, member_id=wish.member_id))
            return
        self._perform(live, live.group.join(wish, answer, self._log.monotonic_ns()))

    def sync(self, group_id: str, wish: SyncWish, answer: Callable[[SyncAnswer], None]) -> None:
        """Hand in or fetch an assignment; `answer` is called once, now or when the leader's is stored."""
        live = self._groups.get(group_id)
        if live is None:
            answer(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
            return
        self._perform(live, live.group.sync(wish, answer, self._log.monotonic_ns()))

    def heartbeat(self, group_id: str, who: Identity) -> ErrorCode:
        """Keep a member's session."""
        live = self._groups.get(group_id)
        if live is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return live.group.heartbeat(who, self._log.monotonic_ns())

    def leave(self, group_id: str, leavers: Iterable[Identity]) -> list[ErrorCode]:
        """Remove members; returns what became of each."""
        codes = []
        for who in leavers:
            live = self._groups.get(group_id)
            if live is None:
                codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
                continue
            code, effects = live.group.leave(who, self._log.monotonic_ns())
            codes.append(code)
            self._perform(live, effects)
        return codes

    # --- offsets ----------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        who: Identity,
        rows: Mapping[StreamKey, CommittedOffset],
        done: Callable[[Codes], None],
        *,
        principal: str = NOBODY,
        only_without_members: bool = False,
    ) -> None:
        """Commit offsets; `done` is called once with what became of each.

        Args:
            only_without_members: an operator's: a group with members answers NON_EMPTY_GROUP.
        """
        live = self._committing(group_id, who, principal)
        error = live if isinstance(live, ErrorCode) else live.group.check_commit(who, self._log.monotonic_ns())
        if only_without_members and not isinstance(live, ErrorCode) and len(live.group.members):
            error = ErrorCode.NON_EMPTY_GROUP
        if isinstance(live, ErrorCode) or error is not ErrorCode.NONE:
            done(dict.fromkeys(rows, error))
            return
        codes = self._check_rows(group_id, rows)
        accepted = {key: row for key, row in rows.items() if codes[key] is ErrorCode.NONE}
        command = CommitOffsets(group_id=group_id, rows=accepted, principal=self._unwritten(live))
        self._propose_rows(live, command, codes, done)

    def hold_offsets(
        self,
        group_id: str,
        who: Identity,
        producer_id: int,
        epoch: int,
        number: int,
        rows: Mapping[StreamKey, CommittedOffset],
        done: Callable[[Codes], None],
        *,
        principal: str = NOBODY,
    ) -> None:
        """Keep offsets until their transaction ends; `number` counts the transactions of a producer, -1 unknown."""
        live = self._committing(group_id, who, principal)
        if isinstance(live, ErrorCode):
            done(dict.fromkeys(rows, live))
            return
        error = live.group.check_commit(who, self._log.monotonic_ns(), is_transactional=True)
        if error is ErrorCode.NONE:
            error = self._offsets(group_id).check_transaction(producer_id, epoch, number)
        if error is not ErrorCode.NONE:
            done(dict.fromkeys(rows, error))
            return
        codes = self._check_rows(group_id, rows)
        accepted = {key: row for key, row in rows.items() if codes[key] is ErrorCode.NONE}
        command = HoldOffsets(
            group_id=group_id,
            producer_id=producer_id,
            epoch=epoch,
            number=number,
            rows=accepted,
            principal=self._unwritten(live),
        )

        def held(codes: Codes) -> None:
            late = self._offsets(group_id).check_open(producer_id, epoch, number)  # its end may have been before it
            done({key: code or late for key, code in codes.items()})

        self._propose_rows(live, command, codes, held)

    def end_transaction(
        self,
        group_id: str,
        producer_id: int,
        epoch: int,
        *,
        is_commit: bool,
        done: Callable[[ErrorCode], None],
        number: int = NO_NUMBER,
    ) -> None:
        """End a transaction that may have held offsets; safe to repeat."""
        live = self._live(group_id, END_OF_TRANSACTION, may_create=True)
        if isinstance(live, ErrorCode):
            # No room for the group: then it is not there and holds nothing, and its producer must not wait for room.
            done(ErrorCode.NONE if live is ErrorCode.GROUP_MAX_SIZE_REACHED else live)
            return
        command = EndTransaction(
            group_id=group_id, producer_id=producer_id, epoch=epoch, number=number, is_commit=is_commit
        )
        applied = self._room.propose(END_OF_TRANSACTION, self._new_bytes(group_id))

        def proposed(error: ErrorCode) -> None:
            applied()
            done(error)

        self.propose(live, command, proposed)

    def fetch(
        self, group_id: str, keys: Iterable[StreamKey] | None, *, require_stable: bool = False
    ) -> dict[StreamKey, tuple[CommittedOffset | None, ErrorCode]]:
        """Return committed offsets, those of all streams for None; UNSTABLE_OFFSET_COMMIT (KIP-447) where asked for."""
        offsets = self._offsets(group_id)
        wanted = list(offsets.committed) if keys is None else keys
        return {
            key: (None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if require_stable and offsets.is_unstable(key)
            else (offsets.committed.get(key), ErrorCode.NONE)
            for key in wanted
        }

    def delete_offsets(
        self, group_id: str, keys: Iterable[StreamKey], done: Callable[[ErrorCode, Codes], None]
    ) -> None:
        """Forget offsets of streams that no member reads; `done` gets an error of the group and one for each."""
        wanted = list(keys)
        live = self._groups.get(group_id)
        if live is None or live.group.state is GroupState.DEAD:
            done(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        has_members = len(live.group.members) > 0
        if has_members and live.group.protocol_type != CONSUMER:
            done(ErrorCode.NON_EMPTY_GROUP, {})
            return
        is_used = self.usage_of(live.group)
        codes = {key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used(key) else ErrorCode.NONE for key in wanted}
        free = tuple(key for key in wanted if codes[key] is ErrorCode.NONE)
        if not free:
            done(ErrorCode.NONE, codes)
            return
        self.propose(
            live,
            DeleteOffsets(group_id=group_id, keys=free),
            lambda error: done(ErrorCode.NONE, {**codes, **(dict.fromkeys(free, error) if error else {})}),
        )

    def delete(self, group_id: str, done: Callable[[ErrorCode], None]) -> None:
        """Forget a group without members and all its offsets."""
        live = self._groups.get(group_id)
        if live is None:
            done(ErrorCode.GROUP_ID_NOT_FOUND)
        elif live.group.state is GroupState.DEAD:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif live.group.state is not GroupState.EMPTY:
            done(ErrorCode.NON_EMPTY_GROUP)
        else:
            self.drop(live, done)

    def drop(self, live: LiveGroup, done: Callable[[ErrorCode], None]) -> None:
        """Let an empty group go: from now on nothing is done for it, until that has failed."""
        group_id = live.group.group_id
        self._perform(live, live.group.kill())

        def dropped(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE and self._groups.get(group_id) is live:
                now_ns = self._log.monotonic_ns()
                again = self._loaded(group_id, self._state.find(group_id), now_ns)
                self._groups[group_id] = LiveGroup(again, live.principal)
            done(error)

        self.propose(live, DropGroup(group_id=group_id), dropped)

    # --- looking ----------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        """Return a group, to look at; None for one that nobody knows."""
        live = self.live(group_id)
        return None if live is None else live.group

    def live(self, group_id: str) -> LiveGroup | None:
        """Return a group with what is under way for it."""
        live = self._groups.get(group_id)
        return None if live is None or live.group.state is GroupState.DEAD else live

    def groups(self) -> Iterator[LiveGroup]:
        """Return every group."""
        return (live for live in self._groups.values() if live.group.state is not GroupState.DEAD)

    def stored(self, group_id: str) -> StoredGroup | None:
        """Return what is replicated of a group."""
        return self._state.find(group_id)

    def usage_of(self, group: Group) -> Callable[[StreamKey], bool]:
        """Return whether members of a group read a stream; yes where their subscriptions cannot be read."""
        if not len(group.members):
            return lambda _: False
        metadata = [member.metadata_for(group.protocol) for member in group.members]
        names = subscribed_topics(group.protocol_type, metadata)
        if names is None:
            return lambda _: True
        places = {self.names.origin_of(name) for name in names}
        return lambda key: (key.topic_id, int(key.origin)) in places

    # --- inside -----------------------------------------------------------------------------------

    def _offsets(self, group_id: str) -> GroupOffsets:
        stored = self._state.find(group_id)
        return GroupOffsets() if stored is None else stored.offsets

    def _committing(self, group_id: str, who: Identity, principal: str) -> LiveGroup | ErrorCode:
        if not self._log.is_leader:  # deposed while the offsets were on their way
            return ErrorCode.NOT_COORDINATOR
        if who.generation >= 0 and group_id not in self._groups:
            return ErrorCode.ILLEGAL_GENERATION  # of a group that is forgotten
        return self._live(group_id, principal, may_create=True)

    def _live(self, group_id: str, principal: str, *, may_create: bool) -> LiveGroup | ErrorCode:
        live = self._groups.get(group_id)
        if live is not None:
            if live.principal in (NOBODY, END_OF_TRANSACTION) and principal != END_OF_TRANSACTION:
                self._room.groups.add(live.principal, -1)
                self._room.groups.add(principal, 1)
                live.principal = principal
            return live
        if not may_create:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not self._log.is_leader:
            return ErrorCode.NOT_COORDINATOR
        if not self._room.has_group(principal, group_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        live = self._groups[group_id] = LiveGroup(Group(group_id, self.settings), principal)
        self._room.groups.add(principal, 1)
        return live

    def _new_bytes(self, group_id: str) -> int:
        return 0 if self._state.find(group_id) is not None else StoredGroup(group_id).size_bytes

    def _unwritten(self, live: LiveGroup) -> str:
        """Return whose a group is where its next command has to write it down."""
        stored = self._state.find(live.group.group_id)
        if stored is not None and stored.principal != NOBODY:
            return NOBODY
        is_one = live.principal != END_OF_TRANSACTION
        return live.principal if is_one and self._log.is_understood(PRINCIPALS_LEVEL) else NOBODY

    def _check_rows(self, group_id: str, rows: Mapping[StreamKey, CommittedOffset]) -> dict[StreamKey, ErrorCode]:
        offsets = self._offsets(group_id)
        error = offsets.check_count(rows)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(rows, error)
        return {key: offsets.check_metadata(row.metadata) for key, row in rows.items()}

    def _propose_rows(
        self,
        live: LiveGroup,
        command: CommitOffsets | HoldOffsets,
        codes: dict[StreamKey, ErrorCode],
        done: Callable[[Codes], None],
    ) -> None:
        if not command.rows:
            done(codes)
            return

        def proposed(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and isinstance(command, CommitOffsets):
                self.counters.offsets_committed += len(command.rows)
            done({**codes, **dict.fromkeys(command.rows, error)})

        self._propose_growth(live, command, proposed)

    def _propose_growth(
        self, live: LiveGroup, command: StoreGroup | CommitOffsets | HoldOffsets, done: Callable[[ErrorCode], None]
    ) -> None:
        """Propose what may make a group larger, if there is room for it."""
        group_id, stored = command.group_id, self._state.find(command.group_id)
        growth = self._new_bytes(group_id) + (stored or StoredGroup(group_id)).growth(command)
        refusal = self._room.refusal(live.principal, group_id, growth)
        if refusal is not ErrorCode.NONE:
            done(refusal)
            return
        applied = self._room.propose(live.principal, growth)

        def proposed(error: ErrorCode) -> None:
            applied()
            done(error)

        self.propose(live, command, proposed)

    def propose(self, live: LiveGroup, command: Command, done: Callable[[ErrorCode], None]) -> None:
        """Replicate a command for a group; `done` is called once it is applied here, or with why it is not."""
        raw = encode_command(command)
        try:
            future = self._log.propose(Part.GROUPS, raw, shrinks=_shrinks(command))
        except GeorelayError as error:
            done(error_code(error))
            return
        live.proposing += 1
        future.add_done_callback(partial(self._proposed, live, done))

    def _proposed(self, live: LiveGroup, done: Callable[[ErrorCode], None], future: asyncio.Future[RaftIndex]) -> None:
        live.proposing -= 1
        if future.cancelled():
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        error = future.exception()
        done(ErrorCode.NONE if error is None else error_code(error))

    def _perform(self, live: LiveGroup, effects: list[Effect]) -> None:
        """Do what a group wants done; one that is no longer served here only gives answers."""
        is_served = self._groups.get(live.group.group_id) is live
        for effect in effects:
            match effect:
                case JoinAnswered() | SyncAnswered():
                    assert callable(effect.ticket)
                    effect.ticket(effect.answer)
                case Store() if is_served:
                    self._store(live, effect)
                case Store():
                    self._perform(live, effect.done(ErrorCode.NOT_COORDINATOR, self._log.monotonic_ns()))
        if is_served:
            self._arm(live)

    def _store(self, live: LiveGroup, effect: Store) -> None:
        def stored(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._note_stored(effect.record)
            elif error in (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.POLICY_VIOLATION):
                log.warning("group.too_large", group=effect.record.group_id, members=len(effect.record.members))
                error = ErrorCode.GROUP_MAX_SIZE_REACHED
            self._perform(live, effect.done(error, self._log.monotonic_ns()))

        self._propose_growth(live, StoreGroup(record=effect.record, principal=self._unwritten(live)), stored)

    def _note_stored(self, record: GroupRecord) -> None:
        self.counters.generations += 1
        log.info(
            "group.rebalanced" if record.members else "group.emptied",
            group=record.group_id,
            generation=record.generation,
            members=len(record.members),
            protocol=record.protocol,
        )

    def _arm(self, live: LiveGroup) -> None:
        due_ns = live.group.next_due_ns()
        if due_ns is None:
            live.stop_timer()
        elif live.timer is None or due_ns < live.timer_ns:
            live.stop_timer()
            live.timer_ns = due_ns
            delay_s = max(TIMER_S_MIN, (due_ns - self._log.monotonic_ns()) / 1e9)
            live.timer = self._log.call_later(delay_s, partial(self._fired, live))

    def _fired(self, live: LiveGroup) -> None:
        live.timer = None
        due_ns = live.group.next_due_ns()
        now_ns = self._log.monotonic_ns()
        if due_ns is None or due_ns > now_ns:  # somebody was heard of meanwhile
            self._arm(live)
        else:
            self._perform(live, live.group.due(now_ns))


def _shrinks(command: Command) -> bool:
    """Return whether a command is taken also while the state is too large: it ends or deletes something."""
    if isinstance(command, StoreGroup):
        return not command.record.members
    return isinstance(command, EndTransaction | DeleteOffsets | DropGroup)


def error_code(error: BaseException) -> ErrorCode:
    """Return what a client is told of a command that was not applied: whether, and where, to try again."""
    if isinstance(error, NotLeader | NotCoordinator):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(error, TooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
