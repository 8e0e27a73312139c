"""The report job: verify, roll up what is missing, read the roll-ups, judge, write. All I/O of a report is here.

Rule 1: a short load test and a year go the same way: through the roll-ups.
Rule 2: a report of a period is of whole minutes, rounded outward; integrity, clocks and inputs are of whole hours.
Rule 3: every file is written whole and then renamed: a reader sees the old report or the new one.
Rule 4: where no trace file is left, the roll-ups that stand are reported: they are never made again from less. Files
        that cannot be read are files: the hours of them are rolled up, and say what is missing. A directory that is
        not there is no directory without files.
Rule 5: Spark is imported when there is something to report on: what is wrong with the traces is said at once.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from georelay.trace.kinds import TraceKind
from sla.errors import NoTraces, UsageError
from sla.jobs.doctor import require_spark
from sla.jobs.kept import kept_hours, kept_span, rollup_bytes
from sla.jobs.rollup_plan import EARLY_HOURS, KINDS, LATE_HOURS, check_length
from sla.jobs.verify import PROVEN_NAME, VerifyRequest, run_verify
from sla.judging.facts import HourFacts, Span
from sla.judging.judge import judge
from sla.judging.probed import with_probed
from sla.report.jsonout import to_json
from sla.report.junit import to_junit
from sla.report.markdown import to_markdown
from sla.report.model import Made, QuarantinedFile, Report
from sla.report.parquetout import to_parquet
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import Period, find_places
from sla.sources.location import Location
from sla.sources.manifest import GoodFile, TraceFiles
from sla.tables import HOUR_S, MINUTE_S, RollupTable
from sla.targets import Targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DISTRIBUTION: Final = "georelay-server"
# What decides the period of a report of everything: clocks are read before and after, late deliveries come behind it.
_KINDS_OF_PERIOD: Final = (TraceKind.LATENCY_HIST, TraceKind.OUTCOME, TraceKind.PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One output: its file name and what makes its bytes."""

    file_name: str
    render: Callable[[Report], bytes]


def _page(report: Report) -> bytes:
    from sla.report.html import to_html  # the first import of matplotlib

    return to_html(report).encode()


