"""report.md."""

from __future__ import annotations

from typing import Final

from sla.report import wording as w
from sla.report.model import Report
from sla.report.next_steps import next_steps
from sla.report.tables import all_tables, subjects_table
from sla.report.text_table import ColumnKind, TextTable

_MARKS: Final = "\\`*_{}[]<>|~#$&"


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown. Names are escaped: they come from users."""
    made = report.made
    parts = [
        "# Service report of the mesh",
        f"**{_escape(report.headline)}**",
        f"{w.moment(made.period_from)} to {w.moment(made.period_to)} ({w.minutes(made.minutes)}), "
        f"made {w.moment(made.generated_at)}.",
    ]
    if steps := next_steps(report):
        parts.append("What to do next:\n\n" + "\n".join(f"- {_escape(step)}" for step in steps))
    if report.notes:
        parts.append(
            "\n".join(f"- {'**Note:** ' * note.is_warning}{_escape(w.note_text(note))}" for note in report.notes)
        )
    for table in all_tables(report):
        if table.key == "readers-not-passing":  # Markdown shows them among all readers
            continue
        parts.append(_table(table))
        if table.key == "targets":
            parts += [_details(subjects_table(target)) for target in report.targets if target.subjects]
    parts.append("## How to read this\n\n" + "\n".join(f"- **{word}**: {_escape(text)}" for word, text in w.WORDS))
    parts.append(f"georelay {_escape(made.code_version)}, targets from {_escape(made.targets_file)}.")
    return "\n\n".join(parts) + "\n"


def _table(table: TextTable) -> str:
    return f"## {_escape(table.title)}\n\n{_escape(table.explanation)}\n\n{_grid(table)}"


def _details(table: TextTable) -> str:
    return f"<details><summary>{_escape(table.title)}</summary>\n\n{_grid(table)}\n\n</details>"


def _grid(table: TextTable) -> str:
    rule = ["---:" if kind is ColumnKind.NUMBER else "---" for _, kind in table.columns]
    lines = [f"| {' | '.join(cells)} |" for cells in ([name for name, _ in table.columns], rule)]
    lines += [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in table.rows]
    if table.left_out:
        lines.append(f"\n{table.left_out} more rows are in report.json.")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in _MARKS else char for char in w.printable(text))
