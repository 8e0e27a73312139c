"""From the facts of a period to the report: every target judged, everything sorted, nothing left out silently.

Rule 1: pure: the same facts, targets and `made` make the same report.
Rule 2: the whole is BREACH when any target is; without data when a required target is; else the worst doubt counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from sla.judging.availability import (
    availability_section,
    expected_pairs,
    minute_subjects,
    probe_subjects,
    regions_of,
    request_subjects,
)
from sla.judging.budgets import BurnBook, iso
from sla.judging.comparison import changes_between
from sla.judging.completeness import Completeness
from sla.judging.facts import BurnFacts, ClockFacts, Facts, HourFacts, PeriodFacts, WorstFacts
from sla.judging.integrity import integrity_section
from sla.judging.integrity import subjects_of as integrity_subjects
from sla.judging.latency import detours, homes_of, pair_rows, shown_limits, way_limits
from sla.judging.latency import subjects_of as latency_subjects
from sla.judging.notes import notes_of
from sla.judging.sentences import headline_of, sentence_of
from sla.judging.throughput import region_rows
from sla.judging.throughput import subjects_of as throughput_subjects
from sla.judging.unread import Unread
from sla.judging.verdict import Verdict, worst
from sla.report.model import (
    REPORT_SCHEMA_VERSION,
    ClockRow,
    Inputs,
    Made,
    QuarantinedFile,
    Report,
    Series,
    Subject,
    TargetResult,
    WorstRow,
)
from sla.targets import (
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Target,
    Targets,
    ThroughputTarget,
)

WORST_MAX = 10  # per target and kind of thing
_SEVERITY = (Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.NO_DATA)


def judge(
    facts: Facts,
    targets: Targets,
    *,
    made: Made,
    hours: HourFacts,
    quarantined: Iterable[QuarantinedFile] = (),
) -> Report:
    """Judge a period.

    Args:
        facts: sums of the period and of the one before it.
        made: when, by what and for which period; it is printed, not judged by.
        hours: state of the roll-ups.
        quarantined: files that were set aside.
    """
    unseen_share = hours.unseen_share
    pairs_expected = expected_pairs(facts.now, facts.before)
    completeness = Completeness(facts.now.inputs, unseen_share=unseen_share, expected=regions_of(pairs_expected))
    results = judge_targets(facts.now, targets, burn=facts.burn, before=facts.before, unseen_share=unseen_share)
    earlier = judge_targets(facts.before, targets)
    limits = shown_limits(facts.now.latency, facts.now.clocks, targets.shown(LatencyTarget))
    direct = {(origin, dest): limit for (origin, dest, home), limit in limits.items() if not home}
    pairs = pair_rows(facts.now, limits)
    clocks = tuple(_clock_row(item) for item in sorted(facts.now.clocks, key=lambda item: (item.region, item.peer)))
    integrity = integrity_section(facts.now, targets=targets.of(IntegrityTarget), completeness=completeness)
    inputs = Inputs(
        rows=completeness.rows(),
        quarantined=tuple(sorted(quarantined, key=lambda item: item.file)),
        hours=hours.rolled_up,
        hours_expected=hours.expected,
        hours_revised=hours.revised,
        hours_not_final=hours.not_final,
    )
    verdict = verdict_of(results)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        made=made,
        verdict=verdict,
        headline=headline_of(verdict, results),
        targets=results,
        latency=pairs,
        throughput=region_rows(facts.now, targets.shown(ThroughputTarget)[0]),
        integrity=integrity,
        availability=availability_section(
            facts.now,
            target=targets.shown(MinutesTarget)[0],
            pairs=pairs_expected,
            confidence=targets.confidence,
            completeness=completeness,
        ),
        clocks=clocks,
        inputs=inputs,
        worst=tuple(_worst_row(item) for item in _worst_first([*facts.worst, *_worst_subjects(results)], results)),
        changes=changes_between(earlier, results),
        series=tuple(
            Series(
                plot=item.plot,
                name=item.name,
                step_s=facts.series_step_s,
                at_s=tuple(at_s for at_s, _ in item.points),
                values=tuple(value for _, value in item.points),
            )
            for item in sorted(facts.series, key=lambda item: (item.plot, item.name))
        ),
        notes=notes_of(
            made=made,
            results=results,
            pairs=pairs,
            clocks=clocks,
            inputs=inputs,
            integrity=integrity,
            detours=detours(homes_of(facts.now), facts.now.clocks, direct),
            span=facts.now.span,
            hours=hours,
            completeness=completeness,
            read=facts.now.inputs,
        ),
    )


def judge_targets(
    period: PeriodFacts,
    targets: Targets,
    *,
    burn: Iterable[BurnFacts] = (),
    before: PeriodFacts | None = None,
    unseen_share: float = 0.0,
) -> tuple[TargetResult, ...]:
    """Judge every target of a period, in the order of the file.

    Args:
        before: the previous period: regions that took part in its probes are expected in this one.
        unseen_share: of the period's hours, those that nobody saw to their end.
    """
    judging = _Judging(period, targets, burn=BurnBook(burn, targets), before=before, unseen_share=unseen_share)
    return tuple(judging.result(target) for target in targets.targets)


class _Judging:
    """What the judges of all kinds share."""

    def __init__(
        self,
        period: PeriodFacts,
        targets: Targets,
        *,
        burn: BurnBook,
        before: PeriodFacts | None,
        unseen_share: float,
    ) -> None:
        self._period = period
        self._confidence = targets.confidence
        self._burn = burn
        self._pairs = expected_pairs(period, *([before] if before is not None else []))
        self._completeness = Completeness(period.inputs, unseen_share=unseen_share, expected=regions_of(self._pairs))
        self._unread = Unread(period, self._completeness, self._pairs)

    def result(self, target: Target) -> TargetResult:
        subjects = (*self._subjects(target), *self._unread.unread(target))
        uncounted = self._unread.uncounted(target, subjects)
        news = {subject.name for subject in uncounted}
        kept = (subject for subject in subjects if subject.name not in news)
        return _result(target, (*kept, *uncounted), uncounted)

    def _subjects(self, target: Target) -> tuple[Subject, ...]:
        period, completeness = self._period, self._completeness
        match target:
            case LatencyTarget():
                limits = way_limits(period.latency, period.clocks, target)
                return latency_subjects(target, period, limits=limits, completeness=completeness, burn=self._burn)
            case ThroughputTarget():
                return throughput_subjects(target, period, completeness=completeness)
            case IntegrityTarget():
                return integrity_subjects(target, period, completeness=completeness)
            case RequestsTarget():
                return request_subjects(
                    target, period, confidence=self._confidence, completeness=completeness, burn=self._burn
                )
            case ProbesTarget():
                return probe_subjects(
                    target, period, confidence=self._confidence, completeness=completeness, burn=self._burn
                )
            case MinutesTarget():
                return minute_subjects(target, period, pairs=self._pairs, completeness=completeness)


def _result(target: Target, subjects: tuple[Subject, ...], uncounted: tuple[Subject, ...]) -> TargetResult:
    """Return a target's result; `uncounted` are those of its subjects that it names and nobody counted."""
    verdict = worst(subject.verdict for subject in subjects)
    first = min(subjects, key=_badness, default=None)
    if verdict is Verdict.PASS and uncounted:
        verdict, first = Verdict.INCONCLUSIVE, uncounted[0]
    return TargetResult(
        name=target.name,
        kind=target.kind,
        scope=str(target.scope),
        topics=tuple(sorted(target.topics)) if isinstance(target, LatencyTarget | IntegrityTarget) else (),
        groups=tuple(sorted(target.groups)) if isinstance(target, LatencyTarget | IntegrityTarget) else (),
        objective=None if isinstance(target, IntegrityTarget) else target.objective,
        sentence=sentence_of(target),
        is_required=target.is_required,
        measured=first.measured if first else None,
        verdict=verdict,
        reason=first.reason if first else "nothing was counted",
        budget=first.budget if first else None,
        worst_subject=first.name if first else None,
        burning=tuple(
            f"{subject.name}: {window.name} {window.severity}"
            for subject in subjects
            for window in subject.burn
            if window.is_firing
        ),
        subjects=subjects,
    )


