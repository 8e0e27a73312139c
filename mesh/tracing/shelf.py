"""What a broker wrote down, for a reader who goes on from where it was: files and spools of one kind as one chain.

Rule 1: rows come in the order of their numbers, run after run, each once, whether in a file, a spool or in both.
Rule 2: [start, end) has the same rows whenever it is read, until retention deletes them; then it is PositionExpired,
        never fewer rows. Numbers that were never written (rows given up) are skipped: the jump shows how many.
Rule 3: everything is bounded: rows and bytes of a page, files looked at per call.
Rule 4: damage costs the rows that it hit: a file that cannot be read is skipped from then on, a frame alone. What has
        nothing to do with the file, such as a process without free descriptors, is an error and no damage.

Runs are ordered by the hour and the time of their newest file: runs of one broker never overlap. Not thread-safe; one
thread at a time, never the event loop's.
"""

from __future__ import annotations

import bisect
import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from georelay.trace.files import TraceFileMetadata, partition_path
from georelay.trace.kinds import TraceKind
from georelay.trace.position import BEGINNING, BOOT_COLUMN, ROW_COLUMN, TracePosition
from georelay.trace.schema import SCHEMAS
from georelay.trace.spool import SpoolError, SpoolHeader, SpoolRows, bodies
from mesh.tracing.pages import Page, PositionExpired, PositionsReversed, Reach
from mesh.tracing.shelf_index import ShelfFile, ShelfIndex, ShelfSpool

SOURCES_PER_CALL_MAX: Final = 500
FOOTERS_REMEMBERED_MAX: Final = 4_096
RACES_MAX: Final = 5  # a file or spool that goes while it is looked at: look again
DAMAGED_PER_CALL_MAX: Final = 100  # the next call goes on from there
STEP_ROWS: Final = 1_000

PAGE_SCHEMAS: Final = {
    kind: schema.append(pa.field(BOOT_COLUMN, pa.string(), nullable=False)).append(
        pa.field(ROW_COLUMN, pa.int64(), nullable=False)
    )
    for kind, schema in SCHEMAS.items()
}

T = TypeVar("T")
log = structlog.get_logger()


class FileDamaged(OSError):
    """A file turned out to be damaged while its rows were read; it is skipped from now on."""


@dataclass(frozen=True, slots=True)
class _Frame:
    first: int
    rows: int
    dropped: int
    offset: int
    size: int


@dataclass(slots=True)
class _Spool:
    """What was read of a spool so far; it grows at its end only."""

    opened_ns: int = 0
    schema_version: int = 0
    read_bytes: int = 0
    frames: list[_Frame] = field(default_factory=list)


_Source = ShelfFile | ShelfSpool


@dataclass(slots=True)
class _Run:
    """The sources of one run of the broker, each kind of them by the number of its first row."""

    boot_id: str
    plain: list[ShelfFile] = field(default_factory=list)
    compacted: list[ShelfFile] = field(default_factory=list)
    spools: list[tuple[int, ShelfSpool]] = field(default_factory=list)
    age: tuple[str, int] = ("", 0)


