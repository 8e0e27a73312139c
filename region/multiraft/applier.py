"""Hands committed entries to a group's machine, and makes a manifest of what is applied when one is due.

Rule: a manifest is made of what is applied, never of the log end, and at every segment boundary, because the log may
begin only where there is one.
"""

from __future__ import annotations

from collections.abc import Callable

from georelay.ids import RaftIndex
from region.log.entry import Entry
from region.log.group_log import GroupLog
from region.log.manifest import Manifest
from region.multiraft.log_end import MachineEnd
from region.multiraft.machine import StateMachine
from region.multiraft.upkeep import ENTRY_COST_BYTES, Upkeep
from region.raft.core import PENDING, RaftNode
from region.raft.membership import encode_membership


class Applier:
    """The applied side of one group.

    Attributes:
        newest: the newest entry applied, or the manifest that stands for it; None before the first.
    """

    __slots__ = ("_disk", "_end", "_machine", "_upkeep", "_wall_ms", "newest")

    def __init__(
        self,
        *,
        machine: StateMachine,
        disk: GroupLog,
        end: MachineEnd,
        upkeep: Upkeep,
        newest: Manifest | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._machine = machine
        self._disk = disk
        self._end = end
        self._upkeep = upkeep
        self._wall_ms = wall_ms
        self.newest: Entry | Manifest | None = newest

    def apply(self, node: RaftNode[Entry], lo: int, hi: int) -> None:
        """Apply [lo, hi). Raises GroupStopped, InvariantBroken."""
        for boundary in self._upkeep.boundaries(self._disk, lo - 1, hi):
            if boundary >= lo:
                self._apply_piece(node, lo, boundary + 1)
                lo = boundary + 1
            self.checkpoint(node)
        if lo < hi:
            self._apply_piece(node, lo, hi)
        if self._upkeep.log_is_long:
            self.checkpoint(node)

    def _apply_piece(self, node: RaftNode[Entry], lo: int, hi: int) -> None:
        in_memory = max(lo, node.log.tail_first)
        if lo < in_memory:
            # Only after a restart: these entries were followed at recovery, and only the end matters.
            newest = self._end.read(RaftIndex(min(in_memory, hi) - 1), RaftIndex(min(in_memory, hi)), 1)[0]
            self._machine.applied_until(newest)
            self.newest = newest
        if in_memory < hi:
            entries = node.log.entries(in_memory, hi, 1 << 62)
            assert entries is not PENDING, (in_memory, hi, node.log.tail_first)
            self._machine.applied(entries)
            self.newest = entries[-1]
            size = sum([len(entry.frame) for entry in entries])
            self._upkeep.applied_bytes += size + ENTRY_COST_BYTES * len(entries)

    def checkpoint(self, node: RaftNode[Entry]) -> bool:
        """Have a manifest of what is applied written, unless there is one; return whether there will be a new one."""
        newest = self.newest
        if newest is None or not self._upkeep.lacks(newest.index):
            return False
        manifest = Manifest(
            index=newest.index,
            term=newest.term,
            chain=newest.chain,
            stream_part=newest.stream_part,
            membership=encode_membership(node.membership_at(newest.index)),
            state=self._machine.snapshot(),
            created_ms=self._wall_ms(),
        )
        self._upkeep.add_manifest(manifest)
        return True

    def restored(self, manifest: Manifest) -> None:
        """Start over at a manifest."""
        self.newest = manifest
        self._upkeep.restored(manifest.index)
