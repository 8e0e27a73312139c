"""Tells sockets and event streams when to leave a region that operators drain for clients: one after the other, over a
minute.

Rule: each leaves when its client's turn has come (mesh.distance.spread_core) and another region takes it. One task
looks for all of them, while there are any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from gateway.routing.client_book_core import ClientKey
from gateway.routing.router import Router
from georelay.cadence import pause_s
from mesh.distance.spread_core import turn_s

LOOK_EVERY_S: Final = 1.0

log = structlog.get_logger()


class _Watched:
    """One of them. `turn_s`: how long the region drains before it leaves."""

    __slots__ = ("client", "leaves", "region", "turn_s")

    def __init__(self, client: ClientKey, region: str) -> None:
        self.client = client
        self.region = region
        self.turn_s = turn_s(client.text, region)
        self.leaves: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class LeavingClients:
    """See the module."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watched: set[_Watched] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self, client: ClientKey, region: str) -> Iterator[asyncio.Future[None]]:
        """Return what is done when this client has to leave this region."""
        row = _Watched(client, region)
        self._watched.add(row)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_while_any(), name="leaving-clients")
            self._task.add_done_callback(_ended)
        try:
            yield row.leaves
        finally:
            self._watched.discard(row)

    async def _look_while_any(self) -> None:
        while self._watched:
            self._look()
            await asyncio.sleep(pause_s(LOOK_EVERY_S))

    def _look(self) -> None:
        now_s, rules = self._router.now_s, self._router.rules
        for region in {region.name for region in self._router.seen()}:
            since_s = rules.draining_since_s(region)
            if since_s is None:
                continue
            its_turn = [row for row in self._watched if row.region == region and now_s - since_s >= row.turn_s]
            for row in its_turn:
                if not row.leaves.done() and self._router.first_for(row.client) not in (None, region):
                    row.leaves.set_result(None)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("leaving_clients.failed", exc_info=task.exception())
