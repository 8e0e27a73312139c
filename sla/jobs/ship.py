"""The ship job: copies the closed trace files of this host to one place for the whole mesh, a bucket or a directory.

Rule 1: a file arrives as it is, byte by byte, under the path it has here: what is damaged is the report's to judge.
Rule 2: nothing is ever deleted, here or there. What was shipped once is remembered here and not shipped again: what
        the place has since expired, compacted or set aside stays away.
Rule 3: killed at any moment and run again, it goes on behind the last file that arrived; a file that arrived and was
        not remembered is known by its size.
Rule 4: what can be read there is never written over; what is torn there is written again.
Rule 5: bounded: the files of one hour are listed at a time, one file is in memory at most, and so many bytes a second.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sla.errors import JobFailed, NoTraces, UsageError
from sla.sources.footer import read_footer
from sla.sources.layout import FilePlace, parse_hour
from sla.sources.location import COPY_BYTES, Entry, Location

MEMORY_FOLDER: Final = ".shipped"  # below the trace directory; the dot hides it from every reader
BYTES_PER_S_DEFAULT: Final = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipRequest:
    """What to ship.

    Args:
        traces: directory of trace files on this host.
        to: directory or URI that the files of the whole mesh come to.
        bytes_per_s: so many are sent in a second at most, > 0.
        is_again: look at the place for every file, also for those that are remembered.
        clock_s: a clock that only goes forward, seconds; sleep: waits so many.
    """

    traces: str | Path
    to: str | Path
    bytes_per_s: int = BYTES_PER_S_DEFAULT
    is_again: bool = False
    clock_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True, kw_only=True)
class Shipped:
    """What a run did.

    Args:
        files, size_bytes: sent now. known: sent by earlier runs, by what is remembered or by what is there.
        kept: there already with other bytes that can be read.
        gone: expired or compacted here before their turn came.
    """

    files: int = 0
    size_bytes: int = 0
    known: int = 0
    kept: list[str] = field(default_factory=list)
    gone: int = 0


def run_ship(request: ShipRequest, on_step: Callable[[str], None] = lambda _: None) -> Shipped:
    """Ship what is closed and was not shipped yet, the oldest hour first.

    Raises:
        NoTraces: there is no trace directory.
        UsageError: the traces are in no directory of this host, or the place is in them or they in it.
        JobFailed: one of both places cannot be listed, read or written; what was done so far stands.
    """
    here, there = Location.open(request.traces), Location.open(request.to)
    _check(here, there)
    done = Shipped()
    try:
        for folder in _hours(here):
            _ship_hour(_Hour(request, here, there, folder, Memory.open(here, there, folder)), done, on_step)
        Memory.forget_expired(here, there)
    except OSError as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobFailed(f"shipping to {there.shown} stopped after {done.files} files: {first_line}") from error
    return done


def _check(here: Location, there: Location) -> None:
    if not here.is_local:
        raise UsageError(f"--traces must be a directory of this host, not {here.shown}")
    if not Path(here.root).is_dir():
        raise NoTraces(f"no trace directory {here.root}; say with --traces where the broker writes (its trace_dir)")
    if there.is_local:
        source, target = Path(here.root).resolve(), Path(there.root).resolve()
        if source == target or source in target.parents or target in source.parents:
            raise UsageError(f"--to {there.root} and the traces in {here.root} must lie apart")


def _hours(here: Location) -> Iterator[str]:
    for date in here.folders():
        for hour in here.folders(date):
            if parse_hour(date, hour) is not None:
                yield f"{date}/{hour}"


class Memory:
    """The paths that were shipped to one place out of one hour: a line each, appended when the file has arrived.

    A line that a kill tore names no file and is not believed; the file is then looked for at the place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.paths = set(path.read_text(errors="replace").split("\n")) if path.exists() else set()

    @classmethod
    def open(cls, here: Location, there: Location, folder: str) -> Memory:
        """Return what is remembered of an hour's folder."""
        return cls(cls._top(here, there) / folder.replace("/", "."))

    @staticmethod
    def _top(here: Location, there: Location) -> Path:
        name = hashlib.blake2b(there.uri.encode(), digest_size=8).hexdigest()
        return Path(here.root) / MEMORY_FOLDER / name

    def add(self, relative: str) -> None:
        """Remember a file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"\n{relative}\n")  # a newline on both sides: a torn line before it stays by itself
        self.paths.add(relative)

    @classmethod
    def forget_expired(cls, here: Location, there: Location) -> None:
        """Forget the hours of which this host has no folder any more."""
        for path in cls._top(here, there).glob("date=*"):
            if not (Path(here.root) / path.name.replace(".", "/")).is_dir():
                path.unlink()


@dataclass(frozen=True, slots=True)
class _Hour:
    request: ShipRequest
    here: Location
    there: Location
    folder: str
    memory: Memory


def _ship_hour(hour: _Hour, done: Shipped, on_step: Callable[[str], None]) -> None:
    entries = [entry for entry in hour.here.files(hour.folder) if FilePlace.parse(entry.relative) is not None]
    wanted = [entry for entry in entries if hour.request.is_again or entry.relative not in hour.memory.paths]
    done.known += len(entries) - len(wanted)
    if not wanted:
        return
    found = {entry.relative: entry.size_bytes for entry in hour.there.files(hour.folder)}
    for entry in wanted:
        size_bytes = found.get(entry.relative)
        if size_bytes == entry.size_bytes:
            done.known += 1
        elif size_bytes is not None and _is_readable(hour.there, entry.relative):
            done.kept.append(entry.relative)
        elif not _copy(hour, entry, done):
            continue
        if entry.relative not in hour.memory.paths:
            hour.memory.add(entry.relative)
        on_step(f"{hour.folder}: {done.files:,} files sent")


def _is_readable(location: Location, relative: str) -> bool:
    with location.open_input(relative) as file:
        try:
            read_footer(file)
        except ValueError:
            return False
    return True


def _copy(hour: _Hour, entry: Entry, done: Shipped) -> bool:
    """Send one file; return whether it was still here."""
    try:
        source = hour.here.open_input(entry.relative)
    except FileNotFoundError:
        done.gone += 1
        return False
    hour.there.remove_unfinished(entry.relative)
    with source, hour.there.writing(entry.relative, mtime_ns=entry.mtime_ns) as path:
        sent_bytes = _send(hour, source, path)
    arrived = hour.there.size_bytes(entry.relative)
    if arrived != sent_bytes:
        raise OSError(f"{entry.relative}: {sent_bytes} bytes were sent and {arrived} arrived")
    done.files += 1
    done.size_bytes += sent_bytes
    return True


def _send(hour: _Hour, source: Any, path: str) -> int:
    request, sent_bytes = hour.request, 0
    piece_bytes = min(COPY_BYTES, request.bytes_per_s)
    began_s = request.clock_s()
    with hour.there.filesystem.open_output_stream(path) as sink:
        while piece := source.read(piece_bytes):
            sink.write(piece)
            sent_bytes += len(piece)
            ahead_s = sent_bytes / request.bytes_per_s - (request.clock_s() - began_s)
            if ahead_s > 0:
                request.sleep(ahead_s)
    return sent_bytes
