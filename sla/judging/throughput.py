"""Throughput of regions: did a region deliver the rate whenever it was offered.

Rule 1: a minute is loaded when its best 10 s were offered the rate and a margin; at exactly the rate the edges of
        seconds would decide. It is met when its best 10 s delivered the rate; the first loaded minute after one that
        was not may be met by the next, because deliveries trail what is offered.
Rule 2: missing rows of the region hide what it delivered, those of a home what it was offered: the worse counts. Of a
        stream whose home no row names, or of whose offsets some are seen and named by no home, any region may be it.
        What was committed before the period was not offered in it: up to the last commit that is known of the hour
        before, no home is asked for.
Rule 3: a pass needs the rate in some 10 s at all: idle minutes fail nothing and prove nothing. Where rows are missing
        that is a doubt: loaded minutes may be among what they hide.
"""

from __future__ import annotations

from collections import defaultdict

from georelay.trace.kinds import LedgerKind, TraceKind
from sla.judging.budgets import budget_of
from sla.judging.completeness import Completeness
from sla.judging.facts import AccountFacts, PeriodFacts, ThroughputFacts
from sla.judging.intervals import counted, widened
from sla.judging.offset_sets import OffsetSet, Ranges
from sla.judging.verdict import Judgement, Verdict
from sla.report.model import Interval, Subject, ThroughputRegion, Unit
from sla.report.wording import count, things
from sla.targets import THROUGHPUT_WINDOW_S, ThroughputTarget

Stream = tuple[str, str, int]  # topic, origin, partition
_SEEN = frozenset({LedgerKind.REPLICATED.value, LedgerKind.DELIVERED.value})


def judge_region(facts: ThroughputFacts, *, target: ThroughputTarget, missing_share: float) -> Judgement:
    """Judge one region."""
    rate = target.records_per_s
    if not facts.loaded_minutes:
        return _judge_unloaded(facts, target, missing_share)
    share = _met(facts, missing_share)
    minutes = things(facts.loaded_minutes, "loaded minute", "loaded minutes")
    met = f"{count(facts.loaded_minutes_met)} of {minutes}"
    if share.hi < target.objective:
        text = f"{met} delivered {rate:,.0f}/s; best {facts.max_10s_mean:,.0f}/s of {facts.offered_max_10s_mean:,.0f}/s"
        return Judgement(verdict=Verdict.BREACH, reason=text)
    if share.lo >= target.objective:
        return Judgement(verdict=Verdict.PASS)
    return Judgement(
        verdict=Verdict.INCONCLUSIVE, reason=f"{met} delivered {rate:,.0f}/s, but rows of the ledger are missing"
    )


def _judge_unloaded(facts: ThroughputFacts, target: ThroughputTarget, missing_share: float) -> Judgement:
    """Judge a region without a loaded minute. Missing rows that lie as everywhere may have made one of its best."""
    text = f"at most {facts.offered_max_10s_mean:,.0f}/s were offered over {THROUGHPUT_WINDOW_S} s"
    is_met = facts.max_10s_mean >= target.records_per_s
    loaded_per_s = target.records_per_s * target.offered_margin
    if missing_share and (is_met or facts.offered_max_10s_mean >= loaded_per_s * (1 - missing_share)):
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"{text}, but rows of the ledger are missing")
    return Judgement(verdict=Verdict.PASS) if is_met else Judgement(verdict=Verdict.NO_DATA, reason=text)


def _met(facts: ThroughputFacts, missing_share: float) -> Interval:
    """Return the share of loaded minutes that were met; missing rows are spread evenly, or hide whole minutes."""
    met, perhaps = facts.loaded_minutes_met, facts.loaded_minutes_perhaps_met
    share = counted(good=met, good_lo=met, good_hi=perhaps, total=facts.loaded_minutes)
    return widened(share, missing_share=missing_share)


def subjects_of(target: ThroughputTarget, period: PeriodFacts, *, completeness: Completeness) -> tuple[Subject, ...]:
    """Judge every region of the target's scope."""
    return tuple(
        _subject(target, facts, period, completeness)
        for facts in sorted(period.throughput, key=lambda item: item.dest)
        if facts.target == target.name and target.scope.has_region(facts.dest)
    )


