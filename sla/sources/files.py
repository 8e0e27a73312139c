"""Finds the trace files of a period and proves them readable before Spark sees them.

Rule 1: a file is read whole, page checksums included, or set aside with its name and reason; it is never half counted.
Rule 2: what is missing is counted: rows between two files of a writer, rows the writer gave up, files set aside.
Rule 3: files of other kinds and unfinished files (names that start with a dot) are not ours to judge.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.files import TraceFileMetadata, TraceFileName
from georelay.trace.histogram import GRID
from georelay.trace.schema import SCHEMAS, TraceKind

VERIFY_THREADS: Final = 2
_ROWS_PER_READ: Final = 65_536
_HOUR: Final = datetime.timedelta(hours=1)
_PARTITION: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/region=[^/]+/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Half-open time range [start, end) in UTC; None is open-ended."""

    start: datetime.datetime | None = None
    end: datetime.datetime | None = None

    def may_hold(self, hour: datetime.datetime) -> bool:
        """Return whether a file closed in `hour` can hold rows of this period (a writer's hour may be one off)."""
        if self.start is not None and hour + 2 * _HOUR <= self.start:
            return False
        return self.end is None or hour - _HOUR < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodFile:
    """A file that was read whole."""

    path: Path
    name: TraceFileName
    metadata: TraceFileMetadata
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that is set aside, and why (one line)."""

    path: Path
    kind: TraceKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """The verified input of a report."""

    good: tuple[GoodFile, ...]
    bad: tuple[BadFile, ...]

    def paths(self, kind: TraceKind) -> list[str]:
        """Return the readable files of a kind."""
        return [str(file.path) for file in self.good if file.name.kind is kind]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all readable files."""
        return sum(file.size_bytes for file in self.good)

    @property
    def rows(self) -> int:
        """Return the rows of all readable files."""
        return sum(file.metadata.rows for file in self.good)

    def rows_of(self, *kinds: TraceKind) -> int:
        """Return the rows of the readable files of some kinds."""
        return sum(file.metadata.rows for file in self.good if file.name.kind in kinds)

    def rows_missing(self, kind: TraceKind) -> int:
        """Return how many row numbers are absent between the files of each writer."""
        missing = 0
        for files in self._by_writer(kind).values():
            for earlier, later in pairwise(sorted(files, key=lambda file: file.metadata.first_row_seq)):
                missing += max(0, later.metadata.first_row_seq - earlier.metadata.last_row_seq - 1)
        return missing

    def rows_dropped(self) -> int:
        """Return how many rows the writers say they gave up."""
        return sum(
            max(file.metadata.dropped for file in files)
            for kind in TraceKind
            for files in self._by_writer(kind).values()
        )

    def writers(self) -> list[str]:
        """Return the brokers that wrote, as region/broker."""
        return sorted({file.metadata.writer for file in self.good})

    def is_complete(self, kind: TraceKind) -> bool:
        """Return whether no row of a kind is known to be missing."""
        return self.rows_missing(kind) == 0 and all(file.kind is not kind for file in self.bad)

    def _by_writer(self, kind: TraceKind) -> dict[tuple[int, str], list[GoodFile]]:
        writers: dict[tuple[int, str], list[GoodFile]] = {}
        for file in self.good:
            if file.name.kind is kind:
                writers.setdefault((file.name.broker, file.name.boot_id), []).append(file)
        return writers


def find(directory: Path, period: Period) -> list[Path]:
    """Return the trace files below `directory` that may hold rows of the period, in a stable order."""
    return sorted(
        path
        for path in directory.glob("date=*/hour=*/region=*/*.parquet")
        if TraceFileName.parse(path.name) is not None and _is_wanted(path.relative_to(directory).as_posix(), period)
    )


def _is_wanted(relative: str, period: Period) -> bool:
    match = _PARTITION.fullmatch(relative)
    if match is None:
        return False
    try:
        hour = datetime.datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H").replace(tzinfo=datetime.UTC)
    except ValueError:
        return False
    return period.may_hold(hour)


def verify(paths: Iterable[Path], on_file: Callable[[], None] = lambda: None) -> TraceFiles:
    """Read every file whole and sort good from bad. `on_file` is called after each, for a progress bar."""
    good: list[GoodFile] = []
    bad: list[BadFile] = []
    with ThreadPoolExecutor(VERIFY_THREADS) as pool:
        for checked in pool.map(_check, paths):
            if isinstance(checked, GoodFile):
                good.append(checked)
            else:
                bad.append(checked)
            on_file()
    return TraceFiles(good=tuple(good), bad=tuple(bad))


def _check(path: Path) -> GoodFile | BadFile:
    name = TraceFileName.parse(path.name)
    assert name is not None, path  # find() chose it
    try:
        return GoodFile(path=path, name=name, metadata=_read_whole(path, name.kind), size_bytes=path.stat().st_size)
    except (OSError, ValueError, pa.ArrowException) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return BadFile(path=path, kind=name.kind, reason=first_line)


def _read_whole(path: Path, kind: TraceKind) -> TraceFileMetadata:
    """Read all pages, checksums verified. Raises ValueError for a file that is not what its name says."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = TraceFileMetadata.decode(file.schema_arrow.metadata or {})
        if metadata.kind is not kind:
            raise ValueError(f"the file holds rows of kind {metadata.kind.value}")
        if kind is TraceKind.LATENCY_HIST and metadata.hist_grid != GRID:
            raise ValueError(f"histogram grid {metadata.hist_grid} is not known; this report reads grid {GRID}")
        for field in SCHEMAS[kind]:
            index = file.schema_arrow.get_field_index(field.name)
            if index >= 0 and not file.schema_arrow.field(index).type.equals(field.type):
                raise ValueError(f"column {field.name} is {file.schema_arrow.field(index).type}, not {field.type}")
            if index < 0 and not field.nullable:
                raise ValueError(f"column {field.name} is missing")
        rows = sum(batch.num_rows for batch in file.iter_batches(_ROWS_PER_READ))
    if rows != metadata.rows or metadata.last_row_seq - metadata.first_row_seq + 1 != rows:
        numbered = f"{metadata.first_row_seq} to {metadata.last_row_seq}"
        raise ValueError(f"the file holds {rows} rows, its metadata says {metadata.rows} numbered {numbered}")
    return metadata
