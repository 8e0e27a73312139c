"""The verified input of a job: which files, what is in them, and what is known to be missing. Pure.

Rule 1: a row is counted once: a file whose row numbers are all in another file of the same writer is superseded.
Rule 2: what is missing is counted: rows between two files of a writer, rows the writer gave up, files set aside.
Rule 3: the hash of an input depends on its rows and on nothing else: compaction and moving bad files away leave it.

The hash is a sum of one SHA-256 per file a broker wrote (MSet-Add-Hash of Clarke et al., Asiacrypt 2003): a file that
was made of others carries the sum of theirs.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeVar

from georelay.trace.files import TraceFileMetadata
from georelay.trace.kinds import TraceKind
from sla.sources.layout import HOUR_S, FilePlace, hour_folder
from sla.sources.location import Location

DIGEST_BITS: Final = 256
SILENT_HOURS_MAX: Final = 7 * 24  # a broker that is silent for longer was removed
INPUT_DIGEST_KEY: Final = b"georelay.input_digest"
INPUT_FILES_KEY: Final = b"georelay.input_files"

TIME_COLUMNS: Final = {  # (name, units per second)
    TraceKind.DELIVERY: ("delivered_first_ns", 1_000_000_000),
    TraceKind.LATENCY_HIST: ("second", 1),
    TraceKind.LEDGER: ("first_ns", 1_000_000_000),
    TraceKind.OUTCOME: ("second", 1),
    TraceKind.PROBE: ("seq", 1),
    TraceKind.CLOCK: ("t4_ns", 1_000_000_000),
}

Run = tuple[TraceKind, int, str]  # kind, broker, boot: rows are numbered inside
Ranges = Sequence[Sequence[int]]  # of row numbers [first, last], in order, disjoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A trace file, good or bad, by its place below the trace directory: where it stood, for one that was moved away.

    What it is of is what its path says; only of a good file its content says the same.
    """

    place: FilePlace

    @property
    def kind(self) -> TraceKind:
        """Return the kind of its rows."""
        return self.place.kind

    @property
    def hour_s(self) -> int:
        """Return the hour of its folder."""
        return self.place.hour_s

    @property
    def region(self) -> str:
        """Return the region of its folder."""
        return self.place.region

    @property
    def relative(self) -> str:
        """Return its path below the trace directory."""
        return self.place.relative


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodFile(PlacedFile):
    """A file that can be read.

    Args:
        size_bytes: of the file.
        digest: stands for its content in `TraceFiles.input_hash`, < 2**256.
        input_files: files of brokers it holds: 1, more for a compacted one.
        mtime_ns: when it was written, None where the store does not say.
        is_whole: every page of it was read; otherwise its footer only.
        time_min_s: smallest second in the kind's time column (TIME_COLUMNS), seconds since 1970; `time_max_s`: the
            largest. None where the footer has no statistics.
    """

    metadata: TraceFileMetadata
    size_bytes: int
    digest: int
    input_files: int = 1
    mtime_ns: int | None = None
    is_whole: bool = True
    time_min_s: int | None = None
    time_max_s: int | None = None

    @property
    def run(self) -> Run:
        """Return what its row numbers are unique in."""
        return self.place.kind, self.place.name.broker, self.place.name.boot_id

    @property
    def reaches_next_hour(self) -> bool:
        """Return whether its last row is of the hour behind that of its folder, which is where it was begun."""
        return self.time_max_s is not None and self.hour_s + HOUR_S <= self.time_max_s < self.hour_s + 2 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile(PlacedFile):
    """A file that is set aside.

    Args:
        reason: one line.
        rows_expected: rows it should hold, None when nothing says so.
        is_damaged: its content is wrong; otherwise the storage would not give it.
        is_moved: it stands in the quarantine.
    """

    size_bytes: int
    reason: str
    rows_expected: int | None = None
    mtime_ns: int | None = None
    is_damaged: bool = True
    is_moved: bool = False


