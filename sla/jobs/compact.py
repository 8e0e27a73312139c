"""The compact job: makes of the many small files of a closed hour one file per writer's run and kind, in its place.

Rule 1: a compacted file is an ordinary trace file: consecutive rows of one (kind, broker, boot), checksums, metadata;
        every reader reads it, and the hash of the input stays what it was.
Rule 2: it is written, read back and compared row by row before anything is deleted.
Rule 3: a crash at any moment loses nothing and doubles nothing: while old and new files are there together, the old
        ones are superseded (a reader counts rows of one number once), and the next run deletes them after it found
        their very rows in the new one.
Rule 4: nothing is written over: a file gets a name that none has.
Rule 5: bad files, overlapping ones and gaps between row numbers are left as they are.

A reader that listed the files before and opens them after fails and is run again; it never sees half of the rows.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.files import TraceFileMetadata
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.errors import JobFailed
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.layout import HOUR_S, Period, hour_folder
from sla.sources.location import IN_PROGRESS_PREFIX, Location
from sla.sources.manifest import DIGEST_BITS, INPUT_DIGEST_KEY, INPUT_FILES_KEY, GoodFile, TraceFiles
from sla.sources.verify import Depth

OLDER_THAN_S: Final = 2 * HOUR_S
COMPACTED_ROWS_MAX: Final = 524_288  # of one file: a few hundred megabytes of memory while it is made
ROW_GROUP_ROWS: Final = 131_072
LOCK_NAME: Final = ".compact.lock"
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest:
    """What to compact.

    Args:
        traces: directory or URI.
        period: hours outside are left alone.
        older_than_s: an hour is closed when it ended so long ago; writers' files of it are all there.
        clock_ns: wall clock, ns since 1970.
    """

    traces: str | Path
    period: Period = field(default_factory=Period)
    older_than_s: int = OLDER_THAN_S
    clock_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a run did.

    Args:
        hours: closed hours that had something to do.
        files_before: files that were replaced or were superseded already; bytes_before: theirs.
        files_after: files that replaced them; bytes_after: theirs.
        rows: rows of the new files.
        bad_files: left alone.
    """

    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    bad_files: int = 0


def run_compact(request: CompactRequest, on_step: Callable[[str], None] = lambda _: None) -> Compacted:
    """Compact the closed hours of a period.

    Raises:
        NoTraces: there is no trace file.
        UsageError: `traces` is no directory or no known URI.
        JobFailed: the file system failed, or another run is at work; what was done so far stands.
    """
    location = Location.open(request.traces)
    closed_before_s = request.clock_ns() // _NS - request.older_than_s
    try:
        with _alone(location):
            return _compact(request, location, closed_before_s, on_step)
    except OSError as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobFailed(f"compaction stopped: {first_line}") from error


def _compact(
    request: CompactRequest, location: Location, closed_before_s: int, on_step: Callable[[str], None]
) -> Compacted:
    # Footers only: every row is read when it is copied, and a file that cannot be read stops its group there.
    files = run_verify(
        VerifyRequest(traces=request.traces, period=request.period, depth=Depth.FOOTERS, clock_ns=request.clock_ns),
        on_step,
    )
    total = Compacted(bad_files=len(files.bad))
    for hour_s in files.hours():
        if hour_s + HOUR_S > closed_before_s or not _is_inside(hour_s, request.period):
            continue
        done = _compact_hour(location, hour_s, _of_hour(files, hour_s))
        if done.files_before:
            total = _sum(total, done)
            hour = datetime.datetime.fromtimestamp(hour_s, tz=datetime.UTC)
            on_step(f"{hour:%Y-%m-%d %H}h: {done.files_before:,} files are {done.files_after:,} now")
    return total


def _compact_hour(location: Location, hour_s: int, files: TraceFiles) -> Compacted:
    done = Compacted()
    if location.is_local:  # of runs that were killed: the lock says that nobody else is at work
        for path in Path(location.path(hour_folder(hour_s))).glob(f"region=*/{IN_PROGRESS_PREFIX}*.parquet.*.tmp"):
            path.unlink()
    for file in files.superseded:
        if _is_held(location, file, files.good):
            location.delete(file.relative)
            done = _sum(done, Compacted(files_before=1, bytes_before=file.size_bytes))
    taken = {file.relative for file in (*files.good, *files.superseded)} | {file.relative for file in files.bad}
    for group in groups(files):
        for part, table in _readable(location, group):
            made = _merge(location, part, table, taken)
            if made is not None:
                done = _sum(done, made)
    return _sum(done, Compacted(hours=1))


def _is_held(location: Location, file: GoodFile, good: Iterable[GoodFile]) -> bool:
    """Return whether a file beside it can be read and holds the very rows of a superseded one."""
    first, last = file.metadata.first_row_seq, file.metadata.last_row_seq
    for holder in good:
        held = holder.metadata
        is_beside = holder.run == file.run and holder.region == file.region
        if is_beside and held.first_row_seq <= first and last <= held.last_row_seq:
            theirs, ours = _read(location, holder), _read(location, file)
            rows = slice(first - held.first_row_seq, last - held.first_row_seq + 1)
            return theirs is not None and ours is not None and bool(theirs[rows].equals(ours))
    return False


def groups(files: TraceFiles) -> Iterator[list[GoodFile]]:
    """Yield the files of one hour that shall be one: at least two, consecutive rows of one run in one folder."""
    by_run: dict[tuple[str, TraceKind, int, str], list[GoodFile]] = {}
    for file in files.good:
        by_run.setdefault((file.place.region, *file.run), []).append(file)
    for run in by_run.values():
        group: list[GoodFile] = []
        for file in sorted(run, key=lambda file: file.metadata.first_row_seq):
            if group and not _continues(group, file):
                yield from [group] if len(group) > 1 else []
                group = []
            group.append(file)
        yield from [group] if len(group) > 1 else []


