"""Availability in its two views: what clients asked for, and what probes and their minutes say.

Rule 1: client errors are no attempts: valid = attempts - client errors, bad = valid - ok. Brokers and gateways count
        the same requests and are judged apart.
Rule 2: a broker cannot count requests that never reached it; probes of other regions, and minutes without any, can.
Rule 3: a minute without data is unknown: up or down, whichever is worse for the claim.
Rule 4: a region that once took part in probes is expected in every pair: silence is not a missing row but a doubt.
"""

from __future__ import annotations

from collections.abc import Iterable

from georelay.trace.schema import TraceKind
from sla.judging.budgets import BurnBook, budget_of, iso
from sla.judging.completeness import Completeness
from sla.judging.facts import MinutesFacts, PeriodFacts, ProbeFacts, RequestFacts
from sla.judging.intervals import minutes_up, sampled, widened
from sla.judging.verdict import Judgement, Verdict
from sla.report.model import Availability, Interval, PairAvailability, RequestRow, Subject, Unit
from sla.report.wording import bounds, count, percent, things
from sla.targets import ARROW, MinutesTarget, ProbesTarget, RequestsTarget

Pair = tuple[str, str]


def judge_share(share: Interval | None, *, objective: float, total: int, what: str) -> Judgement:
    """Judge a sampled share by its interval."""
    if share is None:
        return Judgement(verdict=Verdict.NO_DATA, reason=f"no {what}")
    if share.lo >= objective:
        return Judgement(verdict=Verdict.PASS)
    text = f"{percent(share.value)} of {count(total)} {what} succeeded, proven is {bounds(share)}"
    return Judgement(verdict=Verdict.BREACH if share.hi < objective else Verdict.INCONCLUSIVE, reason=text)


def judge_minutes(*, up: int, down: int, unknown: int, target: MinutesTarget) -> Judgement:
    """Judge the minutes of one pair: a pass needs nearly all of them known."""
    share = minutes_up(up=up, down=down, unknown=unknown)
    total = up + down + unknown
    if share.hi < target.objective:
        return Judgement(verdict=Verdict.BREACH, reason=f"{count(down)} of {things(total, 'minute', 'minutes')} down")
    if up + down == 0:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"none of {things(total, 'minute', 'minutes')} is known")
    if share.lo >= target.objective and up + down >= target.coverage_min * total:
        return Judgement(verdict=Verdict.PASS)
    text = f"{count(down)} of {things(total, 'minute', 'minutes')} down, {count(unknown)} unknown"
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)


def valid_requests(facts: RequestFacts) -> int:
    """Return the attempts that count. Counters are read one after the other, so ok may be ahead for a moment."""
    return max(0, facts.attempts - facts.client_error)


def bad_requests(facts: RequestFacts) -> int:
    """Return the valid attempts that did not succeed."""
    return max(0, valid_requests(facts) - facts.ok)


def _success(*, bad: int, total: int, confidence: float, missing_share: float) -> Interval | None:
    if not total:
        return None
    return widened(sampled(bad=bad, total=total, confidence=confidence), missing_share=missing_share)


def _request_success(facts: RequestFacts, confidence: float, completeness: Completeness) -> Interval | None:
    return _success(
        bad=bad_requests(facts),
        total=valid_requests(facts),
        confidence=confidence,
        missing_share=completeness.missing_share(TraceKind.OUTCOME, facts.region),
    )


def _probe_success(facts: ProbeFacts, confidence: float, completeness: Completeness) -> Interval | None:
    return _success(
        bad=facts.probes - facts.probes_ok,
        total=facts.probes,
        confidence=confidence,
        missing_share=completeness.missing_share(TraceKind.PROBE, facts.dest),
    )


def request_subjects(
    target: RequestsTarget, period: PeriodFacts, *, confidence: float, completeness: Completeness, burn: BurnBook
) -> tuple[Subject, ...]:
    """Judge every (region, operation) of the target's source."""
    wanted = {operation.value for operation in target.operations}
    subjects = []
    for facts in sorted(period.requests, key=lambda item: (item.region, item.op)):
        if facts.source != target.source or facts.op not in wanted or not target.scope.has_region(facts.region):
            continue
        total, bad = valid_requests(facts), bad_requests(facts)
        share = _request_success(facts, confidence, completeness)
        judgement = judge_share(share, objective=target.objective, total=total, what="valid requests")
        windows = burn.windows(target=target.name, subject=(facts.region, facts.op), objective=target.objective)
        budget = budget_of(
            unit=Unit.REQUESTS, total=total, bad=bad, objective=target.objective, span=period.span, burn=windows
        )
        subjects.append(
            Subject(
                name=f"{facts.op} in {facts.region}",
                total=total,
                bad=bad,
                threshold_ms=None,
                is_own_limit=False,
                measured=share,
                verdict=judgement.verdict,
                reason=judgement.reason,
                budget=budget if total else None,
                burn=windows,
            )
        )
    return tuple(subjects)


