"""Latency of pairs of regions: what light allows, what was measured, and the verdict.

way          origin and destination of a record, and the home between them when that is a third region and is known:
             `us -> ap`, `us -> eu -> ap`, `us -> eu -> us`. Ways are judged apart.
floor        half of the shortest round trip of each part of the way; 0 within a region and for `deliver`. Where several
             homes share a topic's records, it is that of the direct way, and a note says for how many (`detours`).
local p50    p50 of `deliver` at the destination + p50 of `commit` at the home: work that every record needs.
feasible     floor + min(local p50, local_ms_max) <= threshold. Capped, so that a slow broker is no excuse.
own limit    floor + own_limit_margin_ms, what an infeasible pair is judged against.

An only home is one as far as rows were read. Where rows are missing in a region that may be another home, a way over it
passes, or is missed, only when it would by the limit of the direct way, too: with a second home that is its limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from georelay.trace.histogram import GOOD_US_MAX, QUANTILE_TAIL_MIN, bucket_mid, is_quantile_meaningful, merge, quantile
from georelay.trace.kinds import Stage, TraceKind
from sla.judging.budgets import BurnBook, budget_of
from sla.judging.completeness import Completeness
from sla.judging.facts import ClockFacts, HomeFacts, LatencyFacts, PeriodFacts
from sla.judging.intervals import counted, good_within, widened
from sla.judging.verdict import Judgement, Verdict
from sla.report.model import Interval, LatencyPair, Quantiles, StageLatency, Subject, Unit
from sla.report.wording import count, percent_up, things
from sla.targets import ARROW, LatencyTarget

Pair = tuple[str, str]
Way = tuple[str, str, str]  # origin, destination, home when it is a third region
_MS_DECIMALS = 3
_TAIL_DECIMALS = 6  # n * (1 - 0.99) errs by less


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimit:
    """What one way of a pair is judged against.

    Args:
        floor_us: None when no exchange was seen.
        limit_us: the target's threshold, or the pair's own when that is out of reach.
    """

    floor_us: float | None
    is_feasible: bool | None
    limit_us: float
    is_own: bool


def pair_limits(
    latency: Iterable[LatencyFacts], clocks: Iterable[ClockFacts], target: LatencyTarget
) -> dict[Pair, PairLimit]:
    """Return the limit of the direct way of every pair that has records of the target's stage."""
    return {(way[0], way[1]): limit for way, limit in way_limits(latency, clocks, target).items() if not way[2]}


def way_limits(
    latency: Iterable[LatencyFacts], clocks: Iterable[ClockFacts], target: LatencyTarget
) -> dict[Way, PairLimit]:
    """Return the limit of every way that has records of the target's stage."""
    facts = list(latency)
    floors = _floors(clocks)
    work = _LocalWork(facts)
    ways = sorted({_way(item) for item in facts if item.stage == target.stage.value})
    return {way: _limit(way, floors, work, target) for way in ways}


def _direct_limits(period: PeriodFacts, target: LatencyTarget) -> dict[Pair, PairLimit]:
    """Return the limit of the direct way of every pair that has records by way of a third region."""
    floors, work = _floors(period.clocks), _LocalWork(period.latency)
    pairs = {(item.origin, item.dest) for item in period.latency if item.home and item.stage == target.stage.value}
    return {(origin, dest): _limit((origin, dest, ""), floors, work, target) for origin, dest in pairs}


def shown_limits(
    latency: Iterable[LatencyFacts], clocks: Iterable[ClockFacts], targets: Iterable[LatencyTarget]
) -> dict[Way, PairLimit]:
    """Return what tables show: the limit of every way by the first target that means its pair, else by the first.

    Args:
        targets: at least one; those of the whole way come before those of a stage.
    """
    facts, exchanges, every = list(latency), list(clocks), list(targets)
    first, *others = [target for target in every if target.stage is Stage.TOTAL] or every
    limits = way_limits(facts, exchanges, first)
    meant = {way for way in limits if first.scope.has_pair(way[0], way[1])}
    for target in others:
        found = way_limits(facts, exchanges, target)
        news = {way for way in found if target.scope.has_pair(way[0], way[1])} - meant
        limits |= {way: found[way] for way in news}
        meant |= news
    return limits


def _way(facts: LatencyFacts) -> Way:
    return facts.origin, facts.dest, facts.home


