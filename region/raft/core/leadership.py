"""One term of office: everything a leader knows and forgets when it steps down.

Rule 1: an index is committed only when a quorum has it durably AND its entry is of the leader's own term; older
entries are committed by the own entry above them (Raft paper, section 5.4.2 and figure 8).
Rule 2: the leader counts itself up to its own stable index, never up to its last index.
Rule 3: nothing is sent from step or propose; `send` does it once per ready(), so proposals and acknowledgements
of one loop turn share their Appends, and a commit index travels alone at most once per ready().
Rule 4: only members of the membership in force are counted: who has left it is forgotten at once.
"""

from __future__ import annotations

from typing import Generic

from georelay.ids import BrokerId, Term
from region.raft.core.messages import Append, AppendResponse, Heartbeat, Message, Snapshot, TimeoutNow
from region.raft.core.progress import InflightWindow, Progress, ProgressState, ProgressView
from region.raft.core.quorum import is_quorum, quorum_index
from region.raft.core.raft_log import RaftLog
from region.raft.core.reads import LeaderReads
from region.raft.core.ready import Fetch, SnapshotPoint, SnapshotRequest
from region.raft.core.roles import InvariantViolated
from region.raft.core.ticks import Ticks
from region.raft.core.types import NO_BROKER, PENDING, E, Membership, RaftConfig


