"""One member of one Raft group: the state machine that a host drives.

`tick`, `step`, `propose`, `written` and the other inputs only change memory. `ready` says what to send, store,
apply and read; its module lists the host's duties in order. A node never blocks, reads no clock and owns no
randomness, so a host, a test and a simulator run the same code.

Rules kept here, beside those of election, leadership and durability:
1 An acknowledgement leaves after the hard state and the entries it speaks of are durable.
2 Nothing at or below the commit index is ever truncated: a leader that asks for it stops the group.
3 A follower commits no further than the Append that told it so has proved its log to match.
4 Only what is committed AND durable here is handed out to be applied.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; Ongaro's thesis, chapters 4,
6 and 9; etcd/raft for probe and replicate, conflict hints and asynchronous storage.
"""

from __future__ import annotations

from collections.abc import Callable

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, RaftIndex, Term
from region.raft.core.election import Elector
from region.raft.core.leadership import Leadership
from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.raft_log import RaftLog
from region.raft.core.ready import Fetch, Ready
from region.raft.core.roles import InvariantViolated, Role, RoleInput
from region.raft.core.types import (
    NO_BROKER,
    NO_TERM,
    E,
    HardState,
    HardStateLike,
    RaftConfig,
    RandomSource,
    SoftState,
    StableTag,
)