def _limit(way: Way, floors: Mapping[Pair, float], work: _LocalWork, target: LatencyTarget) -> PairLimit:
    origin, dest, home = way
    threshold_us = target.threshold_ms * 1_000
    is_local = target.stage is Stage.DELIVER or (origin == dest and not home)
    floor_us = 0.0 if is_local else _floor_us(way, floors)
    if floor_us is None:
        return PairLimit(floor_us=None, is_feasible=None, limit_us=threshold_us, is_own=False)
    local_us = min(work.p50_us(home or origin, dest), target.local_ms_max * 1_000)
    is_feasible = is_local or floor_us + local_us <= threshold_us
    own_us = floor_us + target.own_limit_margin_ms * 1_000
    return PairLimit(
        floor_us=floor_us,
        is_feasible=is_feasible,
        limit_us=threshold_us if is_feasible else own_us,
        is_own=not is_feasible,
    )


def _floor_us(way: Way, floors: Mapping[Pair, float]) -> float | None:
    """Return what light needs for a way, None when a part of it was never measured."""
    origin, dest, home = way
    if not home:
        return floors.get((origin, dest))
    to_home, onward = floors.get((origin, home)), floors.get((home, dest))
    return None if to_home is None or onward is None else to_home + onward


def _floors(clocks: Iterable[ClockFacts]) -> dict[Pair, float]:
    floors: dict[Pair, float] = {}
    for item in clocks:
        if item.rtt_min_us is None:
            continue
        for pair in ((item.region, item.peer), (item.peer, item.region)):
            floors[pair] = min(item.rtt_min_us / 2, floors.get(pair, item.rtt_min_us / 2))
    return floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Detour:
    """Records of a pair that go by way of a home in a third region and need longer than the pair's limit by that.

    Only of topics whose records from there have several homes: those with one are judged by their own way.

    Args:
        share: of the records that entered in the pair's origin.
        floor_us: half of the round trips of both parts of the way.
    """

    pair: Pair
    home: str
    share: float
    floor_us: float


def homes_of(period: PeriodFacts) -> tuple[HomeFacts, ...]:
    """Return where records were committed; when nobody counted topics apart, of no topic the only home is known."""
    return period.homes or tuple(
        HomeFacts(origin=item.origin, home=item.dest, is_only=False, n=item.n)
        for item in period.latency
        if item.stage == Stage.COMMIT.value and item.n
    )


def detours(
    homes: Iterable[HomeFacts], clocks: Iterable[ClockFacts], limits: Mapping[Pair, PairLimit]
) -> tuple[Detour, ...]:
    """Return the detours of all pairs; `limits` are those of their direct ways."""
    floors = _floors(clocks)
    homes = sorted(homes, key=lambda item: (item.origin, item.home))
    entered: dict[str, int] = {}
    for item in homes:
        entered[item.origin] = entered.get(item.origin, 0) + item.n
    found = []
    for (origin, dest), limit in sorted(limits.items()):
        for item in homes:
            if item.is_only or item.origin != origin or item.home in (origin, dest):
                continue
            floor_us = _floor_us((origin, dest, item.home), floors)
            if floor_us is not None and floor_us > limit.limit_us:
                share = item.n / entered[origin]
                found.append(Detour(pair=(origin, dest), home=item.home, share=share, floor_us=floor_us))
    return tuple(found)


class _LocalWork:
    """Median of the work inside regions that every record of a pair needs, 0 where nothing was measured."""

    def __init__(self, facts: Iterable[LatencyFacts]) -> None:
        self._deliver: dict[str, dict[int, int]] = {}
        self._commit: dict[str, dict[int, int]] = {}
        for item in facts:
            if item.stage == Stage.DELIVER.value:
                merge(self._deliver.setdefault(item.dest, {}), item.hist)
            if item.stage == Stage.COMMIT.value and item.origin == item.dest:
                merge(self._commit.setdefault(item.origin, {}), item.hist)

    def p50_us(self, home: str, dest: str) -> float:
        parts = (self._commit.get(home, {}), self._deliver.get(dest, {}))
        return sum(quantile(part, 0.5) or 0.0 for part in parts)


def good_interval(facts: LatencyFacts, limit_us: float) -> Interval:
    """Return the share of records within the limit and its bounds by the clock error. 50 ms is counted exactly."""
    if limit_us == GOOD_US_MAX:
        return counted(good=facts.n_good, good_lo=facts.n_good_lo, good_hi=facts.n_good_hi, total=facts.n)
    error_us = None if facts.n_clock_unknown else facts.clock_err_max_us
    good, good_lo, good_hi = good_within(facts.hist, limit_us=limit_us, clock_err_us=error_us)
    return counted(good=good, good_lo=good_lo, good_hi=good_hi, total=facts.n)


def bad_count(facts: LatencyFacts, limit_us: float) -> int:
    """Return the records beyond the limit as measured."""
    if limit_us == GOOD_US_MAX:
        return facts.n - facts.n_good
    return sum(n for index, n in facts.hist if bucket_mid(index) > limit_us)


