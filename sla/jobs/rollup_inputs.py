"""The rows of `inputs_hour`: how much of every hour's traces is there, and what of it no figure has.

Rule 1: an hour's row tells of the files in its folder, whatever their rows are about.
Rule 2: rows that no hour is made of are read once more, their time alone: a file may hold both kinds.
Rule 3: an hour that nothing changed in gets the rows that say more now: another period was listed, or files that were
        there all the time were not known. What is known of it is never taken back, but for rows that were missing:
        those that were read since, or are named by another hour, are taken off.
Rule 4: what came for an hour that cannot be made again is in a column of its own beside what its rows say, and never
        taken back.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed
from sla.jobs.rollup_known import WEEK_S, KnownBeside
from sla.jobs.rollup_plan import HourInputs
from sla.rollups import RollupStore
from sla.sources.manifest import (
    TIME_COLUMNS,
    GoodFile,
    Ranges,
    Run,
    TraceFiles,
    hour_inputs,
    merged,
    ranges_outside,
    rows_in,
)
from sla.tables import HOUR_S, RollupTable

Row = dict[str, Any]
LeftOut = Mapping[tuple[TraceKind, str], int]  # kind, region -> rows
Missing = Mapping[str, list[list[int]]]  # kind/region/broker/boot -> row numbers [first, last], in order, disjoint
_Cell = tuple[int, str, str]  # hour, kind, region
_ROWS_PER_READ: Final = 65_536
_LARGER_STANDS: Final = ("missing_rows", "dropped_rows", "gone_rows", "too_late_rows")
_SCHEMA: Final = pa.schema(
    [
        ("ts_s", pa.int64()), ("kind", pa.string()), ("region", pa.string()), ("files", pa.int64()),
        ("bytes", pa.int64()), ("rows", pa.int64()), ("quarantined_files", pa.int64()), ("missing_rows", pa.int64()),
        ("dropped_rows", pa.int64()), ("writers", pa.list_(pa.string())), ("silent_writers", pa.list_(pa.string())),
        ("left_out_rows", pa.int64()), ("gone_rows", pa.int64()), ("too_late_rows", pa.int64()),
    ]
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of an hour.

    Args:
        rows: of the table.
        missing: kind/region/broker/boot -> row numbers [first, last] that `missing_rows` counts; None: not known.
    """

    rows: list[Row]
    missing: Missing | None


