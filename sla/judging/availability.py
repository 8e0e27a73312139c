"""Availability in its two views: what clients asked for, and what probes and their minutes say.

Rule 1: client errors are no attempts: valid = attempts - client errors, bad = valid - ok. Brokers and gateways count
        the same requests and are judged apart.
Rule 2: a broker cannot count requests that never reached it; probes of other regions, and minutes without any, can.
Rule 3: a minute without data is unknown: up or down, whichever is worse for the claim. One that lies in the probed
        part of the period with some of its seconds counts by those (`total`, `bad` and budgets name it whole).
Rule 4: a minute that was up is unsure when rows of probes are missing and as many of them as would make it down. One
        probe per pair and second is due: a pair that has them all lacks none. What lacks may be missing up to all that
        the region lost, for rows are lost in bursts; it may lie where it turns most. What was down stays down.
Rule 5: a region that once took part in probes is expected in every pair: silence is not a missing row but a doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from georelay.trace.kinds import TraceKind
from sla.judging.budgets import BurnBook, budget_of, iso
from sla.judging.completeness import Completeness
from sla.judging.facts import MinutesFacts, PeriodFacts, ProbeFacts, RequestFacts, Span
from sla.judging.intervals import minutes_up, sampled, widened
from sla.judging.verdict import Judgement, Verdict
from sla.report.model import Availability, Interval, PairAvailability, RequestRow, Subject, Unit
from sla.report.wording import bounds, count, percent, percent_up, things, unread
from sla.targets import ARROW, MinutesTarget, ProbesTarget, RequestsTarget

Pair = tuple[str, str]
_NOISE_MINUTES = 1e-6  # of sums of sixtieths
_ROWS_DECIMALS = 6  # a number of rows from a share of seconds errs by less


def judge_share(
    share: Interval | None, *, objective: float, total: int, what: str, missing_share: float = 0.0
) -> Judgement:
    """Judge a sampled share by its interval, in which `missing_share` is already; without events that alone tells."""
    if share is None and missing_share:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=unread(missing_share))
    if share is None:
        return Judgement(verdict=Verdict.NO_DATA, reason=f"no {what}")
    if share.lo >= objective:
        return Judgement(verdict=Verdict.PASS)
    text = f"{percent(share.value)} of {count(total)} {what} succeeded, proven is {bounds(share)}"
    if share.hi < objective:
        return Judgement(verdict=Verdict.BREACH, reason=text)
    if missing_share > 1 - objective:
        text += f": {percent_up(missing_share)} of the traces are missing"
    elif share.value == 1:
        text = f"too few to prove it: {count(total)} {what} without a failure prove {percent(share.lo)}"
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)


def judge_minutes(
    *,
    up: float,
    down: float,
    unknown: float,
    target: MinutesTarget,
    unsure: float = 0.0,
    missing_share: float = 0.0,
) -> Judgement:
    """Judge the minutes of one pair: a pass needs nearly all of them known. Parts of minutes are fractions.

    Args:
        unsure: minutes of `up` that missing rows of probes may make down. missing_share: of these rows; for words.
    """
    share = minutes_up(up=up, down=down, unknown=unknown, unsure=unsure)
    total = up + down + unknown
    if share.hi < target.objective:
        return Judgement(verdict=Verdict.BREACH, reason=f"{count(down)} of {_minutes(total)} down")
    if up + down == 0:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=f"none of {_minutes(total)} is known")
    if share.lo >= target.objective and up + down >= target.coverage_min * total:
        return Judgement(verdict=Verdict.PASS)
    text = f"{count(down)} of {_minutes(total)} down" + (f", {count(unknown)} unknown" if unknown or not unsure else "")
    if unsure:
        text += f", {count(round(unsure, 1))} more may be: {percent_up(missing_share)} of the traces are missing"
    return Judgement(verdict=Verdict.INCONCLUSIVE, reason=text)


def _minutes(number: float) -> str:
    return things(round(number, 1), "minute", "minutes")


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
        missing = completeness.missing_share(TraceKind.OUTCOME, facts.region)
        judgement = judge_share(
            share, objective=target.objective, total=total, what="valid requests", missing_share=missing
        )
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
        missing = completeness.missing_share(TraceKind.PROBE, facts.dest)
        judgement = judge_share(
            share, objective=target.objective, total=facts.probes, what="probes", missing_share=missing
        )
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


def regions_of(pairs: Iterable[Pair]) -> frozenset[str]:
    """Return the regions at the ends of some pairs."""
    return frozenset(region for pair in pairs for region in pair)


def _minutes_of(period: PeriodFacts, target: MinutesTarget, pairs: Iterable[Pair]) -> dict[Pair, MinutesFacts]:
    """Return the minutes of all pairs; of those without a row nothing is known."""
    found = {(item.origin, item.dest): item for item in period.minutes if item.target == target.name}
    return {pair: found.get(pair) or _unknown(target.name, pair) for pair in sorted(pairs)}


def _unknown_minutes(total: float, facts: MinutesFacts) -> float:
    unknown = total - facts.up_minutes - facts.down_minutes
    return unknown if unknown > _NOISE_MINUTES else 0.0


def _unsure_minutes(
    facts: MinutesFacts, probes: ProbeFacts | None, span: Span, target: MinutesTarget, completeness: Completeness
) -> float:
    """Return how many minutes up would be down if all probes without a row had failed, where they turn most.

    A minute turns when what failed in it is down_share of its rows: of all that are due, less those that nobody wrote.
    """
    missing_share = completeness.missing_share(TraceKind.PROBE, facts.dest)
    if not missing_share:
        return 0.0
    if probes is None or missing_share == 1:
        return facts.up_minutes
    lacking = _lacking_probes(facts, probes, span)
    lost = completeness.rows_missing_max(TraceKind.PROBE, facts.dest)
    gone = lacking if lost is None else min(lost, lacking)
    # In minutes that were down at least their share of the rows failed, and one.
    down_rows = round(60 * facts.down_minutes) - lacking
    failed_in_down = max(facts.down, math.ceil(round(target.down_share * down_rows, _ROWS_DECIMALS)))
    failed = max(0, probes.probes - probes.probes_ok - failed_in_down)
    turned_s = math.floor(round((failed + gone) / target.down_share, _ROWS_DECIMALS)) + lacking - gone
    # Each of them needs a missing row of its own.
    return min(facts.up_minutes, float(gone), _whole_minutes_s(turned_s, span) / 60)


def _lacking_probes(facts: MinutesFacts, probes: ProbeFacts, span: Span) -> int:
    """Return how many of the probes that were due in the minutes with any have no row."""
    due = round(60 * (facts.up_minutes + facts.down_minutes))
    # A cut end leaves out the last second with a probe, which may be among those that were counted.
    at_end = 1 if span.probed[1] < span.end_s else 0
    return max(0, due + at_end - probes.probes)


def _whole_minutes_s(most_s: int, span: Span) -> int:
    """Return the most seconds, of some, that are whole minutes or the parts that are there of the first and last."""
    first_s, end_s = span.probed
    cut = [-first_s % 60, end_s % 60] if span.probed_minutes > 1 else [span.probed_s % 60]
    parts = {0, *cut, sum(cut)}
    return max(part + (most_s - part) // 60 * 60 for part in parts if part <= most_s)


def _unknown(target: str, pair: Pair) -> MinutesFacts:
    origin, dest = pair
    return MinutesFacts(
        target=target, origin=origin, dest=dest, up=0, down=0, longest_down_minutes=0, longest_down_s=None
    )


def minute_subjects(
    target: MinutesTarget, period: PeriodFacts, *, pairs: Iterable[Pair], completeness: Completeness
) -> tuple[Subject, ...]:
    """Judge the minutes of every expected pair."""
    total = period.span.probed_s / 60
    probes = {(item.origin, item.dest): item for item in period.probes}
    subjects = []
    for (origin, dest), facts in _minutes_of(period, target, pairs).items():
        if not target.scope.has_pair(origin, dest):
            continue
        up, down = facts.up_minutes, facts.down_minutes
        unknown = _unknown_minutes(total, facts)
        missing = completeness.missing_share(TraceKind.PROBE, dest)
        unsure = _unsure_minutes(facts, probes.get((origin, dest)), period.span, target, completeness)
        judgement = judge_minutes(
            up=up, down=down, unknown=unknown, target=target, unsure=unsure, missing_share=missing
        )
        subjects.append(
            Subject(
                name=f"{origin}{ARROW}{dest}",
                total=period.span.probed_minutes,
                bad=facts.down,
                threshold_ms=None,
                is_own_limit=False,
                measured=minutes_up(up=up, down=down, unknown=unknown, unsure=unsure),
                verdict=judgement.verdict,
                reason=judgement.reason,
                budget=budget_of(
                    unit=Unit.MINUTES, total=total, bad=facts.down, objective=target.objective, span=period.span
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
            _pair_row(facts, probes.get(pair), period.span, target, confidence, completeness)
            for pair, facts in _minutes_of(period, target, pairs).items()
        ),
    )


def _pair_row(
    minutes: MinutesFacts,
    probes: ProbeFacts | None,
    span: Span,
    target: MinutesTarget,
    confidence: float,
    completeness: Completeness,
) -> PairAvailability:
    total = span.probed_s / 60
    known = minutes.up_minutes + minutes.down_minutes
    return PairAvailability(
        origin=minutes.origin,
        dest=minutes.dest,
        probes=probes.probes if probes else 0,
        probes_ok=probes.probes_ok if probes else 0,
        probes_late=probes.probes_late if probes else 0,
        probes_lost=probes.probes_lost if probes else 0,
        probes_refused=probes.probes_refused if probes else 0,
        success=_probe_success(probes, confidence, completeness) if probes else None,
        minutes=span.probed_minutes,
        minutes_up=minutes.up,
        minutes_down=minutes.down,
        minutes_unknown=max(0, span.probed_minutes - minutes.up - minutes.down),
        coverage=known / total,
        up_share=minutes_up(
            up=minutes.up_minutes,
            down=minutes.down_minutes,
            unknown=_unknown_minutes(total, minutes),
            unsure=_unsure_minutes(minutes, probes, span, target, completeness),
        ),
        longest_down_minutes=minutes.longest_down_minutes,
        longest_down_at=None if minutes.longest_down_s is None else iso(minutes.longest_down_s),
    )
