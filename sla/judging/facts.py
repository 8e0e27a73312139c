"""The facts of a period that judging starts from: sums over roll-ups, as plain values.

Rule 1: a fact is a sum, a maximum or a minimum over rows of a roll-up table; no target is in it, except where it says.
Rule 2: microseconds, records and epoch seconds are integers; rounding is left to what is printed.
Rule 3: no Spark here; `sla.jobs.collect` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Histogram = tuple[tuple[int, int], ...]
Subject = tuple[str, ...]  # pair, or region, or (region, source, op)

NEWEST_S_MAX: Final = 31 * 86_400  # of alerts and worst minutes; what has burnt before is told by the budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A period in epoch seconds, [start_s, end_s), whole minutes; the integrity of its hours is judged.

    Args:
        probed_start_s, probed_end_s: the seconds of it in which probes are expected (see sla.judging.probed); None:
            all from the start, or to the end.

    Raises:
        ValueError: it is empty or not made of whole minutes, or the probed seconds are none or lie outside.
    """

    start_s: int
    end_s: int
    probed_start_s: int | None = None
    probed_end_s: int | None = None

    def __post_init__(self) -> None:
        if self.start_s % 60 or self.end_s % 60 or self.start_s >= self.end_s:
            raise ValueError(f"[{self.start_s}, {self.end_s}) is no period of whole minutes")
        first_s, end_s = self.probed
        if not self.start_s <= first_s < end_s <= self.end_s:
            raise ValueError(f"probes in [{first_s}, {end_s}) are not in [{self.start_s}, {self.end_s})")

    @property
    def minutes(self) -> int:
        """Length."""
        return (self.end_s - self.start_s) // 60

    @property
    def newest_start_s(self) -> int:
        """Where the part begins whose minutes are looked at one by one: at most the last NEWEST_S_MAX."""
        return max(self.start_s, self.end_s - NEWEST_S_MAX)

    @property
    def probed(self) -> tuple[int, int]:
        """First second in which probes are expected, and the one after the last."""
        first_s = self.start_s if self.probed_start_s is None else self.probed_start_s
        return first_s, self.end_s if self.probed_end_s is None else self.probed_end_s

    @property
    def probed_s(self) -> int:
        """How many seconds probes are expected in."""
        first_s, end_s = self.probed
        return end_s - first_s

    @property
    def probed_minutes(self) -> int:
        """How many minutes those seconds lie in; the first and the last of them may be there with a part."""
        first_s, end_s = self.probed
        return (end_s + -end_s % 60 - (first_s - first_s % 60)) // 60

    @property
    def first_hour_s(self) -> int:
        """Start of the first hour that it touches."""
        return self.start_s - self.start_s % 3_600

    @property
    def end_hour_s(self) -> int:
        """End of the last hour that it touches."""
        return self.end_s + -self.end_s % 3_600

    @property
    def previous(self) -> Span:
        """The period of the same length before it."""
        return Span(start_s=2 * self.start_s - self.end_s, end_s=self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFacts:
    """Sums of one (origin, dest, home, stage).

    Args:
        home: third region that sequenced every record of these topics from `origin`; '' when it is one of the pair's
            own, when there are several, or when nobody saw the commits. Of the stage `total` only.
        target: of a target of some topics or groups, whose records alone are summed; '' of all records.
        is_untold: of records whose topic their broker did not write down: they may be of the target or not.
    """

    origin: str
    dest: str
    stage: str
    n: int
    n_good: int
    n_good_lo: int
    n_good_hi: int
    n_clock_unknown: int
    n_clock_revised: int
    lat_sum_us: int
    lat_max_us: int
    clock_err_max_us: int | None
    hist: Histogram
    home: str = ""
    target: str = ""
    is_untold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFacts:
    """A topic and group that have records which a latency target counts in its scope, of those that it names.

    `topic` is '' of a target that names no topics, `group` of one that names no groups.
    """

    target: str
    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeFacts:
    """Records that entered in `origin` and were committed in `home`.

    Args:
        is_only: of topics whose records from `origin` were all committed there.
    """

    origin: str
    home: str
    is_only: bool
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputFacts:
    """Sums of one region for one target: `loaded_minutes*` depend on its rate and margin.

    `..._perhaps_met` minutes would be met if the ledger's missing rows lay in them as they lie everywhere.
    """

    target: str
    dest: str
    delivered: int
    offered: int
    active_minutes: int
    max_1s: int
    max_10s_mean: float
    offered_max_10s_mean: float
    max_60s_mean: float
    loaded_seconds: int
    loaded_seconds_met: int
    loaded_minutes: int
    loaded_minutes_met: int
    loaded_minutes_perhaps_met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityFacts:
    """Sums of one stream and reader; `pending` is that of the last hour in which it was handed anything."""

    topic: str
    origin: str
    partition: int
    dest: str
    group: str
    sessions: int
    delivered: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """Sums of one stream at home; `epochs` is the largest number of one hour."""

    topic: str
    origin: str
    partition: int
    committed: int
    aborted: int
    expired: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """Sums of one stream in one mirror region."""

    topic: str
    origin: str
    partition: int
    region: str
    replicated: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """What the ledgers of one region name of one stream (see sla.transforms.accounts).

    Args:
        kind: as in the ledger. group: of `delivered` only.
        is_inside: in the hours of the period, not in those around it.
        records: how many; ranges: their offsets, disjoint and ascending, none for kinds that name none.
        is_whole: there were not too many ranges to be added up; else `ranges` has their hull alone.
    """

    kind: str
    topic: str
    origin: str
    partition: int
    region: str
    group: str
    is_inside: bool
    records: int
    is_whole: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Sums of one (region, source, op); `writers` is the largest number of one minute."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """Sums of one pair."""

    origin: str
    dest: str
    probes: int
    probes_ok: int
    probes_late: int
    probes_lost: int
    probes_refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MinutesFacts:
    """Minutes of one pair for one target, which says when a minute is down; the rest of the span has no data.

    Args:
        up_s, down_s: seconds of those minutes in which probes are expected; None: all of them.
    """

    target: str
    origin: str
    dest: str
    up: int
    down: int
    longest_down_minutes: int
    longest_down_s: int | None
    up_s: int | None = None
    down_s: int | None = None

    @property
    def up_minutes(self) -> float:
        """Minutes up, one that is there with a part by that part."""
        return self.up if self.up_s is None else self.up_s / 60

    @property
    def down_minutes(self) -> float:
        """Minutes down, in the same way."""
        return self.down if self.down_s is None else self.down_s / 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """What the brokers of `region` knew of the clocks of `peer`."""

    region: str
    peer: str
    exchanges: int
    offset_us: int | None
    offset_spread_us: int | None
    drift_ppm: float | None
    bound_max_us: int | None
    rtt_min_us: int | None
    steps: int
    unsync: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """Sums of the trace files of one (kind, region) over the period's hours.

    Args:
        dropped_rows: given up by their writers; of `missing_rows` too when a file of theirs before is there.
        gone_rows: the larger of the two, file by file (hour by hour in roll-ups of earlier versions).
        left_out_rows: read, and in no other figure, nor in `rows`.
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
    writer_hours: int
    silent_writer_hours: int
    left_out_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnFacts:
    """One burn rule over one subject of one target: the windows at the period's end, and how often it was on.

    Args:
        covered_minutes: of the long window, since the subject's first event; the window's length at most.
        firing_minutes, worst_rate, worst_s: of minutes at whose end the long window was covered.
    """

    target: str
    subject: Subject
    rule: str
    long_bad: int
    long_total: int
    short_bad: int
    short_total: int
    covered_minutes: int
    firing_minutes: int
    worst_rate: float | None
    worst_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstFacts:
    """One of the worst minutes or topics of a target."""

    target: str
    what: str
    name: str
    at_s: int | None
    total: int
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFacts:
    """One point of a plot line per step; every step of the span that has data."""

    plot: str
    name: str
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFacts:
    """A trace file that was set aside."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HourFacts:
    """State of the roll-ups of the period's hours.

    Args:
        not_final: made before their settle time was over, and to be made again.
        kept: traces that they were made of are gone. unseen: of them, made before their settle time was over: what
            came later is in no figure.
        is_without_traces: no trace file at all is left, of whatever period.
    """

    expected: int
    rolled_up: int
    revised: int
    not_final: int
    kept: int = 0
    unseen: int = 0
    is_without_traces: bool = False

    @property
    def unseen_share(self) -> float:
        """Return the share of the hours with data that nobody saw to their end, in [0, 1]."""
        return self.unseen / max(self.unseen, self.rolled_up, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodFacts:
    """Sums of one period: what the verdicts are made of.

    Args:
        latency: of all records. narrowed, named: of latency targets of some topics or groups.
    """

    span: Span
    latency: tuple[LatencyFacts, ...] = ()
    throughput: tuple[ThroughputFacts, ...] = ()
    integrity: tuple[IntegrityFacts, ...] = ()
    streams: tuple[StreamFacts, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    accounts: tuple[AccountFacts, ...] = ()
    requests: tuple[RequestFacts, ...] = ()
    probes: tuple[ProbeFacts, ...] = ()
    minutes: tuple[MinutesFacts, ...] = ()
    clocks: tuple[ClockFacts, ...] = ()
    inputs: tuple[InputFacts, ...] = ()
    homes: tuple[HomeFacts, ...] = ()
    narrowed: tuple[LatencyFacts, ...] = ()
    named: tuple[NamedFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a report is made of. `before` has the same span's length, right before; empty sums are fine."""

    now: PeriodFacts
    before: PeriodFacts
    burn: tuple[BurnFacts, ...] = ()
    worst: tuple[WorstFacts, ...] = ()
    series_step_s: int = 60
    series: tuple[SeriesFacts, ...] = ()
