"""Records that this broker did not store for a client, per stream and second: pure.

Rule 1: only streams that exist are counted, so that nobody makes up rows; what names no stream is a request that
        failed, and stands in the outcome rows.
Rule 2: an attempt is counted once, when its end is known here. Whether records of an unknown outcome are stored is
        decided by their positions: stored ones are in the ledger's commits, too.
Rule 3: nothing is done for a publish that is stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from georelay.trace.kinds import LedgerKind
from mesh.tracing.offset_run_core import NS_PER_S

CELLS_MAX: Final = 20_000  # streams with refusals in one second
DROPPED_MAX: Final = 20_000  # those that found no room


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
        more_dropped: publishes of streams that were not even remembered as dropped.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, dict[RefusedStream, RefusedCount]] = {}
        self._cells = 0  # of all seconds
        self._dropped: set[tuple[int, RefusedStream]] = set()
        self.more_dropped = 0

    def add(self, stream: RefusedStream, records: int, now_ns: int) -> None:
        """Count records of a publish, >= 0, that ended at `now_ns`."""
        if records <= 0:
            return
        second = now_ns // NS_PER_S
        cells = self._seconds.setdefault(second, {})
        cell = cells.get(stream)
        if cell is None:
            if self._cells >= CELLS_MAX:
                self._drop(second, stream)
                return
            cell = cells[stream] = RefusedCount(now_ns)
            self._cells += 1
        cell.last_ns = max(cell.last_ns, now_ns)
        cell.records += records

    def _drop(self, second: int, stream: RefusedStream) -> None:
        if len(self._dropped) < DROPPED_MAX:
            self._dropped.add((second, stream))
        elif (second, stream) not in self._dropped:
            self.more_dropped += 1

    def take(
        self, this_second: int, *, rows_max: int = CELLS_MAX, final: bool = False
    ) -> list[tuple[RefusedStream, RefusedCount]]:
        """Return counts of the seconds before `this_second`, and forget them: `rows_max` of them, all when `final`."""
        taken: list[tuple[RefusedStream, RefusedCount]] = []
        for second in sorted(self._seconds):
            if not final and second >= this_second:
                break
            cells = self._seconds[second]
            while cells and (final or len(taken) < rows_max):
                stream = next(iter(cells))
                taken.append((stream, cells.pop(stream)))
            if cells:
                break
            del self._seconds[second]
        self._cells -= len(taken)
        return taken

    def are_left(self, this_second: int) -> bool:
        """Return whether there are counts of the seconds before `this_second`."""
        return any(second < this_second for second in self._seconds)

    def take_dropped(self, this_second: int, *, final: bool = False) -> int:
        """Return the rows given up in the seconds before `this_second`: one per stream and second."""
        over = {key for key in self._dropped if final or key[0] < this_second}
        self._dropped -= over
        more, self.more_dropped = self.more_dropped, 0
        return len(over) + more
