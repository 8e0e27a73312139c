"""When the periodic work of one event loop is done: at moments that as much of it as possible shares.

A loop that has nothing to do costs what it is woken up for. Work that is done every so often at a moment of its own
wakes it up alone; on a grid of moments one wake-up serves all of it. The grid of each loop begins when it is first
asked, so that the processes of one machine do not all turn at once.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

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