def _continues(group: list[GoodFile], file: GoodFile) -> bool:
    last = group[-1].metadata
    rows = sum(each.metadata.rows for each in group) + file.metadata.rows
    return (
        file.metadata.first_row_seq == last.last_row_seq + 1
        and file.metadata.hist_grid == last.hist_grid
        and rows <= COMPACTED_ROWS_MAX
    )


def _readable(location: Location, group: list[GoodFile]) -> Iterator[tuple[list[GoodFile], Any]]:
    """Yield the parts of a group between files that cannot be read, each with its rows; lone files are left out."""
    part: list[GoodFile] = []
    tables: list[Any] = []
    for file in group:
        table = _read(location, file)
        if table is not None:
            part.append(file)
            tables.append(table)
            continue
        if len(part) > 1:
            yield part, pa.concat_tables(tables)
        part, tables = [], []
    if len(part) > 1:
        yield part, pa.concat_tables(tables)


def _merge(location: Location, group: list[GoodFile], table: Any, taken: set[str]) -> Compacted | None:
    """Write one file of a group, prove it, delete the group; None when no name is free."""
    target = group[0].place.compacted(taken)
    if target is None:
        return None
    metadata = _metadata(group)
    mtimes_ns = [file.mtime_ns for file in group if file.mtime_ns is not None]
    with location.writing(target, mtime_ns=max(mtimes_ns, default=None)) as path:
        with location.filesystem.open_output_stream(path) as sink:
            _write(table.replace_schema_metadata(metadata), sink, group[0].kind)
        with location.filesystem.open_input_file(path) as source:
            size_bytes = source.size()
            if not _holds(source, table):
                raise JobFailed(f"{target} does not read back as it was written; the disk or memory is at fault")
    taken.add(target)
    for file in group:
        location.delete(file.relative)
    return Compacted(
        files_before=len(group),
        files_after=1,
        bytes_before=sum(file.size_bytes for file in group),
        bytes_after=size_bytes,
        rows=table.num_rows,
    )


def _holds(source: Any, table: Any) -> bool:
    try:
        return bool(pq.read_table(source, page_checksum_verification=True).equals(table))
    except (ValueError, pa.ArrowException):  # torn; what the storage refuses is an OSError
        return False


def _read(location: Location, file: GoodFile) -> Any | None:
    """Return a file's rows in the columns of its kind, None for one that is gone or has a damaged page."""
    try:
        with location.open_input(file.relative) as source:
            held = pq.read_table(source, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException):  # verification names it
        return None
    if held.num_rows != file.metadata.rows:
        return None
    arrays = [
        held.column(column.name).cast(column.type)
        if column.name in held.column_names
        else pa.chunked_array([pa.nulls(held.num_rows, column.type)])
        for column in SCHEMAS[file.kind]
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[file.kind])


def _metadata(group: list[GoodFile]) -> dict[bytes, bytes]:
    first, last = group[0].metadata, group[-1].metadata
    metadata = TraceFileMetadata(
        kind=first.kind,
        writer=first.writer,
        boot_id=first.boot_id,
        first_row_seq=first.first_row_seq,
        last_row_seq=last.last_row_seq,
        rows=sum(file.metadata.rows for file in group),
        dropped=last.dropped,
        hist_grid=first.hist_grid,
        schema_version=max(file.metadata.schema_version for file in group),
    )
    digest = sum(file.digest for file in group) % 2**DIGEST_BITS
    return {
        **metadata.encode(),
        INPUT_DIGEST_KEY: f"{digest:064x}".encode(),
        INPUT_FILES_KEY: str(sum(file.input_files for file in group)).encode(),
    }


def _write(table: Any, sink: Any, kind: TraceKind) -> None:
    """Write as brokers do: what they chose was measured for these columns."""
    schema = SCHEMAS[kind]
    pq.write_table(
        table,
        sink,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        use_dictionary=[column.name for column in schema if pa.types.is_string(column.type)],
        column_encoding={column.name: "DELTA_BINARY_PACKED" for column in schema if pa.types.is_int64(column.type)},
        write_page_checksum=True,
    )


def _of_hour(files: TraceFiles, hour_s: int) -> TraceFiles:
    near = files.near(hour_s)
    return TraceFiles(
        location=near.location,
        good=tuple(file for file in near.good if file.place.hour_s == hour_s),
        bad=tuple(file for file in near.bad if file.place.hour_s == hour_s),
        superseded=tuple(file for file in near.superseded if file.place.hour_s == hour_s),
    )


def _is_inside(hour_s: int, period: Period) -> bool:
    """Return whether an hour lies wholly in a period."""
    is_begun = period.start is None or hour_s >= period.start.timestamp()
    return is_begun and (period.end is None or hour_s + HOUR_S <= period.end.timestamp())


def _sum(left: Compacted, right: Compacted) -> Compacted:
    return Compacted(
        hours=left.hours + right.hours,
        files_before=left.files_before + right.files_before,
        files_after=left.files_after + right.files_after,
        bytes_before=left.bytes_before + right.bytes_before,
        bytes_after=left.bytes_after + right.bytes_after,
        rows=left.rows + right.rows,
        bad_files=left.bad_files + right.bad_files,
    )


@contextlib.contextmanager
def _alone(location: Location) -> Iterator[None]:
    """Keep a second run on this machine out; the lock ends with the process. Object stores have no such lock."""
    if not location.is_local or not location.is_directory():
        yield
        return
    descriptor = os.open(location.path(LOCK_NAME), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobFailed(f"another compaction of {location.uri} is at work; wait for its end") from error
        yield
    finally:
        os.close(descriptor)
