"""Answers one client: which regions, in what order, and why; joins what is known of regions and of clients.

Rule 1: the client's own distances decide where it connects by itself (Resolve, Kafka's bootstrap).
Rule 2: a client that names a topic it publishes to pays the way to the topic's home as well. The way from a region to
        the home is bounded by the ways of both from here: the middle is taken.
Rule 3: an answer is for ttl_s, jittered by a fifth, so that clients do not ask in step; a degraded one for DEGRADED_S.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.routing.choosing_core import (
    Asked,
    Candidate,
    Choice,
    Memory,
    Obstacle,
    Verdict,
    choose,
    note_left,
    words_of,
)
from gateway.routing.client_book_core import ClientBook, ClientKey, Observation
from gateway.routing.distance_core import Leg
from gateway.routing.far_book_core import FarBook
from gateway.routing.region_view_core import RankedRegion
from gateway.routing.router import Router
from mesh.distance.kernel_sample import KernelSample

TTL_S: Final = 30.0
TTL_JITTER: Final = 0.2
DEGRADED_S: Final = 5.0
RANKED_MAX: Final = 3
SPREAD_LOST_MS: Final = 1_000  # a region that is lost is left at once, but not by all in one millisecond
SPREAD_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a client asks.

    Args:
        sample: of the connection it asks over; None behind a load balancer that ends TCP.
        home: region where what it publishes is sequenced; empty: it does not publish, or every region is home.
        region: that it says it is in; empty: it does not say.
    """

    client: ClientKey
    sample: KernelSample | None = None
    observed: tuple[Observation, ...] = ()
    home: str = ""
    region: str = ""


class ClientRoutes:
    """Args:
    book: of the clients; one task owns it. rng: jitters how long answers are good. far: what other regions say.
    """

    def __init__(self, router: Router, book: ClientBook, *, rng: random.Random, far: FarBook | None = None) -> None:
        self._router = router
        self._book = book
        self._rng = rng
        self._far = FarBook() if far is None else far
        self.moves = {"nearer": 0, "pinned": 0, "forced": 0}  # of clients to another region, by why

    def resolve(self, question: Question) -> tuple[Choice, float]:
        """Return the choice for a client, and for how many seconds it is good."""
        now_s = self._router.now_s
        self._book.know_regions(region.name for region in self._router.seen())
        if question.sample is not None:
            self._book.saw(question.client, question.sample, now_s)
        self._book.told(question.client, question.observed, now_s)
        memory = self._book.memory(question.client, now_s)
        note_left(memory, question.region, self._router.states(), now_s)
        choice = self._choose(question, memory, now_s)
        if choice.moved_from:
            is_pinned = self._router.rules.pin(question.client) == choice.region
            self.moves["forced" if choice.must_move else "pinned" if is_pinned else "nearer"] += 1
        ttl_s = DEGRADED_S if choice.is_degraded else TTL_S
        return choice, ttl_s * self._rng.uniform(1 - TTL_JITTER, 1 + TTL_JITTER)

    def order_for(self, question: Question) -> tuple[tuple[RankedRegion, ...], tuple[RankedRegion, ...]]:
        """Return the regions for a client that is connected through, best first, and those that are for need only.

        For need only are regions that are not ready, and those that drain where the first one does not.
        """
        choice, _ = self.resolve(question)
        by_name = {region.name: region for region in self._router.seen()}
        worst = max(choice.ranked[0].level, Obstacle.SHED) if choice.ranked else 0
        good = tuple(by_name[row.name] for row in choice.ranked if row.level <= worst and by_name[row.name].ready)
        return good, tuple(by_name[row.name] for row in choice.ranked if by_name[row.name] not in good)

    def explain(self, client: ClientKey, *, home: str = "") -> dict[str, Any]:
        """Return every input and score of a client, as if it asked now; nothing changes."""
        now_s = self._router.now_s
        memory = self._book.remembered(client)
        held_s = None if not memory.region else round(now_s - memory.since_s, 1)
        known = {"region": memory.region, "for_s": held_s, "is_firm": memory.is_firm}
        choice = self._choose(Question(client=client, home=home), memory, now_s)
        kernel_ms = self._book.kernel_ms(client, now_s)
        return {
            "client": client.name,
            "address": client.address,
            "chosen": choice.region,
            "reason": choice.reason,
            "degraded": choice.is_degraded,
            "pin": self._router.rules.pin(client),
            "frozen": self._router.rules.is_frozen,
            "incumbent": known,
            "challenger": choice.challenger,
            "confirmations": choice.confirmations,
            "gain_ms": _number(choice.gain_ms),
            "margin_ms": _number(choice.margin_ms),
            "kernel_ms": _number(kernel_ms),
            "observed_ms": {name: _number(ms) for name, ms in self._book.observed_ms(client, now_s).items()},
            "prefix_ms": {name: _number(row.rtt_ms) for name, row in self._far.of(client.address, now_s).items()},
            "gateway_ms": {name: _number(leg.rtt_ms if leg else None) for name, leg in self._router.legs().items()},
            "regions": [_verdict_json(verdict) for verdict in choice.ranked],
        }

    def _choose(self, question: Question, memory: Memory, now_s: float) -> Choice:
        legs = self._router.legs()
        far = self._far.of(question.client.address, now_s)
        estimates = self._book.estimates(question.client, legs, far, now_s)
        candidates = [
            Candidate(state=state, estimate=estimates[state.name], home_ms=_between_ms(legs, state.name, question.home))
            for state in self._router.states()
        ]
        asked = Asked(
            key=question.client.text,
            now_s=now_s,
            publishes=bool(question.home),
            pin=self._router.rules.pin(question.client),
            is_frozen=self._router.rules.is_frozen,
        )
        return choose(asked, candidates, memory)


