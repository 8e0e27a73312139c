"""report.md."""

from __future__ import annotations

from sla.report.model import Report
from sla.report.tables import TextTable, headline, inputs_line, tables_of


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown. Names are escaped: they come from users."""
    parts = [
        "# georelay: service report",
        f"**{_escape(headline(report))}**",
        f"Period: {report.period_from or 'first trace'} to {report.period_to or 'last trace'}. "
        f"Made {report.generated_at}. Input: {inputs_line(report)}.",
        *(_table(table) for table in tables_of(report)),
    ]
    if report.inputs.quarantined:
        bad = [f"- `{item.file.replace('`', '')}`: {_escape(item.reason)}" for item in report.inputs.quarantined]
        parts.append("## Files set aside\n\n" + "\n".join(bad))
    parts.append(_DEFINITIONS)
    return "\n\n".join(parts) + "\n"


def _table(table: TextTable) -> str:
    rule = ["---:" if is_number else "---" for is_number in table.is_number]
    lines = [f"| {' | '.join(cells)} |" for cells in (table.columns, rule)]
    lines += [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in table.rows]
    return f"## {table.title}\n\n" + "\n".join(lines)


def _escape(text: str) -> str:
    for char in "\\|<>*_`[]":
        text = text.replace(char, f"\\{char}")
    return text.replace("\n", " ")


_DEFINITIONS = """\
## How to read this

- **publish** is the receive stamp of the first broker that saw a record, **deliver** the moment it was handed to the
  consumer's socket. A pair is (region where the record entered, region that delivered it).
- Latencies count only records that were published after their consumer had reached the end of the stream.
- Quantiles are middles of buckets at most 2.2 % wide; the share within the target is an exact count. A quantile is
  shown only if at least 20 records lie beyond it.
- **lost**: inside a consumer session's span, known to be committed, never delivered in it. **unexplained**: skipped,
  and no ledger knows it. **duplicated**: delivered again in one session. **out of order**: delivered for the first
  time after a higher offset."""
