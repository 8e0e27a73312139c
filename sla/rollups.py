"""Where roll-ups stand: one folder per table and hour, one manifest per hour.

    <root>/<table>/date=YYYY-MM-DD/hour=HH/part-*.parquet
    <root>/_runs/date=YYYY-MM-DD/hour=HH/_run.json

Rule 1: an hour counts only with its manifest. It is taken away before the hour's folders are replaced and written when
        all of them stand: a job that was killed leaves an hour that is rolled up again, never half of one.
Rule 2: one job writes at a time (a lock on `_runs/.lock`); readers need none.
Rule 3: an hour that nothing is known of has no manifest; one in which nothing happened has one, and no rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sla.errors import JobFailed, UsageError
from sla.sources.layout import hour_folder, parse_hour
from sla.sources.location import Location
from sla.tables import DDL, HOUR_S, RollupTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS: Final = "_runs"
RUN_NAME: Final = "_run.json"
MANIFEST_VERSION: Final = 1
LOCK_WAIT_S_MAX: Final = 600
_LOCK_POLL_S: Final = 1.0
_STAGING_PREFIX: Final = ".staging-"


class HourAction(enum.Enum):
    """What a job did with an hour."""

    BUILT = "built"
    CURRENT = "current"  # nothing changed since it was built
    KEPT = "kept"  # its inputs are gone: retention deleted them, or they are in quarantine since


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRun:
    """The manifest of one hour.

    Args:
        hour_s: start of the hour, seconds since 1970 UTC.
        revision: how often it was built, from 1.
        is_final: it was built after the settle time was over.
        is_revised: it was built again, from other inputs, after it had been final.
        input_hash: stands for every row that was read and for the settle time.
        carry_hash: stands for what the hour before handed on, `carry_out_hash` for what this one does.
        rows_read: by kind of trace file.
        quarantined: files set aside of this hour and its neighbours. missing_rows: row numbers absent from the files.
        row_ranges: kind/broker/boot -> merged [first, last] row numbers that were read.
        built_at: ISO 8601, UTC. code_version: of the transforms.
        action: what the job did; not stored.
    """

    hour_s: int
    revision: int
    is_final: bool
    is_revised: bool
    input_hash: str
    carry_hash: str
    carry_out_hash: str
    rows_read: Mapping[str, int]
    files: int
    quarantined: int
    missing_rows: int
    settle_s: int
    row_ranges: Mapping[str, list[list[int]]]
    built_at: str
    code_version: str
    action: HourAction = field(default=HourAction.CURRENT, compare=False)

    def encode(self) -> bytes:
        """Return the manifest's bytes."""
        values = dataclasses.asdict(self)
        del values["action"]
        return json.dumps({"manifest_version": MANIFEST_VERSION} | values, sort_keys=True).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes) -> HourRun | None:
        """Return the manifest, None when it is none that this version knows: the hour is built again."""
        try:
            values: dict[str, Any] = json.loads(raw)
            if values.pop("manifest_version") != MANIFEST_VERSION:
                return None
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def lacks(self, earlier: HourRun) -> bool:
        """Return whether rows that `earlier` was made of are not among those of this run."""
        for run, ranges in earlier.row_ranges.items():
            mine = self.row_ranges.get(run, [])
            if any(not any(low <= first and last <= high for low, high in mine) for first, last in ranges):
                return True
        return False


class RollupStore:
    """The roll-ups below one directory.

    Args:
        root: a directory on this machine, or one that every executor has mounted there too.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

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

    def run(self, hour_s: int) -> HourRun | None:
        """Return the manifest of an hour, None when it was never rolled up."""
        try:
            return HourRun.decode((self.root / RUNS / hour_folder(hour_s) / RUN_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def runs(self, start_s: int | None = None, end_s: int | None = None) -> list[HourRun]:
        """Return the manifests of the hours that touch [start_s, end_s), in order; None: from the first, to the last.

        Args:
            start_s, end_s: seconds since 1970.
        """
        found = []
        for hour_s in self._hours():
            if (start_s is None or hour_s + HOUR_S > start_s) and (end_s is None or hour_s < end_s):
                run = self.run(hour_s)
                if run is not None:
                    found.append(run)
        return found

    def _hours(self) -> list[int]:
        hours = []
        for path in (self.root / RUNS).glob("date=*/hour=*"):
            hour = parse_hour(path.parent.name, path.name)
            if hour is not None:
                hours.append(int(hour.timestamp()))
        return sorted(hours)

    def read(
        self, spark: SparkSession, table: RollupTable, start_s: int | None = None, end_s: int | None = None
    ) -> DataFrame:
        """Return the rows of a table with `ts_s` in [start_s, end_s), of hours that have a manifest."""
        hours = [run.hour_s for run in self.runs(start_s, end_s)]
        return self.read_hours(spark, table, hours, start_s, end_s)

    def read_hours(
        self,
        spark: SparkSession,
        table: RollupTable,
        hours: list[int],
        start_s: int | None = None,
        end_s: int | None = None,
    ) -> DataFrame:
        """Return the rows of some hours of a table; `runs` says which there are."""
        paths = [path for path in (self.hour_path(table, hour) for hour in hours) if path.is_dir()]
        if not paths:
            return spark.createDataFrame([], DDL[table])
        rows = spark.read.schema(DDL[table]).parquet(*map(_escaped, paths))
        if start_s is not None:
            rows = rows.where(rows["ts_s"] >= start_s)
        if end_s is not None:
            rows = rows.where(rows["ts_s"] < end_s)
        return rows

    @contextlib.contextmanager
    def writing(self, on_step: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Hold the lock of the store.

        Raises:
            JobFailed: another job holds it for longer than LOCK_WAIT_S_MAX.
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
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Delete what killed jobs left."""
        for path in self.root.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def staging(self) -> Path:
        """Return a new folder for tables on their way; call it with the lock held."""
        path = self.root / f"{_STAGING_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        path.mkdir(parents=True)
        return path

    def install(self, staging: Path, run: HourRun, tables: Iterable[RollupTable] = tuple(RollupTable)) -> None:
        """Put the hour of some tables in place of what stands there, then its manifest."""
        folder = hour_folder(run.hour_s)
        manifest = self.root / RUNS / folder / RUN_NAME
        manifest.unlink(missing_ok=True)
        for table in tables:
            target, source = self.root / table.value / folder, staging / table.value / folder
            if target.exists():
                shutil.rmtree(target)
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
        self.write_run(run)

    def write_run(self, run: HourRun) -> None:
        """Write the manifest of an hour."""
        location = Location.open(self.root / RUNS)
        location.write_whole(f"{hour_folder(run.hour_s)}/{RUN_NAME}", run.encode())


def _escaped(path: Path) -> str:
    return "".join(f"\\{character}" if character in "\\{}[]*?" else character for character in str(path))
