"""Which region a client shall use, and why not another one. Pure: time, estimates and what regions say are arguments.

Cost is network time alone: the client's way to the region and, for who publishes, the way from there to the home.
Service time is no part of it: each client that follows it moves all others (docs/adr/0046). Capacity is a region's own
say, by the share of clients that it sheds.

Rule 1: regions are judged first. The level of the worst obstacle counts; only those of the lowest level are compared,
        so that when nobody is without obstacle the least one is ignored: shed before draining.
Rule 2: the region that a client has is kept. It is left at once when its level is not the lowest one any more; else
        only for one that is better by max(5 ms, 10 %, 2 x error) at CONFIRMATIONS evaluations in a row,
        EVALUATE_EVERY_S apart, DWELL_S after the last move at the earliest, and while switching is not frozen.
Rule 3: who sheds, sheds the same clients: those whose hash is below the share. Who was shed comes back when the share
        is clearly below its hash again (RETURN_SHARE).
Rule 4: a region that comes back takes RAMP_S to take everybody who left it; who did not ask meanwhile has not left,
        unless it says that it is in another one by now. One that drains loses its clients over SPREAD_S.
Rule 5: when less than half of the capacity that was ever seen answers, this gateway is taken for the one that is cut
        off: silence is ignored (a refused connection is not), distance decides, and the answer says so.
Rule 6: a pin decides as long as its region can be used at all.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.routing.distance_core import UNKNOWN, Estimate, Source
from mesh.distance.shed_core import SHED_MAX
from mesh.distance.spread_core import has_to_leave, hash_share

MARGIN_MS: Final = 5.0
MARGIN_SHARE: Final = 0.10
MARGIN_ERRORS: Final = 2.0
CONFIRMATIONS: Final = 3
EVALUATE_EVERY_S: Final = 30.0
DWELL_S: Final = 300.0
RAMP_S: Final = 300.0
RAMP_FROM: Final = 0.1
RETURN_SHARE: Final = 0.05
TIE_MS: Final = 2.0  # less is noise: then the configured order decides, at every gateway alike
STALE_S: Final = 10.0  # what a region said of its load is believed for so long
STALE_PENALTY_MS: Final = 10.0  # then; probes still say whether it can be used
PANIC_SHARE: Final = 0.5


class Obstacle(enum.IntEnum):
    """Why a region is not what it should be; the worst one is its level."""

    NONE = 0
    SHED = 1
    DRAINING = 2
    SILENT = 3  # probes are not answered, or not well
    REFUSED = 4  # nothing listens at any of its brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """One region as this gateway sees it now.

    Args:
        is_ready: a broker of it is, so that publishes commit there. is_refused: at none of its brokers anything
        listens.
        was_seen: it was ready at least once. capacity: weight, such as the number of its brokers.
        draining_since_s, returned_s: monotonic; None: it does not drain, it was never away.
        shed: share of clients that it wants elsewhere, 0..SHED_MAX. heard_s: when it said so; None: it never does.
    """

    name: str
    is_ready: bool
    is_refused: bool = False
    was_seen: bool = True
    draining_since_s: float | None = None
    returned_s: float | None = None
    shed: float = 0.0
    heard_s: float | None = None
    capacity: float = 1.0

    def shed_at(self, now_s: float, *, is_held: bool) -> float:
        """Return the share of clients that go elsewhere; `is_held`: of those that it has, who need no slow start."""
        shed = 0.0 if self.heard_s is not None and now_s - self.heard_s > STALE_S else min(max(self.shed, 0), SHED_MAX)
        if is_held or self.returned_s is None or now_s - self.returned_s >= RAMP_S:
            return shed
        taken = RAMP_FROM + (1 - RAMP_FROM) * max(0.0, now_s - self.returned_s) / RAMP_S
        return max(shed, 1 - taken)


@dataclass(slots=True)
class Memory:
    """What is remembered of one client. `is_firm`: its region was chosen by something that is known of the client."""

    region: str = ""
    since_s: float = -math.inf
    challenger: str = ""
    confirmations: int = 0
    evaluated_s: float = -math.inf
    is_firm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One client asking.

    Args:
        key: names the client the same at every gateway; what is shed goes by its hash.
        publishes: it publishes, to records at home in a region that `home_ms` are the ways to, by region.
        pin: region that an operator chose for it; empty: none. is_frozen: nobody moves without need.
        is_crowd: this is a gateway's own choice, for all whom it carries: no share of them can be shed or moved first.
    """

    key: str
    now_s: float
    publishes: bool = False
    pin: str = ""
    is_frozen: bool = False
    is_crowd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A region, its estimate, and ms from it to the home of what is published (0: at home, or nobody publishes)."""

    state: RegionState
    estimate: Estimate = UNKNOWN
    home_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One region judged for one client. `hash`: the client's place for this region, 0..1; shed when below `shed`."""

    name: str
    cost_ms: float
    estimate: Estimate
    home_ms: float
    penalty_ms: float
    obstacles: tuple[Obstacle, ...]
    level: int
    shed: float
    hash: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer for one client: every region, best first, and what decided.

    `moved_from`: region that was left now. `margin_ms`, `gain_ms`: what had to be gained by a move, and what would be.
    """

    ranked: tuple[Verdict, ...]
    reason: str
    is_degraded: bool
    must_move: bool
    moved_from: str
    gain_ms: float
    margin_ms: float
    confirmations: int
    challenger: str
    sticky_until_s: float

    @property
    def region(self) -> str:
        """Return the name of the first one; "" when no region is known."""
        return self.ranked[0].name if self.ranked else ""


def is_cut_off(states: Sequence[RegionState]) -> bool:
    """Return whether it is rather this gateway that cannot be reached than the regions (rule 5)."""
    seen = sum(state.capacity for state in states if state.was_seen)
    ready = sum(state.capacity for state in states if state.is_ready)
    silent = any(state.was_seen and not state.is_ready and not state.is_refused for state in states)
    return silent and ready < PANIC_SHARE * seen


def note_left(memory: Memory, told: str, states: Sequence[RegionState], now_s: float) -> None:
    """Let the memory have the region that a client says it has, where the remembered one came back lately (rule 4)."""
    came_back = next((state.returned_s for state in states if state.name == memory.region), None)
    is_known = any(state.name == told for state in states)
    if is_known and told != memory.region and came_back is not None and now_s - came_back < RAMP_S:
        memory.region, memory.since_s, memory.challenger, memory.confirmations = told, came_back, "", 0


def choose(asked: Asked, candidates: Sequence[Candidate], memory: Memory) -> Choice:
    """Return the regions for a client, best first; `memory` follows (give a copy to only look)."""
    panic = is_cut_off([candidate.state for candidate in candidates])
    ranked = sorted(
        (_judge(asked, candidate, memory, panic=panic) for candidate in candidates),
        key=lambda verdict: (verdict.level, verdict.cost_ms),
    )
    if not ranked:
        return _answer((), "no region is known", memory, panic=panic, now_s=asked.now_s)
    best = ranked[0]
    held = next((v for v in ranked if v.name == memory.region and v.level == best.level), None)
    pinned = next((v for v in ranked if v.name == asked.pin and v.level < Obstacle.DRAINING), None)
    before, gain_ms, margin_ms = memory.region, 0.0, 0.0
    if pinned is not None:
        chosen, reason = pinned, f"pinned to {pinned.name}"
    elif held is None:
        left = next((v for v in ranked if v.name == before), None)
        names = [candidate.state.name for candidate in candidates]
        equal = [v for v in ranked if v.level == best.level and v.cost_ms <= best.cost_ms + TIE_MS]
        best = min(equal, key=lambda verdict: names.index(verdict.name))
        chosen, reason = best, "it is the nearest one" if left is None else f"{left.name} {_words(left)}"
    else:
        gain_ms = 0.0 if held.cost_ms == best.cost_ms else held.cost_ms - best.cost_ms
        margin_ms = _margin_ms(held, best)
        chosen, reason = _keep_or_move(asked, memory, held, best, is_better=gain_ms > margin_ms)
    _follow(memory, chosen, ranked, now_s=asked.now_s)
    return replace(
        _answer((chosen, *(v for v in ranked if v is not chosen)), reason, memory, panic=panic, now_s=asked.now_s),
        moved_from=before if before != chosen.name else "",
        must_move=bool(before) and before != chosen.name and held is None,
        gain_ms=gain_ms,
        margin_ms=margin_ms,
    )


def _judge(asked: Asked, candidate: Candidate, memory: Memory, *, panic: bool) -> Verdict:
    """Return what stands against a region, and what it costs."""
    state, now_s = candidate.state, asked.now_s
    place = hash_share(asked.key, state.name)
    is_held = memory.region == state.name
    shed = state.shed_at(now_s, is_held=is_held)
    obstacles = []
    if not asked.is_crowd and place < shed + (0.0 if is_held or not shed else RETURN_SHARE):
        obstacles.append(Obstacle.SHED)
    silent_s = 0.0 if state.heard_s is None else now_s - state.heard_s
    if state.draining_since_s is not None and not (
        is_held and not asked.is_crowd and not has_to_leave(asked.key, state.name, now_s - state.draining_since_s)
    ):
        obstacles.append(Obstacle.DRAINING)
    if not state.is_ready:
        obstacles.append(Obstacle.REFUSED if state.is_refused else Obstacle.SILENT)
    counted = [obstacle for obstacle in obstacles if not (panic and obstacle is Obstacle.SILENT)]
    penalty_ms = STALE_PENALTY_MS if silent_s > STALE_S else 0.0
    home_ms = candidate.home_ms if asked.publishes else 0.0
    return Verdict(
        name=state.name,
        cost_ms=candidate.estimate.rtt_ms + home_ms + penalty_ms,
        estimate=candidate.estimate,
        home_ms=home_ms,
        penalty_ms=penalty_ms,
        obstacles=tuple(obstacles),
        level=max(counted, default=Obstacle.NONE),
        shed=shed,
        hash=place,
    )


def _margin_ms(held: Verdict, best: Verdict) -> float:
    """Return what a move has to gain. An infinite cost is left for any finite one."""
    if math.isinf(held.cost_ms):
        return 0.0
    error_ms = max(held.estimate.error_ms, best.estimate.error_ms)
    return max(MARGIN_MS, MARGIN_SHARE * held.cost_ms, MARGIN_ERRORS * error_ms)


def _keep_or_move(
    asked: Asked, memory: Memory, held: Verdict, best: Verdict, *, is_better: bool
) -> tuple[Verdict, str]:
    """Return the region of a client that may stay, and why; counts confirmations in `memory` (rule 2)."""
    if not is_better:
        memory.challenger, memory.confirmations = "", 0
        near = "it is the nearest one" if best is held else f"{best.name} is not clearly nearer"
        return held, near
    if asked.is_frozen:
        return held, f"switching is frozen; {best.name} is nearer"
    if not memory.is_firm:
        return best, f"{memory.region} was a guess"
    if memory.challenger != best.name:
        memory.challenger, memory.confirmations, memory.evaluated_s = best.name, 1, asked.now_s
    elif asked.now_s - memory.evaluated_s >= EVALUATE_EVERY_S:
        memory.confirmations, memory.evaluated_s = min(memory.confirmations + 1, CONFIRMATIONS), asked.now_s
    if memory.confirmations < CONFIRMATIONS:
        return held, f"{best.name} is nearer, confirmed {memory.confirmations} of {CONFIRMATIONS} times"
    if asked.now_s - memory.since_s < DWELL_S:
        left_s = memory.since_s + DWELL_S - asked.now_s
        return held, f"{best.name} is nearer, but the client moved lately: {left_s:.0f} s to go"
    return best, f"it was nearer {CONFIRMATIONS} times"


def _follow(memory: Memory, chosen: Verdict, ranked: Sequence[Verdict], *, now_s: float) -> None:
    """Let the memory have the region that was chosen; a guess while the way to another that could be is not known."""
    usable = [verdict for verdict in ranked if verdict.level < Obstacle.SILENT]
    is_measured = all(verdict.estimate.source is not Source.NOTHING for verdict in usable)
    is_firm = is_measured and chosen.estimate.source.is_of_the_client
    if memory.region != chosen.name:
        memory.region, memory.challenger, memory.confirmations = chosen.name, "", 0
        memory.since_s, memory.is_firm = now_s, is_firm
    elif is_firm and not memory.is_firm:
        memory.is_firm, memory.since_s = True, now_s


def _answer(ranked: tuple[Verdict, ...], reason: str, memory: Memory, *, panic: bool, now_s: float) -> Choice:
    return Choice(
        ranked=ranked,
        reason=reason,
        is_degraded=panic,
        must_move=False,
        moved_from="",
        gain_ms=0.0,
        margin_ms=0.0,
        confirmations=memory.confirmations,
        challenger=memory.challenger,
        sticky_until_s=memory.since_s + DWELL_S if memory.is_firm else now_s,
    )


_WORDS: Final = {
    Obstacle.SHED: "sheds this client: it is busy, or it has just come back",
    Obstacle.DRAINING: "drains",
    Obstacle.SILENT: "does not answer",
    Obstacle.REFUSED: "does not listen",
}


def words_of(obstacle: Obstacle) -> str:
    """Return an obstacle for a person, to be put behind a region's name."""
    return _WORDS[obstacle]


def _words(verdict: Verdict) -> str:
    worst = max(verdict.obstacles, default=Obstacle.NONE)
    return _WORDS.get(worst, "is left")
