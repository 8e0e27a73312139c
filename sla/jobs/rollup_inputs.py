"""The rows of `inputs_hour`: how much of every hour's traces is there, and what of it no figure has.

Rule 1: an hour's row tells of the files in its folder, whatever their rows are about.
Rule 2: rows that no hour is made of are read once more, their time alone: a file may hold both kinds.
Rule 3: an hour that nothing changed in gets the rows that say more now: another period was listed, or files that were
        there all the time were not known. What is known of it is never taken back.
Rule 4: what came for an hour that cannot be made again is in a column of its own beside what its rows say, and never
        taken back.
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
from sla.jobs.rollup_known import WEEK_S, KnownBeside
from sla.jobs.rollup_plan import HourInputs
from sla.rollups import RollupStore
from sla.sources.manifest import TIME_COLUMNS, GoodFile, TraceFiles, hour_inputs
from sla.tables import HOUR_S, RollupTable

Row = dict[str, Any]
LeftOut = Mapping[tuple[TraceKind, str], int]  # kind, region -> rows
_ROWS_PER_READ: Final = 65_536
_NEVER_TAKEN_BACK: Final = ("missing_rows", "dropped_rows", "gone_rows", "too_late_rows")
_SCHEMA: Final = pa.schema(
    [
        ("ts_s", pa.int64()), ("kind", pa.string()), ("region", pa.string()), ("files", pa.int64()),
        ("bytes", pa.int64()), ("rows", pa.int64()), ("quarantined_files", pa.int64()), ("missing_rows", pa.int64()),
        ("dropped_rows", pa.int64()), ("writers", pa.list_(pa.string())), ("silent_writers", pa.list_(pa.string())),
        ("left_out_rows", pa.int64()), ("gone_rows", pa.int64()), ("too_late_rows", pa.int64()),
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

    def joined(self, hour_s: int, *, is_new: bool = False) -> list[Row] | None:
        """Return what stands of an hour with what its rows say now; None when it says all of that already.

        Args:
            is_new: files and rows are counted anew too, and the rows are returned in any case.
        """
        stored = {(row["kind"], row["region"]): row for row in self._stored.get(hour_s, [])}
        found = {(row["kind"], row["region"]): row for row in self.of(hour_s)}
        rows = {key: _joined(stored.get(key), row, is_new=is_new) for key, row in found.items()}
        says_more = any(stored.get(key) != row for key, row in rows.items())
        return [row for _, row in sorted((stored | rows).items())] if says_more or is_new else None

    @functools.cached_property
    def _stored(self) -> dict[int, list[Row]]:
        rows: dict[int, list[Row]] = {}
        if self._by_hour:
            for row in stored_rows(self._store, min(self._by_hour), max(self._by_hour) + HOUR_S):
                rows.setdefault(row["ts_s"], []).append(row)
        return rows

    def with_left_out(self, hour_s: int, left_out: LeftOut) -> list[Row] | None:
        """Return what stands of an hour with the rows that it was not made of; None when that is said already."""
        rows = {(row["kind"], row["region"]): row for row in stored_rows(self._store, hour_s, hour_s + HOUR_S)}
        is_new = False
        for (kind, region), count in left_out.items():
            empty = dict.fromkeys(_SCHEMA.names, 0) | {"ts_s": hour_s, "kind": kind.value, "region": region}
            row = rows.setdefault((kind.value, region), empty | {"writers": [], "silent_writers": []})
            if count > (row.get("too_late_rows") or 0):
                row["too_late_rows"], is_new = count, True
        return [rows[key] for key in sorted(rows)] if is_new else None

    @functools.cached_property
    def _by_hour(self) -> dict[int, list[Row]]:
        left_out = {file.relative: self._rows_beyond(file, *looked_at) for file, *looked_at in self._inputs.beyond()}
        found: dict[int, list[Row]] = {}
        beside = KnownBeside(self._files, self._store)
        seen, known = self._clock_seen(beside), beside.rows()
        for row in hour_inputs(self._files, clock_seen=seen, left_out=left_out, known_rows=known):
            found.setdefault(row.ts_s, []).append(dataclasses.asdict(row) | {"kind": row.kind.value})
        return found

    def _clock_seen(self, beside: KnownBeside) -> dict[str, int]:
        """Return who wrote clock rows in the week before the first file -> the last hour in which it did."""
        first_s = min(self._files.hours(), default=0)
        rows = stored_rows(self._store, first_s - WEEK_S, first_s)
        of_clocks = [row for row in rows if row["kind"] == TraceKind.CLOCK.value]
        seen = beside.clock_writers()
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


def _joined(stored: Row | None, found: Row, *, is_new: bool) -> Row:
    """Return the row of one kind and region that says what either says to be missing."""
    if stored is None:
        return found | {"writers": list(found["writers"]), "silent_writers": list(found["silent_writers"])}
    row = found if is_new else stored
    most = {name: max(stored.get(name) or 0, found[name]) for name in _NEVER_TAKEN_BACK}
    silent = {*(stored["silent_writers"] or ()), *found["silent_writers"]} - set(found["writers"])
    return row | most | {"writers": list(row["writers"] or ()), "silent_writers": sorted(silent)}


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
