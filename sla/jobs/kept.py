"""A period of which only roll-ups are left: which hours, which minutes have rows, how many bytes stand there.

Rule 1: traces live for weeks, roll-ups until somebody deletes them: a report is made of what there is.
Rule 2: nothing is rolled up and nothing is written here: what hours without traces were made of is known no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sla.errors import JobFailed, NoTraces
from sla.judging.facts import Span
from sla.judging.probed import with_probed
from sla.rollup_files_core import DAY_S
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import Period, date_folder, hour_folder
from sla.tables import HOUR_S, MINUTE_S, RollupTable

# The roll-ups of the kinds that decide the period of a report of everything.
_TABLES_OF_PERIOD: Final = (RollupTable.MINUTE, RollupTable.REQUESTS_MINUTE, RollupTable.AVAIL_MINUTE)


def kept_hours(store: RollupStore, period: Period) -> list[HourRun]:
    """Return the hours of a period that were made of traces, as kept, in order."""
    start_s, end_s = _ends(period)
    return [replace(run, action=HourAction.KEPT) for run in store.runs(start_s, end_s) if run.files]


def kept_span(store: RollupStore, period: Period, runs: Iterable[HourRun]) -> Span:
    """Return the minutes of a report of roll-ups: the period rounded outward; where it is open, those with rows.

    Seconds in which probes are expected are known to the minute only: in the first and the last one they are as many
    as there are probes of one pair.

    Args:
        runs: hours of the period, in order, one at least.

    Raises:
        NoTraces: they have rows outside of it only.
        JobFailed: a roll-up cannot be read.
    """
    runs = list(runs)
    found = _Found(store)
    start_s, end_s = _ends(period)
    first_s, _ = found.ends(runs, _TABLES_OF_PERIOD)
    _, last_s = found.ends(runs[::-1], _TABLES_OF_PERIOD)
    first_s = first_s if start_s is None else start_s - start_s % MINUTE_S
    end_s = last_s + MINUTE_S if end_s is None else end_s + -end_s % MINUTE_S
    if first_s >= end_s:
        raise NoTraces("no row of a roll-up lies in that period, and its traces are gone")
    return with_probed(
        Span(start_s=first_s, end_s=end_s),
        rows=(first_s, last_s + MINUTE_S - 1),
        probes=found.probes(runs),
        is_start_open=period.start is None,
        is_end_open=period.end is None,
    )


def rollup_bytes(root: Path, start_s: int, end_s: int) -> int:
    """Return the bytes of the roll-ups that hold rows of [start_s, end_s), without reading a manifest.

    Args:
        root: of the roll-ups.
        start_s, end_s: seconds since 1970.
    """
    return sum(
        _day_bytes(root / table.value, day_s, start_s, end_s)
        for table in RollupTable
        for day_s in range(start_s - start_s % DAY_S, end_s, DAY_S)
    )


def _day_bytes(table: Path, day_s: int, start_s: int, end_s: int) -> int:
    """Return the bytes of a day's own files, and of those of its hours that touch [start_s, end_s)."""
    total = 0
    hours = {
        hour_folder(hour_s).partition("/")[2]
        for hour_s in range(max(day_s, start_s - start_s % HOUR_S), min(day_s + DAY_S, end_s), HOUR_S)
    }
    for entry in _entries(table / date_folder(day_s)):
        if entry.is_file():
            total += entry.stat().st_size
        elif entry.name in hours:
            total += sum(file.stat().st_size for file in _entries(entry) if file.is_file())
    return total


def _entries(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:  # no rows, or a job merges the day meanwhile
        return []


def _ends(period: Period) -> tuple[int | None, int | None]:
    """Return the ends of a period in whole seconds, rounded outward."""
    start_s = None if period.start is None else int(period.start.timestamp() // 1)
    end_s = None if period.end is None else -int(-period.end.timestamp() // 1)
    return start_s, end_s


class _Found:
    """The minutes that roll-ups have rows of."""

    def __init__(self, store: RollupStore) -> None:
        self._root = store.root
        self._snapshot = store.snapshot()

    def ends(self, runs: Iterable[HourRun], tables: Sequence[RollupTable]) -> tuple[int, int]:
        """Return the first and the last minute with rows of the first of the hours that has any.

        Without any: the whole of the last of the hours.
        """
        for run in runs:
            minutes = [minute_s for table in tables for minute_s in self._minutes(table, run.hour_s)]
            if minutes:
                return min(minutes), max(minutes)
        return run.hour_s, run.hour_s + HOUR_S - MINUTE_S

    def probes(self, runs: Sequence[HourRun]) -> tuple[int, int] | None:
        """Return the first and the last second in which a probe was due; None when the roll-ups do not say it."""
        first = next(filter(None, (self._minutes(RollupTable.AVAIL_MINUTE, run.hour_s) for run in runs)), None)
        last = next(filter(None, (self._minutes(RollupTable.AVAIL_MINUTE, run.hour_s) for run in runs[::-1])), None)
        if first is None or last is None or min(first) == max(last):
            return None
        in_first, in_last = (min(count, MINUTE_S) for count in (first[min(first)], last[max(last)]))
        return min(first) + MINUTE_S - in_first, max(last) + in_last - 1

    def _minutes(self, table: RollupTable, hour_s: int) -> dict[int, int]:
        """Return the minutes of an hour with rows of a table -> the most probes of a pair, 0 in other tables."""
        found = self._snapshot.reading(table, hour_s, hour_s + HOUR_S)
        has_probes = table is RollupTable.AVAIL_MINUTE
        minutes: dict[int, int] = {}
        for path in (*found.day_files, *found.hour_files):
            rows = _read(self._root / path, ["ts_s", *["probes"] * has_probes])
            rows = rows.filter(pc.and_(pc.greater_equal(rows["ts_s"], hour_s), pc.less(rows["ts_s"], hour_s + HOUR_S)))
            counted = rows.group_by("ts_s").aggregate([("probes", "max")] if has_probes else [])
            counts = counted["probes_max"].to_pylist() if has_probes else [0] * counted.num_rows
            for minute_s, probes in zip(counted["ts_s"].to_pylist(), counts, strict=True):
                minutes[minute_s] = max(minutes.get(minute_s, 0), probes or 0)
        return minutes


def _read(path: Path, columns: list[str]) -> pa.Table:
    try:
        return pq.ParquetFile(path).read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobFailed(f"{path} cannot be read: {first_line}") from error