@dataclasses.dataclass(slots=True, kw_only=True)
class _Found:
    """What the files of a job say: rows and missing row numbers by hour, and which numbers of each run were read."""

    rows: dict[int, list[Row]]
    missing: dict[int, dict[str, Ranges]]
    known_drops: set[_Cell]
    read: dict[str, Ranges]  # at any time, merged


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
        return self._found.rows.get(hour_s, [])

    def said(self, hours: Sequence[int]) -> dict[int, Said]:
        """Return what is said of hours that are made now and put in place one after the other, in this order.

        What is missing of one of them is not missing of those behind it, though no manifest says so yet.

        Raises:
            JobFailed: a manifest or a trace file cannot be read.
        """
        said: dict[int, Said] = {}
        made: dict[int, Missing] = {}
        for hour_s in hours:
            run = self._store.run(hour_s)
            named = None if run is None else run.missing_ranges
            made[hour_s] = missing = self._missing(hour_s, named or {}, made)
            said[hour_s] = Said(rows=self._rows_with(hour_s, missing), missing=missing)
        return said

    def _rows_with(self, hour_s: int, missing: Missing) -> list[Row]:
        """Return the rows of an hour that is made now, of which these row numbers are missing."""
        rows = {_cell_of(row): row for row in self.of(hour_s)}
        for cell, count in _counts(missing).items():
            row = rows.get(cell, _empty(hour_s, *cell))
            more = count - row["missing_rows"]
            rows[cell] = row | {"missing_rows": count, "gone_rows": row["gone_rows"] + more}
        return [rows[cell] for cell in sorted(rows)]

    def joined(self, hour_s: int, *, named: Missing | None, is_new: bool = False) -> Said | None:
        """Return what stands of an hour with what its rows say now; None when it says all of that already.

        Args:
            named: the row numbers that are missing of it as it stands; None: nobody named them, only their number is
                known, and stays.
            is_new: files and rows are counted anew too, and the rows are returned in any case.
        """
        missing = None if named is None else self._missing(hour_s, named)
        if hour_s not in self._found_hours and missing == named and not is_new:
            return None
        counts = {} if missing is None else _counts(missing)
        stored = {_cell_of(row): row for row in self._stored(hour_s)}
        rows = {}
        for row in self.of(hour_s):
            cell = _cell_of(row)
            rows[cell] = _joined(stored.get(cell), row, is_new=is_new)
            if missing is not None and cell in stored:
                are_drops_known = (hour_s, *cell) in self._found.known_drops
                rows[cell] |= _lost(stored[cell], row, counts.get(cell, 0), are_drops_known=are_drops_known)
        if missing is not None:
            for cell in stored.keys() - rows.keys():  # its files are gone: of its missing rows some may have been read
                if (count := counts.get(cell, 0)) != stored[cell]["missing_rows"]:
                    lost = _lost(stored[cell], _empty(hour_s, *cell), count, are_drops_known=False)
                    rows[cell] = stored[cell] | lost
        says_more = missing != named or any(stored.get(cell) != row for cell, row in rows.items())
        if not says_more and not is_new:
            return None
        return Said(rows=[row for _, row in sorted((stored | rows).items())], missing=missing)

    def _missing(self, hour_s: int, named: Missing, made: Mapping[int, Missing] = MappingProxyType({})) -> Missing:
        """Return the row numbers that are missing of an hour: those found now, those named before without the others.

        What was named before, and is missing before a file of another hour now, is missing there: a file came between.
        It stays here until the manifest of that hour names it, or is about to.

        Args:
            made: hour -> what is missing of it, of hours whose manifests are written before that of this hour.
        """
        found = self._found.missing.get(hour_s, {})
        missing: dict[str, list[list[int]]] = {}
        for name in sorted({*named, *found}):
            here = merged(found.get(name, ()))
            still = _without(named.get(name, ()), here)  # first: mostly nothing is left to look for elsewhere
            still = _without(still, self._found.read.get(name, ()))
            if still:
                for others in self._named_elsewhere(name, hour_s, made):
                    still = _without(still, others)
            if ranges := merged([*still, *here]):
                missing[name] = [list(pair) for pair in ranges]
        return missing

    def _named_elsewhere(self, name: str, hour_s: int, made: Mapping[int, Missing]) -> Iterator[Ranges]:
        """Yield, for every other hour, the row numbers that were found missing of it and that its manifest names."""
        for other_s, missing in self._found.missing.items():
            if other_s == hour_s or name not in missing:
                continue
            named = made.get(other_s)
            if named is None and (run := self._store.run(other_s)) is not None:
                named = run.missing_ranges
            if named is not None:
                yield _without(missing[name], _without(missing[name], named.get(name, ())))

    @functools.cached_property
    def _found_hours(self) -> range:
        """The hours from the first to the last one of which anything was found."""
        hours = self._found.rows
        return range(min(hours), max(hours) + HOUR_S, HOUR_S) if hours else range(0)

    def _stored(self, hour_s: int) -> list[Row]:
        """Return the rows that stand of an hour."""
        if hour_s in self._found_hours:
            return self._stored_found.get(hour_s, [])
        return stored_rows(self._store, hour_s, hour_s + HOUR_S)

    @functools.cached_property
    def _stored_found(self) -> dict[int, list[Row]]:
        """The rows that stand of these hours, read at once."""
        rows: dict[int, list[Row]] = {}
        hours = self._found_hours
        for row in stored_rows(self._store, hours.start, hours.stop):
            rows.setdefault(row["ts_s"], []).append(row)
        return rows

    def with_left_out(self, hour_s: int, left_out: LeftOut) -> list[Row] | None:
        """Return what stands of an hour with the rows that it was not made of; None when that is said already."""
        rows = {(row["kind"], row["region"]): row for row in stored_rows(self._store, hour_s, hour_s + HOUR_S)}
        is_new = False
        for (kind, region), count in left_out.items():
            row = rows.setdefault((kind.value, region), _empty(hour_s, kind.value, region))
            if count > (row.get("too_late_rows") or 0):
                row["too_late_rows"], is_new = count, True
        return [rows[key] for key in sorted(rows)] if is_new else None

    @functools.cached_property
    def _found(self) -> _Found:
        left_out = {file.relative: self._rows_beyond(file, *looked_at) for file, *looked_at in self._inputs.beyond()}
        found = _Found(rows={}, missing={}, known_drops=set(), read={})
        numbers: dict[str, list[Sequence[int]]] = {}
        beside = KnownBeside(self._files, self._store)
        seen, known = self._clock_seen(beside), beside.rows()
        for row in hour_inputs(self._files, clock_seen=seen, left_out=left_out, known_rows=known):
            values = dataclasses.asdict(row) | {"kind": row.kind.value}
            del values["missing_ranges"], values["are_drops_known"]
            found.rows.setdefault(row.ts_s, []).append(values)
            if row.are_drops_known:
                found.known_drops.add((row.ts_s, row.kind.value, row.region))
            for run, ranges in row.missing_ranges.items():
                found.missing.setdefault(row.ts_s, {})[_name(run, row.region)] = ranges
        for file in self._files.good:
            metadata = file.metadata
            numbers.setdefault(_name(file.run, file.region), []).append((metadata.first_row_seq, metadata.last_row_seq))
        for run, region in {(file.run, file.region) for file in self._files.good}:
            name = _name(run, region)
            found.read[name] = merged([*numbers[name], *known.get(run, ())])
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
    most = {name: max(stored.get(name) or 0, found[name]) for name in _LARGER_STANDS}
    silent = {*(stored["silent_writers"] or ()), *found["silent_writers"]} - set(found["writers"])
    return row | most | {"writers": list(row["writers"] or ()), "silent_writers": sorted(silent)}


