"""`expected.json`: what any correct pipeline must find in the generated traces, exactly.

    {"schema_version": 1, "made_with": {...}, "injected": [...], "files": {...},
     "tables": {NAME: {"columns": [...], "rows": [[...], ...]}}, "totals": {NAME: {COLUMN: sum}}}

Tables and columns have the names of the roll-ups; rows are sorted by their key. Where a roll-up says more than can be
known exactly (a fitted clock offset), the column is left out. `minute` gets too long for long periods: then it has no
rows and `hour` stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sla.errors import UsageError

SCHEMA_VERSION: Final = 1
MINUTE_ROWS_MAX: Final = 100_000
EXPECTED_NAME: Final = "expected.json"
TRACES_NAME: Final = "traces"
KEYS: Final = {
    "minute": ("ts_s", "origin", "dest", "topic", "group", "stage"),
    "hour": ("ts_s", "origin", "dest", "topic", "group", "stage"),
    "throughput_minute": ("ts_s", "dest"),
    "integrity_hour": ("ts_s", "origin", "dest", "topic", "partition", "group"),
    "stream_hour": ("ts_s", "topic", "origin", "partition"),
    "mirror_hour": ("ts_s", "topic", "origin", "partition", "region"),
    "account_hour": ("ts_s", "kind", "topic", "origin", "partition", "region", "group"),
    "avail_minute": ("ts_s", "origin", "dest"),
    "requests_minute": ("ts_s", "region", "source", "op"),
    "clock_hour": ("ts_s", "region", "peer"),
    "inputs_hour": ("ts_s", "kind", "region"),
}
NO_SUM: Final = frozenset({"partition", "ts_s", "lat_max_us", "clock_err_max_us", "rtt_min_us", "epochs", "writers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What was generated and what follows from it.

    Args:
        made_with: the request, with the seconds that followed from `rows`.
        tables: rows by table, sorted by the table's key.
        injected: every fault of delivery, as it was done.
        files: counts of files: written, readable, broken (by what was done).
    """

    traces: Path
    made_with: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    injected: list[dict[str, Any]]
    files: dict[str, Any]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the sums of every column that can be summed."""
        totals: dict[str, dict[str, int]] = {}
        for name, rows in self.tables.items():
            sums: dict[str, int] = {"table_rows": len(rows)}
            for row in rows:
                for column, value in row.items():
                    if column not in NO_SUM and type(value) is int:
                        sums[column] = sums.get(column, 0) + value
            totals[name] = sums
        return totals

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return self.tables[table]

    def write(self, path: Path) -> None:
        """Write expected.json."""
        tables = {}
        for name, rows in self.tables.items():
            columns = list(rows[0]) if rows else list(KEYS[name])
            tables[name] = {"columns": columns, "rows": [[row[column] for column in columns] for row in rows]}
        document = {
            "schema_version": SCHEMA_VERSION,
            "made_with": self.made_with,
            "injected": self.injected,
            "files": self.files,
            "totals": self.totals(),
            "tables": tables,
        }
        # Not json.dump: it writes item by item, with an encoder ten times as slow.
        path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Expected:
        """Read expected.json; the traces are expected beside it.

        Raises:
            UsageError: the file is of another version.
        """
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(f"{path} has schema_version {document.get('schema_version')}, not {SCHEMA_VERSION}")
        return cls(
            traces=path.parent / TRACES_NAME,
            made_with=document["made_with"],
            injected=document["injected"],
            files=document["files"],
            tables={
                name: [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
                for name, table in document["tables"].items()
            },
        )


def sorted_rows(table: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of their table's key."""
    return sorted(rows, key=lambda row: tuple(row[name] for name in KEYS[table]))
