"""The ledger rows that stand in spools: what a killed run had spooled is not recovered from its open rows again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from georelay.trace.spool import SpoolError, read_spool
from mesh.tracing.latency_cells_core import Row


def is_ledger(spool: Path) -> bool:
    """Return whether a spool holds ledger rows, by its name."""
    return spool.name.startswith(f"{TraceKind.LEDGER.value}-")


def spooled_ledger(spools: Iterable[Path]) -> list[Row]:
    """Return the ledger rows of spools that can be read, in the order of their recorded columns.

    Args:
        spools: of any kind. Raises OSError for one that the disk does not give back.
    """
    rows: list[Row] = []
    for path in spools:
        if not is_ledger(path):
            continue
        try:
            spool = read_spool(path.read_bytes())
            for frame in spool.rows:
                batch = frame.batch(TraceKind.LEDGER, spool.header.schema_version)
                columns = [batch.column(name).to_pylist() for name in RECORDED_COLUMNS[TraceKind.LEDGER]]
                rows += zip(*columns, strict=True)
        except SpoolError:  # what can be read of it is counted and told when it is rolled
            continue
    return rows
