"""What sits above one Raft group: the Protocol between the host and a state machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from georelay.ids import RaftIndex
from mesh.replication.stream_header import StreamHeader
from region.log.entry import Entry, EntryDraft
from region.log.errors import LogCorrupt
from region.log.manifest import Manifest
from region.raft.core.leading import HandingOver as HandingOver


class InvariantBroken(Exception):
    """A state machine met a committed entry that cannot be: our bug. The group stops, nothing is guessed."""


class StateMachine(Protocol):
    """Follows one group's log: its END entry by entry, and what is committed. It sees entries of every type."""

    @property
    def keeps_whole_log(self) -> bool:
        """Whether every entry above the newest manifest stays in memory, and is applied one by one at start."""

    @property
    def serves_at_followers(self) -> bool:
        """Whether somebody may wait at a follower for what is committed, so that leaders tell it without delay."""

    def snapshot(self) -> bytes:
        """Return the state after the newest entry it was given to apply; never that of the log end."""

    def restore(self, manifest: Manifest) -> None:
        """Replace everything by the state of a manifest, the log end included; applied is `manifest.index`."""

    def recovered(self, entry: Entry) -> None:
        """Follow one entry found on disk at start, in order, before the group runs."""

    def noop_header(self) -> StreamHeader:
        """Return the stream part of a leader's first entry: repeats the log end."""

    def appended(self, entry: Entry) -> None:
        """Follow one entry appended to the log; it may be truncated again until it is applied."""

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """The entries from `from_index` on are gone; `newest` is the last that remains (None: empty log)."""

    def applied(self, entries: Sequence[Entry]) -> None:
        """These entries are committed, in order, each exactly once per run."""

    def applied_until(self, newest: Entry) -> None:
        """Everything up to `newest` is committed; the entries before it are on disk only (after a restart)."""

    def led(self, *, leader: int, is_leader: bool) -> None:
        """The leader changed: `is_leader` once this broker leads AND its first entry of the term is committed."""


class Proposer(Protocol):
    """What a state machine may ask of its group."""

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        """Append entries to the leader's log; `appended` has been called for each when it returns.

        Raises:
            NotLeader, Busy: nothing was appended. HandingOver, a Busy: nothing is until it is decided who leads.
        """

    def entries_below(self, index: RaftIndex) -> Iterable[Entry]:
        """Return every entry of the log below `index`, from disk and from memory: blocks, for rebuilds only."""

    async def read_index(self) -> RaftIndex:
        """Return an index that covers everything acknowledged before the call; it is applied when this returns.

        Raises:
            NotLeader: with the leader if it is known. Busy, Unavailable: try again.
        """

    def advance_start(self, first_index: RaftIndex) -> None:
        """Let whole segments below `first_index` go, as far as manifests allow; repeat it at will."""

    def seal(self) -> None:
        """Seal the active segment."""

    def corrupt_found(self, error: LogCorrupt) -> None:
        """Have damage repaired that a read has met; until then reads of it fail."""
