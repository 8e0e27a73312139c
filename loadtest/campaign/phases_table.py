"""What a campaign about brokers that come and go prints at its end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from loadtest.campaign.phases_core import PhaseReport
from loadtest.campaign.steady_load import WorkReport

COLUMNS = ("phase", "seconds", "records", "p50 ms", "p99 ms", "worst ms", "longest pause ms")


def print_report(report: WorkReport, console: Console) -> None:
    """Print the phases, the facts and the verdict."""
    console.print(table_of(report.title, report.phases))
    for name, text in report.facts:
        console.print(f"{name}: {text}", markup=False, highlight=False)
    differing = ", ".join(report.differing) or "none differs"
    console.print(f"replicas compared by their files: {report.compared}, {differing}", markup=False, highlight=False)
    given_up = f"; {report.given_up} records given up" if report.given_up else ""
    console.print(f"verdict: {report.verdict.describe()}{given_up}", markup=False, highlight=False)


def table_of(title: str, phases: Sequence[PhaseReport]) -> Table:
    """Return a row for each phase."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in phases:
        table.add_row(
            row.name,
            f"{row.seconds:.1f}",
            f"{row.sent:,}",
            *(f"{value:.1f}" for value in (row.p50_ms, row.p99_ms, row.worst_ms)),
            f"{row.longest_pause_ms:.0f}",
        )
    return table
