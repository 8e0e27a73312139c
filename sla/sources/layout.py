"""Where trace files stand: from a period to the files that may hold its rows, and from a path to its meaning.

Rule 1: a file stands in the hour its writer began it, so rows of one hour are in the files of that hour and of its
        neighbours; every list of a period has one hour more on both sides.
Rule 2: what is not a trace file of a known kind by its path is not ours to judge.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final

from georelay.trace.files import TraceFileName
from georelay.trace.kinds import TraceKind
from sla.sources.location import Entry, Location

HOUR_S: Final = 3_600
_HOUR: Final = datetime.timedelta(hours=1)
_DATE_FOLDER: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})")
_HOUR_FOLDER: Final = re.compile(r"hour=(\d{2})")
_FILE: Final = re.compile(r"(date=\d{4}-\d{2}-\d{2})/(hour=\d{2})/region=([^/]+)/([^/]+)")
_SEQUENCE_DIGITS_COMPACTED: Final = (12, 11, 10, 9)  # brokers write six, more when there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Half-open time range [start, end) in UTC; None is open-ended."""

    start: datetime.datetime | None = None
    end: datetime.datetime | None = None

    def may_hold(self, hour: datetime.datetime, *, hours_before: int = 1, hours_after: int = 1) -> bool:
        """Return whether a file begun in `hour` is wanted: a writer's hour may be off.

        Args:
            hours_before: whole hours before the period that are wanted too; `hours_after`: behind it.
        """
        if self.start is not None and hour + (1 + hours_before) * _HOUR <= self.start:
            return False
        return self.end is None or hour - hours_after * _HOUR < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """What the path of a trace file says.

    Args:
        hour_s: begin of the folder's hour, seconds since 1970 UTC.
        region: of the writer.
        name: kind, broker, run and first row.
        relative: path below the trace directory.
    """

    hour_s: int
    region: str
    name: TraceFileName
    relative: str

    @property
    def kind(self) -> TraceKind:
        """Return the kind of its rows."""
        return self.name.kind

    @property
    def writer(self) -> str:
        """Return region and broker, as `us/1001`."""
        return f"{self.region}/{self.name.broker}"

    @classmethod
    def parse(cls, relative: str) -> FilePlace | None:
        """Return the meaning of a path below the trace directory, None when it is not that of a trace file."""
        match = _FILE.fullmatch(relative)
        if match is None:
            return None
        name = TraceFileName.parse(match[4])
        hour = parse_hour(match[1], match[2])
        if name is None or hour is None:
            return None
        return cls(hour_s=int(hour.timestamp()), region=match[3], name=name, relative=relative)

    def compacted(self, taken: Container[str]) -> str | None:
        """Return the path of a new file that takes this one and those behind it; None when no name is free.

        It differs from every name a broker writes: a broker that rolls an old spool once more cannot replace it.

        Args:
            taken: paths that are in use: a file is never written over.
        """
        own, folder = self.name, self.relative.rpartition("/")[0]
        for digits in _SEQUENCE_DIGITS_COMPACTED:
            name = f"{own.kind.value}-{own.broker}-{own.boot_id}-{own.sequence:0{digits}d}.parquet"
            if name != str(own) and f"{folder}/{name}" not in taken:
                return f"{folder}/{name}"
        return None


def date_folder(at_s: int) -> str:
    """Return `date=YYYY-MM-DD` of a moment (seconds since 1970)."""
    return f"date={datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC):%Y-%m-%d}"


def hour_folder(hour_s: int) -> str:
    """Return `date=YYYY-MM-DD/hour=HH` of an hour (seconds since 1970)."""
    hour = datetime.datetime.fromtimestamp(hour_s, tz=datetime.UTC)
    return f"date={hour:%Y-%m-%d}/hour={hour:%H}"


def parse_hour(date_folder: str, name: str) -> datetime.datetime | None:
    """Return the hour of two folders such as `date=2025-01-31` and `hour=23`, None when they are no such folders."""
    date, hour = _DATE_FOLDER.fullmatch(date_folder), _HOUR_FOLDER.fullmatch(name)
    if date is None or hour is None:
        return None
    try:
        return datetime.datetime.strptime(f"{date[1]} {hour[1]}", "%Y-%m-%d %H").replace(tzinfo=datetime.UTC)
    except ValueError:
        return None


def find_places(
    location: Location, period: Period, *, hours_before: int = 1, hours_after: int = 1
) -> list[tuple[FilePlace, Entry]]:
    """Return the trace files that may hold rows of the period, by path.

    Args:
        hours_before: folders of so many hours before the period are wanted too; `hours_after`: behind it.

    Raises:
        OSError: the directory or store cannot be listed.
    """

    def is_wanted(hour: datetime.datetime) -> bool:
        return period.may_hold(hour, hours_before=hours_before, hours_after=hours_after)

    return _places(location, is_wanted)


def places_of(location: Location, hours: Container[int]) -> list[tuple[FilePlace, Entry]]:
    """Return the trace files in the folders of some hours (begin, seconds since 1970), by path.

    Raises:
        OSError: the directory or store cannot be listed.
    """
    return _places(location, lambda hour: int(hour.timestamp()) in hours)


def _places(location: Location, is_wanted: Callable[[datetime.datetime], bool]) -> list[tuple[FilePlace, Entry]]:
    found = []
    for folder in _folders(location, is_wanted):
        for entry in location.files(folder):
            place = FilePlace.parse(entry.relative)
            if place is not None:
                found.append((place, entry))
    return sorted(found, key=lambda pair: pair[0].relative)


def _folders(location: Location, is_wanted: Callable[[datetime.datetime], bool]) -> Iterator[str]:
    """Yield the hours' folders of a period; a date that is wanted whole is one folder: one request for 24 hours."""
    for date in location.folders():
        hours = [parse_hour(date, f"hour={hour:02}") for hour in range(24)]
        wanted = [hour for hour in hours if hour is not None and is_wanted(hour)]
        if len(wanted) == len(hours):
            yield date
        else:
            yield from (f"{date}/hour={hour:%H}" for hour in wanted)