def probe_subjects(
    target: ProbesTarget, period: PeriodFacts, *, confidence: float, completeness: Completeness, burn: BurnBook
) -> tuple[Subject, ...]:
    """Judge the probes of every pair that has some."""
    subjects = []
    for facts in sorted(period.probes, key=lambda item: (item.origin, item.dest)):
        if not target.scope.has_pair(facts.origin, facts.dest):
            continue
        bad = facts.probes - facts.probes_ok
        share = _probe_success(facts, confidence, completeness)
        judgement = judge_share(share, objective=target.objective, total=facts.probes, what="probes")
        windows = burn.windows(target=target.name, subject=(facts.origin, facts.dest), objective=target.objective)
        budget = budget_of(
            unit=Unit.PROBES, total=facts.probes, bad=bad, objective=target.objective, span=period.span, burn=windows
        )
        subjects.append(
            Subject(
                name=f"{facts.origin}{ARROW}{facts.dest}",
                total=facts.probes,
                bad=bad,
                threshold_ms=None,
                is_own_limit=False,
                measured=share,
                verdict=judgement.verdict,
                reason=judgement.reason,
                budget=budget if facts.probes else None,
                burn=windows,
            )
        )
    return tuple(subjects)


def expected_pairs(*periods: PeriodFacts) -> list[Pair]:
    """Return every pair of regions that took part in probes in any of the periods."""
    probes = [item for period in periods for item in period.probes]
    regions = sorted({item.origin for item in probes} | {item.dest for item in probes})
    return [(origin, dest) for origin in regions for dest in regions]


def _minutes_of(period: PeriodFacts, target: MinutesTarget, pairs: Iterable[Pair]) -> dict[Pair, MinutesFacts]:
    """Return the minutes of all pairs; of those without a row nothing is known."""
    found = {(item.origin, item.dest): item for item in period.minutes if item.target == target.name}
    return {pair: found.get(pair) or _unknown(target.name, pair) for pair in sorted(pairs)}


def _unknown(target: str, pair: Pair) -> MinutesFacts:
    origin, dest = pair
    return MinutesFacts(
        target=target, origin=origin, dest=dest, up=0, down=0, longest_down_minutes=0, longest_down_s=None
    )


def minute_subjects(target: MinutesTarget, period: PeriodFacts, *, pairs: Iterable[Pair]) -> tuple[Subject, ...]:
    """Judge the minutes of every expected pair."""
    total = period.span.minutes
    subjects = []
    for (origin, dest), facts in _minutes_of(period, target, pairs).items():
        if not target.scope.has_pair(origin, dest):
            continue
        up, down = facts.up, facts.down
        unknown = max(0, total - up - down)
        judgement = judge_minutes(up=up, down=down, unknown=unknown, target=target)
        subjects.append(
            Subject(
                name=f"{origin}{ARROW}{dest}",
                total=total,
                bad=down,
                threshold_ms=None,
                is_own_limit=False,
                measured=minutes_up(up=up, down=down, unknown=unknown),
                verdict=judgement.verdict,
                reason=judgement.reason,
                budget=budget_of(
                    unit=Unit.MINUTES, total=total, bad=down, objective=target.objective, span=period.span
                ),
                burn=(),
            )
        )
    return tuple(subjects)


def availability_section(
    period: PeriodFacts,
    *,
    target: MinutesTarget,
    pairs: Iterable[Pair],
    confidence: float,
    completeness: Completeness,
) -> Availability:
    """Return the tables of both views; minutes are those of `target`."""
    requests = tuple(
        RequestRow(
            region=facts.region,
            source=facts.source,
            op=facts.op,
            attempts=facts.attempts,
            ok=facts.ok,
            client_error=facts.client_error,
            server_error=facts.server_error,
            timeout=facts.timeout,
            offered=facts.offered,
            writers=facts.writers,
            success=_request_success(facts, confidence, completeness),
        )
        for facts in sorted(period.requests, key=lambda item: (item.source, item.region, item.op))
    )
    probes = {(item.origin, item.dest): item for item in period.probes}
    return Availability(
        requests=requests,
        pairs=tuple(
            _pair_row(facts, probes.get(pair), period.span.minutes, confidence, completeness)
            for pair, facts in _minutes_of(period, target, pairs).items()
        ),
    )


def _pair_row(
    minutes: MinutesFacts, probes: ProbeFacts | None, total: int, confidence: float, completeness: Completeness
) -> PairAvailability:
    known = minutes.up + minutes.down
    unknown = max(0, total - known)
    return PairAvailability(
        origin=minutes.origin,
        dest=minutes.dest,
        probes=probes.probes if probes else 0,
        probes_ok=probes.probes_ok if probes else 0,
        probes_late=probes.probes_late if probes else 0,
        probes_lost=probes.probes_lost if probes else 0,
        probes_refused=probes.probes_refused if probes else 0,
        success=_probe_success(probes, confidence, completeness) if probes else None,
        minutes=total,
        minutes_up=minutes.up,
        minutes_down=minutes.down,
        minutes_unknown=unknown,
        coverage=known / total,
        up_share=minutes_up(up=minutes.up, down=minutes.down, unknown=unknown),
        longest_down_minutes=minutes.longest_down_minutes,
        longest_down_at=None if minutes.longest_down_s is None else iso(minutes.longest_down_s),
    )
