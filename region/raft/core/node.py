"""One member of one Raft group: the state machine that a host drives.

`tick`, `step`, `propose`, `written` and the other inputs only change memory. `ready` says what to send, store,
apply and read; its module lists the host's duties in order. A node never blocks, reads no clock and owns no
randomness, so a host, a test and a simulator run the same code.

The rules of elections, of following and of leading are in the modules of these names. Kept here:
1 A message of a passed term is never acted on; one of a newer term makes a follower first.
2 Only what is committed AND durable here is handed out to be applied, a bounded piece at a time.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"; Ongaro's thesis, chapters 4,
6 and 9; etcd/raft for probe and replicate, conflict hints and asynchronous storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from georelay.ids import BrokerId, RaftIndex, Term
from region.raft.core.leading import Leader
from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexAnswer,
    ReadIndexCheck,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.raft_log import RaftLog
from region.raft.core.ready import Fetch, ReadState, Ready, SnapshotRequest, StorageWrite
from region.raft.core.roles import InvariantViolated, Role, RoleInput
from region.raft.core.ticks import Ticks
from region.raft.core.types import (
    NO_BROKER,
    E,
    HardState,
    HardStateLike,
    LastId,
    Membership,
    RaftConfig,
    RandomSource,
)


class RaftNode(Leader[E]):
    """A member of a group.

    Args:
        config: see RaftConfig; its members are the group's before the first of `memberships`.
        log: recovered view of the stored log; this node is its only writer from now on.
        hard_state: as stored; HardState() for a new group.
        rng: spreads the election timeouts.
        make_noop: seals the entry (term, index) that opens a leader's term; called inside the input that won.
        applied_index: what the host has applied already; everything above it is handed out (again).
        make_conf: seals the entry (term, index) that puts a membership in force; called inside propose_membership,
            and inside step and written, when a joint membership is left. None: the membership never changes.
        membership_of: reads it back; ValueError when it cannot. None: no such entry can be followed.
        memberships: (index, membership) of the stored log, rising; the first may be that of a snapshot.
        lost: where the log ended before entries that this broker had acknowledged were found to be corrupt; None
            when nothing is known to be lost. See `repairing`.
        ticks: of a host with many groups, who moves them; None: `tick` does.

    Read-only attributes: id, term, vote, role, leader_id (0: unknown), commit_index, applied_index, log,
    membership. Any input may raise InvariantViolated: then the group stops.
    """

    __slots__ = ("_peers", "_peers_of", "_shown")

    def __init__(
        self,
        config: RaftConfig,
        log: RaftLog[E],
        hard_state: HardStateLike,
        rng: RandomSource,
        make_noop: Callable[[Term, RaftIndex], E],
        *,
        applied_index: int | None = None,
        make_conf: Callable[[Term, RaftIndex, Membership], E] | None = None,
        membership_of: Callable[[E], Membership] | None = None,
        memberships: Sequence[tuple[int, Membership]] = (),
        lost: LastId | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        super().__init__(config, log, hard_state, rng, make_noop, memberships=memberships, lost=lost, ticks=ticks)
        if applied_index is not None:
            if not log.first_index - 1 <= applied_index <= log.last_index:
                raise InvariantViolated(f"applied {applied_index} of a log [{log.first_index}, {log.last_index}]")
            self.commit_index = applied_index
        self.applied_index = self.commit_index
        self._handed_out = self.commit_index
        self._make_conf = make_conf
        self._membership_of = membership_of
        self._read_states: list[ReadState] = []
        self._peers: tuple[BrokerId, ...] = ()  # as of the membership `_peers_of`: every beat asks
        self._peers_of: Membership | None = None

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
        if self._peers_of is not self.membership:
            self._peers_of = self.membership
            self._peers = tuple(member for member in self.membership.members() if member != self.id)
        return self._peers

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
        else:
            self._step_rare(message)

    def _step_rare(
        self, message: VoteRequest | VoteResponse | TimeoutNow | Snapshot | ReadIndexCheck | ReadIndexAnswer
    ) -> None:
        if isinstance(message, ReadIndexAnswer):
            self._on_read_index_answer(message)
        elif isinstance(message, ReadIndexCheck):
            self._on_read_index_check(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        elif isinstance(message, Snapshot):
            self._on_snapshot(message)
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
        from_leader = isinstance(message, Append | Heartbeat | TimeoutNow | Snapshot | ReadIndexCheck)
        self._become_follower(message.term, message.from_ if from_leader else NO_BROKER, RoleInput.NEWER_TERM_SEEN)
        return True

    def _refuse_passed_term(self, message: Message[E]) -> None:
        if isinstance(message, VoteRequest):
            self._answer_vote(message, granted=False)
        elif isinstance(message, Append | Heartbeat | Snapshot | ReadIndexCheck):
            # Lets a leader that was cut off step down, and us rejoin.
            self._promise(HeartbeatResponse(from_=self.id, to=message.from_, term=self.term))

    # Storage and effects

    def written(self, write: StorageWrite[E]) -> None:
        """Note that a write, and all before it, are durable. Call it before sending the write's responses."""
        told = self._appliable_index
        current = self._disk.written(write, self.term)
        if self._lost is not None:
            self._end_repair()
        if self.role is Role.CANDIDATE and self._disk.hard_state_durable:
            self._count_vote(self.id, True)
        elif current and self._leadership is not None:
            self._advance_commit(self._leadership)
            if self._config.tells_commits and self._appliable_index > told:
                self._leadership.due = True

    def applied_to(self, index: int) -> None:
        """Note that everything up to `index` was applied."""
        if not self.applied_index <= index <= self._handed_out:
            raise InvariantViolated(f"applied {index}, but {self.applied_index} was, and {self._handed_out} handed out")
        self.applied_index = index

    def has_ready(self) -> bool:
        """Return whether `ready` would say anything."""
        handed_out = self._handed_out
        return bool(
            self._messages
            or self._moved
            or self._disk.pending
            or (self.commit_index > handed_out and self.log.stable_index > handed_out)
            or (self._leadership is not None and self._leader_has_ready())
            or self._read_states
            or self._reads_lost
        )

    def _leader_has_ready(self) -> bool:
        leadership = self._leadership
        return leadership is not None and bool(
            leadership.due or leadership.fetches or leadership.snapshot_requests or self._reads_due(leadership)
        )

    def ready(self) -> Ready[E]:
        """Return everything due and consider it under way."""
        fetches: list[Fetch] = []
        requests: list[SnapshotRequest] = []
        leadership, appliable = self._leadership, self._appliable_index
        if leadership is not None:
            if self._reads_due(leadership):
                self._send_read_checks(leadership)
            if leadership.due:
                leadership.send(appliable, self._messages)
            fetches, leadership.fetches = leadership.fetches, fetches
            requests, leadership.snapshot_requests = leadership.snapshot_requests, requests
        self._moved = False
        messages, self._messages = self._messages, []
        read_states, self._read_states = self._read_states, []
        reads_lost, self._reads_lost = self._reads_lost, []
        return Ready(
            messages=messages,
            write=self._disk.take_write(HardState(self.term, self.vote)),
            committed=self._take_committed(appliable),
            fetches=fetches,
            snapshot_requests=requests,
            read_states=read_states,
            reads_lost=reads_lost,
            more=self._handed_out < appliable,
        )

    def _take_committed(self, appliable: int) -> tuple[int, int] | None:
        lo = self._handed_out + 1
        if appliable < lo:
            return None
        hi = self.log.cut(lo, appliable + 1, self._config.apply_bytes_max)
        self._handed_out = hi - 1
        return lo, hi
