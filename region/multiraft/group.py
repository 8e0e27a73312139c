"""One Raft group on this broker: its core, its log on disk and its state machine, joined.

Rule 1: the state machine follows the log END: it sees an entry when it is appended, loses it when it is
        truncated, and sees it again when it is committed.
Rule 2: every entry of a leader must continue the chain of the entry before it. The same (term, index) with
        another chain means that two logs have diverged: the group stops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from georelay.errors import StorageFailed, Unavailable
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from georelay.limits import MIB, TAIL_BYTES_MAX
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, continues_chain, seal_entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.group_log import GroupLog
from region.log.hard_state import HardState
from region.multiraft.machine import InvariantBroken, StateMachine
from region.raft.core import (
    PENDING,
    Fetch,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    Message,
    RaftConfig,
    RaftLog,
    RaftNode,
    Ready,
    Role,
    SoftState,
)

ELECTION_TICKS = 10
REPLAY_BYTES = 8 * MIB  # read at once when a whole log is followed
READ_TRIES = 5  # a read is interrupted only by a truncation on its way to the disk


class GroupStopped(Exception):
    """An invariant of the group is broken: it serves no longer on this broker."""


class Group:
    """Implements region.multiraft.machine.Proposer."""

    def __init__(
        self,
        *,
        group_id: GroupId,
        me: BrokerId,
        voters: tuple[BrokerId, ...],
        disk: GroupLog,
        hard_state: HardState | None,
        machine: StateMachine,
        rng: random.Random,
        on_dirty: Callable[[Group], None],
    ) -> None:
        self.group_id = group_id
        self.voters = voters
        self.disk = disk
        self.machine = machine
        self.stopped = False
        self._me = me
        self._on_dirty = on_dirty
        self._chain = FIRST_CHAIN
        self._followed = RaftIndex(0)  # newest entry that the machine has seen as appended
        self._led: tuple[int, bool] = (-1, False)
        self._told_term = Term(0)
        self._peers = tuple(voter for voter in voters if voter != me)
        self._replay()
        tail = disk.recovered_tail(1 << 62 if machine.keeps_whole_log else TAIL_BYTES_MAX)
        self.node: RaftNode[Entry] = RaftNode(
            RaftConfig(id=me, voters=voters, election_ticks=ELECTION_TICKS),
            RaftLog(first_index=disk.first_index, term_runs=disk.term_runs, last_index=disk.last_index, tail=tail),
            hard_state or HardState(),
            rng,
            self._make_noop,
        )
        self._handed_out = self.node.last_index  # up to here storage was told of the log
        self._log_epoch = self.node.log.log_epoch  # grows with every truncation

    def _replay(self) -> None:
        index, last = self.disk.first_index, self.disk.last_index
        while index <= last:
            for entry in self.disk.read_entries(index, RaftIndex(last + 1), REPLAY_BYTES):
                self.machine.recovered(entry)
                self._chain = entry.chain
                self._followed = entry.index
            index = RaftIndex(self._followed + 1)

    def entries_below(self, index: RaftIndex) -> Iterator[Entry]:
        """Yield every entry of the log below `index`; see region.multiraft.machine.Proposer."""
        log = self.node.log
        at = RaftIndex(log.first_index)
        while at < min(index, log.tail_first):  # what was evicted from memory is durable
            for entry in self._read(at, RaftIndex(min(index, log.tail_first)), REPLAY_BYTES):
                yield entry
                at = RaftIndex(entry.index + 1)
        if at < index:
            found = log.entries(at, index, 1 << 62)
            assert found is not PENDING, (at, index, log.tail_first)
            yield from found

    # --- leader ----------------------------------------------------------------------------------

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        """Append entries at the leader; see region.multiraft.machine.Proposer."""
        if self.stopped:
            raise Unavailable("this replica has stopped; see the broker's log")
        node = self.node
        entries = []
        chain = self._chain
        index = node.last_index
        for draft in drafts:
            index += 1
            entry = seal_entry(draft, term=Term(node.term), index=RaftIndex(index), previous_chain=chain)
            chain = entry.chain
            entries.append(entry)
        node.propose(entries)
        self._chain = chain
        self._followed = RaftIndex(index)
        for entry in entries:
            self.machine.appended(entry)
        self._on_dirty(self)
        return entries

    def admit(self, size_bytes: int) -> None:
        """Raise NotLeader or Busy when an entry of that size would be refused."""
        self.node.admit(size_bytes)

    def _make_noop(self, term: Term, index: RaftIndex) -> Entry:
        draft = EntryDraft(header=self.machine.noop_header(), payload=b"")
        entry = seal_entry(draft, term=term, index=index, previous_chain=self._chain)
        self._chain = entry.chain
        self._followed = index
        self.machine.appended(entry)
        return entry

    def beat_rows(self, rows: dict[BrokerId, list[tuple[GroupId, Term, RaftIndex]]]) -> None:
        """Add this group's row to the beat of every peer it has."""
        node = self.node
        for peer in self._peers:
            rows[peer].append((self.group_id, Term(node.term), RaftIndex(node.heartbeat_commit(peer))))

    # --- inputs ----------------------------------------------------------------------------------

    def step(self, message: Message[Entry]) -> None:
        """Feed one Raft message. Raises GroupStopped."""
        try:
            self.node.step(message)
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error

    def step_heartbeat(self, peer: BrokerId, term: Term, commit: RaftIndex) -> None:
        """Feed one beat row that says something new."""
        self.step(Heartbeat(from_=peer, to=self._me, term=term, commit=commit))

    def step_heartbeat_answer(self, peer: BrokerId, term: Term) -> None:
        """Feed one beat answer that the fast path did not take."""
        self.step(HeartbeatResponse(from_=peer, to=self._me, term=term))

    # --- outputs ---------------------------------------------------------------------------------

    def take_ready(self) -> Ready[Entry]:
        """Take what the core wants done and let the machine follow the log. Raises GroupStopped."""
        try:
            ready = self.node.ready()
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error
        write = ready.write
        log = self.node.log
        if log.log_epoch != self._log_epoch:
            # Storage is not told to truncate what it never got, but the machine has seen that as well.
            self._log_epoch = log.log_epoch
            told = None if write is None else write.truncate_from
            self._truncate(RaftIndex(self._handed_out + 1 if told is None else told))
        if write is not None:
            for entry in write.entries:
                if entry.index > self._followed:
                    self._append_followed(entry)
        self._handed_out = log.last_index
        return ready

    def _append_followed(self, entry: Entry) -> None:
        if entry.index != self._followed + 1 or not continues_chain(entry, self._chain):
            raise GroupStopped(
                f"entry {entry.index} (term {entry.term}) does not continue entry {self._followed}: the logs diverged"
            )
        self._chain = entry.chain
        self._followed = entry.index
        self.machine.appended(entry)

    def _truncate(self, from_index: RaftIndex) -> None:
        if from_index > self._followed:
            return
        before = RaftIndex(from_index - 1)
        newest: Entry | None = None
        if before >= 1:
            found = self.node.log.entries(before, from_index, 1)
            newest = self._read(before, from_index, 1)[0] if found is PENDING else found[0]
        self._chain = FIRST_CHAIN if newest is None else newest.chain
        self._followed = before
        self.machine.truncated(from_index, newest)

    def _read(self, lo: RaftIndex, hi: RaftIndex, bytes_max: int) -> list[Entry]:
        """Read durable entries here and now. Raises GroupStopped."""
        for _ in range(READ_TRIES):
            try:
                return self.disk.read_entries(lo, hi, bytes_max)
            except ReadInterrupted:
                continue
            except (LogCorrupt, StorageFailed) as error:
                raise GroupStopped(str(error)) from error
        raise GroupStopped(f"entries [{lo}, {hi}) of the own log cannot be read: it is truncated again and again")

    def apply(self, ready: Ready[Entry]) -> None:
        """Hand committed entries to the machine and follow leadership. Raises GroupStopped."""
        if ready.committed is not None:
            lo, hi = ready.committed
            try:
                self._apply_range(lo, hi)
            except (InvariantViolated, InvariantBroken, LogCorrupt) as error:
                raise GroupStopped(str(error)) from error
            self.node.applied_to(hi - 1)
            self._trim()
        self._follow_leader(ready.soft)

    def _apply_range(self, lo: int, hi: int) -> None:
        in_memory = max(lo, self.node.log.tail_first)
        if lo < in_memory:
            # Only after a restart: these entries were followed at recovery, and only the end matters.
            newest = RaftIndex(min(in_memory, hi) - 1)
            self.machine.applied_until(self._read(newest, RaftIndex(newest + 1), 1)[0])
        if in_memory < hi:
            entries = self.node.log.entries(in_memory, hi, 1 << 62)
            assert entries is not PENDING, (in_memory, hi, self.node.log.tail_first)
            self.machine.applied(entries)

    def _trim(self) -> None:
        if not self.machine.keeps_whole_log:
            log = self.node.log
            if log.tail_bytes > TAIL_BYTES_MAX:
                log.trim(TAIL_BYTES_MAX, self.node.applied_index)

    def _follow_leader(self, soft: SoftState | None) -> None:
        del soft  # what counts is whether the leader's first entry of its term is applied here
        node = self.node
        leader = node.leader_id if node.leader_id > 0 else -1
        own_term_applied = node.log.term(node.applied_index) == node.term
        leads = node.role is Role.LEADER and own_term_applied
        if (leader, leads) != self._led:
            self._led = (leader, leads)
            self.machine.led(leader=leader, is_leader=leads)

    def leadership_moved(self) -> bool:
        """Return whether leader or term changed since the last call."""
        now = Term(self.node.term)
        moved = now != self._told_term and self.node.leader_id > 0
        if moved:
            self._told_term = now
        return moved

    # --- cold reads (any thread) -----------------------------------------------------------------

    def read_cold(self, fetch: Fetch) -> list[Entry]:
        """Read the entries a follower needs from disk; empty when the read has to be asked again.

        Raises:
            LogCorrupt, StorageFailed: the log cannot be read.
        """
        try:
            return self.disk.read_entries(RaftIndex(fetch.lo), RaftIndex(fetch.hi), fetch.bytes_max)
        except ReadInterrupted:
            return []

    def fetched(self, fetch: Fetch, entries: list[Entry]) -> None:
        """Hand the entries to the core. Raises GroupStopped."""
        try:
            self.node.entries_fetched(fetch, entries)
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error
