"""Which files an hour is made of, and whether it must be made again. Pure.

Rule 1: an hour is made of every file that holds rows of its time, whenever it was written: a link that was cut for
        hours delivers late, and late rows are the worst ones. The Parquet statistics of the time column say so; a file
        without them counts for its folder's hour and both neighbours.
Rule 2: files are chosen by groups (folder, kind, run of a writer): compaction makes one file of a group.
Rule 3: what an hour was made of is never replaced by less. Retention deletes traces, not what is known from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from georelay.trace.schema import TraceKind
from sla.rollups import HourAction, HourRun
from sla.sources.manifest import GoodFile, TraceFiles
from sla.tables import HOUR_S

HOURS_PER_BATCH: Final = 12  # less than the time after which a quiet consumer is forgotten
BATCH_BYTES_MAX: Final = 1 << 30
LATE_HOURS: Final = 24  # folders behind an hour that are looked through for late rows of it
NO_CARRY: Final = ""
KINDS: Final = (TraceKind.LATENCY_HIST, TraceKind.LEDGER, TraceKind.OUTCOME, TraceKind.PROBE, TraceKind.CLOCK)
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


class HourInputs:
    """The files of every hour.

    Args:
        files: verified files, LATE_HOURS more than the hours that are asked for.
        settle_s: how long after its end an hour still looks for what became of its records.
    """

    def __init__(self, files: TraceFiles, *, settle_s: int) -> None:
        self._files = files
        self._settle_s = settle_s
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
    low, high = folder_s - LATE_HOURS * HOUR_S - HOUR_S, folder_s + 2 * HOUR_S
    return range(max(first, low), min(last, high) + 1, HOUR_S)


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


def built(wanted: HourRun, found: HourRun | None) -> HourRun:
    """Return the manifest of an hour that was built now."""
    if found is None:
        return replace(wanted, revision=1, action=HourAction.BUILT)
    # That the hour before was not known at first, and is now, is no change of what happened.
    is_other_carry = found.carry_hash not in (wanted.carry_hash, NO_CARRY)
    is_other = found.input_hash != wanted.input_hash or is_other_carry
    return replace(
        wanted,
        revision=found.revision + 1,
        is_revised=found.is_revised or (found.is_final and is_other),
        action=HourAction.BUILT,
    )


def rows_by_kind(files: TraceFiles) -> Mapping[str, int]:
    """Return the rows of the files by kind."""
    return {kind.value: files.rows_of(kind) for kind in KINDS}
