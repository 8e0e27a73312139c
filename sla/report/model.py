"""The report as values. `report.json` is exactly this, field by field; SCHEMA_VERSION counts its changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sla.report.verdict import Verdict
from sla.targets import Targets

REPORT_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """A trace file that could not be read."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the report was made from, and what is known to be missing."""

    files: int
    bytes: int
    rows: int
    rows_missing: int
    rows_dropped: int
    writers: tuple[str, ...]
    quarantined: tuple[QuarantinedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """Publish to deliver: records that entered in `origin`, delivered in `dest`. A quantile is None for a small n."""

    origin: str
    dest: str
    n: int
    n_good: int
    n_good_lo: int
    n_good_hi: int
    share_good: float
    mean_ms: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float
    clock_error_ms: float | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow:
    """Delivered records of one region; the 10 s figures are means per second of the best window."""

    region: str
    delivered: int
    seconds: int
    mean_per_s: float
    max_1s: int
    max_10s_mean: float
    offered_max_10s_mean: float
    loaded_seconds: int
    loaded_share_met: float | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityRow:
    """Sums over the sessions that read one stream in one region."""

    topic: str
    origin: str
    partition: int
    region: str
    sessions: int
    delivered: int
    lost: int
    unexplained: int
    duplicated: int
    out_of_order: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """Records committed at home and found in a mirror region. Missing ones may still be on their way: not judged."""

    topic: str
    origin: str
    region: str
    committed: int
    replicated: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalRow:
    """Records handed to consumers of one topic in one region, over all sessions."""

    topic: str
    origin: str
    region: str
    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is printed and written."""

    schema_version: int
    generated_at: str
    period_from: str | None
    period_to: str | None
    verdict: Verdict
    targets: Targets
    inputs: Inputs
    latency: tuple[LatencyRow, ...]
    throughput: tuple[ThroughputRow, ...]
    integrity: tuple[IntegrityRow, ...]
    coverage: tuple[CoverageRow, ...]
    totals: tuple[TotalRow, ...]
