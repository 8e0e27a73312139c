"""Which files an hour is made of, and whether it must be made again. Pure.

Rule 1: an hour is made of every file that holds rows of its time, whenever it was written: a link that was cut for
        hours delivers late, and late rows are the worst ones. The Parquet statistics of the time column say so; a file
        without them counts for its folder's hour and both neighbours.
Rule 2: files are chosen by groups (folder, kind, run of a writer): compaction makes one file of a group.
Rule 3: what an hour was made of is never replaced by less. Retention deletes traces, not what is known from them.
Rule 4: which files an hour is made of does not depend on the period that was asked for: whoever lists files for hours
        lists the folders of EARLY_HOURS before and of LATE_HOURS behind them.
Rule 5: rows that no hour is made of are counted: those beyond these folders, and those that came when an hour could
        not be made again any more.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from georelay.trace.kinds import TraceKind
from sla.errors import UsageError
from sla.rollup_manifests import lacks_rows
from sla.rollups import HourAction, HourRun
from sla.sources.manifest import GoodFile, TraceFiles, rows_outside
from sla.tables import HOUR_S

HOURS_PER_BATCH: Final = 12  # less than the time after which a quiet consumer is forgotten
BATCH_BYTES_MAX: Final = 1 << 30
LATE_HOURS: Final = 24  # folders behind an hour that are looked through for late rows of it
EARLY_HOURS: Final = 2  # folders before an hour: a file that is open over its begin is of two hours before the latest
CLOCKS_APART_S: Final = 3_600
SPAN_S_MAX: Final = 10 * 366 * 86_400
NO_CARRY: Final = ""
KINDS: Final = (TraceKind.LATENCY_HIST, TraceKind.LEDGER, TraceKind.OUTCOME, TraceKind.PROBE, TraceKind.CLOCK)
_AHEAD_HOURS: Final = 2  # a clock that is ahead writes of hours to come
_FIRST_S: Final = int(datetime.datetime.min.replace(tzinfo=datetime.UTC).timestamp())
_LAST_S: Final = int(datetime.datetime.max.replace(tzinfo=datetime.UTC, microsecond=0).timestamp())
_HOUR_BEFORE: Final = {TraceKind.LEDGER: HOUR_S, TraceKind.CLOCK: HOUR_S}  # how far back a kind is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class HourInput:
    """What one hour is made of."""

    hour_s: int
    files: TraceFiles
    settle_s: int

    @property
    def hash(self) -> str:
        """Return what stands for the rows and the settle time."""
        return hashlib.sha256(f"{self.files.input_hash()} {self.settle_s}".encode()).hexdigest()

    def row_ranges(self) -> dict[str, list[list[int]]]:
        """Return kind/broker/boot -> merged row numbers [first, last]."""
        runs: dict[str, list[list[int]]] = {}
        ordered = sorted(self.files.good, key=lambda file: file.metadata.first_row_seq)
        for file in ordered:
            kind, broker, boot = file.run
            ranges = runs.setdefault(f"{kind.value}/{broker}/{boot}", [])
            if ranges and file.metadata.first_row_seq <= ranges[-1][1] + 1:
                ranges[-1][1] = max(ranges[-1][1], file.metadata.last_row_seq)
            else:
                ranges.append([file.metadata.first_row_seq, file.metadata.last_row_seq])
        return dict(sorted(runs.items()))

    def lacks(self, found: HourRun) -> bool:
        """Return whether rows that an earlier roll-up of the hour was made of are not in the files."""
        return lacks_rows(self.row_ranges(), found.row_ranges)

    def rows_not_of(self, found: HourRun) -> dict[tuple[TraceKind, str], int]:
        """Return kind, region -> rows of this hour that an earlier roll-up of it was not made of; 0 is left out.

        A file that has rows of the hour is counted whole: how many of its rows are of the hour nobody knows unread.
        """
        counts: dict[tuple[TraceKind, str], int] = {}
        for file in self.files.good:
            is_before = file.time_max_s is not None and file.time_max_s < self.hour_s
            is_behind = file.time_min_s is not None and file.time_min_s >= self.hour_s + HOUR_S
            if not is_before and not is_behind:
                kind, broker, boot = file.run
                known = found.row_ranges.get(f"{kind.value}/{broker}/{boot}", [])
                new = rows_outside(file.metadata.first_row_seq, file.metadata.last_row_seq, known)
                if new:
                    counts[kind, file.region] = counts.get((kind, file.region), 0) + new
        return counts


class HourInputs:
    """The files of every hour.

    Args:
        files: verified files, of the folders of EARLY_HOURS before the hours that are asked for to LATE_HOURS behind.
        settle_s: how long after its end an hour still looks for what became of its records.

    Raises:
        UsageError: that is longer than LATE_HOURS, beyond which nothing is looked at.
    """

    def __init__(self, files: TraceFiles, *, settle_s: int) -> None:
        if settle_s > LATE_HOURS * HOUR_S:
            raise UsageError(f"--settle must be {LATE_HOURS}h at most: later rows are of no hour")
        self._files = files
        self._settle_s = settle_s
        self._folders = files.hours()
        self._by_hour: dict[int, list[GoodFile]] = {}
        for group in _groups(files.good):
            for hour_s in _hours_of(group, settle_s):
                self._by_hour.setdefault(hour_s, []).extend(group)

    def of(self, hour_s: int) -> HourInput:
        """Return what one hour is made of."""
        good = sorted(self._by_hour.get(hour_s, []), key=lambda file: file.relative)
        bad = [file for file in self._files.bad if abs(file.hour_s - hour_s) <= HOUR_S and file.kind in KINDS]
        files = replace(self._files, good=tuple(good), bad=tuple(bad), superseded=())
        return HourInput(hour_s=hour_s, files=files, settle_s=self._settle_s)

    def is_known(self, hour_s: int) -> bool:
        """Return whether the files say anything of an hour: it has rows, or lies between their folders."""
        is_between = bool(self._folders) and self._folders[0] <= hour_s <= self._folders[-1]
        return is_between or hour_s in self._by_hour

    def beyond(self) -> list[tuple[GoodFile, int, int]]:
        """Return the files that have rows which no hour is made of, each with the [start, end) of the others, s."""
        found = []
        for file in self._files.good:
            start_s, end_s = _looked_at(file.hour_s)
            first_s, last_s = file.time_min_s, file.time_max_s
            if file.kind not in KINDS or first_s is None or last_s is None:
                continue
            if first_s < start_s or last_s >= end_s:
                found.append((file, start_s, end_s))
        return found

    def of_all(self, hours: Iterable[int]) -> TraceFiles:
        """Return the files of several hours, each once."""
        good = {file.relative: file for hour_s in hours for file in self._by_hour.get(hour_s, [])}
        return replace(self._files, good=tuple(good[name] for name in sorted(good)), bad=(), superseded=())


def _groups(good: Iterable[GoodFile]) -> Iterable[list[GoodFile]]:
    groups: dict[tuple[int, TraceKind, int, str], list[GoodFile]] = {}
    for file in good:
        if file.kind in KINDS:
            groups.setdefault((file.hour_s, *file.run), []).append(file)
    return groups.values()


def _hours_of(group: Sequence[GoodFile], settle_s: int) -> range:
    """Return the starts of the hours that look at the rows of a group."""
    kind, folder_s = group[0].kind, group[0].hour_s
    starts = [file.time_min_s for file in group if file.time_min_s is not None]
    ends = [file.time_max_s for file in group if file.time_max_s is not None]
    if len(starts) < len(group) or len(ends) < len(group):
        return range(folder_s - HOUR_S, folder_s + 2 * HOUR_S, HOUR_S)
    after_s = settle_s if kind is TraceKind.LEDGER else 0
    first = _hour_start(min(starts) - after_s)
    last = _hour_start(max(ends) + _HOUR_BEFORE.get(kind, 0))
    # A wrong clock may write any time: nobody asks for the hours of 1970, but nobody shall wait for them either.
    start_s, end_s = _looked_at(folder_s)
    return range(max(first, start_s), min(last, end_s - HOUR_S) + 1, HOUR_S)


def _looked_at(folder_s: int) -> tuple[int, int]:
    """Return the [start, end) of the hours that look at a folder's files for rows of theirs."""
    return folder_s - LATE_HOURS * HOUR_S, folder_s + (_AHEAD_HOURS + 1) * HOUR_S


