"""Asks the gateway now and then which region this client shall use, and moves there.

Rule 1: the gateway decides: it knows pins, drains, load and what it has told this client before. What the client
        measured is told to it only of regions that could be better, by what their estimates leave open.
Rule 2: moves are spread over the time that the answer names; a region that does not answer is not moved to.
Rule 3: a gateway that is away changes nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final

from georelay.errors import GeorelayError
from georelay.library_log import log
from georelay.ranking import Ranking
from georelay.region_map import RegionMap
from georelay.resolving import Resolver

AFTER_CACHE_S: Final = 1.0  # what was kept on disk may be old
MEASURE_EVERY_S: Final = 60.0
MEASURE_JITTER: Final = 0.2
SAMPLES: Final = 3  # the exchange before them warms the connection up
WORTH_MS: Final = 5.0  # a region that cannot be better by so much is not moved to
FAILED_TTL_S: Final = 15.0

Ping = Callable[[str], Awaitable[None]]  # one exchange with a broker at an address


class RegionFollower:
    """Args:
    ping: one exchange with an address, of the lightest kind (GeorelayError: not answered).
    """

    def __init__(self, region: RegionMap, resolver: Resolver, *, ping: Ping, rng: random.Random) -> None:
        self._region = region
        self._resolver = resolver
        self._ping = ping
        self._rng = rng
        self._measure_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, *, is_cached: bool) -> None:
        """Begin; `is_cached`: what the region was chosen by is of a run before."""
        first_s = AFTER_CACHE_S if is_cached else self._region.ranking.ttl_s
        self._task = asyncio.get_running_loop().create_task(self._run(first_s), name="region-follower")

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, first_s: float) -> None:
        wait_s = first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = await self.follow()

    async def follow(self) -> float:
        """Ask once, move if that is the answer; returns after how many seconds to ask again."""
        try:
            ranking = await self._resolver.resolve(await self._observed(), here=self._region.region)
        except GeorelayError as error:
            log.info("region.not_resolved", error=str(error))
            return FAILED_TTL_S
        self._region.ranking = ranking
        wanted = ranking.regions[0].name
        if wanted != self._region.region and not self._region.stays:
            await asyncio.sleep(self._rng.uniform(0, ranking.spread_s))
            if await self._region.move_to(wanted):
                log.info("region.moved", region=wanted)
        return ranking.ttl_s

    async def _observed(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        worth = worth_measuring(self._region.ranking)
        if not worth or now < self._measure_at:
            return []
        self._measure_at = now + MEASURE_EVERY_S * self._rng.uniform(1 - MEASURE_JITTER, 1 + MEASURE_JITTER)
        rows = await asyncio.gather(*(self._measure(name) for name in worth))
        return [row for row in rows if row is not None]

    async def _measure(self, region: str) -> dict[str, Any] | None:
        address = next(iter(self._region.ranking.addresses_of(region)), "")
        samples_us = []
        try:
            for _ in range(1 + SAMPLES):
                began_ns = time.monotonic_ns()
                await self._ping(address)
                samples_us.append((time.monotonic_ns() - began_ns) // 1000)
        except GeorelayError as error:
            log.debug("region.not_measured", region=region, error=str(error))
            return None
        return {"region": region, "rtt_us": max(1, int(median(samples_us[1:]))), "samples": SAMPLES, "age_s": 0}


def worth_measuring(ranking: Ranking) -> list[str]:
    """Return the regions whose round trip may decide: the first one, and those that could be better; or none."""
    if not ranking.regions:
        return []
    first, *others = ranking.regions
    most_ms = first.estimate_ms + (first.error_ms if math.isfinite(first.error_ms) else 0.0)
    close = [row.name for row in others if row.estimate_ms - row.error_ms < most_ms - WORTH_MS]
    unknown = [row.name for row in others if math.isinf(row.estimate_ms)]
    found = [*close, *unknown]
    return [first.name, *found] if found else []
