"""Targets and verdicts in words: what a reader sees first."""

from __future__ import annotations

from collections.abc import Iterable

from georelay.trace.kinds import Stage
from sla.judging.verdict import Verdict
from sla.report.model import TargetResult
from sla.report.wording import percent, short
from sla.targets import (
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Scope,
    Target,
    ThroughputTarget,
)

REASONS_SHOWN = 3
NAMES_SHOWN = 5  # of topics, of groups; report.json has them all
_STAGES = {
    Stage.TOTAL: "from publish to deliver",
    Stage.COMMIT: "from publish to commit",
    Stage.REPLICATE: "from home to mirror",
    Stage.DELIVER: "from commit to deliver",
}


def sentence_of(target: Target) -> str:
    """Return the target in words."""
    match target:
        case LatencyTarget():
            share = f"{percent(target.objective)} of records within {target.threshold_ms:g} ms {_STAGES[target.stage]}"
            return f"{share}{_of(target)}, {_pairs(target.scope)}"
        case ThroughputTarget():
            rate = f"{target.records_per_s:,.0f} records/s delivered while offered"
            return f"{rate}, in {percent(target.objective)} of loaded minutes, {_regions(target.scope)}"
        case IntegrityTarget():
            counts = (target.lost_max, target.duplicates_max, target.reordered_max)
            most = "no record" if not any(counts) else "at most {}, {} and {} records".format(*counts)
            what = f"{most} lost, repeated without saying so, or out of order"
            return f"{what}{_of(target)}, {_regions(target.scope)}"
        case RequestsTarget():
            share = f"{percent(target.objective)} of valid requests answered, per operation as {target.source}s count"
            return f"{share}, {_regions(target.scope)}"
        case ProbesTarget():
            return f"{percent(target.objective)} of probes in time, {_pairs(target.scope)}"
        case MinutesTarget():
            down = f"fewer than {percent(target.down_share)} of their probes failed"
            return f"{percent(target.objective)} of minutes up ({down}), {_pairs(target.scope)}"


def headline_of(verdict: Verdict, results: Iterable[TargetResult]) -> str:
    """Return the verdict of the whole and its first reasons, those of required targets first.

    What is missed has the word alone: targets that are only not proven are named behind it.
    """
    results = tuple(results)
    is_anything_required = any(result.is_required for result in results)
    news = [result for result in results if _is_news(result, is_anything_required=is_anything_required)]
    news.sort(key=lambda result: not result.is_required)
    missed = [result for result in news if result.verdict is Verdict.BREACH]
    reasons = [_reason(result) for result in missed or news]
    more = f" (and {len(reasons) - REASONS_SHOWN} more)" if len(reasons) > REASONS_SHOWN else ""
    open_ = [result.name for result in news if result.verdict is Verdict.INCONCLUSIVE] if missed else []
    unproven = f". Not proven: {', '.join(open_)}" if open_ else ""
    return verdict.value + (": " + "; ".join(reasons[:REASONS_SHOWN]) + more + unproven if reasons else "")


def _is_news(result: TargetResult, *, is_anything_required: bool) -> bool:
    if result.verdict is Verdict.NO_DATA:
        return result.is_required or not is_anything_required
    return result.verdict is not Verdict.PASS


def _reason(result: TargetResult) -> str:
    where = f" {short(result.worst_subject)}" if result.worst_subject else ""
    return f"{result.name}{where}: {result.reason}"


def _of(target: LatencyTarget | IntegrityTarget) -> str:
    """Return which topics and groups are meant; nothing when all are."""
    parts = []
    if target.topics:
        parts.append(f"{'topic' if len(target.topics) == 1 else 'topics'} {_names(sorted(target.topics))}")
    groups = sorted(target.groups - {""})
    if groups:
        parts.append(f"{'group' if len(groups) == 1 else 'groups'} {_names(groups)}")
    if "" in target.groups:
        parts.append(f"{'and ' * bool(groups)}consumers without a group")
    return f" ({'; '.join(parts).replace('; and', ' and')})" if parts else ""


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(short(name) for name in names[:NAMES_SHOWN]) + more


def _pairs(scope: Scope) -> str:
    if scope.names:
        return str(scope)
    return {"all": "every pair of regions", "intra": "within every region", "inter": "between every two regions"}[
        scope.word
    ]


def _regions(scope: Scope) -> str:
    return str(scope) if scope.names else "every region"
