"""What a leader believes about one follower, and how much it may send it.

PROBE       one Append at a time, until an answer says where the logs agree.
REPLICATE   Appends are sent ahead of their answers, as many as the window allows.
SNAPSHOT    what the follower needs next is no longer in the leader's log: it gets a Snapshot, and nothing more
            until its acknowledgements reach the log again. Sent again when it stays silent for too long.
BULK        it is far behind and fetches stored segments by itself; no Append is sent until that has ended.

Rule: a follower under repair has lost entries that it had acknowledged. Its match says what it holds, so that it
can be sent more, but counts for nothing.
Invariant: match < next.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

from region.raft.core.ready import Fetch, SnapshotRequest
from region.raft.core.ticks import Pulse

SNAPSHOT_SILENT_CHECKS: Final = 2  # election timeouts without news until a Snapshot is sent again
BULK_SILENT_CHECKS: Final = 30  # election timeouts without progress until Appends are tried again


class ProgressState(enum.Enum):
    """How the leader sends to a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"
    BULK = "bulk"


class ProgressView(NamedTuple):
    """What a leader tells its host about one follower; see Progress."""

    state: ProgressState
    match: int
    next: int
    recent_active: bool
    repairing: bool


class InflightWindow:
    """Appends sent and not yet acknowledged: bounded in number, and in bytes plus one message."""

    __slots__ = ("_bytes", "_bytes_max", "_messages_max", "_sent")

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sent: deque[tuple[int, int]] = deque()  # (last index, bytes) of each Append

    @property
    def full(self) -> bool:
        """Return whether nothing more may be sent."""
        return len(self._sent) >= self._messages_max or self._bytes >= self._bytes_max

    def add(self, last_index: int, size_bytes: int) -> None:
        """Remember one Append that ends at `last_index`."""
        self._sent.append((last_index, size_bytes))
        self._bytes += size_bytes

    def free_to(self, index: int) -> None:
        """Forget every Append that ends at or below `index`."""
        sent = self._sent
        while sent and sent[0][0] <= index:
            self._bytes -= sent.popleft()[1]

    def clear(self) -> None:
        """Forget all: they will be sent again."""
        self._sent.clear()
        self._bytes = 0


class Progress:
    """One follower, seen from the leader."""

    __slots__ = (
        "fetching",
        "match",
        "next",
        "nudged",
        "probe_sent",
        "pulse",
        "recent_active",
        "repairing",
        "sent_commit",
        "silent_checks",
        "snapshot_again",
        "snapshot_request",
        "state",
        "window",
    )

    def __init__(self, *, next_index: int, window: InflightWindow) -> None:
        self.match = 0  # highest index known to be durable there and equal to ours
        self.next = next_index  # first index of the next Append
        self.state = ProgressState.PROBE
        self.probe_sent = False  # PROBE: an Append is out and unanswered
        self.recent_active = False  # heard of since the last quorum check, but for what `pulse` says
        self.pulse: Pulse | None = None  # of its answers to beats, while nothing is to be learnt from them
        self.nudged = False  # it answered a heartbeat while behind: one Append, even an empty one, is due
        self.sent_commit = 0  # highest commit index it was told in a way that it can use
        self.fetching: Fetch | None = None  # cold entries asked from the host
        self.window = window
        self.repairing = False
        self.snapshot_request: SnapshotRequest | None = None  # asked from the host
        self.snapshot_again = False  # SNAPSHOT: ask the host at the next sign of life
        self.silent_checks = 0  # SNAPSHOT, BULK: quorum checks since there was news

    def view(self, checked_at: int) -> ProgressView:
        """Return what others may know; `checked_at` is the tick of the last quorum check."""
        return ProgressView(self.state, self.match, self.next, self.heard_since(checked_at), self.repairing)

    def heard_since(self, checked_at: int) -> bool:
        """Return whether it was heard since the last quorum check, which was in tick `checked_at`."""
        return self.recent_active or (self.pulse is not None and self.pulse.at >= checked_at)

    @property
    def counted(self) -> int:
        """Return the index up to which this follower counts towards a quorum."""
        return 0 if self.repairing else self.match

    def is_settled_at(self, last_index: int) -> bool:
        """Return whether nothing is to be learnt from this follower: it holds everything, and counts."""
        return self.state is ProgressState.REPLICATE and self.match >= last_index and not self.repairing

    def become_probe(self) -> None:
        """Start over at the first index that is not known to match."""
        self.state = ProgressState.PROBE
        self.next = self.match + 1
        self.probe_sent = False
        self.sent_commit = 0
        self.fetching = None
        self.window.clear()

    def become_replicate(self) -> None:
        """Send ahead from the first index that does not match yet."""
        self.state = ProgressState.REPLICATE
        self.next = self.match + 1
        self.probe_sent = False
        self.window.clear()

    def become_snapshot(self, request: SnapshotRequest) -> None:
        """Stop sending: the next entry is gone from this log."""
        self._stop(ProgressState.SNAPSHOT)
        self.snapshot_request = request
        self.snapshot_again = False

    def become_bulk(self) -> None:
        """Stop sending: the follower fetches by itself."""
        self._stop(ProgressState.BULK)

    def _stop(self, state: ProgressState) -> None:
        self.state = state
        self.silent_checks = 0
        self.fetching = None
        self.window.clear()

    def grow_old(self) -> None:
        """Let one election timeout pass: what gave no news for too long is tried again."""
        self.silent_checks += 1
        if self.state is ProgressState.SNAPSHOT and self.silent_checks >= SNAPSHOT_SILENT_CHECKS:
            self.snapshot_again = True
        elif self.state is ProgressState.BULK and self.silent_checks >= BULK_SILENT_CHECKS:
            self.become_probe()

    def lost_acknowledged(self, index: int) -> None:
        """Take back its acknowledgements above `index`: it has lost those entries."""
        self.match = min(self.match, index)
        if self.state in (ProgressState.PROBE, ProgressState.REPLICATE):
            self.become_probe()

    def accepted(self, index: int, *, log_first_index: int) -> bool:
        """Take an acknowledgement of everything up to `index`; return whether it told anything new."""
        advanced = index > self.match
        if advanced:
            self.match = index
            self.silent_checks = 0
            if self.next <= index:
                self.next = index + 1
        if self.state is ProgressState.REPLICATE:
            self.window.free_to(index)
            return advanced
        if self.state is ProgressState.PROBE:
            if index != self.match:
                return False  # an answer from before we started over
        elif self.state is ProgressState.BULK:
            return False
        elif index + 1 < log_first_index:
            return advanced  # still below our log
        self.become_replicate()
        return True

    def rejected(self, index: int, *, probe_index: int) -> bool:
        """Take the news that `index` does not match; try `probe_index` next. Return False for stale news."""
        if index <= self.match:
            return False  # old, or it lost what it had acknowledged: a heartbeat will find that out
        if self.state is ProgressState.REPLICATE:
            self.become_probe()
            return True
        if self.state is not ProgressState.PROBE or index != self.next - 1:
            return False
        self.next = max(min(index, probe_index + 1), self.match + 1)
        self.probe_sent = False
        return True
