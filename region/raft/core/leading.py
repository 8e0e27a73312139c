"""What a host asks of a leader, and how a leader's memberships change.

Rule 1: a change of the membership is proposed only when the one in force is committed, is not joint, and an entry
of the leader's own term is committed.
Rule 2: the leader leaves a joint membership by itself as soon as it is committed, whoever began the change.
Rule 3: a leader that a committed membership has no more among its voters steps down, after it has told the voter
that holds the most to campaign. Until then it leads on, and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, RaftIndex, Term
from region.raft.core.following import Follower
from region.raft.core.leadership import Leadership
from region.raft.core.memberships import left, next_membership
from region.raft.core.messages import AppendResponse, HeartbeatResponse, ReadIndexAnswer, ReadIndexCheck
from region.raft.core.progress import ProgressView
from region.raft.core.ready import Fetch, ReadState, SnapshotPoint, SnapshotRequest
from region.raft.core.roles import InvariantViolated, RoleInput
from region.raft.core.types import NO_BROKER, E, Membership


class HandingOver(Busy):
    """Nothing is proposed until it is decided who leads: the heir soon, or this leader still."""


class Leader(Follower[E]):
    """The half of a RaftNode that leads; see there for the arguments."""

    __slots__ = ("_make_conf", "_read_states")

    _make_conf: Callable[[Term, RaftIndex, Membership], E] | None
    _read_states: list[ReadState]

    # Proposals

    def admit(self, size_bytes: int) -> None:
        """Check whether entries of `size_bytes` in all may be proposed now.

        Raises:
            NotLeader: with the leader if it is known; ask there.
            Busy: leadership is being handed over, or too much is uncommitted; try again.
        """
        self._leading()
        uncommitted = self.uncommitted_bytes
        if uncommitted and uncommitted + size_bytes > self._config.uncommitted_bytes_max:
            raise Busy(f"{uncommitted} bytes are not committed yet, the limit is {self._config.uncommitted_bytes_max}")

    def _leading(self) -> Leadership[E]:
        """Return the leadership if it takes proposals. Raises NotLeader or Busy."""
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(leader=self.leader_id or -1)
        if leadership.transferee != NO_BROKER:
            raise HandingOver(f"leadership is being handed over to broker {leadership.transferee}")
        return leadership

    @property
    def uncommitted_bytes(self) -> int:
        """Return the bytes of the entries above the commit index that are in memory."""
        return self.log.bytes_after(self.commit_index)

    def propose(self, entries: list[E]) -> None:
        """Append `entries`, sealed with `term` and the indexes after `last_index`; sent with the next ready().

        Raises:
            NotLeader, Busy: see `admit`; nothing was appended.
        """
        self.admit(sum([entry.size for entry in entries]))
        for entry in entries:
            if entry.term != self.term:
                raise InvariantViolated(f"entry {entry.index} was sealed in term {entry.term}, this is {self.term}")
            if entry.is_conf:
                raise InvariantViolated(f"entry {entry.index} changes the membership: use propose_membership")
        self.log.append(entries)
        if self._leadership is not None:
            self._leadership.due = True

    # Memberships

    def propose_membership(self, *, voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...]) -> int:
        """Start to change the group's members to these; a change of several voters takes two entries.

        Returns:
            Index of the entry that starts it; of the one in force when it says the same already.

        Raises:
            NotLeader: ask the leader, if it is known.
            Busy: a change is not finished, or leadership is moving; try again.
            ValueError: no voter, a broker twice, or a voter that is a learner too.
        """
        leadership = self._leading()
        if self.commit_index < leadership.first_own_index:
            raise Busy(f"nothing of term {self.term} is committed yet")
        if not self.membership_committed:  # a joint one is left in the moment in which it is committed
            raise Busy(f"the membership of entry {self.membership_index} is not settled yet")
        membership = next_membership(self.membership, voters=voters, learners=learners)
        if membership is not None:
            self._append_membership(leadership, membership)
        return self.membership_index

    @property
    def membership_index(self) -> int:
        """Return the entry that put the membership in force; 0 for the founders'."""
        return self._memberships.index

    @property
    def membership_committed(self) -> bool:
        """Return whether the membership in force is known to be committed."""
        return self._memberships.index <= self.commit_index

    def membership_at(self, index: int) -> Membership:
        """Return the membership after entry `index`, which is not below the log's start - 1."""
        return self._memberships.at(index)

    def _append_membership(self, leadership: Leadership[E], membership: Membership) -> None:
        if self._make_conf is None:
            raise InvariantViolated("the membership cannot change: this host makes no entry for it")
        index = RaftIndex(self.log.last_index + 1)
        self.log.append([self._make_conf(self.term, index, membership)])
        self._enter_membership(index, membership)
        leadership.change(membership)

    def _settle_membership(self, leadership: Leadership[E]) -> None:
        """Leave a committed joint membership, or the leadership if there is no place for us in a committed one."""
        if not self.membership_committed:
            return
        if self.membership.outgoing:
            self._append_membership(leadership, left(self.membership))
            return
        leadership.send(self._appliable_index, self._messages)
        successor = leadership.successor()
        if successor != NO_BROKER:
            self._messages.append(leadership.timeout_now(successor))
        self._become_follower(self.term, NO_BROKER, RoleInput.RESIGNED)

    # Answers

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
            leadership.due = leadership.due or self._config.tells_commits
            if self.membership.outgoing or self.id not in self.membership.voters:
                self._settle_membership(leadership)

    def heartbeat_commit(self, to: BrokerId) -> int:
        """Return the commit index that a heartbeat may tell `to`; 0 when this is no leader."""
        return 0 if self._leadership is None else self._leadership.heartbeat_commit(to, self._appliable_index)

    def progress(self, peer: BrokerId) -> ProgressView | None:
        """Return what is known of `peer`; None when this is no leader, or `peer` no other member."""
        return None if self._leadership is None else self._leadership.view(peer)

    def report_unreachable(self, peer: BrokerId) -> None:
        """Note that frames to `peer` were dropped or its connection broke; a leader starts to probe it."""
        if self._leadership is not None:
            self._leadership.unreachable(peer)

    def distrust(self, peer: BrokerId) -> None:
        """Note that the disk of `peer` was replaced: what it acknowledged is gone, and it counts for nothing."""
        if self._leadership is not None:
            self._leadership.distrust(peer)

    # Handing over

    @property
    def transferee(self) -> BrokerId:
        """Return who is being handed the leadership, 0 for nobody."""
        return NO_BROKER if self._leadership is None else self._leadership.transferee

    def transfer_leadership(self, to: BrokerId) -> bool:
        """Hand over to the voter `to`; proposals get Busy until it leads or election_ticks have passed.

        Returns:
            False when this is no leader, or `to` is this member, no voter to stay, or under repair.
        """
        leadership = self._leadership
        if leadership is None or to == self.id or to not in self.membership.voters or leadership.peers[to].repairing:
            return False
        if leadership.transferee != to:
            leadership.transfer_to(to)
            self._restart_leader_timer()
        return True

    def step_down(self) -> None:
        """Stop leading at once, without a successor: this broker cannot serve, such as when its disk hangs."""
        if self._leadership is not None:
            self._become_follower(self.term, NO_BROKER, RoleInput.RESIGNED)

    # What followers need from storage

    def entries_fetched(self, fetch: Fetch, entries: list[E]) -> None:
        """Give the entries that a Ready asked for; [] when the read failed (it will be asked again)."""
        if self._leadership is not None:
            self._leadership.fetched(fetch, entries, self._appliable_index, self._messages)

    def snapshot_fetched(self, request: SnapshotRequest, point: SnapshotPoint | None) -> None:
        """Give the snapshot that a Ready asked for; None when there is none now (it will be asked again).

        Raises:
            InvariantViolated: `point` is not committed.
        """
        if self._leadership is not None:
            self._leadership.snapshot_fetched(request, point, self.commit_index, self._messages)

    def begin_bulk(self, peer: BrokerId) -> bool:
        """Send no Appends to `peer`, which fetches stored segments; False when that is not possible now."""
        return self._leadership is not None and self._leadership.begin_bulk(peer)

    def end_bulk(self, peer: BrokerId) -> None:
        """Send Appends to `peer` again: it has fetched what it wanted, or failed to."""
        if self._leadership is not None:
            self._leadership.end_bulk(peer)

    # Reads

    def read_index(self, context: int) -> None:
        """Ask for an index that is not older than anything acknowledged before; the answer is in a Ready.

        It is in `read_states` as soon as a quorum has confirmed the leadership and in `reads_lost` when that ends.

        Raises:
            NotLeader: ask the leader, if it is known.
            Busy: too many reads are open.
        """
        if self._leadership is None:
            raise NotLeader(leader=self.leader_id or -1)
        self._leadership.reads.ask(context)

    def _reads_due(self, leadership: Leadership[E]) -> bool:
        return leadership.reads.due and self.commit_index >= leadership.first_own_index

    def _send_read_checks(self, leadership: Leadership[E]) -> None:
        number = leadership.reads.begin(self.commit_index)
        for voter in self.membership.electors():
            if voter != self.id:
                self._messages.append(ReadIndexCheck(from_=self.id, to=voter, term=self.term, context=number))
        self._read_states += leadership.reads.confirmed(self.membership, self.id)

    def _on_read_index_answer(self, answer: ReadIndexAnswer) -> None:
        leadership = self._leadership
        if leadership is not None:
            leadership.reads.answered(answer.from_, answer.context)
            self._read_states += leadership.reads.confirmed(self.membership, self.id)
