"""A reader in one region: what it got is in its history, and how long it took is counted.

Rule 1: deliver latency is from when the record was DUE at its publisher until it is here.
Rule 2: a reader may be slow, and may come and go; when the load is over it does neither, until it has everything.
Rule 3: a complete read says of every partition that it was read, where nothing is too: what is missing is missed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from loadtest.campaign.offset_ranges_core import OffsetRanges
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.campaign import SHARING, Readers
from loadtest.load.engine_values import Plan, WallClock, is_complete, method_of, name_of, origin_of, parts_of
from loadtest.load.samples_core import Done
from loadtest.load.sources import FAILURES, SOURCES, Spot, Taken

AGAIN_S: Final = 0.2


class Progress:
    """What one reader has, or all members of a group or a queue together."""

    def __init__(self, spots: Iterable[Spot], *, is_shared: bool) -> None:
        self.next: dict[Spot, int] = dict.fromkeys(spots, 0)
        self._seen = {spot: OffsetRanges() for spot in self.next} if is_shared else None
        self._lock = threading.Lock()  # members are threads

    def take(self, spot: Spot, offsets: Iterable[int]) -> None:
        """Note records that were taken."""
        with self._lock:
            for offset in offsets:
                self.next[spot] = max(self.next[spot], offset + 1)
                if self._seen is not None:
                    self._seen[spot].add(offset)

    def reach(self, spot: Spot, offset: int) -> None:
        """Note that there is nothing more to take below an offset."""
        self.next[spot] = max(self.next[spot], offset)

    def has(self, ends: Mapping[Spot, int]) -> bool:
        """Return whether everything below these ends was taken."""
        if self._seen is None:
            return all(self.next[spot] >= end for spot, end in ends.items() if spot in self.next)
        with self._lock:
            return all(self._seen[spot].size >= end for spot, end in ends.items() if spot in self._seen)


class Reader:
    """One consumer, in a thread of its own from `start` on."""

    def __init__(
        self, name: str, region: str, readers: Readers, *, plan: Plan, clock: WallClock, progress: Progress, shared: str
    ) -> None:
        """Take what is read; nothing is read yet.

        Args:
            shared: name of the group or queue, "" for one that reads everything.
        """
        self.region = region
        self.progress = progress
        self.done: deque[Done] = deque()  # of pairs
        self.name = name
        self._method = method_of(name)
        self._readers = readers
        self._is_final = is_complete(name)
        self._clock = clock
        self._source = SOURCES[readers.kind](plan, region, shared)
        self._history = HistoryWriter(plan.folder / "histories" / f"{name}.history", name)
        self._begun: set[Spot] = set()
        self._ended, self._hurries = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Read from the first record on."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether its thread has not ended: of an error that is none of FAILURES it does."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """Be neither slow nor away any more."""
        self._hurries.set()

    def stop(self) -> None:
        """End, and wait for it."""
        self._ended.set()
        self.hurry()
        self._thread.join()
        for topic, partition in self.progress.next.keys() - self._begun if self._is_final else ():
            key = f"{topic}/{partition}"
            number = self._history.invoke(Kind.FETCH, key, site=self.region, position=0, final=True)
            self._history.fetched(number, [])
        self._history.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._source.open(self.progress.next)
                try:
                    self._stay()
                finally:
                    self._source.close()
            except FAILURES:
                self._ended.wait(AGAIN_S)  # whoever it read from is gone: the next one
            else:
                self._hurries.wait(self._readers.away_s)

    def _stay(self) -> None:
        leaves_at = time.monotonic() + self._readers.stay_s
        while not self._ended.is_set():
            if self._readers.stay_s and time.monotonic() > leaves_at and not self._hurries.is_set():
                return
            began_ns = time.monotonic_ns()
            taken = self._source.take()
            self._note(taken, began_ns)
            for spot, offset in self._source.reached.items():
                self.progress.reach(spot, offset)
            if not taken:
                continue
            self._hurries.wait(self._readers.pause_ms * len(taken) / 1000)
            self._source.finish()

    def _note(self, taken: list[Taken], began_ns: int) -> None:
        now_ns = self._clock.now_ns()
        for record in taken:
            with contextlib.suppress(ValueError):  # none of ours: the checker says what it thinks of that
                name, _, due_ns = parts_of(record.value)
                self.done.append((self._method, f"{origin_of(name)}->{self.region}", (now_ns - due_ns) / 1e6))
        for (topic, partition, _), group in groupby(enumerate(sorted(taken, key=_spot_of)), key=self._piece_of):
            rows = [(row.offset, name_of(row.value)) for _, row in group]
            number = self._history.invoke(
                Kind.FETCH,
                f"{topic}/{partition}",
                site=self.region,
                position=self._position((topic, partition), rows[0][0]),
                final=self._is_final,
                at_ns=began_ns,
            )
            self._history.fetched(number, rows)
            self.progress.take((topic, partition), [offset for offset, _ in rows])

    def _piece_of(self, numbered: tuple[int, Taken]) -> tuple[str, int, int]:
        """Return what one fetch has in common: a partition, and among sharers no gap."""
        number, row = numbered
        return (*_spot_of(row), row.offset - number if self._readers.kind in SHARING else 0)

    def _position(self, spot: Spot, first: int) -> int | None:
        """Return where the reader asked to read, None where it goes on."""
        if self._readers.kind in SHARING:
            return first
        is_new = spot not in self._begun
        self._begun.add(spot)
        return 0 if is_new else None


def readers_of(plan: Plan, clock: WallClock, *, is_final: bool) -> list[Reader]:
    """Return the readers of an engine.

    Args:
        is_final: for a complete read after everything else, which the checker holds acknowledgements against.
    """
    together: dict[tuple[str, str], Progress] = {}
    found = []
    for name, region, readers, shared in plan.complete_readers() if is_final else plan.readers():
        progress = Progress(plan.spots(readers.topics), is_shared=bool(shared))
        if shared:
            progress = together.setdefault((region, shared), progress)
        found.append(Reader(name, region, readers, plan=plan, clock=clock, progress=progress, shared=shared))
    return found


def _spot_of(row: Taken) -> Spot:
    return row.topic, row.partition