def _badness(subject: Subject) -> tuple[int, float, float, str]:
    """Order subjects: worst verdict first, then the lowest proven share, then the most bad events, then by name."""
    low = subject.measured.lo if subject.measured is not None else 1.0
    return _SEVERITY.index(subject.verdict), low, -subject.bad, subject.name


def verdict_of(results: Iterable[TargetResult]) -> Verdict:
    """Return the verdict of the whole."""
    results = tuple(results)
    whole = worst(result.verdict for result in results)
    if whole is not Verdict.BREACH and any(
        result.is_required and result.verdict is Verdict.NO_DATA for result in results
    ):
        return Verdict.NO_DATA
    return whole


def _clock_row(facts: ClockFacts) -> ClockRow:
    return ClockRow(
        region=facts.region,
        peer=facts.peer,
        exchanges=facts.exchanges,
        offset_us=facts.offset_us,
        offset_spread_us=facts.offset_spread_us,
        drift_ppm=facts.drift_ppm,
        bound_max_us=facts.bound_max_us,
        rtt_min_us=facts.rtt_min_us,
        steps=facts.steps,
        unsync=facts.unsync,
    )


def _worst_subjects(results: Iterable[TargetResult]) -> list[WorstFacts]:
    return [
        WorstFacts(
            target=result.name, what="subject", name=subject.name, at_s=None, total=subject.total, bad=subject.bad
        )
        for result in results
        if result.objective is not None
        for subject in sorted(result.subjects, key=lambda item: (-item.bad, item.name))[:WORST_MAX]
        if subject.bad and subject.total
    ]


def _worst_first(rows: Iterable[WorstFacts], results: Iterable[TargetResult]) -> list[WorstFacts]:
    """Order by the targets of the file, then by what it is, then the most bad events first."""
    places = {result.name: place for place, result in enumerate(results)}
    return sorted(
        rows, key=lambda item: (places.get(item.target, len(places)), item.what, -item.bad, item.at_s or 0, item.name)
    )


def _worst_row(facts: WorstFacts) -> WorstRow:
    return WorstRow(
        target=facts.target,
        what=facts.what,
        name=facts.name,
        at=None if facts.at_s is None else iso(facts.at_s),
        total=facts.total,
        bad=facts.bad,
        bad_share=facts.bad / facts.total,
    )
