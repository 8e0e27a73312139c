"""The report job: finds and verifies files, runs the transforms, writes the outputs. All I/O of a report is here."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from georelay.trace.schema import LedgerKind, TraceKind
from sla.errors import JobFailed, NoTraces
from sla.report.build import build_report
from sla.report.jsonout import to_json
from sla.report.markdown import to_markdown
from sla.report.model import Report
from sla.schemas import DDL
from sla.session import QUICK_BYTES_MAX, build_session
from sla.sources.files import Period, TraceFiles, verify
from sla.targets import Targets
from sla.transforms.integrity import coverage_by_region, integrity_by_stream
from sla.transforms.latency import latency_by_pair
from sla.transforms.throughput import throughput_by_region

_GLOB_CHARACTERS: Final = re.compile(r"[\\{}\[\]*?]")  # Spark expands them in every path it is given
QUERIES_AT_ONCE: Final = 2
JVM_LOG_NAME: Final = "spark.log"
RENDERERS: Final[Mapping[str, Callable[[Report], str]]] = {"md": to_markdown, "json": to_json}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What the user asked for.

    Args:
        traces: trace directory.
        paths: its files that may hold rows of the period.
        out: directory of the outputs, made when missing.
        formats: keys of RENDERERS.
        master: Spark master.
        conf: Spark settings of the user.
    """

    traces: Path
    paths: tuple[Path, ...]
    period: Period
    out: Path
    formats: tuple[str, ...]
    master: str
    conf: Mapping[str, str]
    targets: Targets


def run_report(request: ReportRequest, on_step: Callable[[str], None] = lambda _: None) -> Report:
    """Make and write the report.

    Args:
        on_step: called with a short text whenever the next step begins.

    Raises:
        NoTraces: every file had to be set aside.
        JobFailed: Spark failed; the log beside the report says why.
    """
    on_step(f"verifying {len(request.paths)} trace files")
    files = verify(request.paths)
    if not files.good:
        first = files.bad[0]
        raise NoTraces(f"all {len(files.bad)} trace files are unreadable; the first: {first.path}: {first.reason}")
    request.out.mkdir(parents=True, exist_ok=True)
    jvm_log = request.out / JVM_LOG_NAME
    on_step("starting Spark")
    try:
        spark = build_session(
            master=request.master, conf=request.conf, is_quick=files.size_bytes <= QUICK_BYTES_MAX, jvm_log=jvm_log
        )
        report = compute(spark, files, request, on_step)
    except (PySparkException, Py4JError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise JobFailed(f"Spark failed: {first_line} (see {jvm_log}; `georelay-sla doctor` checks Java)") from error
    for name in request.formats:
        _write_whole(request.out / f"report.{name}", RENDERERS[name](report))
    return report


def compute(
    spark: SparkSession, files: TraceFiles, request: ReportRequest, on_step: Callable[[str], None] = lambda _: None
) -> Report:
    """Run the transforms over verified files and build the report."""
    latency_hist_all = read(spark, files, TraceKind.LATENCY_HIST)
    latency_hist = in_period(latency_hist_all, request.period, "second", 1)
    ledger = read(spark, files, TraceKind.LEDGER)
    on_step("counting rows")
    _check_row_count(latency_hist_all, ledger, expected=files.rows_of(TraceKind.LATENCY_HIST, TraceKind.LEDGER))
    ledger_in_period = in_period(ledger, request.period, "first_ns", 1_000_000_000)
    # What was committed before the period still proves a loss inside it.
    deliveries = ledger_in_period.where(F.col("kind") == LedgerKind.DELIVERED.value)
    proofs = ledger.where(F.col("kind") != LedgerKind.DELIVERED.value)
    targets = request.targets
    on_step("computing latency, throughput, integrity and replication")
    # Side by side: on little data Spark spends its time planning, one thread per query.
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        latency, integrity, coverage, throughput = pool.map(
            _collect,
            (
                latency_by_pair(latency_hist),
                integrity_by_stream(deliveries.unionByName(proofs)),
                coverage_by_region(ledger_in_period),
                throughput_by_region(ledger_in_period, per_s=targets.delivered_per_s),
            ),
        )
    return build_report(
        latency=latency,
        throughput=throughput,
        integrity=integrity,
        coverage=coverage,
        files=files,
        directory=request.traces,
        period=request.period,
        targets=targets,
        now=datetime.datetime.now(tz=datetime.UTC),
    )


def read(spark: SparkSession, files: TraceFiles, kind: TraceKind) -> DataFrame:
    """Return the rows of the verified files of a kind; columns a file does not have yet are null."""
    paths = files.paths(kind)
    if not paths:
        return spark.createDataFrame([], DDL[kind])
    return spark.read.schema(DDL[kind]).parquet(*(_GLOB_CHARACTERS.sub(r"\\\g<0>", path) for path in paths))


def _check_row_count(*tables: DataFrame, expected: int) -> None:
    """Refuse to report on more or fewer rows than were verified: a path that Spark reads twice doubles every sum."""
    rows = sum(table.count() for table in tables)
    if rows != expected:
        raise JobFailed(f"Spark reads {rows} rows from files that hold {expected}")


def in_period(rows: DataFrame, period: Period, column: str, units_per_s: int) -> DataFrame:
    """Keep the rows whose time `column` (in 1/units_per_s seconds since 1970) lies in the period."""
    if period.start is not None:
        rows = rows.where(F.col(column) >= int(period.start.timestamp()) * units_per_s)
    if period.end is not None:
        rows = rows.where(F.col(column) < int(period.end.timestamp()) * units_per_s)
    return rows


def _collect(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.collect()]


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    in_progress = path.with_name(f".{path.name}.tmp")
    in_progress.write_text(text, encoding="utf-8")
    os.replace(in_progress, path)