def _lost(stored: Row, found: Row, missing_rows: int, *, are_drops_known: bool) -> dict[str, int]:
    """Return what is lost of one kind and region, of which so many rows are missing, the found ones among them.

    Args:
        are_drops_known: what was found says all of the rows that were given up, if its files are still all there.
    """
    if are_drops_known and _rows_read(found) >= _rows_read(stored):
        gone_rows = found["gone_rows"] + missing_rows - found["missing_rows"]
        return {"missing_rows": missing_rows, "dropped_rows": found["dropped_rows"], "gone_rows": gone_rows}
    dropped_rows = max(stored["dropped_rows"], found["dropped_rows"])
    at_most = min(stored["gone_rows"], missing_rows + dropped_rows)
    gone_rows = max(found["gone_rows"], missing_rows, dropped_rows, at_most)
    return {"missing_rows": missing_rows, "dropped_rows": dropped_rows, "gone_rows": gone_rows}


def _rows_read(row: Row) -> int:
    return int(row["rows"]) + int(row["left_out_rows"])


def _counts(missing: Missing) -> dict[tuple[str, str], int]:
    """Return kind, region -> missing rows."""
    counts: dict[tuple[str, str], int] = {}
    for name, ranges in missing.items():
        kind, region, *_ = name.split("/")
        counts[kind, region] = counts.get((kind, region), 0) + rows_in(ranges)
    return counts


def _without(ranges: Ranges, others: Ranges) -> list[tuple[int, int]]:
    """Return those of the row numbers that are in none of the others, which are in order."""
    return [left for first, last in ranges for left in ranges_outside(first, last, others)]


def _name(run: Run, region: str) -> str:
    kind, broker, boot = run
    return f"{kind.value}/{region}/{broker}/{boot}"


def _cell_of(row: Row) -> tuple[str, str]:
    return row["kind"], row["region"]


def _empty(hour_s: int, kind: str, region: str) -> Row:
    """Return the row of a kind and region that has no file."""
    row = dict.fromkeys(_SCHEMA.names, 0) | {"ts_s": hour_s, "kind": kind, "region": region}
    return row | {"writers": [], "silent_writers": []}


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
