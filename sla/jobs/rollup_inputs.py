"""The rows of `inputs_hour`: how much of every hour's traces is there, and what of it no figure has.

Rule 1: an hour's row tells of the files in its folder, whatever their rows are about.
Rule 2: rows that no hour is made of are read once more, their time alone: a file may hold both kinds.
Rule 3: what came for an hour that cannot be made again is added to what its rows say, and never taken back.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georelay.trace.schema import TraceKind
from sla.errors import JobFailed
from sla.jobs.rollup_plan import HourInputs
from sla.rollups import RollupStore
from sla.sources.manifest import SILENT_HOURS_MAX, TIME_COLUMNS, GoodFile, TraceFiles, hour_inputs
from sla.tables import HOUR_S, RollupTable

Row = dict[str, Any]
LeftOut = Mapping[tuple[TraceKind, str], int]  # kind, region -> rows
_ROWS_PER_READ: Final = 65_536
_SCHEMA: Final = pa.schema(
    [
        ("ts_s", pa.int64()), ("kind", pa.string()), ("region", pa.string()), ("files", pa.int64()),
        ("bytes", pa.int64()), ("rows", pa.int64()), ("quarantined_files", pa.int64()), ("missing_rows", pa.int64()),
        ("dropped_rows", pa.int64()), ("writers", pa.list_(pa.string())), ("silent_writers", pa.list_(pa.string())),
        ("left_out_rows", pa.int64()),
    ]
)  # fmt: skip


class InputRows:
    """The rows of every hour of a job.

    Args:
        files: all that were verified.
        inputs: which of them make the hours.
        store: says who wrote before, and what stands of an hour.
    """

    def __init__(self, files: TraceFiles, inputs: HourInputs, store: RollupStore) -> None:
        self._files = files
        self._inputs = inputs
        self._store = store

    def of(self, hour_s: int) -> list[Row]:
        """Return the rows of an hour, none when no file was written and nobody is silent."""
        return self._by_hour.get(hour_s, [])

    def with_left_out(self, hour_s: int, left_out: LeftOut) -> list[Row] | None:
        """Return what stands of an hour with the rows that it was not made of; None when that is said already."""
        rows = {(row["kind"], row["region"]): row for row in stored_rows(self._store, hour_s, hour_s + HOUR_S)}
        is_new = False
        for (kind, region), count in left_out.items():
            empty = dict.fromkeys(_SCHEMA.names, 0) | {"ts_s": hour_s, "kind": kind.value, "region": region}
            row = rows.setdefault((kind.value, region), empty | {"writers": [], "silent_writers": []})
            if count > (row.get("left_out_rows") or 0):
                row["left_out_rows"], is_new = count, True
        return [rows[key] for key in sorted(rows)] if is_new else None

    @functools.cached_property
    def _by_hour(self) -> dict[int, list[Row]]:
        left_out = {file.relative: self._rows_beyond(file, *looked_at) for file, *looked_at in self._inputs.beyond()}
        found: dict[int, list[Row]] = {}
        for row in hour_inputs(self._files, clock_seen=self._clock_seen(), left_out=left_out):
            found.setdefault(row.ts_s, []).append(dataclasses.asdict(row) | {"kind": row.kind.value})
        return found

    def _clock_seen(self) -> dict[str, int]:
        """Return who wrote clock rows in the week before the first file -> the last hour in which it did."""
        first_s = min(self._files.hours(), default=0)
        rows = stored_rows(self._store, first_s - SILENT_HOURS_MAX * HOUR_S, first_s)
        of_clocks = [row for row in rows if row["kind"] == TraceKind.CLOCK.value]
        seen: dict[str, int] = {}
        for row in of_clocks:
            for writer in row["writers"] or ():
                seen[writer] = max(seen.get(writer, row["ts_s"]), row["ts_s"])
        return seen

    def _rows_beyond(self, file: GoodFile, start_s: int, end_s: int) -> int:
        assert file.time_min_s is not None and file.time_max_s is not None, file.relative  # HourInputs.beyond
        if file.time_max_s < start_s or file.time_min_s >= end_s:
            return file.metadata.rows
        name, units_per_s = TIME_COLUMNS[file.kind]
        inside = 0
        try:
            with self._files.location.open_input(file.relative) as source, pq.ParquetFile(source) as parquet:
                for batch in parquet.iter_batches(_ROWS_PER_READ, columns=[name]):
                    times = batch.column(name)
                    is_inside = pc.and_(
                        pc.greater_equal(times, start_s * units_per_s), pc.less(times, end_s * units_per_s)
                    )
                    inside += pc.sum(is_inside).as_py() or 0
        except (OSError, pa.ArrowException) as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise JobFailed(f"{file.relative} was readable and is not any more: {first_line}; run it again") from error
        return file.metadata.rows - inside


def write_rows(rows: Iterable[Row], folder: Path) -> None:
    """Write the rows of one hour into its folder, which does not exist; nothing when there are none."""
    rows = list(rows)
    if rows:
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), folder / f"part-{uuid.uuid4().hex}.parquet")


def stored_rows(store: RollupStore, start_s: int, end_s: int) -> list[Row]:
    """Return the rows that stand of [start_s, end_s), seconds since 1970, columns that came later left out.

    Raises:
        JobFailed: a file cannot be read.
    """
    found = store.snapshot().reading(RollupTable.INPUTS_HOUR, start_s, end_s)
    rows: list[Row] = []
    for path in (*found.day_files, *found.hour_files):
        absent = set(found.absent) if path in found.day_files else set()
        try:
            table = pq.ParquetFile(store.root / path).read()
        except (OSError, pa.ArrowException) as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise JobFailed(f"{store.root / path} cannot be read: {first_line}") from error
        rows += [
            row
            for row in table.to_pylist()
            if found.low_s <= row["ts_s"] < found.high_s and row["ts_s"] - row["ts_s"] % HOUR_S not in absent
        ]
    return rows