class TraceShelf:
    """Reads what the writer of one broker wrote; see the module.

    Args:
        directory: the trace directory.
        region, broker: whose rows.
    """

    def __init__(self, directory: Path, *, region: str, broker: int) -> None:
        self._index = ShelfIndex(directory, region=region, broker=broker)
        self._region = region
        self._footers: OrderedDict[tuple[Path, int], TraceFileMetadata | None] = OrderedDict()
        self._spools: dict[Path, _Spool] = {}

    def oldest(self, kind: TraceKind) -> TracePosition:
        """Return the position of the first row there is; BEGINNING without any."""
        return self._tried(lambda: self._oldest(self._chain(kind, BEGINNING, oldest_only=True)))

    def latest(self, kind: TraceKind) -> TracePosition:
        """Return the position behind the last row that can be read; BEGINNING without any."""

        def look() -> TracePosition:
            for start in (None, BEGINNING):  # the newest runs, or all when nothing of those can be read
                for run in reversed(self._chain(kind, start)):
                    end = max(map(self._known_end, self._last_of(run)), default=0)
                    if end > 0:
                        return TracePosition(run.boot_id, end)
            return BEGINNING

        return self._tried(look)

    def reach(
        self, kind: TraceKind, start: TracePosition, *, rows_max: int, until: TracePosition | None = None
    ) -> Reach:
        """Return how far `rows_max` rows from `start` reach, not beyond `until`; nowhere when that lies before it.

        Raises:
            PositionExpired: rows between `start` and what is left were deleted.
        """
        try:
            return self._tried(lambda: self._reach(kind, start, rows_max, until))
        except PositionsReversed:  # a host lost rows that were read: the reader is ahead of what is left
            return Reach(end=start, rows=0, has_more=False)

    def page(
        self, kind: TraceKind, start: TracePosition, until: TracePosition, *, rows_max: int, bytes_max: int
    ) -> Page:
        """Return rows of [start, until), at least one while there are any.

        Args:
            bytes_max: of Arrow arrays in memory; overshot by STEP_ROWS rows at most.

        Raises:
            PositionExpired: as `reach`.
            PositionsReversed: `until` lies before `start`.
        """
        return self._tried(lambda: self._page(kind, start, until, rows_max, bytes_max))

    # --- walking ---------------------------------------------------------------------------------

    def _tried(self, look: Callable[[], T]) -> T:
        races, damaged = RACES_MAX - 1, DAMAGED_PER_CALL_MAX - 1
        while races and damaged:
            try:
                return look()
            except FileNotFoundError:  # rolled, compacted or expired meanwhile
                self._index.forget()
                races -= 1
            except FileDamaged:
                damaged -= 1
        return look()

    def _reach(self, kind: TraceKind, start: TracePosition, rows_max: int, until: TracePosition | None) -> Reach:
        end, rows = start, 0
        for looked_at, (run, source, first) in enumerate(self._walk(kind, start, until)):
            if looked_at == SOURCES_PER_CALL_MAX or rows == rows_max:
                return Reach(end=end, rows=rows, has_more=True)
            stop = self._end(source)
            if until is not None and run.boot_id == until.boot_id:
                stop = min(stop, until.row)
            if stop - first > rows_max - rows:
                return Reach(end=TracePosition(run.boot_id, first + rows_max - rows), rows=rows_max, has_more=True)
            rows += stop - first
            end = TracePosition(run.boot_id, stop)
        if until is not None and (until.boot_id != end.boot_id or until.row > end.row):
            end = until  # numbers up to there were given up, or lost with their host
        return Reach(end=end, rows=rows, has_more=False)

    def _page(self, kind: TraceKind, start: TracePosition, until: TracePosition, rows_max: int, bytes_max: int) -> Page:
        batches: list[Any] = []
        rows = size_bytes = 0
        for run, source, first in self._walk(kind, start, until):
            stop = self._end(source)
            if run.boot_id == until.boot_id:
                stop = min(stop, until.row)
            for number, batch in self._rows(kind, source, first, stop):
                taken = batch.slice(0, rows_max - rows)
                batches.append(_stamped(kind, taken, run.boot_id, number))
                rows += taken.num_rows
                size_bytes += taken.nbytes
                if rows >= rows_max or size_bytes >= bytes_max:
                    return Page(batches=batches, rows=rows, next=TracePosition(run.boot_id, number + taken.num_rows))
        return Page(batches=batches, rows=rows, next=until)

    def _walk(
        self, kind: TraceKind, start: TracePosition, until: TracePosition | None
    ) -> Iterator[tuple[_Run, _Source, int]]:
        """Yield (run, source, first row wanted of it), in order, from `start` to the source that has `until`."""
        chain = self._chain(kind, start)
        names = [run.boot_id for run in chain]
        begin = 0
        if start != BEGINNING:
            begin = self._begin(kind, chain, names, start)
        last = len(chain) - 1
        if until is not None:
            if until == BEGINNING != start or (until.boot_id == start.boot_id and until.row < start.row):
                raise PositionsReversed(start, until)
            if until == BEGINNING:
                return
            if until.boot_id not in names:
                raise PositionExpired(until, self.oldest(kind))
            last = names.index(until.boot_id)
            if last < begin:
                raise PositionsReversed(start, until)
        for run in chain[begin : last + 1]:
            reached = start.row if run.boot_id == start.boot_id else 0
            while (source := self._next(run, reached)) is not None:
                first = max(reached, self._first(source))
                if until is not None and run.boot_id == until.boot_id and first >= until.row:
                    return
                yield run, source, first
                reached = max(reached + 1, self._end(source))

    def _begin(self, kind: TraceKind, chain: list[_Run], names: list[str], start: TracePosition) -> int:
        """Return the index of the run of `start`, when none of its rows from there on were deleted."""
        if start.boot_id not in names:
            raise PositionExpired(start, self.oldest(kind))
        index = names.index(start.boot_id)
        first = self._next(chain[index], 0)
        has_file = any(file.first <= start.row for file in (*chain[index].plain, *chain[index].compacted))
        is_cut = index == 0 and not has_file and first is not None and self._first(first) > start.row
        if is_cut and first is not None and self._dropped(first) < self._first(first):
            raise PositionExpired(start, self._oldest(chain))
        return index

    def _chain(self, kind: TraceKind, start: TracePosition | None, *, oldest_only: bool = False) -> list[_Run]:
        """Return the runs, oldest first: all, those needed from `start` on, or (None) some newest ones.

        Args:
            oldest_only: enough to know the oldest row.
        """
        spools = [(spool, self._spool(kind, spool)) for spool in self._index.spools(kind)]
        known = {spool.path for spool, _ in spools}
        for path in [path for path in self._spools if path.name.startswith(f"{kind.value}-") and path not in known]:
            del self._spools[path]
        runs: dict[str, _Run] = {}
        stop_hour = ""  # folders before it have nothing that is needed
        for spool, seen in spools:
            if not seen.frames:
                continue
            run = runs.setdefault(spool.boot_id, _Run(spool.boot_id))
            run.spools.append((seen.frames[0].first, spool))
            hour = str(partition_path(self._region, seen.opened_ns).parent)
            run.age = max(run.age, (hour, spool.path.stat().st_mtime_ns))
            if start is not None and spool.boot_id == start.boot_id and seen.frames[0].first <= start.row:
                stop_hour = max(stop_hour, hour)
        hours = self._index.hours()
        for hour in hours if oldest_only else reversed(hours):
            if hour < stop_hour:
                break
            files = self._index.files(hour, kind)
            self._sort_in(runs, files)
            if self._is_enough(files, start, oldest_only=oldest_only):
                break
        for run in runs.values():
            run.plain.sort(key=lambda file: file.first)
            run.compacted.sort(key=lambda file: file.first)
            run.spools.sort(key=lambda spool: spool[0])
        return sorted(runs.values(), key=lambda run: run.age)

    @staticmethod
    def _sort_in(runs: dict[str, _Run], files: tuple[ShelfFile, ...]) -> None:
        newest: dict[str, ShelfFile] = {}
        for file in files:
            run = runs.setdefault(file.boot_id, _Run(file.boot_id))
            (run.compacted if file.is_compacted else run.plain).append(file)
            if file.boot_id not in newest or newest[file.boot_id].first < file.first:
                newest[file.boot_id] = file
        for boot_id, file in newest.items():
            if runs[boot_id].age[0] <= file.hour:
                runs[boot_id].age = max(runs[boot_id].age, (file.hour, file.path.stat().st_mtime_ns))

    @staticmethod
    def _is_enough(files: tuple[ShelfFile, ...], start: TracePosition | None, *, oldest_only: bool) -> bool:
        if oldest_only or start is None:
            return bool(files)
        return any(file.boot_id == start.boot_id and file.first <= start.row for file in files)

    def _oldest(self, chain: list[_Run]) -> TracePosition:
        for run in chain:
            source = self._next(run, 0)
            if source is not None:
                return TracePosition(run.boot_id, self._first(source))
        return BEGINNING

    def _next(self, run: _Run, reached: int) -> _Source | None:
        """Return the source that has row `reached`, else the one with the next row after it."""
        plain = bisect.bisect_right(run.plain, reached, key=lambda file: file.first)
        compacted = bisect.bisect_right(run.compacted, reached, key=lambda file: file.first)
        spool = bisect.bisect_right(run.spools, reached, key=lambda pair: pair[0])
        before: list[_Source] = [
            *run.plain[max(0, plain - 1) : plain],
            *run.compacted[max(0, compacted - 1) : compacted],
        ]
        before += [found for _, found in run.spools[:spool]]
        for source in before:
            if self._end(source) > reached:
                return source
        after = [self._readable(run.plain[plain:]), self._readable(run.compacted[compacted:])]
        later: list[tuple[int, _Source]] = [(file.first, file) for file in after if file is not None]
        later += run.spools[spool : spool + 1]
        return min(later, key=lambda pair: pair[0], default=(0, None))[1]

    def _readable(self, files: list[ShelfFile]) -> ShelfFile | None:
        """Return the first file that can be read."""
        return next((file for file in files if self._end(file)), None)

    # --- sources ---------------------------------------------------------------------------------

    def _first(self, source: _Source) -> int:
        return source.first if isinstance(source, ShelfFile) else self._spools[source.path].frames[0].first

    def _end(self, source: _Source) -> int:
        """Return the number behind the last row; 0 of a file that cannot be read."""
        if isinstance(source, ShelfFile):
            footer = self._footer(source)
            return 0 if footer is None else footer.last_row_seq + 1
        last = self._spools[source.path].frames[-1]
        return last.first + last.rows

    @staticmethod
    def _last_of(run: _Run) -> list[_Source]:
        return [*run.plain[-1:], *run.compacted[-1:], *(spool for _, spool in run.spools)]

    def _known_end(self, source: _Source) -> int:
        """Return the number behind the last row; of a file that cannot be read its first, which its name has."""
        return self._end(source) or self._first(source)

    def _dropped(self, source: _Source) -> int:
        if isinstance(source, ShelfFile):
            footer = self._footer(source)
            return 0 if footer is None else footer.dropped
        return self._spools[source.path].frames[0].dropped

    @staticmethod
    def _footer_key(file: ShelfFile) -> tuple[Path, int]:
        inode = file.path.stat().st_ino if file.is_compacted else 0  # one name may hold more after the next compaction
        return (file.path, inode)

    def _footer(self, file: ShelfFile) -> TraceFileMetadata | None:
        key = self._footer_key(file)
        if key in self._footers:
            self._footers.move_to_end(key)
            return self._footers[key]
        footer: TraceFileMetadata | None = None
        try:
            footer = TraceFileMetadata.decode(pq.read_metadata(file.path).metadata or {})
        except (pa.ArrowException, OSError, ValueError) as error:
            if not _is_damage(error):
                raise
            log.warning("trace.file_unreadable", path=str(file.path), reason=str(error))
        self._footers[key] = footer
        if len(self._footers) > FOOTERS_REMEMBERED_MAX:
            self._footers.popitem(last=False)
        return footer

    def _spool(self, kind: TraceKind, spool: ShelfSpool) -> _Spool:
        """Return what is in a spool by now; a frame that is being written is not."""
        seen = self._spools.setdefault(spool.path, _Spool())
        try:
            file = os.open(spool.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            del self._spools[spool.path]
            raise
        try:
            raw = os.pread(file, os.fstat(file).st_size - seen.read_bytes, seen.read_bytes)
        finally:
            os.close(file)
        began = seen.read_bytes
        for end, body in bodies(raw):
            try:
                if not seen.read_bytes:
                    header = SpoolHeader.decode(body)
                    seen.opened_ns, seen.schema_version = header.opened_ns, header.schema_version
                else:
                    rows = SpoolRows.decode(body)
                    offset = seen.read_bytes
                    size = began + end - offset
                    seen.frames.append(_Frame(rows.first_row_seq, rows.rows, rows.dropped, offset, size))
            except SpoolError as error:
                log.warning("trace.frame_unreadable", kind=kind.value, reason=str(error))
                break
            seen.read_bytes = began + end
        return seen

    def _rows(self, kind: TraceKind, source: _Source, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield (number of the first row, rows) of [first, stop), STEP_ROWS at most each."""
        if isinstance(source, ShelfFile):
            try:
                yield from self._rows_of_file(source, first, stop)
            except (pa.ArrowException, OSError) as error:
                if not _is_damage(error):
                    raise
                log.warning("trace.file_unreadable", path=str(source.path), reason=str(error))
                self._footers[self._footer_key(source)] = None
                raise FileDamaged(str(source.path)) from error
            return
        spool = self._spools[source.path]
        with source.path.open("rb") as file:
            for frame in spool.frames:
                skip, end = max(0, first - frame.first), min(frame.rows, stop - frame.first)
                if skip >= end:
                    continue
                try:
                    for _, body in bodies(os.pread(file.fileno(), frame.size, frame.offset)):
                        rows = SpoolRows.decode(body).batch(kind, spool.schema_version)
                        break
                    else:
                        raise SpoolError("its checksum is wrong now")
                except SpoolError as error:
                    log.warning("trace.frame_unreadable", path=str(source.path), kind=kind.value, reason=str(error))
                    continue
                yield frame.first + skip, rows.slice(skip, end - skip)

    def _rows_of_file(self, source: ShelfFile, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        footer = self._footer(source)
        assert footer is not None, source
        with pq.ParquetFile(source.path, page_checksum_verification=True) as file:
            begin = footer.first_row_seq
            for group in range(file.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                if begin < stop and end > first:
                    rows = file.read_row_group(group, use_threads=False).slice(max(0, first - begin), stop - begin)
                    number, last = max(begin, first), min(end, stop)
                    for batch in rows.slice(0, last - number).to_batches(max_chunksize=STEP_ROWS):
                        yield number, batch
                        number += batch.num_rows
                begin = end


def _is_damage(error: Exception) -> bool:
    """Return whether it is the file's fault: what Arrow finds wrong in it (without a number), or a disk's error."""
    return not isinstance(error, OSError) or error.errno in (None, errno.EIO)


def _stamped(kind: TraceKind, batch: Any, boot_id: str, first: int) -> Any:
    """Return rows with the columns of their kind, null where an older file has none, and their positions."""
    count = batch.num_rows
    arrays = [
        batch.column(field.name).cast(field.type)
        if batch.schema.get_field_index(field.name) >= 0
        else pa.nulls(count, field.type)
        for field in SCHEMAS[kind]
    ]
    arrays += [pa.repeat(boot_id, count), pa.array(range(first, first + count), type=pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGE_SCHEMAS[kind])
