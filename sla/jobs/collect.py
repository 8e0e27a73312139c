"""Collects the facts of a period from the roll-ups: which rows are read, which sums are made, all Spark actions.

Rule 1: what only adds up is read as sums of whole days where they stand (sla.day_sums): a year is 365 of them. Latency
        is read from `hour` for whole hours besides, and from `minute` for the ragged ends. Burn rates and worst
        minutes read the counts of `minute`, and its histograms for own limits; of a long period only the newest part
        (Span.newest_start_s), and the longest burn window before it.
Rule 2: every other table is read from the start of the previous period.
Rule 3: what comes to the driver is bounded: sums per subject, at most SERIES_STEPS_MAX steps per line, WORST_MAX rows,
        and counts per minute for alerts, COUNT_ROWS_MAX at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.histogram import GOOD_US_MAX, bucket_index, bucket_mid
from georelay.trace.kinds import Stage, TraceKind
from sla.judging.completeness import Completeness
from sla.judging.facts import (
    NEWEST_S_MAX,
    AccountFacts,
    BurnFacts,
    ClockFacts,
    Facts,
    HomeFacts,
    InputFacts,
    IntegrityFacts,
    LatencyFacts,
    MinutesFacts,
    MirrorFacts,
    NamedFacts,
    PeriodFacts,
    ProbeFacts,
    RequestFacts,
    SeriesFacts,
    Span,
    StreamFacts,
    ThroughputFacts,
    WorstFacts,
)
from sla.judging.latency import Way, quantiles_of, way_limits
from sla.local_rows import local_rows
from sla.rollup_files_core import DAY_S
from sla.tables import HOUR_S, MINUTE_S, RollupTable
from sla.targets import (
    ARROW,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Targets,
    ThroughputTarget,
)
from sla.transforms import minute_counts, narrowed, summary
from sla.transforms.accounts import account_sums
from sla.transforms.burn import SUBJECT, burn_alerts

Read = Callable[[RollupTable, int, int], DataFrame]
_Fact = TypeVar("_Fact")

QUERIES_AT_ONCE: Final = 2  # on little data Spark spends its time planning, one thread per query
WORST_MAX: Final = 10
COUNT_ROWS_MAX: Final = 4_000_000  # of counts per minute and subject in the driver at once, some 60 bytes each
SERIES_STEPS_MAX: Final = 720
OLDER_S: Final = NEWEST_S_MAX  # how far before the counts of minutes a subject's first event is looked for
_STEPS_S: Final = (60, 300, 900, 3_600, 21_600, 86_400, 604_800)


def collect(
    spark: SparkSession,
    read: Read,
    targets: Targets,
    span: Span,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    read_sums: Read | None = None,
) -> Facts:
    """Collect everything that `sla.judging.judge` needs.

    Args:
        read: returns the rows of a roll-up table with `ts_s` in [start, end).
        read_sums: returns rows of a table of sla.day_sums that add up to these, of a whole day perhaps only one per
            key at the start of the day; None: like `read`.
        on_step: called with a short text whenever the next step begins.
    """
    pool = ThreadPoolExecutor(QUERIES_AT_ONCE)
    try:
        collecting = _Collecting(spark, read, targets, span, pool, read_sums)
        on_step("summing latencies, clocks and inputs")
        first = collecting.begin_latency_clocks_and_inputs()
        others = collecting.begin_others()  # what needs no result yet: no core waits for the last of the first ones
        series = collecting.begin_series()
        collecting.take(first)
        on_step("summing throughput, integrity and availability")
        collecting.take(others | collecting.begin_throughput())
        on_step("computing burn rates and the worst minutes")
        collecting.count_minutes()
        on_step("collecting the lines of the plots")
        collecting.take_series(*series)
        return collecting.facts()
    finally:
        pool.shutdown(cancel_futures=True)


def series_step_s(minutes: int) -> int:
    """Return the shortest step that needs at most SERIES_STEPS_MAX steps, the last one for anything longer."""
    fitting = (step for step in _STEPS_S if minutes * MINUTE_S <= step * SERIES_STEPS_MAX)
    return next(fitting, _STEPS_S[-1])


@dataclass(frozen=True, slots=True)
class _Both:
    """Facts of one table: of this period and of the one before."""

    now: tuple[Any, ...]
    before: tuple[Any, ...]


_Queries = dict[str, tuple[DataFrame, Callable[[dict[str, Any]], Any]]]
_Begun = dict[str, Future[_Both]]


def _facts_of(rows: DataFrame, fact: Callable[[dict[str, Any]], Any]) -> _Both:
    now: list[Any] = []
    before: list[Any] = []
    for row in rows.collect():
        values = row.asDict()
        (now if values.pop("is_now") else before).append(fact(values))
    return _Both(tuple(now), tuple(before))


class _Collecting:
    def __init__(
        self,
        spark: SparkSession,
        read: Read,
        targets: Targets,
        span: Span,
        pool: ThreadPoolExecutor,
        read_sums: Read | None = None,
    ) -> None:
        self._pool = pool
        self._spark = spark
        self._read = _once(read)
        self._read_sums = self._read if read_sums is None else _once(read_sums)
        self._targets = targets
        self._span = span
        self._both: dict[str, _Both] = {}
        self._only_homes = local_rows(spark, [], "origin STRING, topic STRING, home STRING")
        self._burn: tuple[BurnFacts, ...] = ()
        self._worst: tuple[WorstFacts, ...] = ()
        self._series: tuple[SeriesFacts, ...] = ()
        longest = max((rule.long_minutes for rule in targets.burn_rules), default=0)
        self._counts_start_s = span.newest_start_s - longest * MINUTE_S

    def facts(self) -> Facts:
        def period(span: Span, name: str) -> PeriodFacts:
            return PeriodFacts(span=span, **{field: getattr(both, name) for field, both in self._both.items()})

        return Facts(
            now=period(self._span, "now"),
            before=period(self._span.previous, "before"),
            burn=self._burn,
            worst=self._worst,
            series_step_s=series_step_s(self._span.minutes),
            series=self._series,
        )

    # Sums

    def begin_latency_clocks_and_inputs(self) -> _Begun:
        latency = self._of_both(self._latency_rows)
        homes = summary.topic_homes(latency)
        ways = summary.with_home(latency, homes.where("is_only"), ["is_now"])
        self._only_homes = homes.where("is_only AND is_now").select("origin", "topic", "home")
        return self._begin(
            {
                "latency": (summary.latency_sums(ways, ["is_now", *summary.PAIR, "home", "stage"]), _latency_fact),
                "homes": (summary.home_sums(homes), _as(HomeFacts)),
                "clocks": (summary.clock_sums(self._hours(RollupTable.CLOCK_HOUR)), _as(ClockFacts)),
                "inputs": (summary.input_sums(self._hours(RollupTable.INPUTS_HOUR)), _as(InputFacts)),
                **self._narrowed(ways),
            }
        )

    def _narrowed(self, ways: DataFrame) -> _Queries:
        """Return the queries for latency targets of some topics or groups; none without such a target."""
        targets = [target for target in self._targets.of(LatencyTarget) if target.is_narrowed]
        if not targets:
            return {}
        rows = narrowed.of_targets(ways, targets)
        keys = ["is_now", "target", "is_untold", *summary.PAIR, "home", "stage"]
        return {
            "narrowed": (summary.latency_sums(rows, keys), _latency_fact),
            "named": (narrowed.names(rows, targets), _as(NamedFacts)),
        }

    def begin_others(self) -> _Begun:
        probes = self._minutes(RollupTable.AVAIL_MINUTE)
        hours = self._hours
        return self._begin(
            {
                "integrity": (summary.integrity_sums(hours(RollupTable.INTEGRITY_HOUR)), _as(IntegrityFacts)),
                "streams": (summary.stream_sums(hours(RollupTable.STREAM_HOUR)), _as(StreamFacts)),
                "mirrors": (summary.mirror_sums(hours(RollupTable.MIRROR_HOUR)), _as(MirrorFacts)),
                "accounts": (self._accounts(), _account_fact),
                "requests": (summary.request_sums(self._sums(RollupTable.REQUESTS_MINUTE)), _as(RequestFacts)),
                "probes": (summary.probe_sums(self._sums(RollupTable.AVAIL_MINUTE)), _as(ProbeFacts)),
                "minutes": (
                    _union(
                        summary.minutes_sums(probes, target, probed=self._span.probed).withColumn(
                            "target", F.lit(target.name)
                        )
                        for target in self._targets.shown(MinutesTarget)
                    ),
                    _as(MinutesFacts),
                ),
            }
        )

    def begin_throughput(self) -> _Begun:
        """Begin what needs the facts of the inputs."""
        rows = self._minutes(RollupTable.THROUGHPUT_MINUTE, behind_s=MINUTE_S)  # it may meet the last minute
        missing = self._missing_of_ledger()
        sums = _union(
            summary.throughput_sums(rows, target, missing, end_s=self._span.end_s).withColumn(
                "target", F.lit(target.name)
            )
            for target in self._targets.shown(ThroughputTarget)
        )
        return self._begin({"throughput": (sums, _as(ThroughputFacts))})

    def _accounts(self) -> DataFrame:
        """Return the accounts of this period only: nobody compares them with those of the one before."""
        start_s, end_s = self._span.first_hour_s, self._span.end_hour_s
        account = RollupTable.ACCOUNT_HOUR
        before, behind = self._read(account, start_s - HOUR_S, start_s), self._read(account, end_s, end_s + HOUR_S)
        rows = _union([before, self._read_sums(account, start_s, end_s), behind])  # no day on both sides of an end
        return account_sums(rows, start_s=start_s, end_s=end_s).withColumn("is_now", F.lit(True))

    def _missing_of_ledger(self) -> DataFrame:
        inputs = self._both["inputs"]
        rows = [
            (is_now, region, Completeness(facts).missing_share(TraceKind.LEDGER, region))
            for is_now, facts in ((True, inputs.now), (False, inputs.before))
            for region in sorted({item.region for item in facts})
        ]
        return local_rows(self._spark, rows, "is_now BOOLEAN, dest STRING, missing_share DOUBLE")

    def _begin(self, queries: _Queries) -> _Begun:
        return {name: self._pool.submit(_facts_of, *query) for name, query in queries.items()}

    def take(self, begun: _Begun) -> None:
        """Wait for the facts of some tables."""
        self._both |= {name: facts.result() for name, facts in begun.items()}

    def _of_both(self, rows: Callable[[int, int], DataFrame]) -> DataFrame:
        """Return rows of both periods, each read alone: an hour or a day that both touch must be cut where one ends."""
        both = (self._span.previous, self._span)
        return summary.with_is_now(_union(rows(part.start_s, part.end_s) for part in both), self._span.start_s)

    def _sums(self, table: RollupTable) -> DataFrame:
        return self._of_both(lambda start_s, end_s: self._read_sums(table, start_s, end_s))

    def _latency_rows(self, start_s: int, end_s: int, step_s: int = DAY_S) -> DataFrame:
        """Return latency rows that add up to those of [start, end) and of every step in it.

        Whole days and hours, and minutes around them.
        """
        first_s, last_s = start_s + -start_s % HOUR_S, end_s - end_s % HOUR_S
        if first_s >= last_s:
            return self._read(RollupTable.MINUTE, start_s, end_s)
        rows = self._reading(step_s)(RollupTable.HOUR, first_s, last_s)
        for edge_start_s, edge_end_s in ((start_s, first_s), (last_s, end_s)):
            if edge_start_s < edge_end_s:
                rows = rows.unionByName(self._read(RollupTable.MINUTE, edge_start_s, edge_end_s))
        return rows

    def _reading(self, step_s: int) -> Read:
        """Return how rows that are summed step by step are read."""
        return self._read if step_s % DAY_S else self._read_sums

    def _minutes(self, table: RollupTable, *, behind_s: int = 0) -> DataFrame:
        rows = self._read(table, self._span.previous.start_s, self._span.end_s + behind_s)
        return summary.with_is_now(rows, self._span.start_s)

    def _hours(self, table: RollupTable) -> DataFrame:
        """Return the rows of whole hours; the hour in which the period begins belongs to it, not to the one before."""
        rows = self._read(table, self._span.previous.first_hour_s, self._span.end_hour_s)
        return summary.with_is_now(rows, self._span.first_hour_s)

    # Minutes

    def count_minutes(self) -> None:
        tables = (RollupTable.MINUTE, RollupTable.REQUESTS_MINUTE, RollupTable.AVAIL_MINUTE)
        counts = self._minute_counts(*map(self._counts, tables))
        if not counts:
            return
        every = _union(counts)
        topics = self._pool.submit(self._topics)
        self._judge_minutes(every)
        self._worst = (*self._worst, *map(_worst_topic, topics.result()))

    def _minute_counts(self, latency: DataFrame, requests: DataFrame, probes: DataFrame) -> list[DataFrame]:
        """Return the counts of every target that has events, from rows of minutes or of longer times."""
        counts = [minute_counts.latency_counts(rows) for rows in self._events(latency)]
        counts += [minute_counts.request_counts(requests, target) for target in self._targets.of(RequestsTarget)]
        counts += [minute_counts.probe_counts(probes, target) for target in self._targets.of(ProbesTarget)]
        return counts

    def _judge_minutes(self, counts: DataFrame) -> None:
        """Find alerts and the worst minutes, of as many subjects at once as the driver has room for."""
        span = self._span
        alerts: list[dict[str, Any]] = []
        worst: list[pa.Table] = []
        parts = 1 + self._count_rows() // COUNT_ROWS_MAX
        for number in range(parts):
            is_mine = F.pmod(F.hash("a", "b"), F.lit(parts)) == number
            rows = (counts if parts == 1 else counts.where(is_mine)).toArrow()
            alerts += self._alerts(rows)
            worst.append(
                minute_counts.worst_minutes(rows, start_s=span.newest_start_s, end_s=span.end_s, most=WORST_MAX)
            )
        alerts.sort(key=lambda alert: (alert["target"], alert["a"], alert["b"], alert["rule"]))
        minutes = minute_counts.worst_minutes(
            pa.concat_tables(worst), start_s=span.newest_start_s, end_s=span.end_s, most=WORST_MAX
        )
        self._burn = tuple(map(_burn_fact, alerts))
        self._worst = tuple(map(self._worst_minute, minutes.to_pylist()))

    def _alerts(self, counts: pa.Table) -> list[dict[str, Any]]:
        """Return the alerts of some subjects; what they did before the counts is looked at where it matters."""
        judged = functools.partial(
            burn_alerts,
            counts,
            self._targets.burn_rules,
            start_s=self._span.newest_start_s,
            end_s=self._span.end_s,
            events_min=self._targets.burn_events_min,
        )
        alerts = judged()
        if any(alert["is_unsure"] for alert in alerts):
            alerts = judged(older=self._older_subjects)
        for alert in alerts:
            del alert["is_unsure"]
        return alerts

    @functools.cached_property
    def _older_subjects(self) -> frozenset[tuple[str, ...]]:
        """The subjects with events in the OLDER_S before the counts of minutes begin."""
        start_s, end_s = self._counts_start_s - OLDER_S, self._counts_start_s
        counts = self._minute_counts(
            self._latency_rows(start_s, end_s),
            self._read_sums(RollupTable.REQUESTS_MINUTE, start_s, end_s),
            self._read_sums(RollupTable.AVAIL_MINUTE, start_s, end_s),
        )
        rows = _union(counts).where("total > 0").select(*SUBJECT).distinct()
        return frozenset(map(tuple, rows.collect()))

    def _count_rows(self) -> int:
        """Return the rows of the counts at most: a minute of every subject."""
        subjects = sum(len(self._first_bad(target)) for target in self._targets.of(LatencyTarget))
        subjects += len(self._both["requests"].now) * len(self._targets.of(RequestsTarget))
        subjects += len(self._both["probes"].now) * len(self._targets.of(ProbesTarget))
        return subjects * ((self._span.end_s - self._counts_start_s) // MINUTE_S)

    def _events(self, latency: DataFrame) -> list[DataFrame]:
        """Return the events of every latency target from rows of minutes or hours."""
        rows = summary.with_home(latency, self._only_homes, [])
        return [
            minute_counts.latency_events(self._spark, narrowed.of_target(rows, target), target, self._first_bad(target))
            for target in self._targets.of(LatencyTarget)
        ]

    def _counts(self, table: RollupTable) -> DataFrame:
        return self._read(table, self._counts_start_s, self._span.end_s)

    def _first_bad(self, target: LatencyTarget) -> dict[Way, int | None]:
        """Return the first bucket beyond the limit of every way of the pairs in the target's scope."""
        latency, clocks = self._both["latency"].now, self._both["clocks"].now
        return {
            way: None if limit.limit_us == GOOD_US_MAX else first_bucket_beyond(limit.limit_us)
            for way, limit in way_limits(latency, clocks, target).items()
            if target.scope.has_pair(way[0], way[1])
        }

    def _topics(self) -> list[Row]:
        events = self._events(self._latency_rows(self._span.start_s, self._span.end_s))
        if not events:
            return []
        topics: list[Row] = minute_counts.worst_topics(_union(events), most=WORST_MAX).collect()
        return topics

    def _worst_minute(self, row: dict[str, Any]) -> WorstFacts:
        target, a, b = (row[name] for name in SUBJECT)
        is_pair = target not in {target.name for target in self._targets.of(RequestsTarget)}
        name = f"{a}{ARROW}{b}" if is_pair else f"{b} in {a}"
        return WorstFacts(target=target, what="minute", name=name, at_s=row["ts_s"], total=row["total"], bad=row["bad"])

    # Plots

    def begin_series(self) -> tuple[Future[list[Row]], Future[list[Row]]]:
        """Begin the lines of latencies, and all others."""
        span = self._span
        step_s = series_step_s(span.minutes)
        at_s = (F.floor(F.col("ts_s") / step_s) * step_s).cast("bigint").alias("at_s")
        if step_s < HOUR_S:
            latency = self._read(RollupTable.MINUTE, span.start_s, span.end_s)
        else:
            latency = self._latency_rows(span.start_s, span.end_s, step_s)
        totals = latency.where(F.col("stage") == Stage.TOTAL.value).withColumn("at_s", at_s)
        read = self._reading(step_s)
        probes = read(RollupTable.AVAIL_MINUTE, span.start_s, span.end_s)
        throughput = read(RollupTable.THROUGHPUT_MINUTE, span.start_s, span.end_s)
        others = _union(
            [
                _ratio(
                    "probe_bad_share",
                    probes,
                    F.concat_ws(ARROW, "origin", "dest"),
                    at_s,
                    "probes - probes_ok",
                    "probes",
                ),
                _per_s("delivered_per_s", throughput, at_s, "delivered", step_s, span),
                _per_s("offered_per_s", throughput, at_s, "offered", step_s, span),
            ]
        )
        latencies = summary.latency_sums(totals, [*summary.PAIR, "at_s"])
        return self._pool.submit(latencies.collect), self._pool.submit(others.collect)

    def take_series(self, latencies: Future[list[Row]], others: Future[list[Row]]) -> None:
        """Wait for the lines."""
        lines: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
        for row in latencies.result():
            for plot, value in _latency_points(row):
                lines.setdefault((plot, f"{row.origin}{ARROW}{row.dest}"), []).append((row.at_s, value))
        for row in others.result():
            lines.setdefault((row.plot, row.name), []).append((row.at_s, row.value))
        self._series = tuple(
            SeriesFacts(plot=plot, name=name, points=tuple(sorted(points)))
            for (plot, name), points in sorted(lines.items())
        )


