"""How busy this broker is, and which share of its clients it wants elsewhere because of that.

Rule 1: busy is the share of a period that the event loop's thread computed: one core does a broker's work. A thread
        that waits for a core that others have is not busy: on a shared host every region would shed at once.
Rule 2: who computes all the time looks alike at any load. That more is asked than gets done is told by what was refused
        for it, and by entries that could not be written as fast as they came: then busy is OVERLOADED at least.
Rule 3: the share is told with the answers to /readyz (SHED_HEADER); gateways take the mean of a region's brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.cadence import pause_s
from georelay.clock import Clock
from mesh.distance.shed_core import PERIOD_S, ShedLoop

LOOKS: Final = 10  # per period: whether writing is behind is seen at these moments only
OVERLOADED: Final = 1.2  # how far above 1 is not known; the loop's faster gain is what counts


class ShedWatch(Collector):
    """Args:
    clock: of the broker. cpu_ns: what the calling thread has computed so far. refused: calls that were refused for
    overload so far. is_behind: whether more came than can be written.
    """

    def __init__(
        self, *, clock: Clock, cpu_ns: Callable[[], int], refused: Callable[[], int], is_behind: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._refused = refused
        self._is_behind = is_behind
        self._loop = ShedLoop()
        self._began = (clock.monotonic_ns(), cpu_ns(), refused())
        self._was_behind = False
        self._task: asyncio.Task[None] | None = None
        self.busy = 0.0  # in the last whole period

    @property
    def share(self) -> float:
        """Return the share of its clients that this broker wants elsewhere, 0..SHED_MAX."""
        return self._loop.share

    def start(self) -> None:
        """Begin to look, on the thread that is measured."""
        self._began = (self._clock.monotonic_ns(), self._cpu_ns(), self._refused())
        self._task = asyncio.create_task(self._look_for_ever(), name="shed-watch")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(pause_s(PERIOD_S / LOOKS))
            self.look()

    def look(self) -> None:
        """Take a look; judge the period when it is over."""
        self._was_behind |= self._is_behind()
        now_ns, (began_ns, cpu_ns, refused) = self._clock.monotonic_ns(), self._began
        if now_ns - began_ns < PERIOD_S * 1e9:
            return
        now = (now_ns, self._cpu_ns(), self._refused())
        busy = (now[1] - cpu_ns) / (now_ns - began_ns)
        self.busy = max(busy, OVERLOADED) if now[2] > refused or self._was_behind else busy
        self._loop.step(self.busy)
        self._began, self._was_behind = now, False

    def collect(self) -> Iterator[Metric]:
        """Yield the two gauges."""
        yield GaugeMetricFamily(
            "georelay_busy_share", "Share of the last 10 s that the event loop computed; above 1: overloaded", self.busy
        )
        yield GaugeMetricFamily(
            "georelay_shed_share", "Share of its clients that this broker wants elsewhere", self.share
        )
