"""Turns the ranking into the list of brokers one request may try. A ranking is kept for RANKING_NS, or until the view
changes: it is asked for with every request.

Brokers inside a region take turns, so that the load of one gateway spreads over the region. What is gathered at the
broker takes turns by time instead of by request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.region_view_core import RankedRegion, RegionView
from georelay.errors import BadRequest

RANKING_NS: Final = 50_000_000
CANDIDATES_MAX: Final = 4  # tried for one request: a whole region of three and one beyond


class Router:
    """Ranking plus turn-taking; the view is fed by the prober. `settled`: are all regions known that can be?"""

    def __init__(
        self, view: RegionView, *, monotonic_ns: Callable[[], int], settled: Callable[[], bool] = lambda: True
    ) -> None:
        self._view = view
        self._settled = settled
        self._monotonic_ns = monotonic_ns
        self._turn = 0
        self._ranked: tuple[RankedRegion, ...] = ()
        self._ranked_of = -1  # version of the view
        self._ranked_until_ns = 0

    @property
    def ready(self) -> bool:
        """Return whether any region is ready, and the others were looked for."""
        return self._settled() and any(region.ready for region in self.ranking())

    def ranking(self, region: str | None = None) -> tuple[RankedRegion, ...]:
        """Return all regions, best first, or just the named one.

        Raises:
            BadRequest: no such region; the text names the known ones.
        """
        now_ns = self._monotonic_ns()
        if self._ranked_of != self._view.version or now_ns >= self._ranked_until_ns:
            self._ranked = self._view.rank(now_ns)
            self._ranked_of, self._ranked_until_ns = self._view.version, now_ns + RANKING_NS
        ranked = self._ranked
        if region is None:
            return ranked
        named = tuple(candidate for candidate in ranked if candidate.name == region)
        if not named:
            known = ", ".join(endpoints.name for endpoints in self._view.regions)
            raise BadRequest(f"no region {region!r} in this mesh; known: {known}")
        return named

    @property
    def nearest(self) -> str | None:
        """Return the name of the region that comes first, None when no region is ready."""
        return next((region.name for region in self.ranking() if region.ready), None)

    def candidates(self, region: str | None = None, *, stay_ns: int = 0) -> tuple[BrokerEndpoints, ...]:
        """Return the ready brokers to try, in order; empty when no region (or not the named one) is ready.

        Args:
            stay_ns: for so long the same broker is first; 0: the next one at every request.
        """
        if stay_ns:
            turn = self._monotonic_ns() // stay_ns
        else:
            turn = self._turn = self._turn + 1
        found: list[BrokerEndpoints] = []
        for ranked in self.ranking(region):
            ready = [broker.endpoints for broker in ranked.ready_brokers]
            if ready:
                start = turn % len(ready)
                found.extend(ready[start:] + ready[:start])
        return tuple(found[:CANDIDATES_MAX])
