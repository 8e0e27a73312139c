"""Re-fetches segments and manifests that are damaged on this broker's disk.

Rule 1: a repaired segment has the same first and last index and the same last chain as the damaged one, so it is the
        same segment, byte for byte.
Rule 2: a group with a damaged segment hands its leadership over; it goes on voting and acknowledging, because its
        log end is intact. Reads of the damaged part fail until it is repaired.
Rule 3: damage is never given up: every source is tried again and again.
Rule 4: only what is sealed is fetched: damage in the segment that is written to seals it, here and at the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from random import Random
from typing import Any, Final

import structlog

from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.log.errors import LogCorrupt
from region.log.flusher import GroupWrite
from region.log.index import SegmentInfo
from region.multiraft.bulk_client import BulkClient, BulkFailed
from region.multiraft.bulk_wire import SegmentRow
from region.multiraft.group import Group

log = structlog.get_logger()

REPAIR_AGAIN_MS: Final = 1_000
REPAIR_AGAIN_MS_MAX: Final = 60_000


class Repair:
    """Repairs of one broker, one task per damaged group.

    Args:
        write: submits a write for a group and waits until it is durable.
        hand_over: gives the group's leadership away if it can.
    """

    def __init__(
        self,
        *,
        client: BulkClient,
        executor: Executor,
        rng: Random,
        is_alive: Callable[[BrokerId], bool],
        write: Callable[[GroupWrite], Awaitable[None]],
        hand_over: Callable[[Group], bool],
    ) -> None:
        self._client = client
        self._executor = executor
        self._rng = rng
        self._is_alive = is_alive
        self._write = write
        self._hand_over = hand_over
        self._repairing: set[GroupId] = set()
        self.repaired = 0

    def is_repairing(self, group_id: GroupId) -> bool:
        """Return whether a repair of that group is under way."""
        return group_id in self._repairing

    async def repair(self, group: Group) -> None:
        """Repair all that is damaged of the group; returns when nothing is left or the group has stopped."""
        if group.group_id in self._repairing:
            return
        self._repairing.add(group.group_id)
        wait_ms = REPAIR_AGAIN_MS
        try:
            while not group.stopped and (step := self._next_step(group)) is not None:
                self._hand_over(group)
                if await step:
                    wait_ms = REPAIR_AGAIN_MS
                    continue
                await asyncio.sleep(wait_ms / 1000)
                wait_ms = min(2 * wait_ms, REPAIR_AGAIN_MS_MAX)
        finally:
            self._repairing.discard(group.group_id)

    def _next_step(self, group: Group) -> Coroutine[Any, Any, bool] | None:
        for first in group.disk.corrupt_segments():
            return self._repair_one(group, RaftIndex(first))
        for index in group.disk.damaged_manifests():
            return self._repair_manifest(group, RaftIndex(index))
        return None

    async def _repair_one(self, group: Group, first: RaftIndex) -> bool:
        info = next((info for info in group.disk.sealed_segments() if info.first_index == first), None)
        if info is None:  # damage in the segment that is written to
            await self._write(GroupWrite(group_id=group.group_id, log=group.disk, token=None, seal=True))
            return any(sealed.first_index == first for sealed in group.disk.sealed_segments())
        for source in self._sources(group):
            try:
                await self._fetch(group, info, source)
            except (BulkFailed, LogCorrupt, StorageFailed, OSError) as error:
                log.warning(
                    "segment.repair_failed", group=group.group_id, first=first, source=source, reason=str(error)
                )
                continue
            self.repaired += 1
            log.info("segment.repaired", group=group.group_id, first=first, last=info.last_index, source=source)
            return True
        return False

    async def _repair_manifest(self, group: Group, index: RaftIndex) -> bool:
        for source in self._sources(group):
            try:
                manifest = await self._client.manifest(source, group.group_id, index)
            except BulkFailed as error:
                log.warning(
                    "manifest.repair_failed", group=group.group_id, index=index, source=source, reason=str(error)
                )
                continue
            if not group.stopped and group.disk.fits(manifest):
                await self._write(GroupWrite(group_id=group.group_id, log=group.disk, token=None, manifest=manifest))
                log.info("manifest.repaired", group=group.group_id, index=index, source=source)
                return True
        return False

    def _sources(self, group: Group) -> list[BrokerId]:
        others = [member for member in group.membership.members() if member != group.me and self._is_alive(member)]
        self._rng.shuffle(others)
        return others

    async def _fetch(self, group: Group, info: SegmentInfo, source: BrokerId) -> None:
        """Fetch the segment's range from one source and put it in place. Raises BulkFailed, LogCorrupt, OSError."""
        first, last = RaftIndex(info.first_index), RaftIndex(info.last_index)
        _, listed = await self._client.list_segments(source, group.group_id, first)
        try:
            rows = _covering(listed, info)
        except BulkFailed:
            await self._client.seal(source, group.group_id, last)
            raise
        loop = asyncio.get_running_loop()
        staged = await loop.run_in_executor(self._executor, group.disk.stage_segment, info.first_index)
        try:
            await self._client.fetch(source, group.group_id, rows, first=first, last=last, into=staged)
            found = await loop.run_in_executor(self._executor, staged.verify, info.previous_chain)
            if (found.last_index, found.last_chain) != (info.last_index, info.last_chain):
                raise BulkFailed(f"broker {source} has another history of [{info.first_index}, {info.last_index}]")
            if group.stopped:
                raise BulkFailed("the group has stopped")
        except Exception:
            self._executor.submit(staged.discard)
            raise
        await self._write(GroupWrite(group_id=group.group_id, log=group.disk, token=None, replace=[staged]))


def _covering(rows: list[SegmentRow], info: SegmentInfo) -> list[SegmentRow]:
    """Return the rows that hold the whole range of `info`. Raises BulkFailed."""
    wanted = [row for row in rows if row.last_index >= info.first_index and row.first_index <= info.last_index]
    whole = bool(wanted) and wanted[0].first_index <= info.first_index and wanted[-1].last_index >= info.last_index
    if not whole:
        raise BulkFailed(f"no sealed segments there hold [{info.first_index}, {info.last_index}]")
    return wanted