def _once(read: Read) -> Read:
    """Look for the files of the same rows only once."""
    return functools.cache(read)


def first_bucket_beyond(limit_us: float) -> int:
    """Return the first bucket whose middle lies beyond the limit: its records count as too late."""
    bucket = bucket_index(int(limit_us))
    return bucket if bucket_mid(bucket) > limit_us else bucket + 1


def _ratio(plot: str, rows: DataFrame, name: Any, at_s: Any, above: str, below: str) -> DataFrame:
    sums = rows.groupBy(name.alias("name"), at_s).agg(F.expr(f"sum({above}) / sum({below})").alias("value"))
    return sums.select(F.lit(plot).alias("plot"), "name", "at_s", F.col("value").cast("double").alias("value"))


def _per_s(plot: str, rows: DataFrame, at_s: Any, records: str, step_s: int, span: Span) -> DataFrame:
    """Return records per second of every step with data: of all its seconds in the span, idle minutes have no row."""
    sums = rows.groupBy(F.col("dest").alias("name"), at_s).agg(F.sum(records).alias("records"))
    seconds = F.least(F.col("at_s") + step_s, F.lit(span.end_s)) - F.greatest("at_s", F.lit(span.start_s))
    value = (F.col("records") / seconds).cast("double")
    return sums.select(F.lit(plot).alias("plot"), "name", "at_s", value.alias("value"))


