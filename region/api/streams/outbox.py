"""The responses of one streaming call: written one after the other, a slow client holds up who produces them.

Rule 1: gRPC allows one write at a time per call, and several tasks have something to say.
Rule 2: when the client is gone, or is to be told nothing more but the status, what is put is dropped: nobody waits for
        room that will never be.
Rule 3: a write that gRPC has begun cannot be taken back: before a call ends with a status, it must have ended too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

WAITING_MAX: Final = 2  # responses; a delivery is up to a batch
LAST_WRITE_S: Final = 1.0  # a client that does not read for so long does not read its status either


class Writer:
    """Writes responses of one call, one at a time."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._writing: asyncio.Future[None] | None = None

    async def write(self, response: Any) -> None:
        """Write one response; cancelling this does not cancel a write that has begun."""
        self._writing = asyncio.ensure_future(self._context.write(response))
        await asyncio.shield(self._writing)

    async def settle(self) -> None:
        """Return when no write is under way, or after a while."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait((self._writing,), timeout=LAST_WRITE_S)
        if self._writing is not None and self._writing.done() and not self._writing.cancelled():
            self._writing.exception()  # the client has gone: whoever wrote knows


class Outbox:
    """Queue and writer of one call.

    `ended` is done when writing has failed: the client is gone, and whoever waits in `put` is to be cancelled.
    """

    def __init__(self, context: Any) -> None:
        self._writer = Writer(context)
        self._waiting: deque[Any] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._is_over = False
        self.ended = asyncio.get_running_loop().create_task(self._write(), name="grpc outbox")
        self.ended.add_done_callback(lambda _: self.give_up())

    async def put(self, response: Any) -> None:
        """Queue one response; waits while the client does not take what is there."""
        while len(self._waiting) >= WAITING_MAX and not self._is_over:
            self._room.clear()
            await self._room.wait()
        if not self._is_over:
            self._waiting.append(response)
            self._news.set()

    def give_up(self) -> None:
        """Drop what waits and what is put from now on (rule 2)."""
        self._is_over = True
        self._waiting.clear()
        self._room.set()

    async def close(self) -> None:
        """Stop writing."""
        self.ended.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
        await self._writer.settle()

    async def _write(self) -> None:
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            response = self._waiting.popleft()
            self._room.set()
            await self._writer.write(response)
