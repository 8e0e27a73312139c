"""Waiting until this broker has applied everything that the region had committed when it was asked.

Rule: a call is answered by a round that began after it; all calls that come during a round share the next one, so that
a broker that begins to lead a thousand groups asks twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from georelay.ids import RaftIndex
from region.controller.hints import BackgroundTasks


class Barrier:
    """Rounds of `ask`, which returns the index once it is applied here."""

    def __init__(self, ask: Callable[[], Awaitable[RaftIndex]], tasks: BackgroundTasks) -> None:
        self._ask = ask
        self._tasks = tasks
        self._running: asyncio.Task[RaftIndex] | None = None
        self._next: asyncio.Task[RaftIndex] | None = None

    async def wait(self) -> RaftIndex:
        """Return an index that was committed after this call began, applied here. Raises what `ask` raises."""
        if self._next is None:
            self._next = self._tasks.start(self._round(self._running))
        return await asyncio.shield(self._next)

    async def _round(self, before: asyncio.Task[RaftIndex] | None) -> RaftIndex:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._ask()
