"""The report on the terminal: what has to be seen; everything else is in the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sla.judging.verdict import Verdict
from sla.report import wording as w
from sla.report.measured_tables import integrity_news
from sla.report.model import Report
from sla.report.tables import all_tables
from sla.report.text_table import ColumnKind, TextTable

STYLES: Final = {
    Verdict.PASS.value: "bold green",
    Verdict.BREACH.value: "bold red",
    Verdict.INCONCLUSIVE.value: "bold yellow",
    Verdict.NO_DATA.value: "dim",
}
TEXT_WIDTH_CHARS_MIN: Final = 16
ROWS_SHOWN: Final = 16  # of one table; the files have them all
# What fits beside each other; whole tables are in the files.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "latency": ("pair", "records", "p50", "p95", "p99", "p99.9", "max", "clock \N{PLUS-MINUS SIGN}", "within 50 ms"),
    "throughput": ("region", "delivered", "mean", "best 1 s", "best 10 s", "offered, best 10 s", "loaded minutes met"),
    "readers-not-passing": (
        "verdict",
        "stream",
        "partition",
        "region",
        "group",
        "published",
        "delivered once",
        "pending",
        "why",
    ),
    "probes": ("pair", "probes", "came in time", "minutes up", "down", "unknown", "longest down"),
    "quarantine": ("file", "reason"),
    "targets": ("verdict", "target", "measured", "error budget", "worst"),
}


def show(report: Report, console: Console) -> None:
    """Print the tables, then what to know, then the verdict: the last lines are the ones still on the screen."""
    tables = {table.key: table for table in all_tables(report)}
    for key in COLUMNS:
        if key in tables:
            _show_table(tables[key], console)
    if news := integrity_news(report):
        console.print(Text(news))
    for note in report.notes:
        console.print(Text(w.printable(w.note_text(note)), style="yellow" if note.is_warning else "dim"))
    console.print(Text(w.printable(report.headline), style=STYLES[report.verdict.value]))


def _show_table(table: TextTable, console: Console) -> None:
    console.print(_table(table))
    left_out = len(table.rows) + table.left_out - ROWS_SHOWN
    if left_out > 0:
        console.print(Text(f"{w.things(left_out, 'more row is', 'more rows are')} in the report's files", style="dim"))


def _table(table: TextTable) -> Table:
    rows = table.rows[:ROWS_SHOWN]
    shown = Table(title=Text(table.title), title_justify="left")
    places = [at for at, (name, _) in enumerate(table.columns) if name in COLUMNS[table.key]]
    for at in places:
        name, kind = table.columns[at]
        is_text = kind is ColumnKind.TEXT
        width = min(max(len(row[at]) for row in rows), TEXT_WIDTH_CHARS_MIN) if is_text else None
        is_number = kind is ColumnKind.NUMBER
        shown.add_column(
            Text(name), justify="right" if is_number else "left", no_wrap=not is_text, overflow="fold", min_width=width
        )
    for row in rows:
        is_verdict = {at: table.columns[at][1] is ColumnKind.VERDICT for at in places}
        shown.add_row(*(Text(row[at], style=STYLES[row[at]] if is_verdict[at] else "") for at in places))
    return shown
