"""What a reader can do about a verdict: one step per target that is missed, undecided or without data.

Rule 1: a step names where to look or what to change, from figures of the report; it never guesses a cause.
Rule 2: what is missed comes first; equal steps of several targets are one.
"""

from __future__ import annotations

import math
from typing import Final

from georelay.trace.kinds import Stage, TraceKind
from sla.judging.verdict import Verdict
from sla.report import wording as w
from sla.report.model import LatencyPair, Report, StageLatency, Subject, TargetKind, TargetResult

STEPS_MAX: Final = 4
HOME_FAR_AWAY: Final = "HOME_FAR_AWAY"  # code of the notes about homes in a third region
_ORDER: Final = (Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA)
EXPLAINED_SHARE_MIN: Final = 0.5  # of a pair's mean, by its stages, before one of them is named
_HOUR_S: Final = 3_600


def next_steps(report: Report) -> tuple[str, ...]:
    """Return the first STEPS_MAX steps; none when every target is met."""
    undone = sorted(
        (target for target in report.targets if target.verdict in _ORDER),
        key=lambda target: (_ORDER.index(target.verdict), not target.is_required),
    )
    names: dict[str, list[str]] = {}
    for target in undone:
        names.setdefault(_step(target, report), []).append(target.name)
    return tuple(f"{', '.join(named)}: {step}" for step, named in list(names.items())[:STEPS_MAX])


def _step(target: TargetResult, report: Report) -> str:
    subject = next((item for item in target.subjects if item.name == target.worst_subject), None)
    if subject is None:
        return "nothing was counted; check the period, and that brokers write traces of it"
    if target.verdict is Verdict.BREACH:
        return _missed(target, subject, report)
    if subject.verdict is Verdict.NO_DATA and target.verdict is Verdict.INCONCLUSIVE:
        name = w.short(subject.name)
        return f"nothing was counted of {name}; check the name in the targets file, or find its traces"
    if target.verdict is Verdict.NO_DATA:
        return f"there was nothing to judge ({target.reason}); measure while there is such traffic"
    return _undecided(target, subject, report)


# --- missed --------------------------------------------------------------------------------------------


def _missed(target: TargetResult, subject: Subject, report: Report) -> str:
    name = w.short(subject.name)
    match target.kind:
        case TargetKind.LATENCY:
            return _late(subject, report)
        case TargetKind.THROUGHPUT:
            return f"in {name} compare what was offered with what was delivered, under Throughput"
        case TargetKind.INTEGRITY:
            return f"{name} has {subject.reason}; what was jumped over, and why, is under Integrity"
        case TargetKind.REQUESTS | TargetKind.PROBES | TargetKind.MINUTES:
            return _worst_minute(target, subject, report)


def _late(subject: Subject, report: Report) -> str:
    if (way := _far_home(subject, report)) is not None:
        part = "light alone makes a part of the records late, see the notes"
        return f"on {w.short(subject.name)} {part}: they go {way}; move those homes closer"
    pair = _pair_of(subject, report)
    stages = [stage for stage in pair.stages if stage.stage != Stage.TOTAL.value] if pair is not None else []
    whole = next((stage for stage in pair.stages if stage.stage == Stage.TOTAL.value), None) if pair else None
    slowest = max(stages, key=lambda stage: stage.mean_ms, default=None)
    text = "open its line for every pair"
    if slowest is None or whole is None or not _is_explained(whole, stages):
        homes = _homes_elsewhere(pair, report) if pair is not None else ()
        if homes:
            at = f"the way to a home elsewhere ({', '.join(homes)})"
            return f"{text}; on {w.short(subject.name)} most of the time is spent on {at}"
        return f"{text}, the worst is {w.short(subject.name)}"
    part = f"{w.ms(slowest.mean_ms)} of {w.ms(whole.mean_ms)} ms on average"
    return f"{text}; on {w.short(subject.name)} the longest stage is {slowest.stage} ({part}): see Latency"


