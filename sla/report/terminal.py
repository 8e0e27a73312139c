"""The report on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sla.report.model import Report
from sla.report.tables import TextTable, headline, inputs_line, tables_of
from sla.report.verdict import Verdict

_STYLES = {
    Verdict.PASS.value: "bold green",
    Verdict.BREACH.value: "bold red",
    Verdict.INCONCLUSIVE.value: "bold yellow",
    Verdict.NO_DATA.value: "dim",
}


def show(report: Report, console: Console) -> None:
    """Print the tables, then what was read, then the verdict: the last line is the one that is still on the screen."""
    for table in tables_of(report):
        console.print(_table(table))
    for item in report.inputs.quarantined:
        console.print(Text(f"set aside: {item.file}: {item.reason}", style="yellow"))
    console.print(Text(inputs_line(report), style="dim"))
    console.print(Text(headline(report), style=_STYLES[report.verdict.value]))


def _table(table: TextTable) -> Table:
    shown = Table(title=Text(table.title), title_justify="left")
    for name, is_number in zip(table.columns, table.is_number, strict=True):
        shown.add_column(Text(name), justify="right" if is_number else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return shown
