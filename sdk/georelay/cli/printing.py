"""What commands write to standard output: a line, one JSON document, or a table; rich is loaded for a table only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from georelay.cli.tables import table_console


def print_line(line: str) -> None:
    """Print one line as it is, however long."""
    print(line)  # noqa: T201


def print_json(document: object) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False))  # noqa: T201


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows below their column names; a row that lacks a column shows nothing there."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    table_console().print(table)


def print_listing(
    rows: Sequence[Any], columns: Sequence[str], line: Callable[[Any], Mapping[str, object]], *, as_json: bool
) -> None:
    """Print rows as they came in one JSON document, or the line of each as a table."""
    if as_json:
        print_json(rows)
    else:
        print_table(columns, [line(row) for row in rows])


def print_outcome(answer: object, line: str, *, as_json: bool) -> None:
    """Print the whole answer as JSON, or the one line that says what was done."""
    if as_json:
        print_json(answer)
    else:
        print_line(line)


def printable(value: object) -> str:
    """Return a text that moves no terminal: clients choose names and contents. Pure."""
    return "".join(character if character.isprintable() else "?" for character in str(value))


def cell(value: object) -> str:
    """Return what a client chose, for a table: it moves no terminal and colours nothing. Pure."""
    from rich.markup import escape

    return escape(printable(value))
