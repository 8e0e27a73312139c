"""What the brokers of a world name in their ledgers: the part of the SLA report that must know of every record.

unnamed               what is readable in a region is named by some broker of it, whoever was killed meanwhile

Rule: a row counts when it would outlive its broker: at once when the journal was told of it, else with the drain that
hands it to the writer. Who is killed before its next drain takes the other rows along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from georelay.ids import RegionNumber
from georelay.trace.kinds import LedgerKind, TraceKind
from mesh.tracing.offset_run_core import OffsetRun
from mesh.tracing.recorder_core import RecorderCore
from tests.sim.violation import Violation

DRAIN_PERIOD_S: Final = 1.0
_NAMING: Final = frozenset((LedgerKind.COMMIT, LedgerKind.REPLICATED))
_Key = tuple[RegionNumber, str, int, int]


class NamedRecords:
    """The offsets that were named, by region, topic, origin and partition; worlds are small: one by one."""

    def __init__(self) -> None:
        self._offsets: dict[_Key, set[int]] = {}
        self.late = 0

    def add(self, key: _Key, from_offset: int, to_offset: int) -> None:
        """Note that [from_offset, to_offset) was named."""
        self._offsets.setdefault(key, set()).update(range(from_offset, to_offset))

    def check(self, stream: Any) -> None:
        """Hold the rule for the replica of a stream's leader. Raises Violation."""
        key = (stream.region, stream.topic, int(stream.key.origin), stream.partition)
        unnamed = set(range(stream.log_start, stream.high_watermark)) - self._offsets.get(key, set())
        if unnamed:
            raise Violation("unnamed", f"{key}: {len(unnamed)} of [{stream.log_start}, {stream.high_watermark}), "
                            f"the first is {min(unnamed)}")  # fmt: skip


class _Journal:
    """Stands for the open rows of one life: what it is told of outlives it."""

    def __init__(self, region: RegionNumber, named: NamedRecords) -> None:
        self._region = region
        self._named = named
        self._rows: list[tuple[_Key | None, int]] = [(None, 0)]

    def begun(self, run: OffsetRun) -> int:
        key = (self._region, run.topic, run.origin, run.partition) if run.kind in _NAMING else None
        self._rows.append((key, run.from_offset))
        self.grown(len(self._rows) - 1, run.to_offset, 0)
        return len(self._rows) - 1

    def grown(self, place: int, to_offset: int, _last_ns: int) -> None:
        key, from_offset = self._rows[place]
        if key is not None:
            self._named.add(key, from_offset, to_offset)


class NamingRecorder:
    """The recorder of one life of a broker: the shipping core, without latencies, threads and files."""

    def __init__(self, region: RegionNumber, named: NamedRecords, *, wall_ns: Callable[[], int]) -> None:
        self._region = region
        self._named = named
        self._wall_ns = wall_ns
        self._core = RecorderCore(
            region=str(region), broker=0, first_session=1, region_name=str, journal=_Journal(region, named)
        )

    def committed(self, *, entries: Sequence[Any] = (), home: int = 0, **where: Any) -> None:
        """Note a range committed at its home."""
        self._core.log_advanced(LedgerKind.COMMIT, **where)

    def replicated(self, *, entries: Sequence[Any] = (), home: int = 0, **where: Any) -> None:
        """Note a range committed at a mirror."""
        self._core.log_advanced(LedgerKind.REPLICATED, **where)

    def named_late(self, kind: LedgerKind, ranges: Sequence[Any], **where: Any) -> None:
        """Note ranges that nobody saw commit."""
        self._named.late += sum(late.to_offset - late.from_offset for late in ranges)
        self._core.named_late(kind, ranges, now_ns=self._wall_ns(), **where)

    def aborted_late(self, entries: Sequence[Any], **where: Any) -> None:
        """Follow their transactions."""
        self._core.aborted_late(entries, now_ns=self._wall_ns(), **where)

    def left(self, **where: Any) -> None:
        """Forget what is known of a stream's transactions."""
        self._core.left(**where)

    def drain(self, *, final: bool = False) -> None:
        """Hand what is complete to the writer."""
        for row in self._core.drain(self._wall_ns(), final=final).rows.get(TraceKind.LEDGER, ()):
            kind, origin, topic, partition, from_offset, to_offset = (row[column] for column in (0, 3, 4, 5, 8, 9))
            if LedgerKind(kind) in _NAMING:
                key = (self._region, str(topic), int(str(origin) or 0), int(str(partition)))
                self._named.add(key, int(str(from_offset)), int(str(to_offset)))
