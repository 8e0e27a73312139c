"""What is known beside the files of a job: which other rows there were, and who wrote clock rows before.

Rule 1: what is missing of an hour does not depend on the period that was asked for first. What a job did not list it
        asks of the roll-ups; of hours that no roll-up knows, of the names of their trace files.
Rule 2: a row that a roll-up was made of is not missing, though its file is gone since.
Rule 3: it looks back a week from the first file, for a gap before it as for a broker that fell silent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed
from sla.rollups import HourRun, RollupStore
from sla.sources.layout import FilePlace, places_of
from sla.sources.location import Entry
from sla.sources.manifest import SILENT_HOURS_MAX, GoodFile, Run, TraceFiles, merged
from sla.sources.verify import check
from sla.tables import HOUR_S

WEEK_S: Final = SILENT_HOURS_MAX * HOUR_S


class KnownBeside:
    """What roll-ups and names of files say beside the files of a job.

    Args:
        files: all that were verified.
        store: the roll-ups.

    Raises:
        JobFailed: a manifest cannot be read, or the directory of the traces cannot be listed; each of the methods.
    """

    def __init__(self, files: TraceFiles, store: RollupStore) -> None:
        self._files = files
        self._store = store
        self._first_s = min(files.hours(), default=0)

    def clock_writers(self) -> dict[str, int]:
        """Return who wrote clock rows in hours of the week before that no roll-up knows -> the last such hour."""
        seen: dict[str, int] = {}
        for place, _ in self._unknown:
            if place.kind is TraceKind.CLOCK:
                seen[place.writer] = max(place.hour_s, seen.get(place.writer, place.hour_s))
        return seen

    def rows(self) -> dict[Run, list[tuple[int, int]]]:
        """Return the row numbers [first, last] that were read of each run of the files; in order, disjoint."""
        first_rows: dict[Run, int] = {}
        for good in self._files.good:
            first = good.metadata.first_row_seq
            first_rows[good.run] = min(first, first_rows.get(good.run, first))
        names = {f"{kind.value}/{broker}/{boot}": (kind, broker, boot) for kind, broker, boot in first_rows}
        ranges: dict[Run, list[tuple[int, int]]] = {}
        for hour in self._hours:
            for name, numbers in hour.row_ranges.items():
                if name in names:
                    ranges.setdefault(names[name], []).extend((low, last) for low, last in numbers)
        for run, first in first_rows.items():
            known = max((min(last, first - 1) for low, last in ranges.get(run, []) if low < first), default=-1)
            if known < first - 1 and (file := self._newest_of(run, known + 1, first)) is not None:
                ranges.setdefault(run, []).append((file.metadata.first_row_seq, file.metadata.last_row_seq))
        return {run: merged(numbers) for run, numbers in ranges.items()}

    @functools.cached_property
    def _hours(self) -> list[HourRun]:
        """The hours of the week before and of the files that were rolled up."""
        hours = self._files.hours()
        return self._store.runs(self._first_s - WEEK_S, hours[-1] + HOUR_S) if hours else []

    @functools.cached_property
    def _unknown(self) -> list[tuple[FilePlace, Entry]]:
        """The trace files in hours of the week before that were not rolled up."""
        known = {run.hour_s for run in self._hours}
        hours = set(range(self._first_s - WEEK_S, self._first_s, HOUR_S)) - known if self._files.hours() else set()
        try:
            return places_of(self._files.location, hours) if hours else []
        except OSError as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise JobFailed(f"the hours before cannot be listed: {first_line}") from error

    @functools.cached_property
    def _unknown_of_runs(self) -> Mapping[Run, Sequence[tuple[FilePlace, Entry]]]:
        """These files by run, in the order of their rows."""
        runs: dict[Run, list[tuple[FilePlace, Entry]]] = {}
        for place, entry in self._unknown:
            runs.setdefault((place.kind, place.name.broker, place.name.boot_id), []).append((place, entry))
        return {run: sorted(files, key=lambda file: file[0].name.sequence) for run, files in runs.items()}

    def _newest_of(self, run: Run, low: int, end: int) -> GoodFile | None:
        """Return the readable file of a run whose first row is the last one in [low, end); None: there is none."""
        for place, entry in reversed(self._unknown_of_runs.get(run, ())):
            if low <= place.name.sequence < end:
                found = check(self._files.location, place, entry, is_whole=False)
                if isinstance(found, GoodFile):
                    return found
        return None
