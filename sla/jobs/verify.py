"""The verify job: finds the trace files of a period, proves them readable, and moves bad ones away if told to.

Every other job begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sla.errors import JobFailed, NoTraces, UsageError
from sla.sources.layout import Period, find_places
from sla.sources.location import Location
from sla.sources.manifest import BadFile, TraceFiles
from sla.sources.proven import ProvenFiles
from sla.sources.quarantine import QUARANTINE_AGE_S_MIN, Quarantine
from sla.sources.verify import Depth, verify_files

QUARANTINE_NAME: Final = "quarantine"
PROVEN_NAME: Final = "_verified"  # below the roll-ups
_STEP_EVERY_FILES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What to verify.

    Args:
        traces: directory or URI the brokers' files are in.
        period: judged; folders of `hours_before` hours before it and `hours_after` behind it are looked at too.
        depth: how much is read.
        proven: directory or URI of what earlier runs know; None: nothing is known and nothing remembered.
        quarantine: where bad files are, or are moved to; None: `quarantine` beside the traces.
        is_moving: bad files are moved to the quarantine.
        quarantine_age_s_min: younger files are not moved.
        clock_ns: wall clock, ns since 1970.
    """

    traces: str | Path
    period: Period = field(default_factory=Period)
    hours_before: int = 1
    hours_after: int = 1
    depth: Depth = Depth.NEW
    proven: str | Path | None = None
    quarantine: str | Path | None = None
    is_moving: bool = False
    quarantine_age_s_min: int = QUARANTINE_AGE_S_MIN
    clock_ns: Callable[[], int] = time.time_ns


def run_verify(request: VerifyRequest, on_step: Callable[[str], None] = lambda _: None) -> TraceFiles:
    """Return the verified files of a period.

    Args:
        on_step: called with a short text whenever something worth showing happened.

    Raises:
        NoTraces: there is no file of the period, good or bad.
        UsageError: `traces` is no directory, or a URI that cannot be understood.
        JobFailed: the file system or store failed.
    """
    traces = Location.open(request.traces)
    quarantine = _quarantine(request, traces)
    try:
        return _verify(request, traces, quarantine, on_step)
    except OSError as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobFailed(f"the trace files cannot be verified: {first_line}") from error


def _verify(
    request: VerifyRequest, traces: Location, quarantine: Quarantine | None, on_step: Callable[[str], None]
) -> TraceFiles:
    if traces.is_file():
        raise UsageError(f"--traces must be a directory, but {traces.uri} is a file")
    on_step(f"listing {traces.uri}")
    margins = {"hours_before": request.hours_before, "hours_after": request.hours_after}
    found = find_places(traces, request.period, **margins)
    moved = [] if quarantine is None else quarantine.moved(request.period, (place for place, _ in found), **margins)
    if not found and not moved:
        raise _nothing(traces, request.period)
    looked_at = 0

    def on_file() -> None:
        nonlocal looked_at
        looked_at += 1
        if looked_at % _STEP_EVERY_FILES == 0:
            on_step(f"verifying trace files: {looked_at:,} of {len(found):,}")

    on_step(f"verifying {len(found):,} trace files")
    proven = ProvenFiles(None if request.proven is None else Location.open(request.proven))
    files = verify_files(traces, found, depth=request.depth, proven=proven, on_file=on_file)
    bad = [*files.bad, *moved]
    if request.is_moving and quarantine is not None:
        bad = [_moved(quarantine, traces, file, request.clock_ns()) for file in bad]
    return replace(files, bad=tuple(sorted(bad, key=lambda file: file.relative)))


def _moved(quarantine: Quarantine, traces: Location, file: BadFile, now_ns: int) -> BadFile:
    if file.is_moved or not quarantine.take(traces, file, now_ns=now_ns):
        return file
    return replace(file, is_moved=True)


def _quarantine(request: VerifyRequest, traces: Location) -> Quarantine | None:
    location = traces.sibling(QUARANTINE_NAME) if request.quarantine is None else Location.open(request.quarantine)
    if location is None:
        return None
    if location.filesystem.equals(traces.filesystem) and location.root == traces.root:
        raise UsageError(f"the quarantine must not be the trace directory {traces.uri} itself")
    return Quarantine(location, age_s_min=request.quarantine_age_s_min)


def _nothing(traces: Location, period: Period) -> NoTraces:
    """Return why there is nothing to verify."""
    if traces.is_local and not traces.is_directory():
        return NoTraces(f"no traces: the directory {traces.uri} does not exist")
    is_elsewhere = (period.start is not None or period.end is not None) and bool(find_places(traces, Period()))
    where = "in that period" if is_elsewhere else "no file date=*/hour=*/region=*/*.parquet"
    return NoTraces(f"no traces in {traces.uri} ({where}); brokers write them a few seconds after the first record")
