"""The report as values. `report.json` is exactly this, field by field; REPORT_SCHEMA_VERSION counts its changes.

Rule 1: shares are in [0, 1], latencies in milliseconds, clock figures in microseconds, `*_s` are seconds since 1970.
Rule 2: an Interval holds what is proven: everything unknown (clocks, missing traces, minutes without data, chance)
        is inside it. `value` is what was measured, as if nothing were unknown.
Rule 3: None means "not known" or "too few to say", never zero.
Rule 4: rows come sorted by their names, worst lists by badness, then name: one input makes one report.json.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from sla.judging.verdict import Verdict

REPORT_SCHEMA_VERSION: Final = 3


class TargetKind(enum.Enum):
    """What a target is about."""

    LATENCY = "latency"  # share of records within a time, per pair
    THROUGHPUT = "throughput"  # share of loaded minutes that were met, per region
    INTEGRITY = "integrity"  # lost, unflagged duplicates, out of order: none, per stream and reader
    REQUESTS = "requests"  # share of valid requests that succeeded, per region and operation
    PROBES = "probes"  # share of probes that came in time, per pair
    MINUTES = "minutes"  # share of minutes that were up, per pair


class Unit(enum.Enum):
    """What a target counts."""

    RECORDS = "records"
    REQUESTS = "requests"
    PROBES = "probes"
    MINUTES = "minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A measured share and the bounds of what is proven about it: 0 <= lo <= value <= hi <= 1 unless value is None."""

    value: float | None
    lo: float
    hi: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The error budget of one subject over the period: what may go wrong before the target is missed.

    Args:
        unit: what is counted.
        allowed: (1 - objective) * total; may be a fraction.
        used: bad ones.
        left_share: 1 - used / allowed; below 0 when overspent, None when nothing is allowed.
        full_outage_minutes_left: minutes of total failure, at the period's mean rate, that the rest would pay for.
        exhausted_at: when it is spent if the last burn rate goes on; None when it will not be in this period's length.
    """

    unit: Unit
    allowed: float
    used: int
    left_share: float | None
    full_outage_minutes_left: float | None
    exhausted_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnWindow:
    """One multi-window burn-rate alert over one subject. A rate of 1 spends exactly the budget.

    Args:
        name: such as `1h+5m`.
        severity: `page` or `ticket`.
        threshold: the alert is on when both windows burn faster.
        long_rate, short_rate: at the end of the period; None when their windows have no event.
        covered_minutes: of the long window at the end of the period, since the subject's first event.
        is_burning: at the end of the period both windows burn faster and the long one has enough events.
        is_firing: at the end of the period the alert is on: it is burning, and the long window is covered.
        is_partial: the long window is longer than the data; its rates are of what there is, and no alert.
        firing_minutes: minutes of the period (of its last 31 days) at whose end the alert was on.
        worst_rate: highest rate of the long window in the period, where it was covered and had enough events.
        worst_at: when that was.
    """

    name: str
    severity: str
    long_minutes: int
    short_minutes: int
    threshold: float
    long_rate: float | None
    short_rate: float | None
    covered_minutes: int
    is_burning: bool
    is_firing: bool
    is_partial: bool
    firing_minutes: int
    worst_rate: float | None
    worst_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What one target says about one pair, region or stream.

    Args:
        name: such as `us -> eu`.
        total: events that the share is of.
        bad: events that count against it, as measured.
        threshold_ms: of latency targets: the limit that was judged; for a pair that light cannot cross, its own.
        is_own_limit: the limit is the pair's own, because the target's is out of reach there.
        measured: None when nothing was counted.
    """

    name: str
    total: int
    bad: int
    threshold_ms: float | None
    is_own_limit: bool
    measured: Interval | None
    verdict: Verdict
    reason: str
    budget: Budget | None
    burn: tuple[BurnWindow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """One target: its verdict is the worst of its subjects'; `measured` and `budget` are those of `worst_subject`.

    A subject that the target names and nobody counted has NO_DATA, and the target is at best INCONCLUSIVE.

    Args:
        scope: `all`, `intra`, `inter`, or the pairs or regions that it names.
        topics, groups: whose records count, all when empty; group '' are the consumers without one.
    """

    name: str
    kind: TargetKind
    scope: str
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    objective: float | None
    sentence: str  # the target in words: "99 % of records within 50 ms, every pair that light allows"
    is_required: bool
    measured: Interval | None
    verdict: Verdict
    reason: str
    budget: Budget | None
    worst_subject: str | None
    burning: tuple[str, ...]  # "us -> eu: 1h+5m page", the alerts that are on at the end
    subjects: tuple[Subject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of a latency; None where fewer than 20 records lie beyond. Middles of buckets of 2.2 % width."""

    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    p99_99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLatency:
    """One stage (commit, replicate, deliver, total) of the way of a pair's records."""

    stage: str
    n: int
    quantiles: Quantiles
    mean_ms: float
    max_ms: float
    n_good: int  # within 50 ms, counted exactly
    within: Interval  # share within 50 ms; bounds by the clock error
    clock_error_ms: float | None  # the largest in the period; None when unknown for some records


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPair:
    """Records that entered in `origin` and were delivered in `dest`.

    Args:
        home: third region that sequenced all of them; None when they go the direct way, or by way of several homes.
        floor_ms: half of the shortest round trip, of both parts of the way when there is a home between: no record can
            be faster. None when no exchange was seen.
        is_feasible: the floor leaves room for 50 ms: floor + local p50 <= 50. None when the floor is unknown.
        n_clock_unknown: records whose clock error nobody knew; n_clock_revised: corrected by the later fit.
        there_and_back_mean_ms: mean(origin -> dest) + mean(dest -> origin), by the same home: true whatever the clocks
            say.
        stages: in the order of a record's way.
    """

    origin: str
    dest: str
    home: str | None
    is_intra: bool
    floor_ms: float | None
    is_feasible: bool | None
    own_limit_ms: float | None
    n_clock_unknown: int
    n_clock_revised: int
    there_and_back_mean_ms: float | None
    stages: tuple[StageLatency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRegion:
    """Delivered records of one region, each once however many read it.

    A second is loaded when as many as the target were offered in it.
    `loaded_minutes`: minutes whose best 10 s were offered a margin above the target; `..._met`: whose best 10 s
    delivered the target. `mean_per_s` is over the minutes in which something was delivered.
    """

    region: str
    delivered: int
    offered: int
    active_minutes: int
    mean_per_s: float
    max_1s: int
    max_10s_mean: float
    offered_max_10s_mean: float
    max_60s_mean: float
    loaded_seconds: int
    loaded_seconds_met: int
    loaded_minutes: int
    loaded_minutes_met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityStream:
    """One stream as read in one region by one group ('' for readers without); sums over its sessions and the period.

    Args:
        published: records of the stream that were committed in the period and that readers may see.
        delivered: records handed over, repeats included; delivered_once: without them.
        pending: committed and not handed over at the end of the period.
    """

    topic: str
    origin: str
    partition: int
    dest: str
    group: str
    published: int
    sessions: int
    delivered: int
    delivered_once: int
    dup_flagged: int
    dup_unflagged: int
    gaps: int
    gap_records: int
    healed_records: int
    lost: int
    unexplained: int
    aborted: int
    expired: int
    order_violations: int
    pending: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotal:
    """What became of the records of one stream at home in the period."""

    topic: str
    origin: str
    partition: int
    committed: int
    aborted: int
    expired: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTotal:
    """Records of a stream found in a mirror region; missing ones had not come when the settle time was over."""

    topic: str
    origin: str
    partition: int
    region: str
    replicated: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of every record of one stream for one reader (see sla.judging.accounts).

    published = delivered + pending + lost + untraced + aborted + expired + not_asked - unnamed

    Args:
        home: region, or regions, that committed it in the period.
        dest: region of the reader, '' when nobody reads the stream.
        lost: jumped over, and delivered to nobody. untraced: between two sessions, and no row says that they were
            handed over: the reader passed them by, or rows of a broker are gone.
        not_asked: published before the first record that the reader was handed.
        unnamed: delivered or replicated, and committed by no home's ledger.
        refused: records of publishes that were answered with an error and not stored.
        undecided: records of publishes with an unknown outcome; what of them is stored is published.
        adds_up: whether `unnamed` is zero; None when rows of a ledger are missing, or its ranges are too many to be
            added up: then how many were published is known, and nothing of what became of them.
    """

    topic: str
    origin: str
    partition: int
    home: str
    dest: str
    group: str
    published: int
    delivered: int | None
    pending: int | None
    lost: int | None
    untraced: int | None
    aborted: int | None
    expired: int | None
    not_asked: int | None
    unnamed: int | None
    refused: int
    undecided: int
    adds_up: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityTotals:
    """Sums over all streams and readers."""

    committed: int
    aborted: int
    expired: int
    mirror_missing: int
    delivered: int
    dup_flagged: int
    dup_unflagged: int
    lost: int
    unexplained: int
    healed_records: int
    order_violations: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """Everything about lost, repeated and reordered records."""

    totals: IntegrityTotals
    readers: tuple[IntegrityStream, ...]
    streams: tuple[StreamTotal, ...]
    mirrors: tuple[MirrorTotal, ...]
    accounts: tuple[Account, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """Requests as brokers (`source` broker) or gateways saw them. Valid ones are attempts without client errors."""

    region: str
    source: str
    op: str
    attempts: int
    ok: int
    client_error: int
    server_error: int
    timeout: int
    offered: int
    writers: int
    success: Interval | None  # of valid requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAvailability:
    """Probes of one pair, and its minutes. `up_share` has every unknown minute down in lo and up in hi.

    `minutes*` count minutes, the first and the last of an open period as whole ones; `coverage` and `up_share` weigh
    those by their seconds in it.
    """

    origin: str
    dest: str
    probes: int
    probes_ok: int
    probes_late: int
    probes_lost: int
    probes_refused: int
    success: Interval | None
    minutes: int
    minutes_up: int
    minutes_down: int
    minutes_unknown: int
    coverage: float
    up_share: Interval
    longest_down_minutes: int
    longest_down_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Two views of it: what clients asked for, and what probes and minutes say."""

    requests: tuple[RequestRow, ...]
    pairs: tuple[PairAvailability, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """What the brokers of `region` know about the clocks of `peer` (a region): their clock minus ours."""

    region: str
    peer: str
    exchanges: int
    offset_us: int | None  # mean of the hourly fits
    offset_spread_us: int | None
    drift_ppm: float | None
    bound_max_us: int | None  # the error cannot be larger; None when nothing is known
    rtt_min_us: int | None
    steps: int  # times that a clock was set
    unsync: int  # exchanges in which a host's kernel did not know its own error


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """Trace files of one kind from one region. `completeness` is the share of rows known to be there.

    `gone_rows` are missing or dropped, each once: a dropped row is missing, too, when a file of its writer before is
    there.
    """

    kind: str
    region: str
    files: int
    bytes: int
    rows: int
    quarantined_files: int
    missing_rows: int
    dropped_rows: int
    gone_rows: int
    writers: tuple[str, ...]
    silent_writer_hours: int
    completeness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """A trace file that could not be read."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the report was made from, and what is known to be missing."""

    rows: tuple[InputRow, ...]
    quarantined: tuple[QuarantinedFile, ...]
    hours: int  # that have a roll-up
    hours_expected: int
    hours_revised: int
    hours_not_final: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """A minute, subject or topic with the most bad events of one target; ten of each at most."""

    target: str
    what: str  # "minute", "subject" or "topic"
    name: str
    at: str | None  # of minutes: their start; else None
    total: int
    bad: int
    bad_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One subject of one target beside the previous period of the same length."""

    target: str
    subject: str
    before: Interval | None
    now: Interval | None
    verdict_before: Verdict
    verdict_now: Verdict
    is_proven: bool  # the two intervals do not overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over time for one plot line; `values` and `at_s` are equally long, None where there is no data."""

    plot: str  # latency_p50_ms, latency_p99_ms, within_share, delivered_per_s, offered_per_s, probe_bad_share
    name: str  # pair or region
    step_s: int
    at_s: tuple[int, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing a reader has to know: a rounded period, revised hours, an infeasible pair, a silent writer."""

    code: str
    text: str
    is_warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """When, by what and for which period. The period is whole minutes; integrity is judged over whole hours.

    Times are ISO 8601 in UTC. `asked_*` are the user's, None for "from the first" or "to the last trace".
    """

    generated_at: str
    code_version: str
    targets_file: str
    period_from: str
    period_to: str
    asked_from: str | None
    asked_to: str | None
    minutes: int
    integrity_from: str
    integrity_to: str
    settle_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is printed and written."""

    schema_version: int
    made: Made
    verdict: Verdict
    headline: str
    targets: tuple[TargetResult, ...]
    latency: tuple[LatencyPair, ...]
    throughput: tuple[ThroughputRegion, ...]
    integrity: Integrity
    availability: Availability
    clocks: tuple[ClockRow, ...]
    inputs: Inputs
    worst: tuple[WorstRow, ...]
    changes: tuple[Change, ...]
    series: tuple[Series, ...]
    notes: tuple[Note, ...]