class Leadership(Generic[E]):
    """The leader's volatile state. `first_own_index` is the noop that opens the term."""

    __slots__ = (
        "_checked_at",
        "_config",
        "_log",
        "_membership",
        "_term",
        "_ticks",
        "_told_to_lead",
        "due",
        "fetches",
        "first_own_index",
        "peers",
        "reads",
        "snapshot_requests",
        "transferee",
    )

    def __init__(
        self, config: RaftConfig, membership: Membership, log: RaftLog[E], term: Term, ticks: Ticks | None = None
    ) -> None:
        self._config = config
        self._membership = membership
        self._log = log
        self._term = term
        self._ticks = Ticks() if ticks is None else ticks
        self._checked_at = self._ticks.now  # tick of the last check of the quorum
        self.first_own_index = log.last_index + 1
        self.peers: dict[BrokerId, Progress] = {
            peer: self._new_progress() for peer in membership.members() if peer != config.id
        }
        self.due = True  # something may have to be sent
        self.transferee = NO_BROKER  # who is to lead next
        self._told_to_lead = False
        self.fetches: list[Fetch] = []
        self.snapshot_requests: list[SnapshotRequest] = []
        self.reads = LeaderReads()

    def _new_progress(self) -> Progress:
        config = self._config
        return Progress(
            next_index=self._log.last_index + 1,
            window=InflightWindow(messages_max=config.inflight_messages_max, bytes_max=config.inflight_bytes_max),
        )

    def change(self, membership: Membership) -> None:
        """Count and send by `membership` from now on."""
        self._membership = membership
        members = [member for member in membership.members() if member != self._config.id]
        known = self.peers
        self.peers = {}
        for peer in members:
            progress = known.get(peer)
            if progress is None:
                progress = self._new_progress()
                progress.recent_active = True  # it had no time to be heard before the next quorum check
            self.peers[peer] = progress
        if self.transferee not in membership.voters:
            self.transferee = NO_BROKER
        self.due = True

    # Hearing from followers

    def append_answered(self, message: AppendResponse) -> None:
        """Take the answer to an Append; one from a stranger, or beyond our log, is ignored."""
        progress = self.peers.get(message.from_)
        if progress is None:
            return
        progress.recent_active = True
        log = self._log
        if message.rejected:
            probe_index = log.floor(message.hint_index, message.hint_term) if message.hint_term else message.hint_index
            # Our log may start above the hint: then the follower does not hold what we would have to probe with.
            took_back = self._repairs(progress, message, min(probe_index, message.hint_index))
            if took_back or progress.rejected(message.index, probe_index=probe_index):
                self.due = True
            return
        self._repairs(progress, message, message.index)
        if message.index <= log.last_index and progress.accepted(message.index, log_first_index=log.first_index):
            self.due = self.due or self._lets_send(progress)

    def _lets_send(self, progress: Progress) -> bool:
        """Return whether news of a follower can let something leave: it lacks entries, or waits for an order."""
        return self._config.tells_commits or progress.next <= self._log.last_index or self.transferee != NO_BROKER

    def _repairs(self, progress: Progress, message: AppendResponse, holds: int) -> bool:
        """Follow a follower into repair and out of it; return whether it has lost what we counted on."""
        lost = message.repairing and (not progress.repairing or (message.rejected and holds < progress.match))
        progress.repairing = message.repairing
        if lost:
            progress.lost_acknowledged(holds)
        return lost

    def heartbeat_answered(self, peer: BrokerId) -> None:
        """Take a sign of life; a follower that is behind gets one Append, to find out what was lost."""
        progress = self.peers.get(peer)
        if progress is None:
            return
        progress.recent_active = True
        if progress.state is ProgressState.SNAPSHOT:
            if progress.snapshot_again and progress.snapshot_request is None:
                self._want_snapshot(peer, progress)
        elif not progress.is_settled_at(self._log.last_index):
            progress.probe_sent = False
            progress.nudged = True
            self.due = True

    def distrust(self, peer: BrokerId) -> None:
        """Take back everything that is believed of a follower, until it says otherwise."""
        self.ignore_pulse(peer)
        progress = self.peers.get(peer)
        if progress is not None and (progress.match or not progress.repairing):
            progress.match = 0
            progress.repairing = True
            progress.become_probe()

    def unreachable(self, peer: BrokerId) -> None:
        """Expect everything in flight to that follower to be lost."""
        progress = self.peers.get(peer)
        if progress is None:
            return
        if progress.state is ProgressState.SNAPSHOT:
            progress.snapshot_again = True  # not now: without a connection that would be for ever
        elif progress.state is not ProgressState.PROBE:
            progress.become_probe()

    def quorum_heard(self) -> bool:
        """Return whether a quorum was heard since the last call."""
        own, since = self._config.id, self._checked_at
        peers = self.peers
        heard = is_quorum(self._membership, lambda voter: voter == own or peers[voter].heard_since(since))
        for progress in peers.values():
            progress.recent_active = False
            progress.grow_old()
        self._checked_at = self._ticks.now
        return heard

    def view(self, peer: BrokerId) -> ProgressView | None:
        """Return what others may know of a follower; None for a stranger."""
        progress = self.peers.get(peer)
        return None if progress is None else progress.view(self._checked_at)

    def ignore_pulse(self, peer: BrokerId) -> None:
        """Hear a follower no longer but by its own answers."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.recent_active = progress.heard_since(self._checked_at)
            progress.pulse = None

    # Commit

    def committable(self, commit: int) -> int:
        """Return the commit index that the term rule allows, at least `commit`."""
        index = quorum_index(self._membership, self._match_of)
        return index if index > commit and index >= self.first_own_index else commit

    def _match_of(self, voter: BrokerId) -> int:
        return self._log.stable_index if voter == self._config.id else self.peers[voter].counted

    def heartbeat_commit(self, peer: BrokerId, commit: int) -> int:
        """Return the commit index that `peer` can use: never beyond what it holds."""
        progress = self.peers.get(peer)
        return 0 if progress is None else min(progress.match, commit)

    # Sending

    def send(self, commit: int, out: list[Message[E]]) -> None:
        """Put every Append that may be sent now into `out`, and wanted cold reads into `fetches`."""
        self.due = False
        for peer, progress in self.peers.items():
            while self._send_one(peer, progress, commit, out):
                pass
            progress.nudged = False
        self._hand_over(out)

    def _send_one(self, peer: BrokerId, progress: Progress, commit: int, out: list[Message[E]]) -> bool:
        """Send one Append; return whether the next one may follow."""
        if progress.state is ProgressState.REPLICATE:
            return self._replicate(peer, progress, commit, out)
        if progress.state is ProgressState.PROBE and not progress.probe_sent:
            self._probe(peer, progress, commit, out)
        return False

    def _replicate(self, peer: BrokerId, progress: Progress, commit: int, out: list[Message[E]]) -> bool:
        log = self._log
        lo = progress.next
        behind = lo <= log.last_index
        if lo < log.first_index:
            self._want_snapshot(peer, progress)
            return False
        if progress.fetching is None and behind and not progress.window.full:
            bytes_max = self._config.append_message_bytes_max
            entries = log.entries(lo, log.last_index + 1, bytes_max)
            if entries is not PENDING:
                self._send_entries(peer, progress, entries, commit, out)
                return True
            progress.fetching = Fetch(peer, self._term, lo, log.last_index + 1, bytes_max)
            self.fetches.append(progress.fetching)
        elif progress.nudged:
            self._emit(peer, progress, (), commit, out)  # finds out about losses
            progress.nudged = False
        elif self._config.tells_commits and not behind and min(commit, lo - 1) > progress.sent_commit:
            # The answer would only repeat what is known once everything sent was acknowledged.
            self._emit(peer, progress, (), commit, out, quiet=progress.match == lo - 1)
        return False

    def _probe(self, peer: BrokerId, progress: Progress, commit: int, out: list[Message[E]]) -> None:
        log = self._log
        if log.term(progress.next - 1) is None:
            self._want_snapshot(peer, progress)
            return
        entries = []
        if progress.next <= log.last_index:
            found = log.entries(progress.next, log.last_index + 1, self._config.append_message_bytes_max)
            if found is not PENDING:  # a cold read can wait until we know that it is the right place
                entries = found
        self._emit(peer, progress, entries, commit, out)
        progress.probe_sent = True

    def _send_entries(
        self, peer: BrokerId, progress: Progress, entries: list[E], commit: int, out: list[Message[E]]
    ) -> None:
        self._emit(peer, progress, entries, commit, out)
        last = progress.next + len(entries) - 1
        progress.next = last + 1
        progress.window.add(last, sum([entry.size for entry in entries]))

    def _emit(
        self,
        peer: BrokerId,
        progress: Progress,
        entries: list[E] | tuple[()],
        commit: int,
        out: list[Message[E]],
        *,
        quiet: bool = False,
    ) -> None:
        prev_index = progress.next - 1
        prev_term = self._log.term(prev_index)
        assert prev_term is not None, (prev_index, self._log.first_index, self._log.last_index)
        out.append(
            Append(
                from_=self._config.id,
                to=peer,
                term=self._term,
                prev_index=prev_index,
                prev_term=prev_term,
                commit=commit,
                entries=entries,
                quiet=quiet,
            )
        )
        progress.sent_commit = max(progress.sent_commit, min(commit, prev_index + len(entries)))

    def fetched(self, fetch: Fetch, entries: list[E], commit: int, out: list[Message[E]]) -> None:
        """Send the cold entries that were asked for, if they are still what the follower needs."""
        progress = self.peers.get(fetch.to)
        if progress is None or progress.fetching is not fetch:
            return  # asked by an earlier term, or the follower's place has changed
        progress.fetching = None
        if not entries:
            return  # the read failed: the next heartbeat answer asks again
        self.due = True
        if progress.next != fetch.lo or fetch.lo < self._log.first_index:
            return  # it turned out to hold more, or our log starts later now
        if (
            entries[0].index != fetch.lo
            or entries[-1].index >= fetch.hi
            or entries[-1].index != fetch.lo + len(entries) - 1
        ):
            raise InvariantViolated(f"asked for {fetch}, got [{entries[0].index}, {entries[-1].index}]")
        self._send_entries(fetch.to, progress, entries, commit, out)

    # Snapshots and bulk

    def _want_snapshot(self, peer: BrokerId, progress: Progress) -> None:
        request = SnapshotRequest(peer, self._term)
        progress.become_snapshot(request)
        self.snapshot_requests.append(request)

    def snapshot_fetched(
        self, request: SnapshotRequest, point: SnapshotPoint | None, commit: int, out: list[Message[E]]
    ) -> None:
        """Send the snapshot that was asked for; None, or one our log has passed, is asked for again later."""
        progress = self.peers.get(request.to)
        if progress is None or progress.snapshot_request is not request:
            return
        progress.snapshot_request = None
        if progress.state is not ProgressState.SNAPSHOT:
            return
        if point is None or point.index < self._log.first_index - 1:
            progress.snapshot_again = True
            return
        if point.index > commit:
            raise InvariantViolated(f"a snapshot of index {point.index}, committed up to {commit}")
        progress.silent_checks = 0
        progress.next = max(point.index, progress.match) + 1
        out.append(
            Snapshot(
                from_=self._config.id,
                to=request.to,
                term=self._term,
                index=point.index,
                snapshot_term=point.term,
                membership=point.membership,
                data=point.data,
            )
        )

    def begin_bulk(self, peer: BrokerId) -> bool:
        """Stop sending to `peer` while it fetches segments; False for a stranger and one that needs a Snapshot."""
        progress = self.peers.get(peer)
        if progress is None or progress.state is ProgressState.SNAPSHOT:
            return False
        progress.become_bulk()
        return True

    def end_bulk(self, peer: BrokerId) -> None:
        """Send to `peer` again, from the first index that is not known to match."""
        progress = self.peers.get(peer)
        if progress is not None and progress.state is ProgressState.BULK:
            progress.become_probe()
            self.due = True

    def beat(self, commit: int, out: list[Message[E]]) -> None:
        """Put one heartbeat for each follower into `out`."""
        for peer in self.peers:
            out.append(
                Heartbeat(from_=self._config.id, to=peer, term=self._term, commit=self.heartbeat_commit(peer, commit))
            )

    # Handing over

    def transfer_to(self, peer: BrokerId) -> None:
        """Start to hand over to `peer`: no new proposals; it is told to campaign once it holds everything."""
        self.transferee = peer
        self._told_to_lead = False
        self.due = True

    def successor(self) -> BrokerId:
        """Return the voter that holds the most, 0 when there is none."""
        sound = [voter for voter in self._membership.voters if voter in self.peers and not self.peers[voter].repairing]
        return max(sound, key=lambda voter: self.peers[voter].match, default=NO_BROKER)

    def _hand_over(self, out: list[Message[E]]) -> None:
        if self.transferee == NO_BROKER or self._told_to_lead:
            return
        if self.peers[self.transferee].counted == self._log.last_index:
            self._told_to_lead = True
            out.append(self.timeout_now(self.transferee))

    def timeout_now(self, peer: BrokerId) -> TimeoutNow:
        """Return the order to campaign at once."""
        return TimeoutNow(from_=self._config.id, to=peer, term=self._term)
