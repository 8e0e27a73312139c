"""What a group's log wants besides the writes of its core: manifests, seals and a later start.

A manifest is due every CHECKPOINT_BYTES of applied work and exactly at every segment boundary; where there is a
manifest, and only there, the log may begin.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from georelay.ids import GroupId, RaftIndex
from georelay.limits import KIB, MIB
from region.log.flusher import GroupWrite
from region.log.group_log import GroupLog
from region.log.manifest import Manifest

# What a restart may have to follow again. It reads some hundred MiB per second, but small entries cost it their number,
# so each counts as some bytes more than it has. A manifest costs three syncs: rarer is better while batches are large.
CHECKPOINT_BYTES: Final = 32 * MIB
ENTRY_COST_BYTES: Final = 1 * KIB


class Upkeep:
    """Wishes of one group, taken by the host one write at a time.

    Attributes:
        checkpointed: index of the newest manifest, written or on its way.
        applied_bytes: applied since then, ENTRY_COST_BYTES added for each entry.
    """

    __slots__ = ("_manifests", "applied_bytes", "checkpointed", "seal_wanted", "start_wanted")

    def __init__(self, checkpointed: int) -> None:
        self.checkpointed = RaftIndex(checkpointed)
        self.applied_bytes = 0
        self.seal_wanted = False
        self.start_wanted = RaftIndex(0)
        self._manifests: deque[Manifest] = deque()

    @property
    def log_is_long(self) -> bool:
        """Return whether a restart would have to follow more than CHECKPOINT_BYTES."""
        return self.applied_bytes >= CHECKPOINT_BYTES

    def lacks(self, index: int) -> bool:
        """Return whether there is no manifest at `index` or above."""
        return index > self.checkpointed

    def boundaries(self, disk: GroupLog, lo: int, hi: int) -> list[int]:
        """Return the last indexes of sealed segments in [lo, hi) that have no manifest yet."""
        start = max(lo, self.checkpointed + 1)
        if disk.sealed_index < start:
            return []
        return [info.last_index for info in disk.sealed_segments() if start <= info.last_index < hi]

    def add_manifest(self, manifest: Manifest) -> None:
        """Have `manifest` written."""
        self._manifests.append(manifest)
        self.restored(manifest.index)

    def restored(self, index: RaftIndex) -> None:
        """Note that there is a manifest at `index`, and that nothing above it is applied."""
        self.checkpointed = index
        self.applied_bytes = 0

    @property
    def wanted(self) -> bool:
        """Return whether `take` would return a write."""
        return bool(self._manifests) or self.seal_wanted or self.start_wanted > 0

    def take(self, group_id: GroupId, disk: GroupLog, token: object) -> GroupWrite | None:
        """Return the next write, None when nothing is wanted."""
        if self._manifests:
            return GroupWrite(group_id=group_id, log=disk, token=token, manifest=self._manifests.popleft())
        if not self.seal_wanted and not self.start_wanted:
            return None
        start = self.start_wanted or None
        write = GroupWrite(group_id=group_id, log=disk, token=token, seal=self.seal_wanted, advance_start=start)
        self.seal_wanted = False
        self.start_wanted = RaftIndex(0)
        return write
