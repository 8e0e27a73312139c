"""What commands write to standard output: a line, one JSON document, or a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from georelay.cli.tables import table_console


def print_line(line: str) -> None:
    """Print one line as it is, however long."""
    Console(highlight=False).print(line, markup=False, soft_wrap=True)


def print_json(document: object) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False))  # noqa: T201


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows below their column names; a row that lacks a column shows nothing there."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    table_console().print(table)
