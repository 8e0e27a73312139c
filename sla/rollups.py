"""Where roll-ups stand: files of hours, files of days, and one manifest per hour and per day that names them.

    <root>/<table>/date=YYYY-MM-DD/hour=HH/part-*.parquet
    <root>/<table>/date=YYYY-MM-DD/day-*.parquet
    <root>/<sums>/date=YYYY-MM-DD/day-*.parquet
    <root>/_runs/date=YYYY-MM-DD/hour=HH/_run.json
    <root>/_runs/date=YYYY-MM-DD/_day.json

Rule 1: an hour counts only with its manifest, and its rows are those of the files that it names. New files stand before
        the manifest that names them; that one write puts them in place of what was there.
Rule 2: a day's file takes the place of its hours' with the write of the day's manifest (sla.rollup_manifests). A reader
        at any moment, and after any crash, has every hour once.
Rule 3: files that no manifest names any more stay until a later job, an hour or more behind: readers have time.
Rule 4: one job writes at a time (a lock on `_runs/.lock`); readers need none.
Rule 5: an hour that nothing is known of has no manifest; one in which nothing happened has one, and no rows.
Rule 6: a manifest that cannot be read, or that is of another time than its folder, stops who needs it, before anything
        is written or deleted.
Rule 7: while a job holds the lock nobody else writes manifests: it reads those of an hour once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sla.day_files import write_day
from sla.day_sums import DAY_SUMS, write_sums
from sla.errors import JobFailed, UsageError
from sla.rollup_files_core import DAY_S, Merge, Reading, day_of, is_closed, merges, needed, reading, sweep, whole_days
from sla.rollup_manifests import DAY_DAMAGED, HOUR_DAMAGED, DayFile, DayRun, HourAction, HourRun, UnknownManifest
from sla.sources.layout import date_folder, hour_folder, parse_hour
from sla.sources.location import Location
from sla.tables import DDL, HOUR_S, RollupTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["HourAction", "HourRun", "RollupSnapshot", "RollupStore"]

RUNS: Final = "_runs"
RUN_NAME: Final = "_run.json"
DAY_NAME: Final = "_day.json"
UNNEEDED_NAME: Final = "_unneeded.json"
LOCK_WAIT_S_MAX: Final = 600
_LOCK_POLL_S: Final = 1.0
_STAGING_PREFIX: Final = ".staging-"
_TABLES: Final = tuple(table.value for table in RollupTable)
_Version = tuple[int, int, int]
_FOLDERS: Final = (*_TABLES, *(sums.name for sums in DAY_SUMS.values()))


class RollupStore:
    """The roll-ups below one directory.

    Args:
        root: a directory on this machine, or one that every executor has mounted there too.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._location = Location.open(root)
        self._known: dict[int, HourRun] | None = None  # what stands, while this process holds the lock
        self._decoded: dict[int, tuple[_Version, HourRun]] = {}  # a year has 8,760 manifests: each is decoded once

    @classmethod
    def open(cls, where: str | Path) -> RollupStore:
        """Return the store of a directory or file:// URI; nothing is made yet.

        Raises:
            UsageError: an object store: folders cannot be renamed there.
        """
        location = Location.open(where)
        if not location.is_local:
            raise UsageError(f"--rollups must be a directory, mounted on every machine of a cluster, not {where}")
        return cls(Path(location.root))

    def hour_path(self, table: RollupTable, hour_s: int) -> Path:
        """Return the folder of one hour of a table."""
        return self.root / table.value / hour_folder(hour_s)

    # Reading

    def run(self, hour_s: int) -> HourRun | None:
        """Return the manifest of an hour, None when it was never rolled up.

        Raises:
            JobFailed: there is one that cannot be read; `day` and whatever reads manifests alike.
        """
        run = self._stored_run(hour_s)
        return run if run is None or run.parts is not None else replace(run, parts=self._found_parts(hour_s))

    def _stored_run(self, hour_s: int) -> HourRun | None:
        if self._known is not None and hour_s in self._known:
            return self._known[hour_s]
        known = self._decoded.get(hour_s)
        found = _read(path := self.root / RUNS / hour_folder(hour_s) / RUN_NAME, None if known is None else known[0])
        if found is None:
            return None
        version, raw = found
        if raw is None:
            run = self._decoded[hour_s][1]
        else:
            with _naming(path):
                run = HourRun.decode(raw)
                if run.hour_s != hour_s:
                    raise UnknownManifest(HOUR_DAMAGED)
            self._decoded[hour_s] = version, run
        if self._known is not None:
            self._known[hour_s] = run
        return run

    def _found_parts(self, hour_s: int) -> dict[str, list[str]]:
        """Return the files of an hour whose manifest names none: what stands in its folders."""
        return {
            table.value: sorted(path.name for path in self.hour_path(table, hour_s).glob("part-*.parquet"))
            for table in RollupTable
        }

    def day(self, day_s: int) -> DayRun | None:
        """Return the manifest of a day, None when its hours stand alone."""
        found = _read(path := self.root / RUNS / date_folder(day_s) / DAY_NAME)
        if found is None:
            return None
        with _naming(path):
            day = DayRun.decode(found[1] or b"")
            if day.day_s != day_s:
                raise UnknownManifest(DAY_DAMAGED)
        return day

    def runs(self, start_s: int | None = None, end_s: int | None = None) -> list[HourRun]:
        """Return the manifests of the hours that touch [start_s, end_s), in order; None: from the first, to the last.

        Args:
            start_s, end_s: seconds since 1970.
        """
        return self.snapshot().runs(start_s, end_s)

    def snapshot(self) -> RollupSnapshot:
        """Return a reader that looks at each manifest once."""
        return RollupSnapshot(self)

    def read(
        self, spark: SparkSession, table: RollupTable, start_s: int | None = None, end_s: int | None = None
    ) -> DataFrame:
        """Return the rows of a table with `ts_s` in [start_s, end_s), of hours that have a manifest."""
        return self.snapshot().read(spark, table, start_s, end_s)

    def days(self) -> list[int]:
        """Return the starts of the days of which anything is known, in order."""
        return self._dates(RUNS)

    def _dates(self, *folders: str) -> list[int]:
        """Return the starts of the days that have a folder in one of ours, in order."""
        names = {path.name for folder in folders for path in (self.root / folder).glob("date=*")}
        days = (parse_hour(name, "hour=00") for name in names)
        return sorted(int(day.timestamp()) for day in days if day is not None)

    def hours(self, day_s: int) -> list[int]:
        """Return the starts of a day's hours that have a folder for their manifest, in order."""
        date = date_folder(day_s)
        try:
            names = os.listdir(self.root / RUNS / date)
        except FileNotFoundError:
            return []
        hours = (parse_hour(date, name) for name in names)
        return sorted(int(hour.timestamp()) for hour in hours if hour is not None)

    def manifests(self, day_s: int) -> tuple[DayRun | None, list[HourRun]]:
        """Return the manifests of a day and of its hours."""
        day = self.day(day_s)  # first: what an hour says afterwards is newer, and decides
        return day, [run for run in map(self.run, self.hours(day_s)) if run is not None]

    # Writing

    @contextlib.contextmanager
    def writing(
        self,
        on_step: Callable[[str], None] = lambda _: None,
        *,
        hours: Iterable[int] | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> Iterator[None]:
        """Hold the lock of the store.

        Args:
            hours: what will be written: files of their days that nobody needs are looked for; None: of all days.
            clock_s: wall clock, seconds since 1970: says, with the lock held, which of these files may go.

        Raises:
            JobFailed: another job holds it for longer than LOCK_WAIT_S_MAX; a manifest of these days cannot be read.
        """
        (self.root / RUNS).mkdir(parents=True, exist_ok=True)
        with (self.root / RUNS / ".lock").open("w") as lock:
            deadline = time.monotonic() + LOCK_WAIT_S_MAX
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise JobFailed(f"another job writes to {self.root}; wait for it or end it") from None
                    on_step("waiting for another job that writes roll-ups")
                    time.sleep(_LOCK_POLL_S)
            self._known = {}
            try:
                days = None if hours is None else {day_of(hour_s) for hour_s in hours}
                for day_s in sorted(days or ()):
                    self.manifests(day_s)
                self._sweep(days, clock_s())
                yield
            finally:
                self._known = None

    def _sweep(self, days: set[int] | None, now_s: float) -> None:
        """Delete what killed jobs left, and what nobody needs for long enough."""
        for path in self.root.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
        known = self._unneeded_since()
        folders = {path.split("/")[1] for path in known if path.count("/") > 1}
        unneeded = [
            relative
            for day_s in self._dates(RUNS, *_FOLDERS)
            if days is None or day_s in days or date_folder(day_s) in folders
            for relative in self._unneeded(day_s)
        ]
        if not unneeded and not known:
            return
        found = sweep(unneeded, known, now_s=now_s)
        for relative in found.deleted:
            path = self.root / relative
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files are in it
                path.parent.rmdir()
        if found.unneeded_since != known:
            self._location.write_whole(f"{RUNS}/{UNNEEDED_NAME}", json.dumps(dict(found.unneeded_since)).encode())

    def _unneeded_since(self) -> dict[str, int]:
        try:
            known = json.loads((self.root / RUNS / UNNEEDED_NAME).read_bytes())
            return {str(path): int(since_s) for path, since_s in known.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}  # they are seen for the first time, and stay longer

    def _unneeded(self, day_s: int) -> list[str]:
        """Return the files of a day that no manifest names; none while one of its manifests cannot be read."""
        try:
            day, runs = self.manifests(day_s)
        except JobFailed:  # whoever needs the day is told; what its manifests may name stays
            return []
        wanted = needed(runs, {} if day is None else {day_s: day}, _TABLES)
        return [
            relative
            for folder_name in _FOLDERS
            for folder, _, names in os.walk(self.root / folder_name / date_folder(day_s))
            for name in names
            if (relative := os.path.relpath(os.path.join(folder, name), self.root)) not in wanted
        ]

    def staging(self) -> Path:
        """Return a new folder for tables on their way; call it with the lock held."""
        path = self.root / f"{_STAGING_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        path.mkdir(parents=True)
        return path

    def install(self, staging: Path, run: HourRun, tables: Iterable[RollupTable] = tuple(RollupTable)) -> HourRun:
        """Put the hour of some tables in place of what counts there; return the manifest that says so.

        Args:
            staging: has `<table>/date=*/hour=*/part-*.parquet` with names that were never used before.
        """
        folder = hour_folder(run.hour_s)
        found = self._adopted(run.hour_s)
        parts: dict[str, list[str]] = {}
        if found is not None and found.parts is not None:
            parts = {table: list(names) for table, names in found.parts.items()}
        for table in tables:
            source, target = staging / table.value / folder, self.root / table.value / folder
            names = sorted(path.name for path in source.glob("part-*.parquet"))
            if names:
                target.mkdir(parents=True, exist_ok=True)
            for name in names:
                _sync(source / name)
                (source / name).rename(target / name)
            if names:
                _sync(target)
            parts[table.value] = names
        run = replace(run, parts=parts)
        self.write_run(run)
        return run

    def _adopted(self, hour_s: int) -> HourRun | None:
        """Return the manifest of an hour; if it named no files, it does now."""
        stored, run = self._stored_run(hour_s), self.run(hour_s)
        if stored is not None and stored.parts is None and run is not None:
            self.write_run(run)
        return run

    def write_run(self, run: HourRun) -> None:
        """Write the manifest of an hour."""
        if self._known is not None:
            self._known.pop(run.hour_s, None)  # what is read next is what stands
        self._location.write_whole(f"{RUNS}/{hour_folder(run.hour_s)}/{RUN_NAME}", run.encode())

    def merge(self, day_s: int, *, now_s: float) -> bool:
        """Merge the hours of a day into a file per table, and add these up, if it is time.

        Return whether there was anything to do.

        Call it with the lock held.

        Args:
            day_s: start of the day; now_s: wall clock; seconds since 1970.

        Raises:
            OSError: a file cannot be read or written; what stood before still stands.
            JobFailed: what was written does not read back; a manifest cannot be read.
        """
        day, runs = self.manifests(day_s)
        if not is_closed(day_s, now_s=now_s):
            return False
        wanted = merges(day_s, runs, day, _TABLES, now_s=now_s)
        if wanted:
            for run in runs:
                self._adopted(run.hour_s)
        stood = {} if day is None else dict(day.files)
        files = dict(stood)
        for merge in wanted:
            files.pop(merge.table, None)
            if merge.holds:
                files[merge.table] = self._merged(day_s, merge)
        self._sum_up(day_s, files)
        if files == stood:
            return False
        raw = DayRun(day_s=day_s, files=files).encode()
        self._location.write_whole(f"{RUNS}/{date_folder(day_s)}/{DAY_NAME}", raw)
        return True

    def _merged(self, day_s: int, merge: Merge) -> DayFile:
        name = f"day-{uuid.uuid4().hex}.parquet"
        write_day(self._location, merge, f"{merge.table}/{date_folder(day_s)}/{name}")
        return DayFile(name=name, holds=merge.holds)

    def _sum_up(self, day_s: int, files: dict[str, DayFile]) -> None:
        """Add the sums of a day to its files, where they are not those of the files that stand."""
        for table, sums in DAY_SUMS.items():
            source, found = files.get(table.value), files.get(sums.name)
            if source is None:
                files.pop(sums.name, None)
            elif found is None or found.holds != source.holds:
                name, date = f"day-{uuid.uuid4().hex}.parquet", date_folder(day_s)
                paths = {"source": f"{table.value}/{date}/{source.name}", "target": f"{sums.name}/{date}/{name}"}
                write_sums(self._location, sums, day_s=day_s, **paths)
                files[sums.name] = DayFile(name=name, holds=source.holds)


class RollupSnapshot:
    """What manifests said when they were first looked at: a report reads each of them once, and all tables alike.

    Args:
        store: of which.
    """

    def __init__(self, store: RollupStore) -> None:
        self._store = store
        self._known_days: list[int] | None = None
        self._days: dict[int, DayRun] = {}
        self._runs: dict[int, list[HourRun]] = {}

    def runs(self, start_s: int | None = None, end_s: int | None = None) -> list[HourRun]:
        """Return the manifests of the hours that touch [start_s, end_s), in order; None: from the first, to the last.

        Args:
            start_s, end_s: seconds since 1970.
        """
        if self._known_days is None:
            self._known_days = self._store.days()
        found = []
        for day_s in self._known_days:
            if (start_s is not None and day_s + DAY_S <= start_s) or (end_s is not None and day_s >= end_s):
                continue
            for run in self._of_day(day_s):
                if (start_s is None or run.hour_s + HOUR_S > start_s) and (end_s is None or run.hour_s < end_s):
                    found.append(run)
        return found

    def _of_day(self, day_s: int) -> list[HourRun]:
        if day_s not in self._runs:
            day, self._runs[day_s] = self._store.manifests(day_s)
            if day is not None:
                self._days[day_s] = day
        return self._runs[day_s]

    def reading(
        self,
        table: RollupTable,
        start_s: int | None = None,
        end_s: int | None = None,
        *,
        without_days: Collection[int] = (),
    ) -> Reading:
        """Return where the rows of a table with `ts_s` in [start_s, end_s) stand, those of some days left out."""
        runs = self.runs(start_s, end_s)
        if without_days:
            runs = [run for run in runs if day_of(run.hour_s) not in without_days]
        found = reading(table.value, runs, self._days)
        low_s = found.low_s if start_s is None else max(start_s, found.low_s)
        high_s = found.high_s if end_s is None else min(end_s, found.high_s)
        return replace(found, low_s=low_s, high_s=high_s)

    def read(
        self, spark: SparkSession, table: RollupTable, start_s: int | None = None, end_s: int | None = None
    ) -> DataFrame:
        """Return the rows of a table with `ts_s` in [start_s, end_s), of hours that have a manifest."""
        return self._rows(spark, table, self.reading(table, start_s, end_s))

    def read_sums(self, spark: SparkSession, table: RollupTable, start_s: int, end_s: int) -> DataFrame:
        """Return rows that add up to those of `read`: of a whole day one per key where its sums stand.

        Their `ts_s` is the start of the day; columns that are not summed are null. Only tables of sla.day_sums.
        """
        sums = DAY_SUMS[table]
        days = whole_days(sums.name, table.value, self.runs(start_s, end_s), self._days, start_s=start_s, end_s=end_s)
        if not days:
            return self.read(spark, table, start_s, end_s)
        rows = spark.read.schema(DDL[table]).parquet(*(_escaped(self._store.root / path) for path in days.values()))
        rest = self.reading(table, start_s, end_s, without_days=days.keys())
        return rows.unionAll(self._rows(spark, table, rest)) if rest.day_files or rest.hour_files else rows

    def _rows(self, spark: SparkSession, table: RollupTable, found: Reading) -> DataFrame:
        frames = []
        for paths, is_of_days in ((found.day_files, True), (found.hour_files, False)):
            if paths:
                escaped = (_escaped(self._store.root / path) for path in paths)
                rows = spark.read.schema(DDL[table]).parquet(*escaped)
                if is_of_days and found.absent:
                    rows = rows.where(~(rows["ts_s"] - rows["ts_s"] % HOUR_S).isin(*found.absent))
                frames.append(rows)
        if not frames:
            from sla.local_rows import local_rows  # Spark is loaded where it has work

            return local_rows(spark, [], DDL[table])
        rows = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
        return rows.where((rows["ts_s"] >= found.low_s) & (rows["ts_s"] < found.high_s))


def _read(path: Path, known: _Version | None = None) -> tuple[_Version, bytes | None] | None:
    """Return what changes whenever a manifest is written, for each is a new file, and its bytes.

    Return None when there is no manifest, and no bytes of one that is known. It is opened in any case: of a path alone
    a network file system may remember what stood there before.
    """
    try:
        with path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            version = found.st_ino, found.st_mtime_ns, found.st_size
            return version, None if version == known else file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JobFailed(f"{path} cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which manifest is none."""
    try:
        yield
    except UnknownManifest as error:
        raise JobFailed(f"{path} {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _escaped(path: Path) -> str:
    return "".join(f"\\{character}" if character in "\\{}[]*?" else character for character in str(path))
