"""Makes trace files of what a killed broker left: its next start does the same, a report need not wait for it.

Rule 1: only for a broker that does not run: the caller holds the lock of its data directory.
Rule 2: open rows go into a spool first, then their file goes, then spools become files: killed between any two of
        these and done again, every row is there once.
Rule 3: what the disk refuses ends it, and everything that is left is left as it was: nothing is held in memory only.
Rule 4: nothing is deleted for its age or size: that is the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from georelay.trace.kinds import TraceKind
from mesh.tracing import memory_file
from mesh.tracing.open_rows import DamagedRowsError, left_open, read_open_rows, without_spooled
from mesh.tracing.rolling import left_over, remove_unfinished, roll
from mesh.tracing.spooled_ledger import spooled_ledger
from mesh.tracing.spooler import Spooler
from mesh.tracing.written import Identity

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What was made.

    Args:
        rows: of all kinds, in the files. open_rows: those of them that no spool had.
        files: trace files. lost_bytes: of spools, behind their first damage.
        damaged_rows: open rows that made no sense, and are lost.
        left_spools: spools that stay as they are: of another version, or of no sense.
    """

    rows: int
    open_rows: int
    files: int
    lost_bytes: int
    damaged_rows: int
    left_spools: int


def is_left(directory: Path, broker: int) -> bool:
    """Return whether runs of a broker left anything that is no trace file yet."""
    return bool(left_open(directory, broker, "") or left_over(directory, broker, ""))


def seal(directory: Path, identity: Identity, now_ns: int) -> Sealed:
    """Make trace files of what earlier runs of a broker left.

    Args:
        directory: the trace directory.
        identity: of the broker, with a name of a run that was never used before.
        now_ns: wall clock, ns since 1970: says in which hour's folder open rows come.

    Raises:
        OSError: the disk refused; done again, it goes on where it ended.
    """
    remove_unfinished(directory, identity.broker)
    spools = left_over(directory, identity.broker, identity.boot_id)
    opened = left_open(directory, identity.broker, identity.boot_id)
    spooler = Spooler(TraceKind.LEDGER, directory, identity)
    open_rows = 0
    damaged_rows = 0
    try:
        spooled = spooled_ledger(spools) if opened else []
        for path in opened:
            try:
                rows = read_open_rows(path.read_bytes(), region=identity.region, broker=identity.broker)
            except DamagedRowsError as error:
                log.warning("trace.open_rows_damaged", path=str(path), rows=error.damaged, broker=identity.broker)
                rows, damaged_rows = error.rows, damaged_rows + error.damaged
            rows = without_spooled(rows, spooled)
            spooler.take(rows, 0, now_ns)
            open_rows += len(rows)
            memory_file.remove(path)
    finally:
        spool = spooler.rotate()
    if spool is not None:
        spools.append(spool)
    rolled = [roll(path, directory) for path in spools]
    return Sealed(
        rows=sum(each.rows for each in rolled),
        open_rows=open_rows - spooler.dropped,
        files=sum(len(each.files) for each in rolled),
        lost_bytes=sum(each.lost_bytes for each in rolled),
        damaged_rows=damaged_rows + spooler.dropped,
        left_spools=sum(each.is_left for each in rolled),
    )
