"""Who leads: term, vote, role and timer of one member, and the elections it takes part in.

Rule 1: the vote of a term is given once and forgotten only with the term.
Rule 2: who heard a leader within election_ticks helps no other candidate, unless the leader itself handed over
(KIP-996: otherwise two healthy brokers that are cut from each other trade the leadership for ever).
Rule 3: requests for votes and votes leave after the hard state, and the log they speak of, are durable. So a
restarted broker can never be elected by votes for a log that it has lost.
Rule 4: pre-votes promise nothing, change no term and need no disk.
Rule 5: only a voter campaigns, by the membership in force or by the one before while that may not be committed;
who is none still answers, for it may be one by a newer membership that it has not got yet.
Rule 6: who has lost entries that it had acknowledged is not electable, and helps only candidates that may have
them all, until its log is as new again as it was (repair). Otherwise one corrupt log could lose a committed entry.
Rule 7: nobody speaks of term 0, which peers refuse: who knows no term yet and would refuse a pre-vote says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from georelay.ids import BrokerId, RaftIndex, Term
from region.raft.core.durability import Durability
from region.raft.core.leadership import Leadership
from region.raft.core.memberships import MembershipLog
from region.raft.core.messages import Message, TimeoutNow, VoteRequest, VoteResponse
from region.raft.core.quorum import Outcome, Poll
from region.raft.core.raft_log import RaftLog
from region.raft.core.roles import InvariantViolated, Role, RoleInput, next_role
from region.raft.core.ticks import Pulse, Ticks
from region.raft.core.types import NO_BROKER, NO_TERM, E, HardStateLike, LastId, Membership, RaftConfig, RandomSource


class Elector(Generic[E]):
    """The half of a RaftNode that decides who leads; see there for the arguments."""

    __slots__ = (
        "_config",
        "_deadline",
        "_disk",
        "_leadership",
        "_lost",
        "_make_noop",
        "_memberships",
        "_messages",
        "_moved",
        "_next_beat",
        "_poll",
        "_pulse",
        "_reads_lost",
        "_rng",
        "_since",
        "_ticks",
        "commit_index",
        "id",
        "joins_after",
        "leader_id",
        "log",
        "membership",
        "role",
        "term",
        "vote",
    )

    def __init__(
        self,
        config: RaftConfig,
        log: RaftLog[E],
        hard_state: HardStateLike,
        rng: RandomSource,
        make_noop: Callable[[Term, RaftIndex], E],
        *,
        memberships: Sequence[tuple[int, Membership]] = (),
        lost: LastId | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        if log.last_term > hard_state.term:
            raise InvariantViolated(f"the log ends in term {log.last_term}, the hard state in {hard_state.term}")
        self.id = config.id
        self._memberships = MembershipLog(config.membership(), memberships)
        self.membership = self._memberships.current
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.role = Role.FOLLOWER
        self.leader_id = NO_BROKER
        self.log = log
        self.commit_index = log.first_index - 1
        self._config = config
        self._rng = rng
        self._make_noop = make_noop
        self._disk: Durability[E] = Durability(log)
        self._leadership: Leadership[E] | None = None
        self._poll: Poll | None = None
        self._messages: list[Message[E]] = []
        self._reads_lost: list[int] = []  # asked of a leadership that is over
        self._lost: LastId | None = lost
        self.joins_after = config.joins_after  # the host may raise it when it learns more
        self._end_repair()
        self._moved = False  # role, term or leader may differ from what the host has followed
        self._ticks = Ticks() if ticks is None else ticks
        self._since = 0  # tick in which the timer was last reset
        self._pulse: Pulse | None = None  # says when the leader was last heard; only a follower of it has one
        self._deadline = 0  # of the timer, in ticks
        self._next_beat = 0
        self._reset_timer()

    # Time

    def tick(self, n: int = 1) -> None:
        """Let `n` ticks pass and look at them; for a host with one group. After a stall it drains its sockets first."""
        self._ticks.now += n
        self.look_at_time()

    def look_at_time(self) -> None:
        """Do what is due by the ticks that have passed.

        A host with many groups calls it when `ticks_left` has run out, and in every tick while `is_asking`.
        """
        if self._leadership is not None:
            self._leadership.reads.ask_again()
        if self._elapsed >= self._deadline:
            self._timer_fired()

    @property
    def _elapsed(self) -> int:
        """Ticks since the timer was last reset."""
        pulse = self._pulse
        since = self._since if pulse is None or pulse.at < self._since else pulse.at
        return self._ticks.now - since

    @property
    def ticks_left(self) -> int:
        """Ticks until the timer fires, if it is not reset before; whoever resets it sets election_ticks or more."""
        return self._deadline - self._elapsed

    @property
    def is_asking(self) -> bool:
        """Whether a question to the followers is not answered, and has to be asked again in the next tick."""
        return self._leadership is not None and self._leadership.reads.is_asked

    def _timer_fired(self) -> None:
        if self._leadership is not None:
            self._leader_timer_fired(self._leadership)
        elif self._electable:
            self._ask_for_pre_votes()
        else:
            self._reset_timer()

    def _leader_timer_fired(self, leadership: Leadership[E]) -> None:
        if self._config.heartbeat_ticks and self._elapsed >= self._next_beat:
            leadership.beat(self._appliable_index, self._messages)
            self._next_beat = self._elapsed + self._config.heartbeat_ticks
        if self._elapsed >= self._config.election_ticks:
            if not leadership.quorum_heard():
                self._become_follower(self.term, NO_BROKER, RoleInput.QUORUM_LOST)
                return
            leadership.transferee = NO_BROKER  # it had its time: serve on
            self._restart_leader_timer()
        elif self._config.heartbeat_ticks:
            self._deadline = min(self._next_beat, self._config.election_ticks)

    def _restart_leader_timer(self) -> None:
        self._since = self._ticks.now
        self._next_beat = self._config.heartbeat_ticks
        self._deadline = self._next_beat or self._config.election_ticks

    def _reset_timer(self) -> None:
        ticks = self._config.election_ticks
        self._since = self._ticks.now
        self._deadline = self._rng.randrange(ticks, 2 * ticks)

    def _hears_leader(self) -> bool:
        return self.leader_id != NO_BROKER and self._elapsed < self._config.election_ticks

    @property
    def hears_leader(self) -> bool:
        """Whether this voter leads, or heard its leader within an election timeout; False for who cannot lead."""
        return self._electable and self._hears_leader()

    def touch_leader(self, from_: BrokerId, term: Term) -> bool:
        """Take a heartbeat that says nothing new; False when `step` must see it."""
        if term != self.term or from_ != self.leader_id or from_ == self.id:
            return False
        self._since = self._ticks.now
        return True

    def ride(self, pulse: Pulse) -> None:
        """Take every beat of `pulse` for one that `touch_leader` took; ends with the leader, or the term."""
        self.get_off()
        self._pulse = pulse

    def get_off(self) -> None:
        """Hear beats no longer but by `touch_leader` and `step`."""
        pulse = self._pulse
        if pulse is not None:
            self._since = max(self._since, pulse.at)
            self._pulse = None
            pulse.left(self)

    def touch_peer(self, from_: BrokerId, term: Term, pulse: Pulse | None = None) -> bool:
        """Take the answer to a heartbeat from a follower that is up to date; False when `step` must see it.

        Args:
            pulse: whose beats count as further answers, until `ignore_pulse`; the host has to call that, or this,
                again after everything that changes this group.
        """
        leadership = self._leadership
        if leadership is None or term != self.term:
            return False
        progress = leadership.peers.get(from_)
        if progress is None:
            return False
        progress.recent_active = True
        settled = progress.is_settled_at(self.log.last_index)
        progress.pulse = pulse if settled else None
        return settled

    def ignore_pulse(self, from_: BrokerId) -> None:
        """Hear a follower no longer but by its own answers."""
        if self._leadership is not None:
            self._leadership.ignore_pulse(from_)

    def _promise(self, message: Message[E], index: int = 0) -> None:
        self._disk.release(message, index, self._messages)

    @property
    def _appliable_index(self) -> int:
        """Up to where entries are committed and durable here. A leader tells followers of no more than this.

        What is committed by others alone, while its own disk hangs, nobody has named and answered yet. Followers that
        applied it, and kept a manifest of that, would not know after a power cut that it is still to be named.
        """
        return min(self.commit_index, self.log.stable_index)

    # Repair

    @property
    def repairing(self) -> bool:
        """Return whether entries are missing here that this broker has acknowledged."""
        return self._lost is not None

    def _lacks_lost(self, last: LastId) -> bool:
        """Return whether a log that ends at `last` may lack what was lost here."""
        return self._lost is not None and last < self._lost

    def _end_repair(self) -> None:
        """End the repair if the durable log is as new as it was before the loss."""
        stable = self.log.stable_index
        if not self._lacks_lost(LastId(self.log.term(stable) or NO_TERM, stable)):
            self._lost = None

    # Elections

    @property
    def _electable(self) -> bool:
        return self._lost is None and self._joined and self._memberships.may_lead(self.id, self.commit_index)

    @property
    def _joined(self) -> bool:
        """Whether this replica belongs to the group in its present life: see RaftConfig.joins_after."""
        return self.joins_after < 0 or self._memberships.names_above(self.id, self.joins_after)

    def named_above(self, index: int) -> bool:
        """Return whether a membership above `index` that is in the log names this broker."""
        return self._memberships.names_above(self.id, index)

    def _change_role(self, given: RoleInput) -> None:
        self.get_off()
        self.role = next_role(self.role, given)
        self._moved = True  # term and leader change only together with an input to the role

    def campaign(self) -> None:
        """Ask for pre-votes now, stand for election if they are granted. No effect for who is not electable."""
        if self._leadership is None and self._electable:
            self._ask_for_pre_votes()

    def forget_leader(self, leader_id: BrokerId) -> bool:
        """Stop waiting for `leader_id`, whose broker is known to be gone: other candidates get an answer at once.

        Returns:
            Whether it was the leader; then `campaign` after a short random delay.
        """
        if self.leader_id != leader_id or self.leader_id in (NO_BROKER, self.id):
            return False
        self.get_off()
        self.leader_id = NO_BROKER
        self._moved = True
        return True

    def _ask_for_pre_votes(self) -> None:
        self._change_role(RoleInput.TIMED_OUT)
        self.leader_id = NO_BROKER
        self._reset_timer()
        self._poll = Poll(self.membership)
        if self._poll.record(self.id, True) is Outcome.WON:
            self._stand_for_election(RoleInput.PRE_VOTES_WON)
            return
        for elector in self.membership.electors():
            if elector != self.id:
                self._messages.append(self._vote_request(elector, Term(self.term + 1), pre=True))

    def _stand_for_election(self, given: RoleInput) -> None:
        """Raise the term and vote for ourselves; both our vote and the requests count once that is durable."""
        self._change_role(given)
        self.term = Term(self.term + 1)
        self.vote = self.id
        self.leader_id = NO_BROKER
        self._disk.hard_state_changed()
        self._reset_timer()
        self._poll = Poll(self.membership)
        for elector in self.membership.electors():
            if elector != self.id:
                self._disk.hold(self._vote_request(elector, self.term, force=given is RoleInput.TOLD_TO_LEAD))

    def _vote_request(self, to: BrokerId, term: Term, *, pre: bool = False, force: bool = False) -> VoteRequest:
        return VoteRequest(
            from_=self.id,
            to=to,
            term=term,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            pre=pre,
            force=force,
        )

    def _on_vote_request(self, request: VoteRequest) -> None:
        free = (
            self.vote == request.from_
            or (self.vote == NO_BROKER and self.leader_id == NO_BROKER)
            or (request.pre and request.term > self.term)
        )
        last = LastId(request.last_term, request.last_index)
        current = last >= LastId(self.log.last_term, self.log.last_index)
        granted = free and current and self._joined and not self._lacks_lost(last)
        if granted and not request.pre:
            self._since = self._ticks.now
            if self.vote != request.from_:
                self.vote = request.from_
                self._disk.hard_state_changed()
        self._answer_vote(request, granted=granted)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        term = request.term if granted else self.term
        if term == NO_TERM:
            return  # rule 7
        answer = VoteResponse(from_=self.id, to=request.from_, term=term, granted=granted, pre=request.pre)
        if request.pre and granted:
            self._messages.append(answer)  # promises nothing
        else:
            self._promise(answer)

    def _on_vote_response(self, answer: VoteResponse) -> None:
        asked = Role.PRE_CANDIDATE if answer.pre else Role.CANDIDATE
        right_term = self.term + 1 if answer.pre and answer.granted else self.term
        if self.role is asked and answer.term == right_term:
            self._count_vote(answer.from_, answer.granted)

    def _count_vote(self, voter: BrokerId, granted: bool) -> None:
        assert self._poll is not None, self.role
        outcome = self._poll.record(voter, granted)
        if outcome is Outcome.LOST:
            self._become_follower(self.term, NO_BROKER, RoleInput.VOTES_LOST)
        elif outcome is Outcome.WON and self.role is Role.PRE_CANDIDATE:
            self._stand_for_election(RoleInput.PRE_VOTES_WON)
        elif outcome is Outcome.WON:
            self._become_leader()

    def _become_leader(self) -> None:
        self._change_role(RoleInput.VOTES_WON)
        self.leader_id = self.id
        self._poll = None
        self._leadership = Leadership(self._config, self.membership, self.log, self.term, self._ticks)
        self._restart_leader_timer()
        self.log.append([self._make_noop(self.term, RaftIndex(self.log.last_index + 1))])

    def _become_follower(self, term: Term, leader_id: BrokerId, given: RoleInput) -> None:
        self._change_role(given)
        if term > self.term:
            self.term = term
            self.vote = NO_BROKER
            self._disk.hard_state_changed()
        self.leader_id = leader_id
        if self._leadership is not None:
            self._reads_lost += self._leadership.reads.contexts()
            self._leadership = None
        self._poll = None
        self._reset_timer()

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self._leadership is not None:
            raise InvariantViolated(f"{message.from_} also leads term {self.term}")
        if self.role is not Role.CANDIDATE and self._electable:
            self._stand_for_election(RoleInput.TOLD_TO_LEAD)
