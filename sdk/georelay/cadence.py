"""When the periodic work of one event loop is done: at moments that as much of it as possible shares.

A loop that has nothing to do costs what it is woken up for. Work that is done every so often at a moment of its own
wakes it up alone; on a grid of moments one wake-up serves all of it. The grid of each loop begins when it is first
asked, so that the processes of one machine do not all turn at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final
from weakref import WeakKeyDictionary

from georelay.library_log import log

GRAINS_MS: Final = (100, 50)  # a period that is a multiple of one of them has its moments there
_began_s: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


def pause_s(period_s: float) -> float:
    """Return how long to wait now, in seconds, for work that is done every `period_s` on the running loop.

    It is at most half a grain (50 ms) more or less than the period, and work that is done on time stays on time. A
    period that is no multiple of 50 ms is returned as it is.
    """
    period_ms = round(period_s * 1000, 3)
    grain_ms = next((grain for grain in GRAINS_MS if period_ms >= grain and period_ms % grain == 0), 0)
    if not grain_ms:
        return period_s
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    since_ms = (now_s - _began_s.setdefault(loop, now_s)) * 1000
    return (round((since_ms + period_ms) / grain_ms) * grain_ms - since_ms) / 1000


class Recurring(ABC):
    """Work that one task does every `every_s` until it is stopped; subclasses do it once in `look`.

    Rule: work that fails is not begun again. It is said in the log, as `<name>.failed`.
    """

    def __init__(self, name: str, *, every_s: float) -> None:
        self._name = name
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def look(self) -> float | None:
        """Do it once; return after how many seconds to do it again, None: after `every_s`."""

    def start(self) -> None:
        """Do it now, and then every so often."""
        self._task = asyncio.get_running_loop().create_task(self._look_forever(), name=self._name)
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Do it no more; what is half done is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_forever(self) -> None:
        while True:
            soon_s = await self.look()
            await asyncio.sleep(pause_s(self._every_s if soon_s is None else soon_s))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error(f"{self._name}.failed", exc_info=task.exception())
