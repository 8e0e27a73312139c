"""Turns what is seen of the regions into the brokers one request may try. What is seen is kept for SEEN_NS, or until
the view or the rules change: it is asked for with every request.

A request that this gateway carries goes the way over the gateway, so its own distances decide, by the same rules as
those of a client (choosing_core). Brokers inside a region take turns, so that the load of one gateway spreads over the
region. What is gathered at the broker takes turns by time instead of by request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.routing.choosing_core import Asked, Candidate, Choice, Memory, RegionState, choose
from gateway.routing.client_book_core import ClientKey
from gateway.routing.distance_core import KERNEL_ERROR_MS, UNKNOWN, Estimate, Leg, Source, estimate
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.region_view_core import RankedRegion, RegionView
from gateway.routing.rules_core import Rules
from georelay.errors import BadRequest

SEEN_NS: Final = 50_000_000
CANDIDATES_MAX: Final = 4  # tried for one request: a whole region of three and one beyond


class Router:
    """Ranking plus turn-taking; the view is fed by the prober. `settled`: are all regions known that can be?"""

    def __init__(
        self,
        view: RegionView,
        *,
        monotonic_ns: Callable[[], int],
        settled: Callable[[], bool] = lambda: True,
        rules: Rules | None = None,
    ) -> None:
        self._view = view
        self._settled = settled
        self._monotonic_ns = monotonic_ns
        self.rules = rules or Rules()
        self._turn = 0
        self._memory = Memory()
        self._seen: tuple[RankedRegion, ...] = ()
        self._states: tuple[RegionState, ...] = ()
        self._legs: dict[str, Leg | None] = {}
        self._ranked: tuple[RankedRegion, ...] = ()
        self._versions = (-1, -1)  # of the view and the rules
        self._until_ns = 0

    @property
    def ready(self) -> bool:
        """Return whether any region is ready, and the others were looked for."""
        return self._settled() and any(region.ready for region in self.ranking())

    @property
    def now_s(self) -> float:
        """Return the monotonic time that states and rules count in."""
        return self._monotonic_ns() / 1e9

    def seen(self) -> tuple[RankedRegion, ...]:
        """Return every region as it is seen now, in the configured order."""
        self._look()
        return self._seen

    def states(self) -> Sequence[RegionState]:
        """Return the same as choosing wants it."""
        self._look()
        return self._states

    def legs(self) -> Mapping[str, Leg | None]:
        """Return the ways from this gateway to the regions."""
        self._look()
        return self._legs

    def ranking(self, region: str | None = None) -> tuple[RankedRegion, ...]:
        """Return all regions, best first for what goes over this gateway, or just the named one.

        Raises:
            BadRequest: no such region; the text names the known ones.
        """
        self._look()
        if region is None:
            return self._ranked
        named = tuple(candidate for candidate in self._ranked if candidate.name == region)
        if not named:
            known = ", ".join(endpoints.name for endpoints in self._view.regions)
            raise BadRequest(f"no region {region!r} in this mesh; known: {known}")
        return named

    @property
    def nearest(self) -> str | None:
        """Return the name of the region that comes first, None when no region is ready."""
        return next((region.name for region in self.ranking() if region.ready), None)

    def first_for(self, client: ClientKey) -> str | None:
        """Return the name of the region that comes first for what a client asks, None when no region is ready."""
        return next((region.name for region in self._order(client) if region.ready), None)

    def candidates(
        self, region: str | None = None, *, stay_ns: int = 0, client: ClientKey | None = None
    ) -> tuple[BrokerEndpoints, ...]:
        """Return the ready brokers to try, in order; empty when no region (or not the named one) is ready.

        Args:
            stay_ns: for so long the same broker is first; 0: the next one at every request.
            client: who asks; a pin of an operator counts before distance.
        """
        order = self._order(client) if client is not None and region is None else self.ranking(region)
        return self.brokers_of(order, stay_ns=stay_ns)

    def _order(self, client: ClientKey) -> tuple[RankedRegion, ...]:
        """Return all regions, the one that the client is pinned to first, unless that drains."""
        order, pin = self.ranking(), self.rules.pin(client)
        if not pin or self.rules.draining_since_s(pin) is not None:
            return order
        return tuple(sorted(order, key=lambda region: region.name != pin))

    def brokers_of(self, order: tuple[RankedRegion, ...], *, stay_ns: int = 0) -> tuple[BrokerEndpoints, ...]:
        """Return the ready brokers of regions in this order, those of each region in turn.

        However many the first region has, one of another region is among them: it may be that all of it is lost.
        """
        if stay_ns:
            turn = self._monotonic_ns() // stay_ns
        else:
            turn = self._turn = self._turn + 1
        regions = [[broker.endpoints for broker in ranked.ready_brokers] for ranked in order if ranked.ready]
        taken = [brokers[turn % len(brokers) :] + brokers[: turn % len(brokers)] for brokers in regions]
        if len(taken) > 1:
            taken[0] = taken[0][: CANDIDATES_MAX - 1]
        return tuple([broker for brokers in taken for broker in brokers][:CANDIDATES_MAX])

    def is_late(self, broker: BrokerEndpoints) -> bool:
        """Return whether a broker owes an answer to a probe for longer than one takes."""
        return self._view.is_late(broker.id, self._monotonic_ns())

    def is_silent(self, broker: BrokerEndpoints) -> bool:
        """Return whether a broker owes an answer to a probe for longer than one that is busy."""
        return self._view.is_silent(broker.id, self._monotonic_ns())

    def _look(self) -> None:
        now_ns = self._monotonic_ns()
        versions = (self._view.version, self.rules.version)
        if self._versions == versions and now_ns < self._until_ns:
            return
        self._seen = self._view.seen(now_ns)
        self._versions, self._until_ns = versions, now_ns + SEEN_NS
        self._states = tuple(_state(region, self.rules) for region in self._seen)
        self._legs = {region.name: _leg(region) for region in self._seen}
        by_name = {region.name: region for region in self._seen}
        ranked = [by_name[verdict.name] for verdict in self._own_choice(now_ns).ranked]
        # A region without a ready broker takes no request, whoever may be cut off.
        self._ranked = tuple(sorted(ranked, key=lambda region: not region.ready))

    def _own_choice(self, now_ns: int) -> Choice:
        candidates = [Candidate(state=state, estimate=_own_estimate(self._legs[state.name])) for state in self._states]
        asked = Asked(key="", now_s=now_ns / 1e9, is_frozen=self.rules.is_frozen, is_crowd=True)
        return choose(asked, candidates, self._memory)


def _leg(region: RankedRegion) -> Leg | None:
    if region.rtt_ns is not None:
        return Leg(rtt_ms=region.rtt_ns / 1e6)
    return None if region.estimate_ns is None else Leg(rtt_ms=region.estimate_ns / 1e6, is_measured=False)


def _own_estimate(leg: Leg | None) -> Estimate:
    """Return the distance of what goes over this gateway: measured by itself, so as good as the kernel's."""
    if leg is None:
        return UNKNOWN
    return Estimate(leg.rtt_ms, KERNEL_ERROR_MS, Source.KERNEL) if leg.is_measured else estimate(leg=leg)


def _state(region: RankedRegion, rules: Rules) -> RegionState:
    return RegionState(
        name=region.name,
        is_ready=region.ready,
        is_refused=region.is_refused,
        was_seen=region.was_ready,
        draining_since_s=rules.draining_since_s(region.name),
        returned_s=None if region.returned_ns is None else region.returned_ns / 1e9,
        shed=region.shed,
        heard_s=None if region.heard_ns is None else region.heard_ns / 1e9,
        capacity=float(len(region.brokers)),
    )