def _subject(
    target: ThroughputTarget, facts: ThroughputFacts, period: PeriodFacts, completeness: Completeness
) -> Subject:
    is_lossy = bool(completeness.lossy_regions(TraceKind.LEDGER))  # else nobody's rows matter, and streams may be many
    homes = _homes(period, facts.dest, completeness) if is_lossy else frozenset()
    missing = completeness.missing_share(TraceKind.LEDGER, facts.dest, *homes)
    judgement = judge_region(facts, target=target, missing_share=missing)
    loaded = facts.loaded_minutes
    bad = loaded - facts.loaded_minutes_met
    return Subject(
        name=facts.dest,
        total=loaded,
        bad=bad,
        threshold_ms=None,
        is_own_limit=False,
        measured=_met(facts, missing) if loaded else None,
        verdict=judgement.verdict,
        reason=judgement.reason,
        budget=budget_of(unit=Unit.MINUTES, total=loaded, bad=bad, objective=target.objective, span=period.span)
        if loaded
        else None,
        burn=(),
    )


def _homes(period: PeriodFacts, dest: str, completeness: Completeness) -> frozenset[str]:
    """Return who committed what `dest` read; of all streams when no row says which those are.

    Any region may have committed a stream that no row of a home names, or what somebody has of it and no home names.
    """
    inside = [item for item in period.accounts if item.is_inside]
    commits = [item for item in inside if item.kind == LedgerKind.COMMIT.value]
    read = {_stream(item) for item in inside if item.kind == LedgerKind.DELIVERED.value and item.region == dest}
    meant = read or {_stream(item) for item in commits}
    if not commits or not read <= {_stream(item) for item in commits} or not meant.isdisjoint(_unnamed(period)):
        return completeness.regions
    return frozenset(item.region for item in commits if _stream(item) in meant)


def _unnamed(period: PeriodFacts) -> set[Stream]:
    """Return the streams with offsets that were replicated or delivered, and that no commit names: homes may move.

    Of the hours around the period a hull names nothing: it may reach from the one to the other, over all of it.
    """
    seen = defaultdict[Stream, list[Ranges]](list)
    inside, around = defaultdict[Stream, list[Ranges]](list), defaultdict[Stream, list[Ranges]](list)
    for item in period.accounts:
        if item.kind == LedgerKind.COMMIT.value:
            if item.is_inside:
                inside[_stream(item)].append(item.ranges)
            elif item.is_whole:
                around[_stream(item)].append(item.ranges)
        elif item.is_inside and item.kind in _SEEN:
            seen[_stream(item)].append(item.ranges)
    return {
        stream
        for stream, ranges in seen.items()
        if OffsetSet.union(ranges)
        .above(_end_before(inside[stream], around[stream]))
        .without(OffsetSet.union([*inside[stream], *around[stream]]))
        .ranges
    }


def _end_before(inside: list[Ranges], around: list[Ranges]) -> int:
    """Return the offset behind the last commit known of the hour before the period, 0 without one.

    Offsets ascend in time: of the hours around, those below the first commit of the period are of the one before.
    """
    first = OffsetSet.union(inside).first
    return max((end for low, end in OffsetSet.union(around).ranges if first is not None and low < first), default=0)


def _stream(item: AccountFacts) -> Stream:
    return item.topic, item.origin, item.partition


def region_rows(period: PeriodFacts, target: ThroughputTarget) -> tuple[ThroughputRegion, ...]:
    """Return every region that delivered or was offered anything; loaded minutes are those of `target`."""
    return tuple(
        ThroughputRegion(
            region=facts.dest,
            delivered=facts.delivered,
            offered=facts.offered,
            active_minutes=facts.active_minutes,
            mean_per_s=round(facts.delivered / (60 * facts.active_minutes), 1) if facts.active_minutes else 0.0,
            max_1s=facts.max_1s,
            max_10s_mean=facts.max_10s_mean,
            offered_max_10s_mean=facts.offered_max_10s_mean,
            max_60s_mean=facts.max_60s_mean,
            loaded_seconds=facts.loaded_seconds,
            loaded_seconds_met=facts.loaded_seconds_met,
            loaded_minutes=facts.loaded_minutes,
            loaded_minutes_met=facts.loaded_minutes_met,
        )
        for facts in sorted(period.throughput, key=lambda item: item.dest)
        if facts.target == target.name
    )
