"""Roll-ups of a few hours in real files, read as a report reads them but without Spark."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sla.rollup_files_core import CLOSED_AFTER_S, DAY_S, Reading
from sla.rollups import HourRun, RollupSnapshot, RollupStore
from sla.sources.layout import hour_folder
from sla.tables import HOUR_S, RollupTable

DAY0_S = 19_675 * DAY_S  # 2023-11-14
LATER_S = DAY0_S + DAY_S + CLOSED_AFTER_S
TABLE = RollupTable.STREAM_HOUR
OTHER = RollupTable.INPUTS_HOUR
Row = tuple[int, str]  # hour, what was found


def run(hour: int, **changes: Any) -> HourRun:
    values: dict[str, Any] = {
        "hour_s": DAY0_S + hour * HOUR_S, "revision": 1, "is_final": True, "is_revised": False, "input_hash": "i",
        "carry_hash": "c", "carry_out_hash": "o", "rows_read": {}, "files": 1, "quarantined": 0, "missing_rows": 0,
        "settle_s": 900, "row_ranges": {}, "built_at": "2027-01-15T08:00:00+00:00", "code_version": "v1",
    }  # fmt: skip
    return HourRun(**(values | changes))


def table_of(hour: int, word: str, rows: int = 2) -> Any:
    return pa.table({"ts_s": pa.array([DAY0_S + hour * HOUR_S + row for row in range(rows)]), "topic": [word] * rows})


def stage(store: RollupStore, hour: int, word: str, tables: Iterable[RollupTable] = (TABLE, OTHER)) -> Path:
    staging = store.staging()
    for table in tables:
        folder = staging / table.value / hour_folder(DAY0_S + hour * HOUR_S)
        folder.mkdir(parents=True)
        pq.write_table(table_of(hour, word), folder / f"part-{uuid.uuid4().hex}.parquet", write_page_checksum=True)
    return staging


def install(store: RollupStore, hour: int, word: str) -> None:
    """Make an hour whose rows say a word; what a job does between the lock and the merge."""
    staging = stage(store, hour, word)
    found = store.run(DAY0_S + hour * HOUR_S)
    store.install(staging, run(hour, revision=1 if found is None else found.revision + 1))
    shutil.rmtree(staging)


def made_as_before(store: RollupStore, hour: int, word: str) -> None:
    """Make an hour whose manifest names no files."""
    for table in (TABLE, OTHER):
        folder = store.hour_path(table, DAY0_S + hour * HOUR_S)
        folder.mkdir(parents=True)
        pq.write_table(table_of(hour, word), folder / "part-00000.parquet")
    store.write_run(run(hour))


def rows_of(store: RollupStore, found: Reading) -> list[Row]:
    """Return what a reader sees: (hour, word) once per two rows, sorted."""
    rows: list[Row] = []
    for paths, absent in ((found.day_files, set(found.absent)), (found.hour_files, set[int]())):
        for path in paths:
            for row in pq.ParquetFile(store.root / path).read().to_pylist():
                hour_s = row["ts_s"] - row["ts_s"] % HOUR_S
                if hour_s not in absent and found.low_s <= row["ts_s"] < found.high_s:
                    rows.append(((hour_s - DAY0_S) // HOUR_S, row["topic"]))
    rows.sort()
    assert rows[::2] == rows[1::2], rows  # both rows of an hour or none
    return rows[::2]


def seen(store: RollupStore, snapshot: RollupSnapshot | None = None) -> list[Row]:
    """Return what a reader of now, or of an earlier moment, sees in both tables."""
    snapshot = store.snapshot() if snapshot is None else snapshot
    first, second = (rows_of(store, snapshot.reading(table)) for table in (TABLE, OTHER))
    assert first == second
    return first
