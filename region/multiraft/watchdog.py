"""Measures how late the event loop is, all the time and for little: one timer that looks at the clock.

A callback that holds the loop makes the timer fire late. A stall that falls between two looks is seen only in
part, so the numbers are lower bounds that get exact with the stalls that matter. A loop that has nothing to do is
looked at more rarely: waking it up would be most of what it costs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.cadence import pause_s
from georelay.clock import Clock

STALL_MS: Final = 5.0  # what no callback may take


class Watchdog:
    """Attributes: `stalls` (times the loop was more than 5 ms late), `stall_ms_max` (the longest, ms).

    `stirred` is set by whoever works on the loop, and taken back with every look.
    """

    def __init__(self, *, clock: Clock, every_ms: int, idle_every_ms: int = 0) -> None:
        """Look every `every_ms` milliseconds, 0 never; after a look since which nothing stirred, `idle_every_ms`."""
        self.stirred = True
        self._idle_every_ms = max(every_ms, idle_every_ms)
        self.stalls = 0
        self.stall_ms_max = 0.0
        self._clock = clock
        self._every_ms = every_ms
        self._due_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        if self._every_ms > 0:
            self._loop = asyncio.get_running_loop()
            self._arm()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        assert self._loop is not None
        every_s = pause_s((self._every_ms if self.stirred else self._idle_every_ms) / 1000)
        self.stirred = False
        self._due_ns = self._clock.monotonic_ns() + round(every_s * 1_000_000_000)
        self._timer = self._loop.call_later(every_s, self._look)

    def _look(self) -> None:
        late_ms = (self._clock.monotonic_ns() - self._due_ns) / 1e6
        if late_ms > STALL_MS:
            self.stalls += 1
            if late_ms > self.stall_ms_max:
                self.stall_ms_max = late_ms
        self._arm()