def _latency_points(row: Row) -> Iterable[tuple[str, float | None]]:
    quantiles = quantiles_of(((item.b, item.n) for item in row.hist), n=row.n, max_us=row.lat_max_us)
    yield "latency_p50_ms", quantiles.p50_ms
    yield "latency_p99_ms", quantiles.p99_ms
    yield "within_share", row.n_good / row.n if row.n else None


def _union(tables: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), tables)


def _as(kind: Callable[..., _Fact]) -> Callable[[dict[str, Any]], _Fact]:
    def fact(values: dict[str, Any]) -> _Fact:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    return fact


def _latency_fact(values: dict[str, Any]) -> LatencyFacts:
    hist = tuple((item.b, item.n) for item in values.pop("hist"))
    return LatencyFacts(hist=hist, **values)


def _account_fact(values: dict[str, Any]) -> AccountFacts:
    ranges = tuple((item.f, item.t) for item in values.pop("ranges") or ())
    return AccountFacts(ranges=ranges, **values)


def _burn_fact(values: dict[str, Any]) -> BurnFacts:
    subject = (values.pop("a"), values.pop("b"))
    return BurnFacts(subject=subject, **values)


def _worst_topic(row: Row) -> WorstFacts:
    name = f"{row.topic}: {row.origin}{ARROW}{row.dest}"
    return WorstFacts(target=row.target, what="topic", name=name, at_s=None, total=row.total, bad=row.bad)