def _hour_start(second: int) -> int:
    return second - second % HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with an hour. `is_final_now`: only its manifest changes."""

    action: HourAction
    is_final_now: bool = False


def decide(wanted: HourRun, found: HourRun | None, *, is_forced: bool) -> Decision:
    """Compare what an hour would be made of with what it was made of.

    Args:
        wanted: the manifest as it would be (its own revision and flags mean nothing yet).
        found: the manifest that stands.
    """
    if found is None:
        return Decision(action=HourAction.BUILT)
    is_same = (found.input_hash, found.carry_hash, found.code_version) == (
        wanted.input_hash,
        wanted.carry_hash,
        wanted.code_version,
    )
    if is_same and not is_forced:
        return Decision(action=HourAction.CURRENT, is_final_now=wanted.is_final and not found.is_final)
    if wanted.lacks(found):
        return Decision(action=HourAction.KEPT)
    return Decision(action=HourAction.BUILT)


def built(wanted: HourRun, found: HourRun | None, *, has_new_rows: bool = False) -> HourRun:
    """Return the manifest of an hour that was built now.

    Args:
        has_new_rows: rows of the hour came since `found` was made (HourInput.rows_not_of).
    """
    if found is None:
        return replace(wanted, revision=1, action=HourAction.BUILT)
    # That the hour before was not known at first, and is now, is no change of what happened.
    is_other_carry = found.carry_hash not in (wanted.carry_hash, NO_CARRY)
    # Nor is another settle time, or code that counts otherwise: only what came since says then that more happened.
    is_same_count = (found.settle_s, found.code_version) == (wanted.settle_s, wanted.code_version)
    is_other = has_new_rows or (is_same_count and (found.input_hash != wanted.input_hash or is_other_carry))
    return replace(
        wanted,
        revision=found.revision + 1,
        is_revised=found.is_revised or (found.is_final and is_other),
        action=HourAction.BUILT,
    )


def is_since(built_at: str, listed_s: float) -> bool:
    """Return whether an hour may have been made of a newer list of the files than one that was begun at `listed_s`.

    Other machines have other clocks: what is up to CLOCKS_APART_S older may be. So may be what does not say when.

    Args:
        built_at: of the hour's manifest, ISO 8601.
        listed_s: seconds since 1970.
    """
    try:
        built = datetime.datetime.fromisoformat(built_at)
    except ValueError:
        return True
    return built.tzinfo is None or built.timestamp() >= listed_s - CLOCKS_APART_S


def check_length(start_s: int, end_s: int) -> None:
    """Refuse a span of time that nobody meant; every hour of it would be looked at.

    Raises:
        UsageError: it is longer than SPAN_S_MAX.
    """
    if end_s - start_s > SPAN_S_MAX:
        ends = (min(max(at_s, _FIRST_S), _LAST_S) for at_s in (start_s, end_s))  # a rounded end may have no date
        first, last = (datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC) for at_s in ends)
        span = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise UsageError(f"{span}: 10 years at most; give a shorter period with --from and --to")


def rows_by_kind(files: TraceFiles) -> Mapping[str, int]:
    """Return the rows of the files by kind."""
    return {kind.value: files.rows_of(kind) for kind in KINDS}