def answer_json(
    mesh_id: str,
    choice: Choice,
    ttl_s: float,
    addresses: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the answer to a client as JSON: at most RANKED_MAX regions, best first, each with its `addresses`."""
    return {
        "mesh": mesh_id,
        "ttl_s": round(ttl_s, 1),
        "region": choice.region,
        "reason": choice.reason,
        "degraded": choice.is_degraded,
        "must_move": choice.must_move,
        "reconnect_spread_ms": SPREAD_LOST_MS if choice.must_move or choice.is_degraded else SPREAD_MS,
        "regions": [
            {
                **addresses[verdict.name],
                "estimate_ms": _number(verdict.estimate.rtt_ms),
                "error_ms": _number(verdict.estimate.error_ms),
                "source": verdict.estimate.source.value,
                "cost_ms": _number(verdict.cost_ms),
            }
            for verdict in choice.ranked[:RANKED_MAX]
        ],
    }


def _between_ms(legs: Mapping[str, Leg | None], region: str, home: str) -> float:
    """Return the way from a region to the home, as far as the ways from here tell (rule 2)."""
    if not home or region == home:
        return 0.0
    ways = [leg.rtt_ms for leg in (legs.get(region), legs.get(home)) if leg is not None]
    return max(ways, default=0.0)


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "region": verdict.name,
        "cost_ms": _number(verdict.cost_ms),
        "estimate_ms": _number(verdict.estimate.rtt_ms),
        "error_ms": _number(verdict.estimate.error_ms),
        "source": verdict.estimate.source.value,
        "home_ms": _number(verdict.home_ms),
        "penalty_ms": _number(verdict.penalty_ms),
        "shed": round(verdict.shed, 3),
        "hash": round(verdict.hash, 3),
        "why_not": [words_of(obstacle) for obstacle in verdict.obstacles],
    }


def _number(value: float | None) -> float | None:
    """Return a number for JSON, which has no infinity."""
    return None if value is None or value in (float("inf"), float("-inf")) else round(value, 3)
