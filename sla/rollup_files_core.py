"""Which files of the roll-ups a reader takes, which days are merged, which files nobody needs any more. Pure.

Rule 1: a reader takes what manifests name, never what a folder holds; an hour's rows are in its day or in files of its
        own, never in both (see sla.rollup_manifests).
Rule 2: a day is merged when nothing late can come any more, hour by hour of every table; one hour that is rolled up
        again takes its rows back, and the day is merged once more.
Rule 3: the sums of a day count only for the whole day, and while they hold the very files that its hours name.
Rule 4: what no manifest names stays for KEEP_S after a job first saw it so: a reader that took the manifests before
        still finds its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sla.rollup_manifests import DayRun, HourRun
from sla.sources.layout import date_folder, hour_folder
from sla.tables import HOUR_S

DAY_S: Final = 24 * HOUR_S
CLOSED_AFTER_S: Final = 26 * HOUR_S  # late rows of an hour are looked for in the 24 hours behind it
KEEP_S: Final = HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where the rows of some hours of a table stand.

    Args:
        day_files, hour_files: paths below the store, in order.
        low_s, high_s: rows with `ts_s` in [low_s, high_s) are meant, seconds since 1970.
        absent: hours between them whose rows in the day files do not count.
    """

    day_files: tuple[str, ...]
    hour_files: tuple[str, ...]
    low_s: int
    high_s: int
    absent: tuple[int, ...]


def reading(table: str, runs: Sequence[HourRun], days: Mapping[int, DayRun]) -> Reading:
    """Return where the rows of the hours of `runs` stand.

    Args:
        runs: in order.
        days: by their start; days without a manifest are left out.
    """
    day_files: dict[str, set[int]] = {}
    hour_files: list[str] = []
    held: set[int] = set()
    for run in runs:
        day_s = day_of(run.hour_s)
        day = days.get(day_s)
        if day is not None and day.holds(run, table):
            file = day.files[table]
            day_files[f"{table}/{date_folder(day_s)}/{file.name}"] = set(file.holds)
            held.add(run.hour_s)
        else:
            hour_files += own_files(run, table)
    low_s = runs[0].hour_s if runs else 0
    high_s = runs[-1].hour_s + HOUR_S if runs else 0
    in_day_files = {hour_s for hours in day_files.values() for hour_s in hours if low_s <= hour_s < high_s}
    return Reading(
        day_files=tuple(day_files),
        hour_files=tuple(hour_files),
        low_s=low_s,
        high_s=high_s,
        absent=tuple(sorted(in_day_files - held)),
    )


def whole_days(
    sums: str, table: str, runs: Iterable[HourRun], days: Mapping[int, DayRun], *, start_s: int, end_s: int
) -> dict[int, str]:
    """Return the paths of the sums of the days that lie in [start_s, end_s) as a whole, by the start of the day.

    Args:
        sums: name of the sums of a table, see sla.day_sums.
        runs: all hours of these days.
        days: by their start; days without a manifest are left out.
    """
    named: dict[int, dict[int, tuple[str, ...]]] = {}
    for run in runs:
        if parts := run.parts_of(table):
            named.setdefault(day_of(run.hour_s), {})[run.hour_s] = parts
    found = {}
    for day_s, holds in named.items():
        file = days[day_s].files.get(sums) if day_s in days else None
        if file is not None and file.holds == holds and start_s <= day_s and day_s + DAY_S <= end_s:
            found[day_s] = f"{sums}/{date_folder(day_s)}/{file.name}"
    return found


def day_of(hour_s: int) -> int:
    """Return the start of the day of a moment, seconds since 1970 UTC."""
    return hour_s - hour_s % DAY_S


def own_files(run: HourRun, table: str) -> list[str]:
    """Return the paths of an hour's own files of a table, below the store."""
    return [f"{table}/{hour_folder(run.hour_s)}/{name}" for name in run.parts_of(table)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A day file that is to be written.

    Args:
        table: of which.
        kept_file: path of the day file that stands, None when there is none or nothing of it counts.
        kept: hours whose rows are copied from it.
        files: paths of the other hours' files.
        holds: what its manifest will say.
    """

    table: str
    kept_file: str | None
    kept: frozenset[int]
    files: tuple[str, ...]
    holds: Mapping[int, tuple[str, ...]]


def is_closed(day_s: int, *, now_s: float) -> bool:
    """Return whether nothing late of a day can come any more."""
    return now_s >= day_s + DAY_S + CLOSED_AFTER_S


def merges(
    day_s: int, runs: Iterable[HourRun], day: DayRun | None, tables: Iterable[str], *, now_s: float
) -> list[Merge]:
    """Return the day files that a day needs, none while something late may come.

    Args:
        day_s: start of the day, seconds since 1970.
        runs: of its hours, in order.
        day: the manifest that stands.
        now_s: wall clock, seconds since 1970.
    """
    if not is_closed(day_s, now_s=now_s):
        return []
    runs = list(runs)
    found = []
    for table in tables:
        holds = {run.hour_s: run.parts_of(table) for run in runs if run.parts_of(table)}
        old = None if day is None else day.files.get(table)
        if (old is None and len(holds) < 2) or (old is not None and old.holds == holds):
            continue
        kept = frozenset(run.hour_s for run in runs if day is not None and day.holds(run, table))
        found.append(
            Merge(
                table=table,
                kept_file=f"{table}/{date_folder(day_s)}/{old.name}" if old is not None and kept else None,
                kept=kept,
                files=tuple(path for run in runs if run.hour_s not in kept for path in own_files(run, table)),
                holds=holds,
            )
        )
    return found


def needed(runs: Iterable[HourRun], days: Mapping[int, DayRun], tables: Collection[str]) -> set[str]:
    """Return the paths of the files that a reader of now takes."""
    wanted = {
        f"{table}/{date_folder(day_s)}/{file.name}" for day_s, day in days.items() for table, file in day.files.items()
    }
    for run in runs:
        day = days.get(day_of(run.hour_s))
        for table in tables:
            if day is None or not day.holds(run, table):
                wanted.update(own_files(run, table))
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is deleted, and since when the other files that nobody needs are known (path -> seconds since 1970)."""

    deleted: tuple[str, ...]
    unneeded_since: Mapping[str, int]


def sweep(unneeded: Iterable[str], since: Mapping[str, int], *, now_s: float) -> Sweep:
    """Decide which of the files that nobody needs may go.

    Args:
        unneeded: paths.
        since: what the sweep before said; moments that are still to come (a clock was set) count from now.
        now_s: wall clock, seconds since 1970.
    """
    now = int(now_s)
    known = {path: min(since.get(path, now), now) for path in unneeded}
    deleted = sorted(path for path, first_s in known.items() if path in since and now - first_s >= KEEP_S)
    return Sweep(
        deleted=tuple(deleted), unneeded_since={path: known[path] for path in sorted(set(known) - set(deleted))}
    )
