"""One Raft group on this broker: its core, its log on disk and its state machine, joined.

Rule 1: the state machine follows the log END: it sees an entry when it is appended, loses it when it is
        truncated, and sees it again when it is committed.
Rule 2: while segments of another broker are being linked in, nothing else may lengthen the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from georelay.errors import Unavailable
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from georelay.limits import KIB, MIB, TAIL_BYTES_MAX
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType
from region.log.entry import Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.flusher import GroupWrite
from region.log.group_log import GroupLog
from region.log.hard_state import HardState
from region.log.index import SegmentInfo
from region.log.manifest import Manifest
from region.multiraft.applier import Applier
from region.multiraft.followed_log import FollowedLog
from region.multiraft.log_end import GroupStopped, MachineEnd
from region.multiraft.machine import InvariantBroken, StateMachine
from region.multiraft.open_reads import OpenReads
from region.multiraft.upkeep import Upkeep
from region.raft.core import (
    PENDING,
    Append,
    Fetch,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    LastId,
    Membership,
    Message,
    ProgressState,
    RaftConfig,
    RaftLog,
    RaftNode,
    Ready,
    Role,
    Snapshot,
    SnapshotPoint,
    SnapshotRequest,
    StorageWrite,
    Ticks,
    TimeoutNow,
    VoteResponse,
)
from region.raft.membership import decode_membership, encode_membership

ELECTION_TICKS: Final = 10
APPLY_BYTES_MAX: Final = 256 * KIB  # handed to the machine at once; the host looks at the clock in between
READ_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpView:
    """One member as its leader sees it.

    Args:
        match: up to here it is known to hold the leader's log durably; `last` is the leader's end.
        active: heard since the last check of the quorum.
        fetching: fetches whole segments. repairing: lost what it had.
    """

    match: RaftIndex
    last: RaftIndex
    active: bool
    fetching: bool
    repairing: bool


def check_snapshot(message: Snapshot) -> None:
    """Raise ValueError unless the manifest inside a snapshot is whole and is what the message says it is."""
    manifest = Manifest.decode(message.data)
    if (manifest.index, manifest.term) != (message.index, message.snapshot_term):
        raise ValueError(f"snapshot of {message.index} holds a manifest of {manifest.index}")


def runs_from(runs: Sequence[tuple[int, Term]], first_index: int) -> list[tuple[int, Term]]:
    """Return the term runs of the entries from `first_index` on, the first of them beginning there."""
    later = [run for run in runs if run[0] > first_index]
    earlier = [run for run in runs if run[0] <= first_index]
    return [(first_index, earlier[-1][1]), *later]


class Group:
    """Implements region.multiraft.machine.Proposer.

    Args:
        voters: the founding voters; () for a replica that joins a group it knows nothing of.
        joins_after: see RaftConfig.
        followed: the log, when the machine has followed it already; None: it is followed here and now.
        on_dirty: called whenever the host has something to take.
        on_corrupt: called when the own log was found to be damaged.
        wall_ms: stamps manifests; nothing depends on it.
        ticks: the host's.
    """

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
        followed: FollowedLog | None = None,
        joins_after: int = -1,
        on_corrupt: Callable[[Group], None] = lambda _: None,
        wall_ms: Callable[[], int] = lambda: 0,
        ticks: Ticks | None = None,
    ) -> None:
        self.group_id = group_id
        self.disk = disk
        self.machine = machine
        self.founders = voters
        self.stopped = False
        self.unsafe: frozenset[BrokerId] = frozenset()  # their disk was replaced: they are neither told nor heard
        self.adopting = False  # segments of another broker are on their way into the log
        self.me = me
        self._on_dirty = on_dirty
        self._on_corrupt = on_corrupt
        self._led: tuple[int, bool] = (-1, False)
        self._told_term = Term(0)
        self._reads = OpenReads()
        if followed is None:
            followed = FollowedLog.open(disk, machine)
            followed.follow_all(machine)
        self._end = MachineEnd(machine=machine, disk=disk, chain=followed.chain, index=followed.last_index)
        self.upkeep = Upkeep(0 if followed.manifest is None else followed.manifest.index)
        self._applier = Applier(
            machine=machine,
            disk=disk,
            end=self._end,
            upkeep=self.upkeep,
            newest=followed.manifest,
            wall_ms=wall_ms,
        )
        self.node: RaftNode[Entry] = RaftNode(
            RaftConfig(
                id=me,
                voters=voters,
                election_ticks=ELECTION_TICKS,
                apply_bytes_max=APPLY_BYTES_MAX,
                joins_after=joins_after,
                tells_commits=machine.serves_at_followers,
            ),
            RaftLog(
                first_index=disk.first_index,
                term_runs=followed.term_runs(),
                last_index=disk.last_index,
                tail=list(followed.tail),
            ),
            hard_state or HardState(),
            rng,
            self._make_noop,
            applied_index=None if followed.manifest is None else followed.manifest.index,
            make_conf=self._make_conf,
            membership_of=lambda entry: decode_membership(entry.payload),
            memberships=followed.memberships,
            lost=None if disk.lost is None else LastId(disk.lost.term, disk.lost.index),
            ticks=ticks,
        )
        self._handed_out = self.node.last_index  # up to here storage was told of the log
        self._log_epoch = self.node.log.log_epoch  # grows with every truncation

    # --- members ---------------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """Return the members as of the log end."""
        return self.node.membership

    @property
    def membership_committed(self) -> bool:
        """Return whether the change that made `membership` is committed, so that another one may follow."""
        return self.node.membership_committed

    def distrust(self, unsafe: frozenset[BrokerId]) -> None:
        """Neither tell nor hear these brokers: their disk was replaced, and they did not leave the group yet."""
        if unsafe != self.unsafe:
            self.unsafe = unsafe
            self.node.get_off()
            for broker in unsafe:
                self.node.distrust(broker)
            self._on_dirty(self)

    def propose_membership(self, *, voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...]) -> RaftIndex:
        """Change the members; returns the index of the change.

        Raises:
            NotLeader, Busy, Unavailable: nothing was appended. ValueError: they cannot be members.
        """
        self._refuse_stopped()
        index = self.node.propose_membership(voters=voters, learners=learners)
        self._on_dirty(self)
        return RaftIndex(index)

    def catch_up_of(self, peer: BrokerId) -> CatchUpView | None:
        """Return how far another member is, None when this is no leader or `peer` no member."""
        progress = self.node.progress(peer)
        if progress is None:
            return None
        return CatchUpView(
            match=RaftIndex(progress.match),
            last=RaftIndex(self.node.last_index),
            active=progress.recent_active,
            fetching=progress.state is ProgressState.BULK,
            repairing=progress.repairing,
        )

    def transfer_leadership(self, to: BrokerId) -> bool:
        """Hand over to the voter `to`; False when this broker does not lead or `to` cannot."""
        begun = not self.stopped and self.node.transfer_leadership(to)
        if begun:
            self._on_dirty(self)
        return begun

    def end_bulk(self, peer: BrokerId) -> None:
        """Send Appends to `peer` again, at once: it has fetched what it wanted, or failed to."""
        self.node.end_bulk(peer)
        self._on_dirty(self)

    # --- leader ----------------------------------------------------------------------------------

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        """Append entries at the leader; see region.multiraft.machine.Proposer."""
        self._refuse_stopped()
        node = self.node
        entries = []
        chain = self._end.chain
        index = node.last_index
        for draft in drafts:
            index += 1
            entry = seal_entry(draft, term=Term(node.term), index=RaftIndex(index), previous_chain=chain)
            chain = entry.chain
            entries.append(entry)
        node.propose(entries)
        for entry in entries:
            self._end.move_to(entry)
        self._on_dirty(self)
        return entries

    def _refuse_stopped(self) -> None:
        if self.stopped:
            raise Unavailable("this replica has stopped; see the broker's log")

    def admit(self, size_bytes: int) -> None:
        """Raise NotLeader or Busy when an entry of that size would be refused."""
        self.node.admit(size_bytes)

    def _make_noop(self, term: Term, index: RaftIndex) -> Entry:
        return self._end.seal_own(EntryDraft(header=self.machine.noop_header(), payload=b""), term, index)

    def _make_conf(self, term: Term, index: RaftIndex, membership: Membership) -> Entry:
        payload = encode_membership(membership)
        header = replace(self.machine.noop_header(), type=EntryType.CONF, payload_crc=crc32c(payload))
        return self._end.seal_own(EntryDraft(header=header, payload=payload), term, index)

    def beat_rows(self, rows: dict[BrokerId, list[tuple[GroupId, Term, RaftIndex]]]) -> None:
        """Add this group's row to the beat of every member that has one."""
        node = self.node
        for peer in node.peers:
            of_peer = rows.get(peer)
            if of_peer is not None and peer not in self.unsafe:
                of_peer.append((self.group_id, Term(node.term), RaftIndex(node.heartbeat_commit(peer))))

    # --- inputs ----------------------------------------------------------------------------------

    def step(self, message: Message[Entry]) -> None:
        """Feed one Raft message. Raises GroupStopped."""
        if self.adopting and isinstance(message, Append | Snapshot | VoteResponse | TimeoutNow):
            return  # each of them may lengthen the log; its sender tries again
        try:
            self.node.step(message)
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error

    def step_heartbeat(self, peer: BrokerId, term: Term, commit: RaftIndex) -> None:
        """Feed one beat row that says something new.

        A leader that has not removed this broker's former disk yet counts on what was on that one. An empty log that
        was never told of a membership has acknowledged nothing, so nothing was lost here.
        """
        if self.node.last_index == 0 and not self.node.membership.voters:
            commit = RaftIndex(0)
        self.step(Heartbeat(from_=peer, to=self.me, term=term, commit=commit))

    def step_heartbeat_answer(self, peer: BrokerId, term: Term) -> None:
        """Feed one beat answer that the fast path did not take."""
        self.step(HeartbeatResponse(from_=peer, to=self.me, term=term))

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
            if write is not None and write.install is not None:
                self._restore(Manifest.decode(write.install.data))
                self._handed_out = write.install.index
            told = None if write is None else write.truncate_from
            self._truncate(RaftIndex(self._handed_out + 1 if told is None else told))
        if write is not None:
            for entry in write.entries:
                if entry.index > self._end.index:
                    self._end.append(entry)
        self._handed_out = log.last_index
        return ready

    def group_write(self, write: StorageWrite[Entry], durable: Callable[[], None]) -> GroupWrite:
        """Return the flusher's form of a write of the core; `durable` is called once it is."""
        return GroupWrite(
            group_id=self.group_id,
            log=self.disk,
            token=durable,
            hard_state=write.hard_state,
            install=None if write.install is None else Manifest.decode(write.install.data),
            truncate_from=None if write.truncate_from is None else RaftIndex(write.truncate_from),
            entries=write.entries,
        )

    def _truncate(self, from_index: RaftIndex) -> None:
        base = self._end.truncate(from_index, self.node.log)
        if base is not None:
            self._restore(base)

    def _restore(self, manifest: Manifest) -> None:
        self._end.restore(manifest)
        self._applier.restored(manifest)

    def entries_below(self, index: RaftIndex) -> Iterator[Entry]:
        """Yield every entry of the log below `index`; see region.multiraft.machine.Proposer."""
        log = self.node.log
        at = RaftIndex(log.first_index)
        while at < min(index, log.tail_first):  # what was evicted from memory is durable
            for entry in self._end.read(at, RaftIndex(min(index, log.tail_first)), READ_BYTES):
                yield entry
                at = RaftIndex(entry.index + 1)
        if at < index:
            found = log.entries(at, index, 1 << 62)
            assert found is not PENDING, (at, index, log.tail_first)
            yield from found

    # --- apply -----------------------------------------------------------------------------------

    @property
    def applied_index(self) -> RaftIndex:
        """Return the newest index that the machine was given as committed."""
        return RaftIndex(self.node.applied_index)

    def apply(self, ready: Ready[Entry]) -> None:
        """Hand committed entries to the machine, answer reads and follow leadership. Raises GroupStopped."""
        if ready.committed is not None:
            lo, hi = ready.committed
            try:
                self._applier.apply(self.node, lo, hi)
            except (InvariantViolated, InvariantBroken, LogCorrupt) as error:
                raise GroupStopped(str(error)) from error
            self.node.applied_to(hi - 1)
            self.follow_start()
            self._trim()
        for state in ready.read_states:
            self._reads.confirmed(state.context, state.index)
        for context in ready.reads_lost:
            self._reads.lost(context, self.node.leader_id or -1)
        self._reads.applied(self.node.applied_index)
        self._follow_leader()

    def checkpoint(self) -> bool:
        """Have a manifest of what is applied written, unless there is one; return whether there will be a new one."""
        due = not self.stopped and self._applier.checkpoint(self.node)
        if due:
            self._on_dirty(self)
        return due

    def seal(self) -> None:
        """Have the active segment sealed; see region.multiraft.machine.Proposer."""
        self.upkeep.seal_wanted = True
        self._on_dirty(self)

    def advance_start(self, first_index: RaftIndex) -> None:
        """Have segments below `first_index` removed; see region.multiraft.machine.Proposer."""
        if first_index > max(self.disk.first_index, self.upkeep.start_wanted):
            self.upkeep.start_wanted = first_index
            self._on_dirty(self)

    def follow_start(self) -> None:
        """Let the core know that the stored log begins later."""
        node = self.node
        first_index = min(self.disk.first_index, node.applied_index)
        if first_index > node.log.first_index:
            node.advance_start(first_index)

    def kept_up(self) -> None:
        """Follow what a manifest, a seal or a later start has changed on disk."""
        self.follow_start()
        newest = self._applier.newest
        if newest is not None and newest.index == self.disk.sealed_index:
            self.checkpoint()

    def _trim(self) -> None:
        log = self.node.log
        if log.tail_bytes > TAIL_BYTES_MAX:
            up_to = self.upkeep.checkpointed if self.machine.keeps_whole_log else self.node.applied_index
            log.trim(TAIL_BYTES_MAX, min(up_to, self.node.applied_index))

    def _follow_leader(self) -> None:
        node = self.node
        leader = node.leader_id if node.leader_id > 0 else -1
        own_term_applied = node.log.term(node.applied_index) == node.term
        leads = node.role is Role.LEADER and own_term_applied
        if (leader, leads) != self._led:
            self._led = (leader, leads)
            self.machine.led(leader=leader, is_leader=leads)

    @property
    def serves_as_leader(self) -> bool:
        """Return whether this broker leads and its first entry of the term is applied."""
        return not self.stopped and self._led == (self.me, True)

    def leadership_moved(self) -> bool:
        """Return whether leader or term changed since the last call."""
        now = Term(self.node.term)
        moved = now != self._told_term and self.node.leader_id > 0
        if moved:
            self._told_term = now
        return moved

    # --- reads -----------------------------------------------------------------------------------

    async def read_index(self) -> RaftIndex:
        """Confirm that what is acknowledged is applied here; see region.multiraft.machine.Proposer."""
        self._refuse_stopped()
        context = self._reads.next_context()
        self.node.read_index(context)
        confirmed = self._reads.wait_for(context)
        self._on_dirty(self)
        return await confirmed

    def stop(self) -> None:
        """Serve no longer: nothing is promised, voted or applied from here on."""
        self.stopped = True
        self.node.get_off()
        self._reads.fail_all()

    def corrupt_found(self, error: LogCorrupt) -> None:
        """Have damage repaired; see region.multiraft.machine.Proposer."""
        del error  # the log has marked the segment
        self._on_corrupt(self)

    def read_cold(self, fetch: Fetch) -> list[Entry]:
        """Read the entries a follower needs from disk; empty when the read has to be asked again. Any thread.

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

    # --- snapshots and segments of other brokers -----------------------------------------------------

    def read_base(self, founders: Membership) -> SnapshotPoint | None:
        """Return the state below the first entry of the stored log, None when there is none to be had. Any thread."""
        base = self.disk.base_manifest()
        if base is None:
            return None
        membership = decode_membership(base.membership) if base.membership else founders
        return SnapshotPoint(index=base.index, term=base.term, membership=membership, data=base.encode())

    def snapshot_fetched(self, request: SnapshotRequest, point: SnapshotPoint | None) -> None:
        """Hand the snapshot to the core. Raises GroupStopped."""
        if point is not None and not self.node.log.first_index - 1 <= point.index <= self.node.commit_index:
            point = None  # the log moved on while it was read
        try:
            self.node.snapshot_fetched(request, point)
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error

    def can_adopt(self, first_index: RaftIndex, term: Term) -> bool:
        """Return whether verified segments from `first_index` on may be linked in now."""
        return not self.stopped and self.node.can_adopt(first_index, term)

    def adopted(self, info: SegmentInfo, manifest: Manifest, term: Term) -> None:
        """Continue at the end of a segment that is durable now. Raises GroupStopped."""
        self.adopting = False
        if not self.can_adopt(RaftIndex(info.first_index), term):
            raise GroupStopped(f"the log grew while segment {info.first_index} was linked in")
        runs = runs_from(self.disk.term_runs, info.first_index)
        memberships = [(int(info.last_index), decode_membership(manifest.membership))] if manifest.membership else []
        try:
            self.node.adopt(info.last_index, runs, memberships, term=term)
        except InvariantViolated as error:
            raise GroupStopped(str(error)) from error
        self._restore(manifest)
        self._log_epoch = self.node.log.log_epoch
        self._handed_out = self.node.last_index
        self._on_dirty(self)