FORMATS: Final[Mapping[str, Format]] = {
    "html": Format(file_name="report.html", render=_page),
    "md": Format(file_name="report.md", render=lambda report: to_markdown(report).encode()),
    "json": Format(file_name="report.json", render=lambda report: to_json(report).encode()),
    "parquet": Format(file_name="summary.parquet", render=to_parquet),
    "junit": Format(file_name="junit.xml", render=lambda report: to_junit(report).encode()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What the user asked for.

    Args:
        traces: directory or URI of the trace files.
        rollups: directory of the roll-ups, made when missing.
        period: open ends: from the first, to the last row.
        targets: what to judge by.
        out: directory of the outputs, made when missing.
        formats: keys of FORMATS.
        settle_s: how long after its end an hour looks for what became of its records, s.
        master, conf: of Spark.
        now_s: wall clock, seconds since 1970.
    """

    traces: str | Path
    rollups: str | Path
    period: Period
    targets: Targets
    out: Path
    formats: tuple[str, ...] = ("html", "md", "json", "parquet")
    settle_s: int = 900
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    now_s: Callable[[], float] = time.time


def run_report(request: ReportRequest, on_step: Callable[[str], None] = lambda _: None) -> Report:
    """Make and write the report.

    Args:
        on_step: called with a short text whenever the next step begins.

    Raises:
        NoTraces: the trace directory does not exist; there is no file of the period, or every one had to be set
            aside, and no roll-up of it stands.
        UsageError: a path, URI or period that cannot be used.
        JobFailed: Spark or the file system failed; the text says where its log is.
    """
    store = RollupStore.open(request.rollups)
    if request.out.exists() and not request.out.is_dir():
        raise UsageError(f"--out must be a directory, but {request.out} is a file")
    listed_s = request.now_s()
    files = _verified(request, store, on_step)
    span = period_span(request.period, files, store)
    require_spark()
    request.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before hours of work
    from sla.jobs.rollup import JVM_LOG_NAME, spark_errors  # the first import of Spark
    from sla.session import LIGHT_ROLLUP_BYTES_MAX, LIGHT_TRACE_BYTES_MAX, QUICK_BYTES_MAX, build_session

    store.root.mkdir(parents=True, exist_ok=True)
    jvm_log = store.root / JVM_LOG_NAME
    size_bytes, trace_bytes = bytes_to_read(files, store, request.targets, span), files.of(*KINDS).size_bytes
    is_quick = size_bytes <= QUICK_BYTES_MAX
    is_light = trace_bytes <= LIGHT_TRACE_BYTES_MAX and size_bytes <= LIGHT_ROLLUP_BYTES_MAX
    on_step("starting Spark")
    with spark_errors(jvm_log):
        with ThreadPoolExecutor(1) as beside:
            prepared = beside.submit(_prepare, store, span, request.formats)
            spark = build_session(
                master=request.master, conf=request.conf, is_quick=is_quick, is_light=is_light, jvm_log=jvm_log
            )
            prepared.result()
        report = compute(spark, files, store, request, span, on_step, listed_s=listed_s)
    on_step("writing the report")
    write(report, request.out, request.formats)
    return report


def _prepare(store: RollupStore, span: Span, formats: Iterable[str]) -> None:
    """Do while Java starts what would be waited for later: manifests of a year, the import of what draws."""
    store.runs(span.previous.first_hour_s, span.end_hour_s)
    if "html" in formats:
        import sla.report.html  # noqa: F401


def _verified(request: ReportRequest, store: RollupStore, on_step: Callable[[str], None]) -> TraceFiles:
    """Return the trace files of the period; without a good one roll-ups of it must stand.

    Raises:
        NoTraces: there is neither, or no such directory.
    """
    verify = VerifyRequest(
        traces=request.traces,
        period=request.period,
        hours_before=EARLY_HOURS,
        hours_after=LATE_HOURS,
        proven=store.root / PROVEN_NAME,
    )
    try:
        files = run_verify(verify, on_step)
    except NoTraces:
        traces = Location.open(request.traces)
        is_there = not traces.is_local or traces.is_directory()
        if not is_there or not kept_hours(store, request.period):
            raise
        return TraceFiles(location=traces, good=())
    if not files.good and not kept_hours(store, request.period):
        first = files.bad[0]
        raise NoTraces(f"all {len(files.bad)} trace files are unreadable; the first: {first.relative}: {first.reason}")
    return files


def period_span(period: Period, files: TraceFiles, store: RollupStore) -> Span:
    """Return the minutes of a report: those of the trace files; without any in the period, those of its roll-ups.

    Raises:
        NoTraces: there is neither.
        UsageError: it is longer than ten years.
        JobFailed: a roll-up cannot be read.
    """
    try:
        span = span_of(period, files)
    except NoTraces:
        runs = kept_hours(store, period)
        if not runs:
            raise
        span = kept_span(store, period, runs)
    check_length(span.start_s, span.end_s)
    return span


def bytes_to_read(files: TraceFiles, store: RollupStore, targets: Targets, span: Span) -> int:
    """Return the bytes of the trace files, and of the roll-ups that stand, which a report of a period may read."""
    longest_s = MINUTE_S * max((rule.long_minutes for rule in targets.burn_rules), default=0)
    start_s = min(span.previous.first_hour_s, span.start_s - longest_s)
    return files.of(*KINDS).size_bytes + rollup_bytes(store.root, start_s, span.end_hour_s)


def compute(
    spark: SparkSession,
    files: TraceFiles,
    store: RollupStore,
    request: ReportRequest,
    span: Span,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    listed_s: float,
) -> Report:
    """Roll up the hours of the period that need it, and judge it; without any file the roll-ups stay as they are.

    Args:
        listed_s: when listing the files began, seconds since 1970.
    """
    from sla.jobs.collect import collect
    from sla.jobs.rollup import Listed, roll_up

    def list_again() -> Listed:
        nonlocal files
        now_s = request.now_s()
        files = _verified(request, store, on_step)
        return Listed(files=files, now_s=now_s)

    now_s = request.now_s()
    hours = range(span.first_hour_s, span.end_hour_s, HOUR_S)
    snapshot = store.snapshot()
    if files.good or files.bad:
        runs = roll_up(
            spark,
            files,
            store,
            hours,
            settle_s=request.settle_s,
            now_s=listed_s,
            clock_s=request.now_s,
            on_step=on_step,
            snapshot=snapshot,
            list_again=list_again,
        ).hours
    else:
        runs = kept_hours(store, request.period)

    def read(table: RollupTable, start_s: int, end_s: int) -> DataFrame:
        return snapshot.read(spark, table, start_s, end_s)

    def read_sums(table: RollupTable, start_s: int, end_s: int) -> DataFrame:
        return snapshot.read_sums(spark, table, start_s, end_s)

    facts = collect(spark, read, request.targets, span, on_step, read_sums=read_sums)
    on_step("judging")
    return judge(
        facts,
        request.targets,
        made=_made(request, span, now_s),
        hours=hour_facts(runs, span, is_without_traces=not _has_traces(files)),
        quarantined=_quarantined(files, span),
    )


def write(report: Report, out: Path, formats: Iterable[str]) -> None:
    """Write the report's files into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    for name in formats:
        path = out / FORMATS[name].file_name
        in_progress = path.with_name(f".{path.name}.tmp")
        in_progress.write_bytes(FORMATS[name].render(report))
        os.replace(in_progress, path)


def span_of(period: Period, files: TraceFiles) -> Span:
    """Return the minutes of a report: the period rounded outward; where it is open, those with rows.

    Files without statistics count for the hour of their folder. Rows far away from their folder (a wrong clock) do not
    stretch the period: it ends with the hours of the folders.
    """
    counted = [file for file in files.good if file.kind in _KINDS_OF_PERIOD] or list(files.good)
    if not counted:
        raise NoTraces("no trace file of that period can be read")
    firsts = [file.hour_s if file.time_min_s is None else file.time_min_s for file in counted]
    lasts = [file.hour_s + HOUR_S - 1 if file.time_max_s is None else file.time_max_s for file in counted]
    folders = [file.hour_s for file in files.good]
    low, high = min(folders), max(folders) + HOUR_S
    start_s = max(low, min(firsts)) if period.start is None else int(period.start.timestamp() // 1)
    end_s = min(high, max(lasts) + 1) if period.end is None else -int(-period.end.timestamp() // 1)
    start_s -= start_s % MINUTE_S
    end_s += -end_s % MINUTE_S
    if start_s >= end_s:
        raise NoTraces("no trace row lies in that period")
    probes = _seconds([file for file in files.good if file.kind is TraceKind.PROBE])
    return with_probed(
        Span(start_s=start_s, end_s=end_s),
        rows=_seconds(counted) or (start_s, end_s - 1),
        probes=probes,
        is_start_open=period.start is None,
        is_end_open=period.end is None,
    )


def _seconds(files: Iterable[GoodFile]) -> tuple[int, int] | None:
    """Return the first and the last second with a row; None when a file does not say it, or there is none."""
    known = [(file.time_min_s, file.time_max_s) for file in files if file.metadata.rows]
    firsts = [first_s for first_s, _ in known if first_s is not None]
    lasts = [last_s for _, last_s in known if last_s is not None]
    return (min(firsts), max(lasts)) if firsts and len(firsts) == len(lasts) == len(known) else None


def _has_traces(files: TraceFiles) -> bool:
    """Return whether the trace directory holds any trace file, of whatever period."""
    return bool(files.good or files.bad or find_places(files.location, Period()))


def hour_facts(runs: Iterable[HourRun], span: Span, *, is_without_traces: bool = False) -> HourFacts:
    """Return the state of the period's hours; one without any file has no data."""
    mine = [run for run in runs if span.first_hour_s <= run.hour_s < span.end_hour_s]
    kept = [run for run in mine if run.action is HourAction.KEPT]
    unseen = sum(not run.is_final for run in kept)
    return HourFacts(
        expected=(span.end_hour_s - span.first_hour_s) // HOUR_S,
        rolled_up=sum(run.files > 0 for run in mine),
        revised=sum(run.is_revised for run in mine),
        not_final=sum(not run.is_final for run in mine) - unseen,
        kept=len(kept),
        unseen=unseen,
        is_without_traces=is_without_traces,
    )


def _quarantined(files: TraceFiles, span: Span) -> list[QuarantinedFile]:
    """Return the files set aside that may have held rows of the period: those of its hours and of their neighbours."""
    low, high = span.first_hour_s - HOUR_S, span.end_hour_s + HOUR_S
    return [QuarantinedFile(file=bad.relative, reason=bad.reason) for bad in files.bad if low <= bad.hour_s < high]


def _made(request: ReportRequest, span: Span, now_s: float) -> Made:
    asked = request.period
    return Made(
        generated_at=_utc(int(now_s)).isoformat(),
        code_version=importlib.metadata.version(DISTRIBUTION),
        targets_file=request.targets.source,
        period_from=_utc(span.start_s).isoformat(),
        period_to=_utc(span.end_s).isoformat(),
        asked_from=None if asked.start is None else asked.start.astimezone(datetime.UTC).isoformat(),
        asked_to=None if asked.end is None else asked.end.astimezone(datetime.UTC).isoformat(),
        minutes=span.minutes,
        integrity_from=_utc(span.first_hour_s).isoformat(),
        integrity_to=_utc(span.end_hour_s).isoformat(),
        settle_s=request.settle_s,
    )


def _utc(at_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC)
