"""What the mesh promises, as numbers the report judges against.

Rule 1: a target is judged per subject (pair, region, stream) and never averaged over them.
Rule 2: a pair is named `us -> eu`: where records entered, where they were delivered.
Rule 3: a target of some topics or groups counts their records alone; what light allows a pair is that of all records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeVar

from georelay.trace.histogram import GOOD_US_MAX
from georelay.trace.kinds import Operation, Stage
from sla.report.model import TargetKind

THROUGHPUT_WINDOW_S: Final = 10
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)

MINUTES_OF_UNIT: Final = {"m": 1, "h": 60, "d": 24 * 60}
ARROW: Final = " -> "
NO_GROUP: Final = "-"  # how a targets file and a report write the consumers without a group, '' in traces
GROUP_STAGES: Final = frozenset({Stage.DELIVER, Stage.TOTAL})  # of the others nobody's group has any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which subjects a target is about: all, those within a region, those between two, or the named ones."""

    word: str = "all"
    names: frozenset[str] = frozenset()

    def has_pair(self, origin: str, dest: str) -> bool:
        """Return whether the pair is meant."""
        if self.names:
            return f"{origin}{ARROW}{dest}" in self.names
        return self.word == "all" or (self.word == "intra") is (origin == dest)

    def has_region(self, region: str) -> bool:
        """Return whether the region is meant."""
        return not self.names or region in self.names

    def __str__(self) -> str:
        return ", ".join(sorted(self.names)) if self.names else self.word


ALL: Final = Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """Share of records within a time, per pair of regions.

    Args:
        objective: share, in (0, 1).
        threshold_ms: limit of `stage`, in (0, 600 000].
        own_limit_margin_ms: a pair whose floor leaves no room is judged against floor + this, >= 0.
        local_ms_max: of a pair's local p50, how much may count towards "no room", >= 0.
        topics, groups: whose records count, all when empty; '' are the consumers without a group. `groups` only with a
            stage of GROUP_STAGES.
        is_required: without data for any pair the whole report has none.
    """

    kind: ClassVar[TargetKind] = TargetKind.LATENCY
    name: str
    objective: float = 0.99
    threshold_ms: float = GOOD_US_MAX / 1_000
    stage: Stage = Stage.TOTAL
    scope: Scope = ALL
    own_limit_margin_ms: float = 20.0
    local_ms_max: float = 10.0
    topics: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    is_required: bool = True

    @property
    def is_narrowed(self) -> bool:
        """Whether it is about some topics or groups only."""
        return bool(self.topics or self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputTarget:
    """Share of loaded minutes in which a region delivered `records_per_s`.

    Args:
        objective: share of loaded minutes, in (0, 1).
        records_per_s: > 0; in the best 10 s of the minute.
        offered_margin: a minute is loaded when its best 10 s were offered so many times the rate, >= 1.
    """

    kind: ClassVar[TargetKind] = TargetKind.THROUGHPUT
    name: str
    objective: float = 0.99
    records_per_s: float = 1_000.0
    offered_margin: float = 1.05
    scope: Scope = ALL
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityTarget:
    """At most so many records of a stream and reader lost, repeated without saying so, or out of order; >= 0 each.

    Args:
        topics, groups: whose readers are meant, all when empty; '' are the consumers without a group.
    """

    kind: ClassVar[TargetKind] = TargetKind.INTEGRITY
    name: str
    lost_max: int = 0
    duplicates_max: int = 0
    reordered_max: int = 0
    scope: Scope = ALL
    topics: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    is_required: bool = True

    def has_reader(self, *, dest: str, topic: str, group: str) -> bool:
        """Return whether readers of a topic in a region are meant; `group` '' are those without one."""
        is_meant = (not self.topics or topic in self.topics) and (not self.groups or group in self.groups)
        return is_meant and self.scope.has_region(dest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsTarget:
    """Share of valid requests that succeeded, per region and operation, as brokers or as gateways counted them."""

    kind: ClassVar[TargetKind] = TargetKind.REQUESTS
    name: str
    objective: float = 0.9999
    source: str = "broker"
    operations: frozenset[Operation] = frozenset(Operation)
    scope: Scope = ALL
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbesTarget:
    """Share of probes that came in time, per pair."""

    kind: ClassVar[TargetKind] = TargetKind.PROBES
    name: str
    objective: float = 0.9999
    scope: Scope = ALL
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MinutesTarget:
    """Share of minutes that were up, per pair.

    Args:
        down_share: a minute is down when at least this share of its probes failed, in (0, 1].
        coverage_min: share of minutes with data that a pass needs, in [0, 1].
    """

    kind: ClassVar[TargetKind] = TargetKind.MINUTES
    name: str
    objective: float = 0.9999
    down_share: float = 0.05
    coverage_min: float = 0.999
    scope: Scope = ALL
    is_required: bool = False


Target = LatencyTarget | ThroughputTarget | IntegrityTarget | RequestsTarget | ProbesTarget | MinutesTarget
_Kind = TypeVar("_Kind", LatencyTarget, ThroughputTarget, IntegrityTarget, RequestsTarget, ProbesTarget, MinutesTarget)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRule:
    """An alert that is on while both windows burn the budget faster than `rate`.

    Source: Google, The Site Reliability Workbook (2018), chapter 5, table 5-8.
    """

    long_minutes: int
    short_minutes: int
    rate: float
    severity: str

    @property
    def name(self) -> str:
        """Both windows in words: `1h+5m`."""
        return f"{duration_text(self.long_minutes)}+{duration_text(self.short_minutes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Everything that a report is judged by.

    Args:
        confidence: of the intervals around what was sampled, in [0.5, 0.999999].
        burn_events_min: events in a long window before its alert may be on, >= 1.
        source: name of the file, for the report.
    """

    targets: tuple[Target, ...]
    burn_rules: tuple[BurnRule, ...] = ()
    burn_events_min: int = 100
    confidence: float = 0.95
    source: str = field(default="built-in", compare=False)

    def of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Return the targets of a kind, in the order of the file."""
        return tuple(target for target in self.targets if isinstance(target, kind))

    def shown(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Return the targets of a kind; without any the default one, which tables are made for and nobody judges."""
        return self.of(kind) or (kind(name=kind.kind.value),)


def group_text(group: str) -> str:
    """Return a group as a targets file writes it."""
    return group or NO_GROUP


def duration_text(minutes: int) -> str:
    """Return 90 as `90m`, 360 as `6h`, 4320 as `3d`."""
    for unit in ("d", "h"):
        if minutes % MINUTES_OF_UNIT[unit] == 0:
            return f"{minutes // MINUTES_OF_UNIT[unit]}{unit}"
    return f"{minutes}m"
