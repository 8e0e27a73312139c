"""Ranges of a stream's records of which nobody here knows whether a ledger names them: pure.

The leader of a group names what commits while it leads. Three kinds of records have no such leader: those that were in
flight when a leader was killed, and commit with the first entry of the next one; those that a killed broker had on disk
and had not applied; and those of which a leader told its followers before it came to name them. The next leader names
all of them when it begins to lead, and naming twice is no harm: a report takes the union of all ranges.

Rule 1: a range never spans two seconds of append time or two epochs, and its offsets follow each other.
Rule 2: what is forgotten depends on what happened here and when, never on append times: in a mirror they are another
        region's clock, and in a log that catches up they are of any age.
Rule 3: what was told is forgotten when its leader was heard for TOLD_FIRST_NS after, or lived for TOLD_WITHIN_NS after:
        by then it has named it. A leader that dies sooner leaves it, and what was told before it, to the next one. A
        stream without news is looked at when the next leader comes, or when another stream finds no room left.
Rule 4: memory is bounded: a stream has RANGES_MAX ranges at most, the newest, and all streams of a broker together
        BROKER_RANGES_MAX, but each of them RANGES_MIN. What is in flight is at the end of the log.
Rule 5: what is truncated is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from mesh.tracing.offset_run_core import LateRange
from region.log.entry import Entry

RANGES_MAX: Final = 4_096  # more than an hour of a stream with records in each second
RANGES_MIN: Final = 64
BROKER_RANGES_MAX: Final = 65_536  # some 20 MB
TOLD_FIRST_NS: Final = 2_000_000_000  # what a leader has told and not named yet; a turn of its loop takes milliseconds
TOLD_WITHIN_NS: Final = 60_000_000_000  # from the last word of a leader until it is missed; an election takes seconds
MOMENT_NS: Final = 100_000_000  # between two moments that are remembered
NOBODY: Final = -1
US_PER_S: Final = 1_000_000
_NOTHING: Final = 0  # no entry has this index


class RangeBudget:
    """Counts the ranges that all streams of this broker remember together.

    Attributes:
        held: how many they are.
        heard: the streams of which a leader that nobody misses has told, the one that told last at the end.
    """

    def __init__(self, ranges_max: int = BROKER_RANGES_MAX) -> None:
        self.ranges_max = ranges_max
        self.held = 0
        self.heard: dict[UnnamedRanges, None] = {}

    def make_room(self, now_ns: int) -> None:
        """When all room is taken, let streams forget what their leaders have lived long enough to name."""
        while self.held >= self.ranges_max and self.heard:
            longest = next(iter(self.heard))
            if not longest.forget_named(now_ns):
                return
            del self.heard[longest]


class UnnamedRanges:
    """The ranges of one stream, in the order of the log.

    Attributes:
        teller: the leader of whose words `told` is told, a broker id; NOBODY for none.
    """

    __slots__ = ("_budget", "_moments", "_noted_end", "_ranges", "_told_end", "_told_ns", "teller")

    def __init__(self, budget: RangeBudget) -> None:
        self._budget = budget
        self._ranges: deque[LateRange] = deque()
        self._noted_end = _NOTHING  # index up to which entries are noted, or were not worth it
        self._moments: deque[tuple[int, int, int]] = deque()  # (when, index, next offset) of what this teller told
        self._told_end = (_NOTHING, 0)  # index and next offset of what it told last
        self._told_ns = 0
        self.teller = NOBODY

    @property
    def first_index(self) -> int | None:
        """Return the index of the oldest entry that is remembered, None when none is."""
        return self._ranges[0].first_index if self._ranges else None

    def recovered(self, entry: Entry) -> None:
        """Note an entry that was found on disk at start, in order."""
        self._noted_end = entry.index
        if entry.record_count:
            self._extend(entry)

    def committed(self, entries: Sequence[Entry]) -> None:
        """Note entries that are committed though no leader could name them; those that were recovered are known."""
        for entry in entries:
            if entry.index > self._noted_end:
                self._noted_end = entry.index
                if entry.record_count:
                    self._extend(entry)

    def told(self, entries: Sequence[Entry], *, leader: int, now_ns: int) -> None:
        """Note entries that are applied while another broker leads, and forget what that one has surely named.

        Args:
            leader: a broker id, NOBODY when the one that told of them is missed.
            now_ns: of a clock of this broker that never goes back.
        """
        self.leader_changed(leader, now_ns=now_ns)
        self._budget.make_room(now_ns)
        self.committed(entries)
        if leader == NOBODY:
            return
        newest = entries[-1]
        self._budget.heard.pop(self, None)
        self._budget.heard[self] = None
        self._told_end, self._told_ns = (newest.index, newest.next_offset), now_ns
        moments = self._moments
        if not moments or now_ns - moments[-1][0] >= MOMENT_NS:
            moments.append((now_ns, *self._told_end))
        named: tuple[int, int, int] | None = None
        while now_ns - moments[0][0] > TOLD_FIRST_NS:
            named = moments.popleft()
        if named is not None:
            self._forget(named[1], named[2])

    def leader_changed(self, leader: int, *, now_ns: int) -> None:
        """Follow who leads, NOBODY for none; to be told of the same again changes nothing."""
        if leader == self.teller:
            return
        self.forget_named(now_ns)
        self._budget.heard.pop(self, None)
        self._told_end = (_NOTHING, 0)  # what is left of it waits for the next leader, however long
        self._moments.clear()
        self.teller = leader

    def forget_named(self, now_ns: int) -> bool:
        """Forget what was told TOLD_WITHIN_NS ago by a leader that was not missed since; return whether that is so."""
        index, next_offset = self._told_end
        if not index or now_ns - self._told_ns <= TOLD_WITHIN_NS:
            return False
        self._forget(index, next_offset)
        return True

    def _extend(self, entry: Entry) -> None:
        header = entry.header()
        append_us = header.append_us
        if self._ranges:
            newest = self._ranges[-1]
            if (
                newest.to_offset == entry.base_offset
                and newest.epoch == header.epoch
                and newest.first_us // US_PER_S == append_us // US_PER_S
            ):
                newest.to_offset = entry.next_offset
                newest.last_us = append_us
                newest.last_index = entry.index
                return
        self._ranges.append(
            LateRange(
                epoch=header.epoch,
                from_offset=entry.base_offset,
                to_offset=entry.next_offset,
                first_us=append_us,
                last_us=append_us,
                first_index=entry.index,
                last_index=entry.index,
            )
        )
        budget = self._budget
        budget.held += 1
        while len(self._ranges) > RANGES_MAX or (budget.held > budget.ranges_max and len(self._ranges) > RANGES_MIN):
            self._ranges.popleft()
            budget.held -= 1

    def truncated(self, from_index: int, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on; `newest` is the last that remains, None when none does."""
        self._noted_end = min(self._noted_end, from_index - 1)
        while self._ranges and self._ranges[-1].last_index >= from_index:
            last = self._ranges[-1]
            if last.first_index >= from_index or newest is None:
                self._ranges.pop()
                self._budget.held -= 1
                continue
            # An entry without records repeats end and append time of the log.
            last.to_offset = newest.next_offset
            last.last_us = newest.header().append_us
            last.last_index = newest.index

    def _forget(self, index: int, next_offset: int) -> None:
        """Forget the entries up to `index`, after which the log went on at `next_offset`."""
        while self._ranges and self._ranges[0].first_index <= index:
            first = self._ranges[0]
            if first.last_index <= index:
                self._ranges.popleft()
                self._budget.held -= 1
                continue
            first.from_offset = next_offset
            first.first_index = index + 1

    def take(self) -> list[LateRange]:
        """Return the ranges and forget them."""
        ranges = list(self._ranges)
        self.clear()
        return ranges

    def clear(self) -> None:
        """Forget everything but who leads."""
        self._budget.held -= len(self._ranges)
        self._ranges.clear()
        self._moments.clear()
        self._budget.heard.pop(self, None)
        self._noted_end, self._told_end = _NOTHING, (_NOTHING, 0)

    def close(self) -> None:
        """Forget everything for good: what a group still applies before it ends has no room of this broker."""
        self.clear()
        self._budget = RangeBudget()
