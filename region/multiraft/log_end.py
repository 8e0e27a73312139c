"""The end of one group's log as its state machine has followed it: chain, index, and how it moves.

Rule: every entry continues the chain of the entry before it. The same (term, index) with another chain means that
two logs have diverged: the group stops.
"""

from __future__ import annotations

from typing import Final

from georelay.errors import StorageFailed
from georelay.ids import RaftIndex, Term
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, continues_chain, seal_entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.group_log import GroupLog
from region.log.manifest import Manifest
from region.multiraft.machine import StateMachine
from region.raft.core import PENDING, RaftLog

READ_TRIES: Final = 5  # a read is interrupted only by a truncation on its way to the disk


class GroupStopped(Exception):
    """An invariant of the group is broken: it serves no longer on this broker."""


class MachineEnd:
    """Where the machine stands. `index` is the newest entry that it has seen as appended, `chain` that entry's."""

    __slots__ = ("_disk", "_machine", "chain", "index")

    def __init__(self, *, machine: StateMachine, disk: GroupLog, chain: int, index: RaftIndex) -> None:
        self._machine = machine
        self._disk = disk
        self.chain = chain
        self.index = index

    def seal_own(self, draft: EntryDraft, term: Term, index: RaftIndex) -> Entry:
        """Seal an entry of this leader behind the end, and move there."""
        entry = seal_entry(draft, term=term, index=index, previous_chain=self.chain)
        self.move_to(entry)
        return entry

    def move_to(self, entry: Entry) -> None:
        """Move over an entry that is known to continue the chain."""
        self.chain = entry.chain
        self.index = entry.index
        self._machine.appended(entry)

    def append(self, entry: Entry) -> None:
        """Follow an entry of another leader. Raises GroupStopped when the logs diverged."""
        if entry.index != self.index + 1 or not continues_chain(entry, self.chain):
            raise GroupStopped(
                f"entry {entry.index} (term {entry.term}) does not continue entry {self.index}: the logs diverged"
            )
        self.move_to(entry)

    def truncate(self, from_index: RaftIndex, log: RaftLog[Entry]) -> Manifest | None:
        """Go back before `from_index`; return the manifest when what remains is what the log began with.

        Raises:
            GroupStopped: what remains cannot be read.
        """
        if from_index > self.index:
            return None
        before = RaftIndex(from_index - 1)
        if 0 < before < log.first_index:
            base = self._disk.read_manifest(before)
            if base is None:
                raise GroupStopped(f"the manifest at {before}, below the first entry, cannot be read")
            return base
        newest: Entry | None = None
        if before >= 1:
            found = log.entries(before, from_index, 1)
            newest = self.read(before, from_index, 1)[0] if found is PENDING else found[0]
        self.chain = FIRST_CHAIN if newest is None else newest.chain
        self.index = before
        self._machine.truncated(from_index, newest)
        return None

    def restore(self, manifest: Manifest) -> None:
        """Start over at a manifest, with nothing above it."""
        self.chain = manifest.chain
        self.index = manifest.index
        self._machine.restore(manifest)

    def read(self, lo: RaftIndex, hi: RaftIndex, bytes_max: int) -> list[Entry]:
        """Read durable entries here and now. Raises GroupStopped."""
        for _ in range(READ_TRIES):
            try:
                return self._disk.read_entries(lo, hi, bytes_max)
            except ReadInterrupted:
                continue
            except (LogCorrupt, StorageFailed) as error:
                raise GroupStopped(str(error)) from error
        raise GroupStopped(f"entries [{lo}, {hi}) of the own log cannot be read: it is truncated again and again")