_File = TypeVar("_File", GoodFile, BadFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourInputs:
    """Completeness of one hour, kind and region: a row of the roll-up table `inputs_hour`.

    Args:
        ts_s: begin of the hour, seconds since 1970 UTC.
        files: good ones; `bytes` and `rows` are theirs, those of `left_out_rows` excepted.
        missing_rows: row numbers absent before files of this hour.
        dropped_rows: rows that the writers say they gave up since their file before.
        gone_rows: the larger of the two, file by file: dropped rows are numbered, too.
        writers: as `us/1001`, of good files.
        silent_writers: wrote nothing of this kind in this hour, though they may have been there. A file that was begun
            before the hour and ends in it is something. Clock rows come every second: whoever wrote them is silent
            until it is seen again, SILENT_HOURS_MAX at most. Of other kinds nothing may be all there was: only the
            hours right before and after one with rows count.
        left_out_rows: rows read that no figure has: about a time too far from the file's.
        too_late_rows: rows that no figure has, of files that came when the hour could not be made again.
        missing_ranges: which row numbers `missing_rows` counts. No column of the table.
        are_drops_known: the file before each of the files is there, or there was none: `dropped_rows` are all. No
            column of the table.
    """

    ts_s: int
    kind: TraceKind
    region: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    quarantined_files: int = 0
    missing_rows: int = 0
    dropped_rows: int = 0
    writers: tuple[str, ...] = ()
    silent_writers: tuple[str, ...] = ()
    left_out_rows: int = 0
    gone_rows: int = 0
    too_late_rows: int = 0
    missing_ranges: Mapping[Run, Ranges] = field(default_factory=dict)
    are_drops_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """The files of a job.

    Args:
        location: the trace directory.
        good: readable, disjoint in their row numbers, by path.
        bad: set aside, moved ones included, by path.
        superseded: whole copies of rows that `good` holds; counted nowhere.
    """

    location: Location
    good: tuple[GoodFile, ...]
    bad: tuple[BadFile, ...] = ()
    superseded: tuple[GoodFile, ...] = ()

    @classmethod
    def sorted_out(cls, location: Location, good: Iterable[GoodFile], bad: Iterable[BadFile]) -> TraceFiles:
        """Return the files with every row once: copies are superseded, and overlaps that are no copies are bad."""
        kept, superseded, conflicting = [], [], []
        for files in _by_run(good).values():
            last: GoodFile | None = None
            for file in sorted(files, key=_widest_first):
                if last is None or file.metadata.first_row_seq > last.metadata.last_row_seq:
                    kept.append(file)
                    last = file
                elif file.metadata.last_row_seq <= last.metadata.last_row_seq:
                    superseded.append(file)
                else:
                    conflicting.append(_conflict(file, last))
        return cls(
            location=location,
            good=tuple(sorted(kept, key=lambda file: file.relative)),
            bad=tuple(sorted([*bad, *conflicting], key=lambda file: file.relative)),
            superseded=tuple(sorted(superseded, key=lambda file: file.relative)),
        )

    def near(self, hour_s: int) -> TraceFiles:
        """Return the files that may hold rows of an hour: those of it and of both its neighbours."""
        first, end = hour_folder(hour_s - HOUR_S), hour_folder(hour_s + 2 * HOUR_S)
        return replace(
            self,
            good=_between(self.good, first, end),
            bad=_between(self.bad, first, end),
            superseded=_between(self.superseded, first, end),
        )

    def of(self, *kinds: TraceKind) -> TraceFiles:
        """Return the files of some kinds."""
        return replace(
            self,
            good=tuple(file for file in self.good if file.kind in kinds),
            bad=tuple(file for file in self.bad if file.kind in kinds),
            superseded=tuple(file for file in self.superseded if file.kind in kinds),
        )

    def hours(self) -> list[int]:
        """Return the hours that have files, bad ones included (begin, seconds since 1970)."""
        return sorted({file.place.hour_s for file in self.good} | {file.place.hour_s for file in self.bad})

    def paths(self, kind: TraceKind) -> list[str]:
        """Return the readable files of a kind, as their filesystem calls them."""
        return [self.location.path(file.relative) for file in self.good if file.kind is kind]

    def input_hash(self) -> str:
        """Return what stands for the rows of the good files and the names of the bad ones, 64 hex digits."""
        total = sum(file.digest for file in self.good)
        for bad in self.bad:
            total += digest_of(f"bad {bad.relative} {bad.size_bytes}")
        return f"{total % 2**DIGEST_BITS:064x}"

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
        return sum(file.metadata.rows for file in self.good if file.kind in kinds)

    def rows_missing(self, kind: TraceKind) -> int:
        """Return how many row numbers are absent between the files of each writer."""
        return sum(loss.missing_rows for loss in _losses(self.good) if loss.file.kind is kind)

    def rows_dropped(self) -> int:
        """Return how many rows the writers say they gave up."""
        return sum(loss.dropped for loss in _losses(self.good))

    def writers(self) -> list[str]:
        """Return the brokers and gateways that wrote, as region/number."""
        return sorted({file.place.writer for file in self.good})

    def is_complete(self, kind: TraceKind) -> bool:
        """Return whether no row of a kind is known to be missing."""
        return self.rows_missing(kind) == 0 and all(file.kind is not kind for file in self.bad)


def _between(files: tuple[_File, ...], first: str, end: str) -> tuple[_File, ...]:
    """Return the files from one folder to another: they are in the order of their paths, a year of them too."""
    start = bisect_left(files, first, key=_relative)
    return files[start : bisect_left(files, end, lo=start, key=_relative)]


def _relative(file: GoodFile | BadFile) -> str:
    return file.relative


def digest_of(text: str) -> int:
    """Return the SHA-256 of a text as a number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def hour_inputs(
    files: TraceFiles,
    *,
    clock_seen: Mapping[str, int] | None = None,
    left_out: Mapping[str, int] | None = None,
    known_rows: Mapping[Run, Ranges] | None = None,
) -> tuple[HourInputs, ...]:
    """Return the completeness of every hour, kind and region that has files or silent writers, in that order.

    Args:
        clock_seen: who wrote clock rows before these files, as `us/1001` -> the last hour in which it did.
        left_out: path of a file -> its rows that no hour is made of.
        known_rows: row numbers [first, last] of a run that are not missing, though in none of the files.
    """
    found: dict[_Cell, HourInputs] = {}
    writers: dict[_Cell, set[str]] = {}  # who wrote, bad files and those that end in the next hour included
    missing: dict[_Cell, dict[Run, list[Sequence[int]]]] = {}
    for loss in _losses(files.good, known_rows or {}):
        file = loss.file
        cell = _cell(file.place)
        unused = (left_out or {}).get(file.relative, 0)
        before = found.get(cell, HourInputs(ts_s=cell[0], kind=cell[1], region=cell[2]))
        found[cell] = replace(
            before,
            files=before.files + 1,
            bytes=before.bytes + file.size_bytes,
            rows=before.rows + file.metadata.rows - unused,
            missing_rows=before.missing_rows + loss.missing_rows,
            dropped_rows=before.dropped_rows + loss.dropped,
            gone_rows=before.gone_rows + max(loss.missing_rows, loss.dropped),
            are_drops_known=before.are_drops_known and loss.are_drops_known,
            left_out_rows=before.left_out_rows + unused,
            writers=_with(before.writers, file.place.writer),
        )
        writers.setdefault(cell, set()).add(file.place.writer)
        if file.reaches_next_hour:
            writers.setdefault((cell[0] + HOUR_S, *cell[1:]), set()).add(file.place.writer)
        if loss.missing:
            missing.setdefault(cell, {}).setdefault(file.run, []).extend(loss.missing)
    for cell, ranges in missing.items():
        found[cell] = replace(found[cell], missing_ranges=ranges)
    for bad in files.bad:
        cell = _cell(bad.place)
        before = found.get(cell, HourInputs(ts_s=cell[0], kind=cell[1], region=cell[2]))
        found[cell] = replace(before, quarantined_files=before.quarantined_files + 1)
        writers.setdefault(cell, set()).add(bad.place.writer)
    for cell, silent in _silent(writers, files.hours(), clock_seen or {}):
        before = found.get(cell, HourInputs(ts_s=cell[0], kind=cell[1], region=cell[2]))
        found[cell] = replace(before, silent_writers=tuple(sorted(silent)))
    return tuple(found[cell] for cell in sorted(found, key=lambda cell: (cell[0], cell[1].value, cell[2])))


_Cell = tuple[int, TraceKind, str]  # hour_s, kind, region


def _cell(place: FilePlace) -> _Cell:
    return place.hour_s, place.kind, place.region


def _with(writers: tuple[str, ...], writer: str) -> tuple[str, ...]:
    return writers if writer in writers else tuple(sorted((*writers, writer)))


def _silent(
    writers: Mapping[_Cell, set[str]], hours: list[int], clock_seen: Mapping[str, int]
) -> Iterator[tuple[_Cell, set[str]]]:
    """Yield who is silent between the first and the last hour that has any file."""
    silent: dict[_Cell, set[str]] = {}
    for (hour, kind, region), there in writers.items():
        for cell in ((hour - HOUR_S, kind, region), (hour + HOUR_S, kind, region)):
            silent.setdefault(cell, set()).update(there - writers.get(cell, set()))
    wrote: dict[tuple[str, str], list[int]] = {}
    for writer, seen_s in clock_seen.items():
        wrote.setdefault((writer.partition("/")[0], writer), []).append(seen_s)
    for (hour, kind, region), there in writers.items():
        if kind is TraceKind.CLOCK:
            for writer in there:
                wrote.setdefault((region, writer), []).append(hour)
    for (region, writer), mine in wrote.items():
        for earlier, later in pairwise([*sorted(mine), (hours[-1] if hours else 0) + HOUR_S]):
            for hour in range(earlier + HOUR_S, min(later, earlier + (SILENT_HOURS_MAX + 1) * HOUR_S), HOUR_S):
                silent.setdefault((hour, TraceKind.CLOCK, region), set()).add(writer)
    for cell, names in silent.items():
        if names and hours[0] <= cell[0] <= hours[-1]:
            yield cell, names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """A file with the row numbers missing before it, and the rows given up since the file before it."""

    file: GoodFile
    missing: Ranges
    dropped: int
    are_drops_known: bool = True

    @property
    def missing_rows(self) -> int:
        return rows_in(self.missing)


def _losses(files: Iterable[GoodFile], known_rows: Mapping[Run, Ranges] = MappingProxyType({})) -> Iterator[_Loss]:
    """Yield what is lost before each of the files."""
    for run, of_run in _by_run(files).items():
        ordered = sorted(of_run, key=_widest_first)
        known = known_rows.get(run, ())
        first = ordered[0].metadata
        # Rows given up before the first of the run came are its own; more may belong to files that are not here. So
        # may rows that are missing: only behind the last one that is known they are missing before this file.
        last = max(
            (min(high, first.first_row_seq - 1) for low, high in known if low < first.first_row_seq), default=None
        )
        is_begin = first.first_row_seq <= first.dropped
        yield _Loss(
            file=ordered[0],
            missing=ranges_outside(first.first_row_seq if last is None else last + 1, first.first_row_seq - 1, ()),
            dropped=first.dropped if is_begin else 0,
            are_drops_known=is_begin,
        )
        for earlier, later in pairwise(ordered):
            yield _Loss(
                file=later,
                missing=ranges_outside(earlier.metadata.last_row_seq + 1, later.metadata.first_row_seq - 1, known),
                dropped=max(0, later.metadata.dropped - earlier.metadata.dropped),
            )


def rows_in(ranges: Ranges) -> int:
    """Return how many numbers the ranges [first, last] hold."""
    return sum(last - first + 1 for first, last in ranges)


def rows_outside(first: int, last: int, ranges: Ranges) -> int:
    """Return how many of the numbers first .. last are in none of the ranges [low, high], which are in order."""
    return rows_in(ranges_outside(first, last, ranges))


def ranges_outside(first: int, last: int, ranges: Ranges) -> list[tuple[int, int]]:
    """Return those of the numbers first .. last that are in none of the ranges [low, high], as ranges; all in order."""
    outside = []
    for low, high in ranges[bisect_left(ranges, first, key=lambda pair: pair[1]) :]:
        if low > last:
            break
        if first < low:
            outside.append((first, low - 1))
        first = high + 1
    return [*outside, (first, last)] if first <= last else outside


def merged(ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return ranges [first, last] of the same numbers, in order and disjoint."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((first, last) for first, last in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _by_run(files: Iterable[GoodFile]) -> dict[Run, list[GoodFile]]:
    runs: dict[Run, list[GoodFile]] = {}
    for file in files:
        runs.setdefault(file.run, []).append(file)
    return runs


def _widest_first(file: GoodFile) -> tuple[int, int, str]:
    return file.metadata.first_row_seq, -file.metadata.last_row_seq, file.relative


def _conflict(file: GoodFile, other: GoodFile) -> BadFile:
    numbered = f"{file.metadata.first_row_seq} to {other.metadata.last_row_seq}"
    return BadFile(
        place=file.place,
        size_bytes=file.size_bytes,
        reason=f"its rows {numbered} are also in {other.relative}",
        rows_expected=file.metadata.rows,
        mtime_ns=file.mtime_ns,
    )
