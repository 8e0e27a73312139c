"""Ranges of offsets on their way into the ledger: pure.

Rule 1: ranges of one session and second that touch are one row; a jump either way starts a new row, so every gap,
        overlap and reordering stays visible to the report. Nothing is judged here.
Rule 2: a row never spans two seconds, epochs or attempts.
Rule 3: a journal is told of every range at once, for whoever comes after a kill.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from georelay.trace.kinds import LedgerKind

NS_PER_S: Final = 1_000_000_000
COMMITS_REMEMBERED: Final = 128  # per stream: how far a reader may be behind and still have a `deliver` latency

NotedRow = tuple[int, int]  # its place in the journal, and its first_ns


class RunJournal(Protocol):
    """Keeps open rows where a killed process does not take them along (mesh.tracing.open_rows)."""

    def begun(self, run: OffsetRun) -> int:
        """Note a new row; return its place, 0 for none."""

    def grown(self, place: int, to_offset: int, last_ns: int) -> None:
        """Note that the row at a place has grown."""


@dataclass(slots=True, kw_only=True)
class LateRange:
    """Committed offsets [from_offset, to_offset) of one epoch that are named later than they committed.

    Args:
        first_us, last_us: append times at the home of the first and the last of them, us since 1970; of one second.
        first_index, last_index: of their entries in the group's log.
    """

    epoch: int
    from_offset: int
    to_offset: int
    first_us: int
    last_us: int
    first_index: int = 0
    last_index: int = 0


class OffsetRun:
    """The open ledger row of one stream (or of one session): a range that may still grow."""

    __slots__ = (
        "_close",
        "_journal",
        "_opened",
        "attempt",
        "epoch",
        "first_ns",
        "from_offset",
        "group",
        "is_open",
        "kind",
        "last_ns",
        "names",
        "next_sequence",
        "origin",
        "partition",
        "place",
        "second",
        "sequence",
        "session_epoch",
        "to_offset",
        "topic",
    )

    def __init__(
        self,
        *,
        opened: Callable[[OffsetRun], None],
        close: Callable[[OffsetRun], None],
        kind: LedgerKind,
        topic: str,
        origin: int,
        partition: int,
        group: str = "",
        session: int = 0,
        journal: RunJournal | None = None,
    ) -> None:
        self._opened = opened
        self._close = close
        self._journal = journal
        self.place = 0  # in the journal, 0 for none
        self.names = b""  # the journal's own, made once
        self.is_open = False  # among the core's open runs
        self.kind = kind
        self.topic = topic
        self.origin = origin
        self.partition = partition
        self.group = group
        self.session_epoch = session
        self.next_sequence = 0
        self.sequence = 0  # of the first range merged into the row
        self.epoch = 0
        self.attempt = 1
        self.from_offset = 0
        self.to_offset = 0
        self.first_ns = 0
        self.last_ns = 0
        self.second = 0

    def extend(self, epoch: int, from_offset: int, to_offset: int, now_ns: int, attempt: int = 1) -> int:
        """Take [from_offset, to_offset) in, into the open row when it touches; return its number in the session."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        second = now_ns // NS_PER_S
        if self.is_open:
            if (
                from_offset == self.to_offset
                and second == self.second
                and epoch == self.epoch
                and attempt == self.attempt
            ):
                self.to_offset = to_offset
                self.last_ns = now_ns
                if self.place and self._journal is not None:
                    self._journal.grown(self.place, to_offset, now_ns)
                return sequence
            self._close(self)
        else:
            self.is_open = True
            self._opened(self)
        self.sequence = sequence
        self.epoch = epoch
        self.attempt = attempt
        self.from_offset = from_offset
        self.to_offset = to_offset
        self.first_ns = self.last_ns = now_ns
        self.second = second
        if self._journal is not None:
            self.place = self._journal.begun(self)
        return sequence


class CommitTimes:
    """When the newest offsets of a stream became readable in this region."""

    __slots__ = ("_ends", "_floor", "_times")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []
        self._floor = 0

    def note(self, from_offset: int, to_offset: int, now_ns: int) -> None:
        """Offsets [from_offset, to_offset) were committed at `now_ns`."""
        if not self._ends or from_offset < self._ends[-1]:
            self._ends.clear()
            self._times.clear()
            self._floor = from_offset
        self._ends.append(to_offset)
        self._times.append(now_ns)
        if len(self._ends) > 2 * COMMITS_REMEMBERED:
            self._floor = self._ends[COMMITS_REMEMBERED - 1]
            del self._ends[:COMMITS_REMEMBERED], self._times[:COMMITS_REMEMBERED]

    @property
    def newest_ns(self) -> int:
        """Return when the newest offset was committed, 0 without one."""
        return self._times[-1] if self._times else 0

    def at(self, offset: int) -> int | None:
        """Return when `offset` was committed, None when that is not remembered."""
        ends = self._ends
        if offset < self._floor or not ends or offset >= ends[-1]:
            return None
        return self._times[bisect_right(ends, offset)]
