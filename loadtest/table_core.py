"""A table as lines of text, the first column to the left and all others to the right. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the heads and a line for each row, as wide as it must be; [] without rows."""
    if not rows:
        return []
    wide = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return [
        "  ".join([row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))])
        for row in (columns, *rows)
    ]
