"""Records that this broker did not store for a client, per stream and second: pure.

Rule 1: only streams that exist are counted, so that nobody makes up rows; what names no stream is a request that
        failed, and stands in the outcome rows.
Rule 2: an attempt is counted once, when its end is known here. Whether records of an unknown outcome are stored is
        decided by their positions: stored ones are in the ledger's commits, too.
Rule 3: nothing is done for a publish that is stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from georelay.trace.schema import LedgerKind
from mesh.tracing.offset_run_core import NS_PER_S

CELLS_MAX: Final = 20_000  # streams with refusals in one second


class RefusedStream(NamedTuple):
    """Where records were to go, and what became of them (REFUSED or UNDECIDED)."""

    kind: LedgerKind
    topic: str
    origin: int
    partition: int


class RefusedCount:
    """Records of one stream and second."""

    __slots__ = ("first_ns", "last_ns", "records")

    def __init__(self, now_ns: int) -> None:
        self.first_ns = self.last_ns = now_ns
        self.records = 0


class Refusals:
    """Counts of the running second, and those that are over and were not taken yet.

    Attributes:
        dropped: rows given up because CELLS_MAX streams were refused in one second.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, RefusedStream], RefusedCount] = {}
        self.dropped = 0

    def add(self, stream: RefusedStream, records: int, now_ns: int) -> None:
        """Count records of a publish, >= 0, that ended at `now_ns`."""
        if records <= 0:
            return
        key = (now_ns // NS_PER_S, stream)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= CELLS_MAX:
                self.dropped += 1
                return
            cell = self._cells[key] = RefusedCount(now_ns)
        cell.last_ns = max(cell.last_ns, now_ns)
        cell.records += records

    def take(self, this_second: int, *, final: bool = False) -> list[tuple[RefusedStream, RefusedCount]]:
        """Return the counts of the seconds before `this_second`, all of them when `final`, and forget them."""
        over = [key for key in self._cells if final or key[0] < this_second]
        return [(key[1], self._cells.pop(key)) for key in over]

    def take_dropped(self) -> int:
        """Return the rows given up since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped
