"""How a broker enters its region: as a founder, or as one that joins.

Rule 1: what was decided is on disk before the controller's group is opened, so before the first vote.
Rule 2: a directory of the first version has a log and no decision in writing: it was a founder by configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber
from region.broker.founding_file import Origin, read_origin, write_origin
from region.controller.founding import answer_of, answer_while_fresh, settle_founding
from region.controller.founding_core import Found, Founding
from region.controller.routing import Request
from region.log.data_directory import DataDirectory

ROUND_PAUSE_S: Final = 0.1
NEVER_JOINED: Final = 1 << 62  # no membership is above it


class Entrance:
    """The entrance of one broker.

    Args:
        configured: the brokers of the region as configured, this one included.
        has_log: whether the data directory holds a log of the controller's group.
        is_formed: whether the region's shape is known here.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        region: RegionNumber,
        directory: DataDirectory,
        configured: tuple[BrokerId, ...],
        has_log: bool,
        is_formed: Callable[[], bool],
        request: Request,
    ) -> None:
        self._me = me
        self._region = region
        self._directory = directory
        self._configured = configured
        self._is_formed = is_formed
        self._request = request
        self._origin = read_origin(directory.fs, directory.path)
        self._is_old = self._origin is None and has_log
        self._founding: Founding | None = None
        if not self.is_settled:
            self._founding = Founding(me=me, disk=directory.disk_id, founders=configured)

    @property
    def is_settled(self) -> bool:
        """Return whether it is decided, and written down, how this broker came to its region."""
        return self._origin is not None or self._is_old

    @property
    def disks(self) -> tuple[tuple[BrokerId, str], ...]:
        """Return (founder, disk uuid) of every founder; empty when this broker does not know them."""
        record = None if self._origin is None else self._origin.record
        return () if record is None else record.disks

    @property
    def founders(self) -> tuple[BrokerId, ...]:
        """Return the founding voters of the controller's group; empty for a broker that joined."""
        if self._is_old:
            return self._configured
        return tuple(broker for broker, _ in self.disks)

    @property
    def joins_after(self) -> int:
        """Return what Raft needs to know of this broker's replica of the controller's group when it opens it."""
        if self.founders:
            return -1
        joined_above = None if self._origin is None else self._origin.joined_above
        return NEVER_JOINED if joined_above is None else joined_above

    async def note_joined(self, above: int) -> None:
        """Write down that the controller's group has taken this broker in; durable when this returns.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        await self._write(Origin(record=None, joined_above=above))

    async def _write(self, origin: Origin) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, write_origin, self._directory.fs, self._directory.path, origin)
        self._origin = origin

    def answer(self, body: JsonObject) -> JsonObject:
        """Answer a broker that asks whether the region exists (BadRequest: it asks something else)."""
        if self._founding is not None and not self.is_settled:
            return answer_while_fresh(self._founding, body)
        record = None if self._origin is None else self._origin.record
        return answer_of(broker=self._me, disk=self._directory.disk_id, record=record, is_formed=self._is_formed())

    async def settle(self) -> None:
        """Ask the others until it is decided, and write that down; cancel it to give up.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        assert self._founding is not None
        decision = await settle_founding(self._founding, self._request, region=self._region, pause_s=ROUND_PAUSE_S)
        origin = Origin(record=decision.record if isinstance(decision, Found) else None)
        await self._write(origin)
