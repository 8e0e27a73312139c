"""summary.parquet: one row per target and subject, so that many reports can be read as one table."""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sla.report.model import REPORT_SCHEMA_VERSION, Report, Subject, TargetResult

SUMMARY_SCHEMA: Final = pa.schema(
    [
        pa.field("schema_version", pa.int16(), nullable=False),
        pa.field("generated_at", pa.string(), nullable=False),
        pa.field("period_from", pa.string(), nullable=False),
        pa.field("period_to", pa.string(), nullable=False),
        pa.field("code_version", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("objective", pa.float64()),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("threshold_ms", pa.float64()),
        pa.field("total", pa.int64(), nullable=False),
        pa.field("bad", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("lo", pa.float64()),
        pa.field("hi", pa.float64()),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("budget_allowed", pa.float64()),
        pa.field("budget_used", pa.int64()),
        pa.field("budget_left_share", pa.float64()),
    ]
)


def to_parquet(report: Report) -> bytes:
    """Return the file: times ISO 8601 in UTC, shares in [0, 1]; columns are only ever added at the end."""
    rows = [_row(report, target, subject) for target in report.targets for subject in target.subjects]
    file = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=SUMMARY_SCHEMA)
    pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def _row(report: Report, target: TargetResult, subject: Subject) -> dict[str, Any]:
    measured, budget = subject.measured, subject.budget
    return {
        "schema_version": REPORT_SCHEMA_VERSION,
        "generated_at": report.made.generated_at,
        "period_from": report.made.period_from,
        "period_to": report.made.period_to,
        "code_version": report.made.code_version,
        "target": target.name,
        "kind": target.kind.value,
        "objective": target.objective,
        "subject": subject.name,
        "threshold_ms": subject.threshold_ms,
        "total": subject.total,
        "bad": subject.bad,
        "value": None if measured is None else measured.value,
        "lo": None if measured is None else measured.lo,
        "hi": None if measured is None else measured.hi,
        "verdict": subject.verdict.value,
        "reason": subject.reason,
        "budget_allowed": None if budget is None else budget.allowed,
        "budget_used": None if budget is None else budget.used,
        "budget_left_share": None if budget is None else budget.left_share,
    }