def _is_explained(whole: StageLatency, stages: list[StageLatency]) -> bool:
    """Return whether the stages of a pair are most of its mean: those of a way over a home stand under other pairs."""
    return sum(stage.mean_ms for stage in stages) >= whole.mean_ms * EXPLAINED_SHARE_MIN


def _homes_elsewhere(pair: LatencyPair, report: Report) -> tuple[str, ...]:
    """Return the third regions in which records that entered in a pair's origin were committed."""
    if pair.home is not None:
        return (pair.home,)
    homes = {
        other.dest
        for other in report.latency
        if other.origin == pair.origin and any(stage.stage == Stage.COMMIT.value for stage in other.stages)
    }
    return tuple(sorted(homes - {pair.origin, pair.dest}))


def _far_home(subject: Subject, report: Report) -> str | None:
    """Return the way over a third region that the notes name for a pair, None without."""
    for note in report.notes:
        way = note.text.partition(": ")[0]
        ends = way.split(" -> ")
        if note.code == HOME_FAR_AWAY and w.pair(ends[0], ends[-1]) == subject.name:
            return way
    return None


def _worst_minute(target: TargetResult, subject: Subject, report: Report) -> str:
    rows = [row for row in report.worst if row.target == target.name and row.what == "minute"]
    if not rows:
        return f"open its line, the worst is {w.short(subject.name)}"
    row = rows[0]
    counts = f"{w.count(row.bad)} of {w.count(row.total)} bad"
    return f"look at what happened at {w.moment(row.at)} ({w.short(row.name)}, {counts}): see What cost most"


# --- undecided -----------------------------------------------------------------------------------------


def _undecided(target: TargetResult, subject: Subject, report: Report) -> str:
    if w.is_unread(subject.reason):
        text = f"nothing is known of {w.short(subject.name)} ({subject.reason})"
        return f"{text}; find the files, or see why its brokers wrote none"
    if target.kind in (TargetKind.REQUESTS, TargetKind.PROBES):
        return _longer(target, subject)
    if target.kind is TargetKind.MINUTES:
        return "minutes without probes decide; ask for a period in which the mesh ran, or find its files"
    if target.kind in (TargetKind.INTEGRITY, TargetKind.THROUGHPUT):
        text = f"{w.short(subject.name)} is not proven ({subject.reason})"
        return f"{text}; find the missing files, What this rests on says what is known of them"
    if "are missing" in subject.reason:
        return "rows of traces are missing; find the files, What this rests on names them"
    if "without the name" in subject.reason:
        return f"{w.short(subject.name)} is not proven ({subject.reason}); a target of all topics counts these records"
    pair = _pair_of(subject, report) if target.kind is TargetKind.LATENCY else None
    if pair is not None and (pair.n_clock_unknown or any(stage.within.lo < stage.within.hi for stage in pair.stages)):
        return f"clocks decide on {w.short(subject.name)}; have both hosts' clocks synchronised (chrony, PTP)"
    if any(row.completeness < 1 and row.kind == TraceKind.LATENCY_HIST.value for row in report.inputs.rows):
        return "rows of traces are missing; find the files, What this rests on names them"
    return f"{w.short(subject.name)} has too little to judge ({subject.reason}); measure longer"


def _longer(target: TargetResult, subject: Subject) -> str:
    lo, objective = subject.measured.lo if subject.measured is not None else 0.0, target.objective
    if subject.bad or not 0 < lo < 1 or objective is None:
        return f"too few {_NOUN[target.kind]} to tell; measure longer"
    needed = math.ceil(subject.total * math.log(lo) / math.log(objective))
    time = (
        f", one per second and pair: {w.count(round(needed / _HOUR_S, 1))} h"
        if target.kind is TargetKind.PROBES
        else ""
    )
    return f"measure longer; {w.percent(objective)} takes {w.count(needed)} without a failure{time}"


_NOUN: Final = {TargetKind.REQUESTS: "requests", TargetKind.PROBES: "probes"}


def _pair_of(subject: Subject, report: Report) -> LatencyPair | None:
    return next((pair for pair in report.latency if w.way(pair.origin, pair.dest, pair.home) == subject.name), None)
