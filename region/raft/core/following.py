"""What a member does with what a leader sends: Appends, heartbeats, snapshots; and with segments it fetched itself.

Rule 1: an acknowledgement leaves after the hard state and the entries it speaks of are durable.
Rule 2: nothing at or below the commit index is ever truncated: a leader that asks for it stops the group.
Rule 3: a follower commits no further than the Append that told it so has proved its log to match.
Rule 4: a Snapshot at or below the commit index changes nothing; one whose entry the log holds only commits it.
Rule 5: segments are adopted in a term not below the one in which they were known to be committed. In a lower term
the acknowledgement would go to a leader that may never have had them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from georelay.ids import BrokerId, Term
from region.raft.core.election import Elector
from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    ReadIndexAnswer,
    ReadIndexCheck,
    Snapshot,
)
from region.raft.core.roles import InvariantViolated, Role, RoleInput
from region.raft.core.types import NO_BROKER, NO_TERM, E, LastId, Membership


class Follower(Elector[E]):
    """The half of a RaftNode that follows a leader; see there for the arguments."""

    __slots__ = ("_handed_out", "_membership_of", "applied_index")

    applied_index: int
    _handed_out: int  # highest index given to the host to apply
    _membership_of: Callable[[E], Membership] | None

    # Appends and heartbeats

    def _hear_leader(self, leader_id: BrokerId) -> None:
        if self.leader_id == leader_id:
            self._since = self._ticks.now
            return
        if self.leader_id != NO_BROKER:
            raise InvariantViolated(f"{self.leader_id} and {leader_id} both lead term {self.term}")
        self._become_follower(self.term, leader_id, RoleInput.LEADER_SEEN)

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        self._hear_leader(beat.from_)
        last = self.log.last_index
        if beat.commit <= last:
            self._commit_to(beat.commit)
        elif self._lost is None and self._joined:
            raise InvariantViolated(
                f"{beat.from_} counts on index {beat.commit}, the log ends at {last}: entries were lost"
            )
        else:
            self._reject(beat.from_, beat.commit, last)  # it still counts on what was lost here, or let go
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
            hint = self.log.floor(min(prev_index, self.log.last_index), append.prev_term)
            self._reject(append.from_, prev_index, hint)
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
                self._memberships.truncate_from(first)
                self.membership = self._memberships.current
            entries = entries[held:]
        log.append(entries)
        for entry in entries:
            if entry.is_conf:
                self._enter_membership(entry.index, self._read_membership(entry))

    def _acknowledge(self, leader_id: BrokerId, index: int) -> None:
        """Promise that everything up to `index` is here; by then the repair is over if `index` reaches the loss."""
        repairing = not self._joined or self._lacks_lost(LastId(self.log.term(index) or NO_TERM, index))
        answer = AppendResponse(from_=self.id, to=leader_id, term=self.term, index=index, repairing=repairing)
        self._promise(answer, index)

    def _reject(self, leader_id: BrokerId, index: int, hint_index: int) -> None:
        self._promise(
            AppendResponse(
                from_=self.id,
                to=leader_id,
                term=self.term,
                index=index,
                rejected=True,
                hint_index=hint_index,
                hint_term=self.log.term(hint_index) or NO_TERM,
                repairing=not self._joined or self._lost is not None,
            )
        )

    def _commit_to(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index

    def _on_read_index_check(self, check: ReadIndexCheck) -> None:
        self._hear_leader(check.from_)
        self._promise(ReadIndexAnswer(from_=self.id, to=check.from_, term=self.term, context=check.context))

    # Memberships

    def _enter_membership(self, index: int, membership: Membership) -> None:
        self._memberships.append(index, membership)
        self.membership = membership

    def _read_membership(self, entry: E) -> Membership:
        try:
            if self._membership_of is not None:
                return self._membership_of(entry)
        except ValueError as error:
            raise InvariantViolated(f"the membership in entry {entry.index} cannot be read: {error}") from error
        raise InvariantViolated(f"entry {entry.index} changes the membership, which this host does not support")

    # Snapshots and segments

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._hear_leader(snapshot.from_)
        index = snapshot.index
        if index > self.commit_index:
            if self.log.term(index) == snapshot.snapshot_term:
                self._commit_to(index)
            else:
                self._disk.install(snapshot)
                self._memberships.reset(index, snapshot.membership)
                self._restart_after(index)
            self._acknowledge(snapshot.from_, index)
        else:
            self._acknowledge(snapshot.from_, self.commit_index)

    def _restart_after(self, index: int) -> None:
        """Let the host take the state after `index` as a whole instead of applying what led to it."""
        self.membership = self._memberships.current
        self.commit_index = self.applied_index = self._handed_out = index

    def observe_term(self, term: Term) -> None:
        """Enter `term`, told by a broker of the group in another way than by a message. A passed one is ignored."""
        if term > self.term:
            self._become_follower(term, NO_BROKER, RoleInput.NEWER_TERM_SEEN)

    def can_adopt(self, first_index: int, term: Term) -> bool:
        """Return whether committed segments from `first_index` on, served in `term`, can be linked in now."""
        log = self.log
        return (
            self.role is Role.FOLLOWER and self.term >= term and log.last_index == log.stable_index == first_index - 1
        )

    def adopt(
        self,
        last_index: int,
        term_runs: Sequence[tuple[int, Term]],
        memberships: Sequence[tuple[int, Membership]] = (),
        *,
        term: Term,
    ) -> None:
        """Take over committed entries that the host has fetched, verified against the log's end and made durable.

        Args:
            last_index: their end; commit and applied index are there from now on.
            term_runs: (start index, term) of them; the first start is the log's end + 1.
            memberships: those among them.
            term: current term of the broker that told them to be committed; see `observe_term`.

        Raises:
            InvariantViolated: `can_adopt` does not hold, or they do not continue the log.
        """
        if not term_runs or not self.can_adopt(term_runs[0][0], term):
            raise InvariantViolated(
                f"a {self.role.value} of term {self.term} whose log ends at {self.log.last_index} adopts {term_runs}"
                f" of term {term}"
            )
        self.log.adopt(last_index, term_runs)
        for index, membership in memberships:
            self._memberships.append(index, membership)
        self._restart_after(last_index)
        if self.leader_id != NO_BROKER:
            self._acknowledge(self.leader_id, last_index)
        self._end_repair()

    def advance_start(self, first_index: int) -> None:
        """Forget the entries below `first_index`: a committed decision dropped them from storage.

        Raises:
            InvariantViolated: `first_index` is not applied and durable here.
        """
        if first_index > self.applied_index:
            raise InvariantViolated(f"the log cannot start at {first_index}, applied up to {self.applied_index}")
        self.log.advance_start(first_index)
        self._memberships.forget_below(first_index - 1)