def judge_pair(facts: LatencyFacts, *, limit: PairLimit, target: LatencyTarget, missing_share: float) -> Judgement:
    """Judge one pair: PASS and BREACH only where neither the clocks, nor missing rows, nor a small n could turn it."""
    if facts.n == 0:
        return Judgement(verdict=Verdict.NO_DATA, reason="no record was delivered live")
    clocks = good_interval(facts, limit.limit_us)
    share = widened(clocks, missing_share=missing_share)
    what = f"within {limit.limit_us / 1_000:g} ms"
    if share.hi < target.objective and round((1 - clocks.hi) * facts.n) >= QUANTILE_TAIL_MIN:
        return Judgement(verdict=Verdict.BREACH, reason=f"{percent_up(clocks.hi)} {what} at best")
    if not is_enough(facts.n, target.objective):
        records, needed = things(facts.n, "record", "records"), count(_records_needed(target.objective))
        text = f"n too small: {records}, {needed} are needed"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)
    if share.lo >= target.objective:
        return Judgement(verdict=Verdict.PASS)
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=_doubt(facts, clocks, target, missing_share))


def _judge_way(
    facts: LatencyFacts,
    *,
    limit: PairLimit,
    direct: PairLimit | None,
    target: LatencyTarget,
    missing_share: float,
    completeness: Completeness,
) -> Judgement:
    """Judge one way; `direct` is the limit of the direct one, None for that itself."""
    judgement = judge_pair(facts, limit=limit, target=target, missing_share=missing_share)
    hidden = sorted(completeness.regions_hiding(TraceKind.LATENCY_HIST) - {facts.home})
    if direct is None or not hidden or judgement.verdict not in (Verdict.PASS, Verdict.BREACH):
        return judgement
    if judge_pair(facts, limit=direct, target=target, missing_share=missing_share).verdict is judgement.verdict:
        return judgement
    homes = f"rows of {', '.join(hidden)} are missing: {facts.home} may not be the only home"
    otherwise = f"the limit of the direct way ({direct.limit_us / 1_000:g} ms) says otherwise"
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"{homes}, and {otherwise}")


def _doubt(facts: LatencyFacts, clocks: Interval, target: LatencyTarget, missing_share: float) -> str:
    if clocks.lo >= target.objective or clocks.hi < target.objective:
        return f"{percent_up(missing_share)} of the traces are missing"
    if facts.n_clock_unknown:
        records = things(facts.n_clock_unknown, "record", "records")
        return f"the clock error of {records} is unknown"
    error = facts.clock_err_max_us or 0
    return f"the clock error (up to {error / 1_000:g} ms) is larger than the margin"


def is_enough(n: int, q: float) -> bool:
    """Return whether at least 20 of n records are expected beyond the share q."""
    return round(n * (1 - q), _TAIL_DECIMALS) >= QUANTILE_TAIL_MIN


def _records_needed(q: float) -> int:
    return math.ceil(round(QUANTILE_TAIL_MIN / (1 - q), _TAIL_DECIMALS))


def facts_of(target: LatencyTarget, period: PeriodFacts) -> dict[Way, LatencyFacts]:
    """Return the facts of all ways that a target counts, those outside its scope too."""
    every = period.narrowed if target.is_narrowed else period.latency
    return {
        _way(item): item
        for item in every
        if item.stage == target.stage.value and not item.is_untold and item.target in ("", target.name)
    }


def untold_of(target: LatencyTarget, period: PeriodFacts) -> tuple[LatencyFacts, ...]:
    """Return the facts of the records that a target may count or not: nobody wrote down their topic."""
    return tuple(
        item
        for item in period.narrowed
        if item.is_untold and (item.target, item.stage) == (target.name, target.stage.value)
    )


def _missing_share(
    target: LatencyTarget, facts: LatencyFacts, period: PeriodFacts, completeness: Completeness
) -> float:
    """Return the share of a way's records that nobody saw, or saw without their topic where topics count."""
    missing = completeness.missing_share(TraceKind.LATENCY_HIST, facts.dest)
    untold = sum(item.n for item in untold_of(target, period) if (item.origin, item.dest) == (facts.origin, facts.dest))
    return 1 - (1 - missing) * facts.n / (facts.n + untold) if untold else missing


def subjects_of(
    target: LatencyTarget,
    period: PeriodFacts,
    *,
    limits: Mapping[Way, PairLimit],
    completeness: Completeness,
    burn: BurnBook,
) -> tuple[Subject, ...]:
    """Judge every way of the pairs in the target's scope."""
    found = facts_of(target, period)
    direct = _direct_limits(period, target)
    return tuple(
        _subject(
            target,
            facts,
            limits[way],
            direct[facts.origin, facts.dest] if facts.home else None,
            period,
            completeness,
            burn,
        )
        for way, facts in sorted(found.items())
        if target.scope.has_pair(facts.origin, facts.dest)
    )


