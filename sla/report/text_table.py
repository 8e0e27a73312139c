"""A table of text: what the terminal, Markdown and the page are made of.

Cells are what a reader sees; escaping is the business of whoever writes them out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sla.report.wording import printable

ROWS_MAX: Final = 500  # of one table as text; report.json and summary.parquet have all rows


class ColumnKind(enum.Enum):
    """How the cells of a column are shown."""

    TEXT = "text"
    NUMBER = "number"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A titled table with a line that says how to read it. `left_out` rows are only in report.json."""

    key: str
    title: str
    explanation: str
    columns: tuple[tuple[str, ColumnKind], ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.key


def text_table(key: str, title: str, explanation: str, columns: str, rows: Iterable[tuple[str, ...]]) -> TextTable:
    """Build a table. `columns` are separated by `|`; a leading # marks numbers, a leading ! a verdict."""
    kinds = {"#": ColumnKind.NUMBER, "!": ColumnKind.VERDICT}
    named = tuple((name.lstrip("#!"), kinds.get(name[0], ColumnKind.TEXT)) for name in columns.split("|"))
    everything = tuple(rows)
    return TextTable(
        key=key,
        title=title,
        explanation=explanation,
        columns=named,
        rows=tuple(tuple(printable(cell) for cell in row) for row in everything[:ROWS_MAX]),
        left_out=max(0, len(everything) - ROWS_MAX),
    )
