"""Reads of a group's own log that would block: cold entries and base manifests for its followers.

Rule 1: damage that a read finds, a sector that the disk does not give back included, is repaired, and never stops the
        group: its log end is intact.
Rule 2: what else the operating system refuses (no file handles, no memory) passes: the follower asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import structlog

from georelay.errors import StorageFailed
from region.log.errors import LogCorrupt
from region.multiraft.group import Group
from region.raft.core import Fetch, Membership, SnapshotRequest
from region.raft.wire import SNAPSHOT_DATA_BYTES_MAX

log = structlog.get_logger()


class ColdReads:
    """Runs reads in the executor and hands the results to the groups.

    Args:
        guard: runs a step of a group; the group stops when it breaks.
        mark_dirty: has the group looked at in this turn.
        repair: begins the repair of a group's damaged segments.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        guard: Callable[..., None],
        mark_dirty: Callable[[Group], None],
        repair: Callable[[Group], None],
    ) -> None:
        self._executor = executor
        self._guard = guard
        self._mark_dirty = mark_dirty
        self._repair = repair

    async def fetch(self, group: Group, fetch: Fetch) -> None:
        """Read entries for a follower that is behind."""
        loop = asyncio.get_running_loop()
        try:
            entries = await loop.run_in_executor(self._executor, partial(group.read_cold, fetch))
        except LogCorrupt as error:
            log.warning("log.damage_found", group=group.group_id, reason=str(error))
            self._repair(group)
            entries = []  # the follower asks again, and by then it is repaired or somebody else leads
        except StorageFailed as error:
            log.warning("log.read_failed", group=group.group_id, reason=str(error))
            entries = []
        if not group.stopped:
            self._guard(group, group.fetched, fetch, entries)
            self._mark_dirty(group)

    async def snapshot(self, group: Group, request: SnapshotRequest) -> None:
        """Read the manifest below the log for a follower that lacks what is gone."""
        loop = asyncio.get_running_loop()
        founders = Membership(voters=group.founders)
        try:
            point = await loop.run_in_executor(self._executor, partial(group.read_base, founders))
        except (LogCorrupt, StorageFailed) as error:
            log.warning("manifest.read_failed", group=group.group_id, reason=str(error))
            point = None
        if point is None or len(point.data) > SNAPSHOT_DATA_BYTES_MAX:
            log.warning("snapshot.missing", group=group.group_id, to=request.to)
            point = None
            self._repair(group)
        if not group.stopped:
            self._guard(group, group.snapshot_fetched, request, point)
            self._mark_dirty(group)
