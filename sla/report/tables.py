"""The report as tables of text: one source for the terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from sla.report.model import Report
from sla.report.verdict import Verdict

SMALL_N = "n too small"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A titled table; `is_number` says which columns are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    is_number: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(report: Report) -> list[TextTable]:
    """Return the tables of a report, in reading order; empty ones are left out."""
    tables = [_latency(report), _throughput(report), _integrity(report), _coverage(report), _totals(report)]
    return [table for table in tables if table.rows]


def headline(report: Report) -> str:
    """Return the first line of every form of the report."""
    reasons = [f"{row.origin} -> {row.dest}: {row.reason}" for row in report.latency if _is_news(row.verdict)]
    reasons += [f"{row.region}: {row.reason}" for row in report.throughput if _is_news(row.verdict)]
    reasons += [
        f"{_stream(row.origin, row.topic)}/{row.partition} in {row.region}: {row.reason}"
        for row in report.integrity
        if _is_news(row.verdict)
    ]
    if not report.latency:
        reasons.append("no record was delivered live, so there is no latency to judge")
    if not report.integrity:
        reasons.append("no delivery is in the ledger")
    more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
    return f"{report.verdict.value}" + (": " + "; ".join(reasons[:3]) + more if reasons else "")


def inputs_line(report: Report) -> str:
    """Return the line that says what was read and what is missing."""
    inputs = report.inputs
    return (
        f"{inputs.files} files, {inputs.rows:,} rows from {len(inputs.writers)} brokers and gateways; "
        f"{len(inputs.quarantined)} files set aside, {inputs.rows_missing:,} rows missing, "
        f"{inputs.rows_dropped:,} rows dropped by writers"
    )


def _is_news(verdict: Verdict) -> bool:
    return verdict in (Verdict.BREACH, Verdict.INCONCLUSIVE)


def _stream(origin: str, topic: str) -> str:
    return f"{origin}.{topic}" if origin else topic


def _ms(value: float | None) -> str:
    return SMALL_N if value is None else f"{value:,.1f}"


def _percent(share: float) -> str:
    """Show a share without ever rounding it up to 100 %."""
    return "100 %" if share == 1 else f"{int(share * 1_000_000) / 10_000:.4f} %"


def _latency(report: Report) -> TextTable:
    target = f"within {report.targets.latency_ms:g} ms"
    return TextTable(
        title=f"Latency publish to deliver, ms (target: {report.targets.latency_share:.0%} {target})",
        columns=("pair", "n", "p50", "p95", "p99", "p99.9", "max", target, "clock error", "verdict"),
        is_number=(False, True, True, True, True, True, True, True, True, False),
        rows=tuple(
            (
                f"{row.origin} -> {row.dest}",
                f"{row.n:,}",
                _ms(row.p50_ms),
                _ms(row.p95_ms),
                _ms(row.p99_ms),
                _ms(row.p99_9_ms),
                _ms(row.max_ms),
                _percent(row.share_good),
                "unknown" if row.clock_error_ms is None else f"{row.clock_error_ms:g}",
                row.verdict.value,
            )
            for row in report.latency
        ),
    )


def _throughput(report: Report) -> TextTable:
    per_s = f"{report.targets.delivered_per_s:,}/s"
    return TextTable(
        title=f"Delivered records per second (target: {per_s} while offered)",
        columns=(
            "region",
            "delivered",
            "mean",
            "best 1 s",
            "best 10 s",
            "offered, best 10 s",
            f"s at {per_s}",
            "verdict",
        ),
        is_number=(False, True, True, True, True, True, True, False),
        rows=tuple(
            (
                row.region,
                f"{row.delivered:,}",
                f"{row.mean_per_s:,.0f}",
                f"{row.max_1s:,}",
                f"{row.max_10s_mean:,.0f}",
                f"{row.offered_max_10s_mean:,.0f}",
                f"{_percent(row.loaded_share_met)} of {row.loaded_seconds}"
                if row.loaded_share_met is not None
                else "-",
                row.verdict.value,
            )
            for row in report.throughput
        ),
    )


def _integrity(report: Report) -> TextTable:
    return TextTable(
        title="Integrity, judged per consumer session (target: none lost, duplicated or out of order)",
        columns=(
            "stream",
            "partition",
            "region",
            "sessions",
            "delivered",
            "lost",
            "unexplained",
            "duplicated",
            "out of order",
            "verdict",
        ),
        is_number=(False, True, False, True, True, True, True, True, True, False),
        rows=tuple(
            (
                _stream(row.origin, row.topic),
                f"{row.partition}",
                row.region,
                f"{row.sessions:,}",
                f"{row.delivered:,}",
                f"{row.lost:,}",
                f"{row.unexplained:,}",
                f"{row.duplicated:,}",
                f"{row.out_of_order:,}",
                row.verdict.value,
            )
            for row in report.integrity
        ),
    )


def _coverage(report: Report) -> TextTable:
    return TextTable(
        title="Replication: committed at home and found in the mirror (missing may be on its way; not judged)",
        columns=("stream", "mirror", "committed", "replicated", "missing"),
        is_number=(False, False, True, True, True),
        rows=tuple(
            (
                _stream(row.origin, row.topic),
                row.region,
                f"{row.committed:,}",
                f"{row.replicated:,}",
                f"{row.missing:,}",
            )
            for row in report.coverage
        ),
    )


def _totals(report: Report) -> TextTable:
    return TextTable(
        title="Records handed to consumers",
        columns=("stream", "region", "delivered"),
        is_number=(False, False, True),
        rows=tuple((_stream(row.origin, row.topic), row.region, f"{row.delivered:,}") for row in report.totals),
    )
