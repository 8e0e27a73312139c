"""From collected rows (plain mappings) to the report: units, judgements, totals. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from georelay.trace.histogram import is_quantile_meaningful
from georelay.trace.schema import TraceKind
from sla.report.model import (
    REPORT_SCHEMA_VERSION,
    CoverageRow,
    Inputs,
    IntegrityRow,
    LatencyRow,
    QuarantinedFile,
    Report,
    ThroughputRow,
    TotalRow,
)
from sla.report.verdict import Verdict, combine, judge_integrity, judge_latency, judge_throughput
from sla.sources.files import Period, TraceFiles
from sla.targets import Targets

Row = Mapping[str, Any]


def build_report(
    *,
    latency: Iterable[Row],
    throughput: Iterable[Row],
    integrity: Iterable[Row],
    coverage: Iterable[Row],
    files: TraceFiles,
    directory: Path,
    period: Period,
    targets: Targets,
    now: datetime.datetime,
) -> Report:
    """Judge the collected rows of the transforms and put the report together."""
    latency_rows = tuple(_latency_row(row, targets) for row in latency)
    throughput_rows = tuple(_throughput_row(row, targets) for row in throughput)
    is_ledger_complete = files.is_complete(TraceKind.LEDGER)
    integrity_rows = tuple(_integrity_row(row, is_ledger_complete=is_ledger_complete) for row in integrity)
    inputs = Verdict.PASS if files.is_complete(TraceKind.LATENCY_HIST) and is_ledger_complete else Verdict.INCONCLUSIVE
    verdict = combine(
        required=[[row.verdict for row in latency_rows], [row.verdict for row in integrity_rows]],
        optional=[inputs, *(row.verdict for row in throughput_rows)],
    )
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        generated_at=now.isoformat(timespec="seconds"),
        period_from=period.start.isoformat() if period.start else None,
        period_to=period.end.isoformat() if period.end else None,
        verdict=verdict,
        targets=targets,
        inputs=_inputs(files, directory),
        latency=latency_rows,
        throughput=throughput_rows,
        integrity=integrity_rows,
        coverage=tuple(CoverageRow(**row) for row in coverage),
        totals=_totals(integrity_rows),
    )


def _latency_row(row: Row, targets: Targets) -> LatencyRow:
    n = row["n"]

    def quantile_ms(q: float, column: str) -> float | None:
        value_us = row[column]
        return round(value_us / 1_000, 3) if value_us is not None and is_quantile_meaningful(n, q) else None

    judgement = judge_latency(
        n=n,
        n_good_lo=row["n_good_lo"],
        n_good_hi=row["n_good_hi"],
        n_clock_unknown=row["n_clock_unknown"],
        targets=targets,
    )
    error_us = row["clock_err_us_max"]
    return LatencyRow(
        origin=row["origin"],
        dest=row["dest"],
        n=n,
        n_good=row["n_good"],
        n_good_lo=row["n_good_lo"],
        n_good_hi=row["n_good_hi"],
        share_good=row["n_good"] / n,
        mean_ms=round(row["lat_sum_us"] / n / 1_000, 3),
        p50_ms=quantile_ms(0.5, "p50_us"),
        p95_ms=quantile_ms(0.95, "p95_us"),
        p99_ms=quantile_ms(0.99, "p99_us"),
        p99_9_ms=quantile_ms(0.999, "p99_9_us"),
        max_ms=row["lat_max_us"] / 1_000,
        clock_error_ms=None if error_us is None or row["n_clock_unknown"] else error_us / 1_000,
        verdict=judgement.verdict,
        reason=judgement.reason,
    )


def _throughput_row(row: Row, targets: Targets) -> ThroughputRow:
    judgement = judge_throughput(
        max_window=row["max_window"], offered_max_window=row["offered_max_window"], targets=targets
    )
    seconds = row["last_second"] - row["first_second"] + 1
    loaded = row["loaded_seconds"]
    return ThroughputRow(
        region=row["region"],
        delivered=row["delivered"],
        seconds=seconds,
        mean_per_s=round(row["delivered"] / seconds, 1),
        max_1s=row["max_1s"],
        max_10s_mean=row["max_window"],
        offered_max_10s_mean=row["offered_max_window"],
        loaded_seconds=loaded,
        loaded_share_met=row["loaded_seconds_met"] / loaded if loaded else None,
        verdict=judgement.verdict,
        reason=judgement.reason,
    )


def _integrity_row(row: Row, *, is_ledger_complete: bool) -> IntegrityRow:
    unexplained = row["gap"] - row["lost"]
    judgement = judge_integrity(
        delivered=row["delivered"],
        lost=row["lost"],
        unexplained=unexplained,
        duplicated=row["duplicated"],
        out_of_order=row["out_of_order"],
        is_ledger_complete=is_ledger_complete,
    )
    return IntegrityRow(
        topic=row["topic"],
        origin=row["origin"],
        partition=row["partition"],
        region=row["region"],
        sessions=row["sessions"],
        delivered=row["delivered"],
        lost=row["lost"],
        unexplained=unexplained,
        duplicated=row["duplicated"],
        out_of_order=row["out_of_order"],
        verdict=judgement.verdict,
        reason=judgement.reason,
    )


def _totals(rows: tuple[IntegrityRow, ...]) -> tuple[TotalRow, ...]:
    sums: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.topic, row.origin, row.region)
        sums[key] = sums.get(key, 0) + row.delivered
    return tuple(
        TotalRow(topic=topic, origin=origin, region=region, delivered=delivered)
        for (topic, origin, region), delivered in sorted(sums.items())
    )


def _inputs(files: TraceFiles, directory: Path) -> Inputs:
    return Inputs(
        files=len(files.good) + len(files.bad),
        bytes=files.size_bytes,
        rows=files.rows,
        rows_missing=sum(files.rows_missing(kind) for kind in TraceKind),
        rows_dropped=files.rows_dropped(),
        writers=tuple(files.writers()),
        quarantined=tuple(
            QuarantinedFile(file=bad.path.relative_to(directory).as_posix(), reason=bad.reason) for bad in files.bad
        ),
    )
