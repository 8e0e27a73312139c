"""Subjects that a target means and nobody counted: where traces cannot be read, and where a scope names them.

Rule 1: of a region rows of a kind cannot be read when some are known to be missing, or when the region took part in
        probes (now, or in the period before) and nothing of any kind was read of it: a broker that runs writes clock
        rows every second.
Rule 2: such a region without a subject becomes one, and is a doubt. A region that is whole and merely had no traffic
        becomes none.
Rule 3: records without the name of their topic may be of a target of some topics or groups. A pair that has only such
        is a doubt, too.
Rule 4: a pair, region, topic or group that a target names and that has no data is a subject with NO_DATA, and the
        target is no pass: it may be a typing error, or what has gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from georelay.trace.files import GATEWAY_WRITER_FIRST
from georelay.trace.kinds import TraceKind
from sla.judging.availability import Pair
from sla.judging.completeness import Completeness
from sla.judging.facts import PeriodFacts
from sla.judging.latency import facts_of, untold_of
from sla.judging.verdict import Verdict
from sla.report.model import Subject, TargetKind
from sla.report.wording import things, unread
from sla.targets import (
    ARROW,
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Target,
    ThroughputTarget,
    group_text,
)

Place = tuple[str, ...]  # pair, or region
_NOT_COUNTED = "nothing was counted"
_UNTOLD = "without the name of their topic, and none with it"
_ROWS_OF = {
    TargetKind.LATENCY: TraceKind.LATENCY_HIST,
    TargetKind.THROUGHPUT: TraceKind.LEDGER,
    TargetKind.INTEGRITY: TraceKind.LEDGER,
    TargetKind.REQUESTS: TraceKind.OUTCOME,
    TargetKind.PROBES: TraceKind.PROBE,
}
_WHOSE = {TargetKind.INTEGRITY: "readers in ", TargetKind.REQUESTS: "requests in "}


class Unread:
    """Answers which regions of a period cannot be read, and makes the subjects that are missing for it.

    Args:
        completeness: of the period, with the regions of `pairs` as the expected ones.
        pairs: every pair of regions that took part in probes, in this period or the one before.
    """

    def __init__(self, period: PeriodFacts, completeness: Completeness, pairs: Iterable[Pair]) -> None:
        self._period = period
        self._completeness = completeness
        self._pairs = tuple(pairs)
        self._regions = sorted(completeness.regions)

    def unread(self, target: Target) -> tuple[Subject, ...]:
        """Return the subjects of a target that traces hide, by name."""
        found = _places(target, self._period)
        match target:
            case MinutesTarget():
                return ()  # each expected pair is a subject already
            case LatencyTarget():
                hidden = self._hidden_pairs(target, found)
            case ProbesTarget():
                hidden = self._hidden_probes(target, found)
            case ThroughputTarget() | IntegrityTarget() | RequestsTarget():
                hidden = self._hidden_regions(target, found)
        return tuple(
            _subject(_name(target, place), Verdict.INCONCLUSIVE, reason) for place, reason in sorted(hidden.items())
        )

    def uncounted(self, target: Target, subjects: Iterable[Subject]) -> tuple[Subject, ...]:
        """Return a subject without data for all that a target names and nobody counted, by name.

        Args:
            subjects: what the target has; what is among them is counted, or a doubt already.
        """
        known = {subject.name for subject in subjects if subject.verdict is not Verdict.NO_DATA or subject.total}
        found = {_name(target, place) for place in _places(target, self._period)}
        wanted = [_name(target, tuple(name.split(ARROW))) for name in sorted(target.scope.names)]
        names = [*wanted, *_unknown_names(target, self._period)]
        return tuple(_subject(name, Verdict.NO_DATA, _NOT_COUNTED) for name in names if name not in known | found)

    def _reason(self, kind: TraceKind, region: str) -> str | None:
        """Return why rows of a region cannot be read; None when they can."""
        share = self._completeness.own_missing_share(kind, region)
        return unread(share) if share else None

    def _hidden_regions(
        self, target: ThroughputTarget | IntegrityTarget | RequestsTarget, found: set[Place]
    ) -> dict[Place, str]:
        reasons = {region: self._reason(_ROWS_OF[target.kind], region) for region in self._regions}
        return {
            (region,): reason
            for region, reason in reasons.items()
            if reason is not None
            and (region,) not in found
            and target.scope.has_region(region)
            and (not isinstance(target, RequestsTarget) or self._may_count(target.source, region))
        }

    def _may_count(self, source: str, region: str) -> bool:
        """Return whether a gateway, or a broker, of the region may have written what is missing of its outcomes.

        Rows are numbered: those that are gone are of the writers of the others. Who wrote a file that cannot be read
        nobody knows, and silent are brokers alone: a gateway writes no clock rows.
        """
        writers = self._completeness.writers(TraceKind.OUTCOME, region)
        if not writers or self._completeness.is_of_unknown_writers(TraceKind.OUTCOME, region):
            return True
        if source != "gateway" and self._completeness.has_silent_brokers(region):
            return True
        return any(_is_gateway(name) is (source == "gateway") for name in writers)

    def _hidden_pairs(self, target: LatencyTarget, found: set[Place]) -> dict[Place, str]:
        """Return the pairs that end in a region without any, and those of whose records no topic is known."""
        origins = {item.origin for item in facts_of(target, self._period).values() if item.n}
        untold: Counter[Pair] = Counter()
        for item in untold_of(target, self._period):
            untold[item.origin, item.dest] += item.n
        hidden: dict[Place, str] = {
            pair: f"{things(n, 'record', 'records')} {_UNTOLD}"
            for pair, n in untold.items()
            if n and pair not in found and target.scope.has_pair(*pair)
        }
        return hidden | dict(self._ending(target, origins, found, TraceKind.LATENCY_HIST))

    def _hidden_probes(self, target: ProbesTarget, found: set[Place]) -> dict[Place, str]:
        hidden = dict(self._ending(target, set(self._regions), found, TraceKind.PROBE))
        for origin, dest in self._pairs:
            reason = self._reason(TraceKind.PROBE, dest) or self._reason(TraceKind.PROBE, origin)
            if reason is not None and (origin, dest) not in found and target.scope.has_pair(origin, dest):
                hidden[origin, dest] = reason
        return hidden

    def _ending(
        self, target: LatencyTarget | ProbesTarget, origins: set[str], found: set[Place], kind: TraceKind
    ) -> Iterator[tuple[Place, str]]:
        """Yield the pairs of the scope that end in a region without any, from where records are known to have entered.

        They may have entered in that region, too, and anywhere when none of these is meant.
        """
        ends = {place[-1] for place in found if target.scope.has_pair(place[0], place[-1])}
        regions = sorted(origins.union(self._regions))
        for dest in self._regions:
            reason = self._reason(kind, dest)
            if reason is not None and dest not in ends:
                meant = [origin for origin in regions if target.scope.has_pair(origin, dest)]
                known = [origin for origin in meant if origin in origins]
                for origin in meant if target.scope.names else known or meant:
                    yield (origin, dest), reason


def _places(target: Target, period: PeriodFacts) -> set[Place]:
    """Return the pairs or regions that have rows which the target counts, wherever they lie."""
    match target:
        case LatencyTarget():
            return {(item.origin, item.dest) for item in facts_of(target, period).values() if item.n}
        case ThroughputTarget():
            return {(item.dest,) for item in period.throughput if item.target == target.name}
        case IntegrityTarget():
            meant = (item for item in period.integrity if item.delivered)
            return {
                (item.dest,) for item in meant if target.has_reader(dest=item.dest, topic=item.topic, group=item.group)
            }
        case RequestsTarget():
            wanted = {operation.value for operation in target.operations}
            return {(item.region,) for item in period.requests if item.source == target.source and item.op in wanted}
        case ProbesTarget():
            return {(item.origin, item.dest) for item in period.probes}
        case MinutesTarget():
            return {(item.origin, item.dest) for item in period.minutes if item.target == target.name}


def _unknown_names(target: Target, period: PeriodFacts) -> list[str]:
    """Return the topics and groups that a target names and that no row of it has, in words."""
    if not isinstance(target, LatencyTarget | IntegrityTarget):
        return []
    if isinstance(target, LatencyTarget):
        seen = {(item.topic, item.group) for item in period.named if item.target == target.name}
    else:
        seen = {
            (item.topic, item.group)
            for item in period.integrity
            if item.delivered and target.has_reader(dest=item.dest, topic=item.topic, group=item.group)
        }
    topics, groups = {topic for topic, _ in seen}, {group for _, group in seen}
    return [
        *(f"topic {name}" for name in sorted(target.topics - topics)),
        *(f"group {group_text(name)}" for name in sorted(target.groups - groups)),
    ]


def _name(target: Target, place: Place) -> str:
    return _WHOSE.get(target.kind, "") + ARROW.join(place)


def _is_gateway(writer: str) -> bool:
    number = writer.rpartition("/")[2]
    return number.isdecimal() and int(number) >= GATEWAY_WRITER_FIRST


def _subject(name: str, verdict: Verdict, reason: str) -> Subject:
    return Subject(
        name=name,
        total=0,
        bad=0,
        threshold_ms=None,
        is_own_limit=False,
        measured=None,
        verdict=verdict,
        reason=reason,
        budget=None,
        burn=(),
    )