def _subject(
    target: LatencyTarget,
    facts: LatencyFacts,
    limit: PairLimit,
    direct: PairLimit | None,
    period: PeriodFacts,
    completeness: Completeness,
    burn: BurnBook,
) -> Subject:
    missing = _missing_share(target, facts, period, completeness)
    judgement = _judge_way(
        facts, limit=limit, direct=direct, target=target, missing_share=missing, completeness=completeness
    )
    bad = bad_count(facts, limit.limit_us)
    onward = f"{facts.home}{ARROW}{facts.dest}" if facts.home else facts.dest
    windows = burn.windows(target=target.name, subject=(facts.origin, onward), objective=target.objective)
    return Subject(
        name=f"{facts.origin}{ARROW}{onward}",
        total=facts.n,
        bad=bad,
        threshold_ms=round(limit.limit_us / 1_000, _MS_DECIMALS),
        is_own_limit=limit.is_own,
        measured=widened(good_interval(facts, limit.limit_us), missing_share=missing) if facts.n else None,
        verdict=judgement.verdict,
        reason=judgement.reason,
        budget=budget_of(
            unit=Unit.RECORDS,
            total=facts.n,
            bad=bad,
            objective=target.objective,
            span=period.span,
            burn=windows,
        )
        if facts.n
        else None,
        burn=windows,
    )


def pair_rows(period: PeriodFacts, limits: Mapping[Way, PairLimit]) -> tuple[LatencyPair, ...]:
    """Return every way with all its stages; `limits` are those of shown_limits."""
    by_way: dict[Way, dict[str, LatencyFacts]] = {}
    for item in period.latency:
        if item.n:
            by_way.setdefault(_way(item), {})[item.stage] = item
    means = {
        way: stages[Stage.TOTAL.value].lat_sum_us / stages[Stage.TOTAL.value].n
        for way, stages in by_way.items()
        if Stage.TOTAL.value in stages
    }
    return tuple(_pair_row(way, stages, limits.get(way), means) for way, stages in sorted(by_way.items()))


def _pair_row(
    way: Way, stages: Mapping[str, LatencyFacts], limit: PairLimit | None, means: Mapping[Way, float]
) -> LatencyPair:
    origin, dest, home = way
    back = (dest, origin, home)
    is_inter = origin != dest and way in means and back in means
    floor_us = None if limit is None else limit.floor_us
    return LatencyPair(
        origin=origin,
        dest=dest,
        home=home or None,
        is_intra=origin == dest,
        floor_ms=None if floor_us is None else _ms(floor_us),
        is_feasible=limit.is_feasible if limit is not None else None,
        own_limit_ms=_ms(limit.limit_us) if limit is not None and limit.is_own else None,
        n_clock_unknown=sum(item.n_clock_unknown for item in stages.values() if item.stage == Stage.TOTAL.value),
        n_clock_revised=sum(item.n_clock_revised for item in stages.values() if item.stage == Stage.TOTAL.value),
        there_and_back_mean_ms=_ms(means[way] + means[back]) if is_inter else None,
        stages=tuple(_stage(stages[stage.value]) for stage in Stage if stage.value in stages),
    )


def _stage(facts: LatencyFacts) -> StageLatency:
    return StageLatency(
        stage=facts.stage,
        n=facts.n,
        quantiles=quantiles_of(facts.hist, n=facts.n, max_us=facts.lat_max_us),
        mean_ms=_ms(facts.lat_sum_us / facts.n),
        max_ms=_ms(facts.lat_max_us),
        n_good=facts.n_good,
        within=good_interval(facts, GOOD_US_MAX),
        clock_error_ms=None if facts.n_clock_unknown or facts.clock_err_max_us is None else _ms(facts.clock_err_max_us),
    )


def quantiles_of(hist: Iterable[tuple[int, int]], *, n: int, max_us: int) -> Quantiles:
    """Return the quantiles that n can carry, capped by the exact maximum."""
    buckets = dict(hist)

    def at(q: float) -> float | None:
        value_us = quantile(buckets, q) if is_quantile_meaningful(n, q) else None
        return None if value_us is None else _ms(min(value_us, max_us))

    return Quantiles(
        p50_ms=at(0.5), p90_ms=at(0.9), p95_ms=at(0.95), p99_ms=at(0.99), p99_9_ms=at(0.999), p99_99_ms=at(0.9999)
    )


def _ms(value_us: float) -> float:
    return round(value_us / 1_000, _MS_DECIMALS)
