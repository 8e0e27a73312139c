"""How fast a broker is sent whole segments, seen from outside: its own counter, looked at again and again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Final

import aiohttp

from loadtest.campaign.mesh import HTTP_TIMEOUT

LOOK_SECONDS: Final = 0.25
WINDOW_SECONDS: Final = 1.0
COUNTER: Final = 'georelay_bulk_bytes_total{direction="received"}'


class BulkWatch:
    """One broker's counter of received segment bytes. Use as an async context manager.

    Attributes:
        received_bytes: since it was entered.
        fastest_bytes_per_s: over a window of WINDOW_SECONDS, or a little more.
    """

    def __init__(self, admin: str) -> None:
        self.received_bytes = 0.0
        self.fastest_bytes_per_s = 0.0
        self._url = f"http://{admin}/metrics"
        self._seen: deque[tuple[float, float]] = deque()  # (seconds, bytes), the newest WINDOW_SECONDS and one more
        self._first_bytes = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BulkWatch:
        """Begin to look."""
        self._first_bytes = await self._counter()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Look once more, and no more."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._note(await self._counter())

    async def _watch(self) -> None:
        while True:
            self._note(await self._counter())
            await asyncio.sleep(LOOK_SECONDS)

    def _note(self, counter_bytes: float) -> None:
        now_s = time.monotonic()
        self.received_bytes = counter_bytes - self._first_bytes
        self._seen.append((now_s, counter_bytes))
        while len(self._seen) > 1 and now_s - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        since_s, since_bytes = self._seen[0]
        if now_s - since_s >= WINDOW_SECONDS:
            self.fastest_bytes_per_s = max(self.fastest_bytes_per_s, (counter_bytes - since_bytes) / (now_s - since_s))

    async def _counter(self) -> float:
        async with aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http, http.get(self._url) as answer:
            lines = (await answer.text()).splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(COUNTER)), 0.0)