class RaftNode(Elector[E]):
    """A member of a group.

    Args:
        config: see RaftConfig.
        log: recovered view of the stored log; this node is its only writer from now on.
        hard_state: as stored; HardState() for a new group.
        rng: spreads the election timeouts.
        make_noop: seals the entry (term, index) that opens a leader's term; called inside the input that won.
        applied_index: what the host has applied already; everything above it is handed out (again).

    Read-only attributes: id, term, vote, role, leader_id (0: unknown), commit_index, applied_index, log,
    membership. Any input may raise InvariantViolated: then the group stops.
    """

    __slots__ = ("_handed_out", "_shown", "applied_index")

    def __init__(
        self,
        config: RaftConfig,
        log: RaftLog[E],
        hard_state: HardStateLike,
        rng: RandomSource,
        make_noop: Callable[[Term, RaftIndex], E],
        *,
        applied_index: int | None = None,
    ) -> None:
        super().__init__(config, log, hard_state, rng, make_noop)
        if applied_index is not None:
            if not log.first_index - 1 <= applied_index <= log.last_index:
                raise InvariantViolated(f"applied {applied_index} of a log [{log.first_index}, {log.last_index}]")
            self.commit_index = applied_index
        self.applied_index = self.commit_index
        self._handed_out = self.commit_index  # highest index given to the host to apply
        self._shown = self._soft_state()

    # Queries

    @property
    def is_leader(self) -> bool:
        """Return whether this member leads the group in its term."""
        return self._leadership is not None

    @property
    def last_index(self) -> int:
        """Return the end of the log, durable or not."""
        return self.log.last_index

    @property
    def peers(self) -> tuple[BrokerId, ...]:
        """Return all other members."""
        return tuple(member for member in self.membership.members() if member != self.id)

    @property
    def transferee(self) -> BrokerId:
        """Return who is being handed the leadership, 0 for nobody."""
        return NO_BROKER if self._leadership is None else self._leadership.transferee

    @property
    def uncommitted_bytes(self) -> int:
        """Return the bytes of the entries above the commit index that are in memory."""
        return self.log.bytes_after(self.commit_index)

    def heartbeat_commit(self, to: BrokerId) -> int:
        """Return the commit index that a heartbeat may tell `to`; 0 when this is no leader."""
        return 0 if self._leadership is None else self._leadership.heartbeat_commit(to, self.commit_index)

    # Messages

    def step(self, message: Message[E]) -> None:
        """Take a message of another member. One for somebody else, or of a passed term, changes nothing."""
        if message.to != self.id or message.from_ == self.id:
            return
        if message.term != self.term and not self._settle_term(message):
            return
        if isinstance(message, AppendResponse):  # the most frequent first
            self._on_append_response(message)
        elif isinstance(message, Append):
            self._on_append(message)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(message)
        elif isinstance(message, HeartbeatResponse):
            self._on_heartbeat_response(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        else:
            self._on_timeout_now(message)

    def _settle_term(self, message: Message[E]) -> bool:
        """Bring our term and the message's together; return whether the message still means something."""
        if message.term < self.term:
            self._refuse_passed_term(message)
            return False
        if isinstance(message, VoteRequest):
            if not message.force and self._hears_leader():
                if message.pre:
                    self._answer_vote(message, granted=False)
                return False
            if message.pre:
                return True
        if isinstance(message, VoteResponse) and message.pre and message.granted:
            return True
        from_leader = isinstance(message, Append | Heartbeat | TimeoutNow)
        self._become_follower(message.term, message.from_ if from_leader else NO_BROKER, RoleInput.NEWER_TERM_SEEN)
        return True

    def _refuse_passed_term(self, message: Message[E]) -> None:
        if isinstance(message, VoteRequest):
            self._answer_vote(message, granted=False)
        elif isinstance(message, Append | Heartbeat):  # lets a leader that was cut off step down, and us rejoin
            self._promise(HeartbeatResponse(from_=self.id, to=message.from_, term=self.term))

    # Following

    def _hear_leader(self, leader_id: BrokerId) -> None:
        if self.leader_id == leader_id:
            self._elapsed = 0
            return
        if self.leader_id != NO_BROKER:
            raise InvariantViolated(f"{self.leader_id} and {leader_id} both lead term {self.term}")
        self._become_follower(self.term, leader_id, RoleInput.LEADER_SEEN)

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        self._hear_leader(beat.from_)
        if beat.commit > self.log.last_index:
            raise InvariantViolated(
                f"{beat.from_} counts on index {beat.commit}, the log ends at {self.log.last_index}: entries were lost"
            )
        self._commit_to(beat.commit)
        self._promise(HeartbeatResponse(from_=self.id, to=beat.from_, term=self.term))

    def _on_append(self, append: Append[E]) -> None:
        self._hear_leader(append.from_)
        prev_index = append.prev_index
        if self.log.term(prev_index) == append.prev_term:
            last = prev_index + len(append.entries)
            self._store(append)
            self._commit_to(min(append.commit, last))
            if not append.quiet:
                self._acknowledge(append.from_, last)
        elif prev_index > self.commit_index:
            self._reject(append)
        elif prev_index < self.log.first_index:
            self._acknowledge(append.from_, self.commit_index)  # long committed and gone: what follows is asked for
        else:
            raise InvariantViolated(f"{append.from_} has term {append.prev_term} at committed index {prev_index}")

    def _store(self, append: Append[E]) -> None:
        """Append what is new. A late duplicate is no reason to cut what came after it; a conflict is."""
        log = self.log
        entries = append.entries
        if append.prev_index != log.last_index:
            held = log.held(entries)
            if held == len(entries):
                return
            first = entries[held].index
            if first <= log.last_index:
                if first <= self.commit_index:
                    raise InvariantViolated(f"{append.from_} replaces {first}, committed up to {self.commit_index}")
                log.truncate_from(first)
            entries = entries[held:]
        log.append(entries)

    def _acknowledge(self, leader_id: BrokerId, index: int) -> None:
        self._promise(AppendResponse(from_=self.id, to=leader_id, term=self.term, index=index), index)

    def _reject(self, append: Append[E]) -> None:
        hint = self.log.floor(min(append.prev_index, self.log.last_index), append.prev_term)
        self._promise(
            AppendResponse(
                from_=self.id,
                to=append.from_,
                term=self.term,
                index=append.prev_index,
                rejected=True,
                hint_index=hint,
                hint_term=self.log.term(hint) or NO_TERM,
            )
        )

    def _commit_to(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index

    # Leading

    def admit(self, size_bytes: int) -> None:
        """Check whether entries of `size_bytes` in all may be proposed now.

        Raises:
            NotLeader: with the leader if it is known; ask there.
            Busy: leadership is being handed over, or too much is uncommitted; try again.
        """
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(leader=self.leader_id or -1)
        if leadership.transferee != NO_BROKER:
            raise Busy(f"leadership is being handed over to broker {leadership.transferee}")
        uncommitted = self.uncommitted_bytes
        if uncommitted and uncommitted + size_bytes > self._config.uncommitted_bytes_max:
            raise Busy(f"{uncommitted} bytes are not committed yet, the limit is {self._config.uncommitted_bytes_max}")

    def propose(self, entries: list[E]) -> None:
        """Append `entries`, sealed with `term` and the indexes after `last_index`; sent with the next ready().

        Raises:
            NotLeader, Busy: see `admit`; nothing was appended.
        """
        self.admit(sum([entry.size for entry in entries]))
        for entry in entries:
            if entry.term != self.term:
                raise InvariantViolated(f"entry {entry.index} was sealed in term {entry.term}, this is {self.term}")
        self.log.append(entries)
        if self._leadership is not None:
            self._leadership.due = True

    def _on_append_response(self, answer: AppendResponse) -> None:
        if self._leadership is not None:
            self._leadership.append_answered(answer)
            self._advance_commit(self._leadership)

    def _on_heartbeat_response(self, answer: HeartbeatResponse) -> None:
        if self._leadership is not None:
            self._leadership.heartbeat_answered(answer.from_)

    def _advance_commit(self, leadership: Leadership[E]) -> None:
        commit = leadership.committable(self.commit_index)
        if commit > self.commit_index:
            self.commit_index = commit
            leadership.due = True

    def report_unreachable(self, peer: BrokerId) -> None:
        """Note that frames to `peer` were dropped or its connection broke; a leader starts to probe it."""
        if self._leadership is not None:
            self._leadership.unreachable(peer)

    def transfer_leadership(self, to: BrokerId) -> bool:
        """Hand over to the voter `to`; proposals get Busy until it leads or election_ticks have passed.

        Returns:
            False when this is no leader, or `to` is this member or no voter.
        """
        leadership = self._leadership
        if leadership is None or to == self.id or not self.membership.votes(to):
            return False
        if leadership.transferee != to:
            leadership.transfer_to(to)
            self._restart_leader_timer()
        return True

    def entries_fetched(self, fetch: Fetch, entries: list[E]) -> None:
        """Give the entries that a Ready asked for; [] when the read failed (it will be asked again)."""
        if self._leadership is not None:
            self._leadership.fetched(fetch, entries, self.commit_index, self._messages)

    # Storage and effects

    def written(self, tag: StableTag) -> None:
        """Note that a write, and all before it, are durable. Call it before sending the write's responses."""
        current = self._disk.written(tag, self.term)
        if self.role is Role.CANDIDATE and self._disk.hard_state_durable:
            self._count_vote(self.id, True)
        elif current and self._leadership is not None:
            self._advance_commit(self._leadership)

    def applied_to(self, index: int) -> None:
        """Note that everything up to `index` was applied."""
        if not self.applied_index <= index <= self._handed_out:
            raise InvariantViolated(f"applied {index}, but {self.applied_index} was, and {self._handed_out} handed out")
        self.applied_index = index

    def has_ready(self) -> bool:
        """Return whether `ready` would say anything."""
        handed_out = self._handed_out
        leadership = self._leadership
        return bool(
            self._messages
            or self._soft_dirty
            or self._disk.pending
            or (self.commit_index > handed_out and self.log.stable_index > handed_out)
            or (leadership is not None and (leadership.due or leadership.fetches))
        )

    def ready(self) -> Ready[E]:
        """Return everything due and consider it under way."""
        fetches: list[Fetch] = []
        leadership = self._leadership
        if leadership is not None:
            if leadership.due:
                leadership.send(self.commit_index, self._messages)
            if leadership.fetches:
                fetches, leadership.fetches = leadership.fetches, []
        messages = self._messages
        self._messages = []
        return Ready(
            messages=messages,
            write=self._disk.take_write(HardState(self.term, self.vote)),
            committed=self._take_committed(),
            soft=self._take_soft_state() if self._soft_dirty else None,
            fetches=fetches,
        )

    def _take_committed(self) -> tuple[int, int] | None:
        lo = self._handed_out + 1
        hi = min(self.commit_index, self.log.stable_index) + 1
        if hi <= lo:
            return None
        self._handed_out = hi - 1
        return lo, hi

    def _soft_state(self) -> SoftState:
        return SoftState(self.role, self.term, self.leader_id)

    def _take_soft_state(self) -> SoftState | None:
        self._soft_dirty = False
        soft = self._soft_state()
        if soft == self._shown:
            return None
        self._shown = soft
        return soft
