"""What the writer of a log knows about it: where it begins, its segments, its terms and epochs. No files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from georelay.ids import Epoch, RaftIndex
from mesh.replication.stream_header import EntryType
from region.log.entry import FIRST_CHAIN, Entry
from region.log.flushed_marks import LostTail
from region.log.index import EpochStart, IndexFile, SparseIndex, TermRun
from region.log.manifest import Manifest
from region.log.segment import Segment, entry_epoch


@dataclass(frozen=True, slots=True)
class LogBase:
    """The entry before the first one that the log holds: what the log stands on. Index 0: there is none."""

    index: int = 0
    term: int = 0
    chain: int = FIRST_CHAIN
    next_offset: int = 0


def base_of(manifest: Manifest) -> LogBase:
    """Return the base of a log that begins after a manifest."""
    return LogBase(manifest.index, manifest.term, manifest.chain, manifest.next_offset)


@dataclass(slots=True, kw_only=True)
class LogState:
    """Everything a GroupLog keeps in memory. Segments are in index order; `corrupt` and `lost` describe damage.

    Invariants: 1 segments follow each other without a gap   2 term runs and epoch starts are those of entries held
    3 keys of `corrupt` are first indexes of segments, values (position, reason).
    """

    base: LogBase = field(default_factory=LogBase)
    segments: list[Segment] = field(default_factory=list)
    term_runs: list[TermRun] = field(default_factory=list)
    epoch_starts: list[EpochStart] = field(default_factory=list)
    corrupt: dict[int, tuple[int, str]] = field(default_factory=dict)
    lost: LostTail | None = None

    @property
    def first_index(self) -> int:
        """Return the index of the first entry held or to come."""
        return self.segments[0].first_index if self.segments else self.base.index + 1

    @property
    def last_index(self) -> int:
        """Return the index of the last entry; `first_index - 1` while there is none."""
        return self.segments[-1].last_index if self.segments else self.base.index

    @property
    def last_term(self) -> int:
        """Return the term of the last entry, or of the base."""
        return self.term_runs[-1][1] if self.term_runs else self.base.term

    @property
    def last_chain(self) -> int:
        """Return the chain of the last entry, or of the base."""
        return self.segments[-1].last_chain if self.segments else self.base.chain

    @property
    def next_offset(self) -> int:
        """Return the offset after the last entry, or after the base."""
        return self.segments[-1].next_offset if self.segments else self.base.next_offset

    def note(self, entry: Entry) -> None:
        """Account for the entry that follows the last one; its segment was told already."""
        if not self.term_runs or self.term_runs[-1][1] != entry.term:
            self.term_runs.append((entry.index, entry.term))
        if entry.type is EntryType.EPOCH:
            self.epoch_starts.append((entry.index, Epoch(entry_epoch(entry)), entry.base_offset))

    def add_segment(self, path: Path, first_index: int, *, interval_bytes: int) -> Segment:
        """Append an empty segment that begins at `first_index`."""
        segment = Segment(
            path=path,
            first_index=first_index,
            last_index=first_index - 1,
            base_offset=self.next_offset,
            next_offset=self.next_offset,
            previous_chain=self.last_chain,
            last_chain=self.last_chain,
            last_term=self.last_term,
            index=SparseIndex(interval_bytes),
        )
        self.segments.append(segment)
        return segment

    def add_indexed(self, path: Path, file: IndexFile) -> Segment:
        """Append a segment as its index file describes it."""
        segment = Segment.from_index(path, file)
        self.segments.append(segment)
        for run in file.term_runs:
            if not self.term_runs or self.term_runs[-1][1] != run[1]:
                self.term_runs.append(run)
        self.epoch_starts.extend(file.epoch_starts)
        return segment

    def index_file(self, segment: Segment) -> IndexFile:
        """Return what the index file of one of the segments must hold now."""
        first, last = segment.first_index, segment.last_index
        return IndexFile(
            info=segment.info(),
            index=segment.index,
            term_runs=tuple(runs_between(self.term_runs, first, last)),
            epoch_starts=tuple(epoch for epoch in self.epoch_starts if first <= epoch[0] <= last),
        )

    def cut(self, from_index: int, segments: list[Segment]) -> LogState:
        """Return the state without the entries from `from_index` on; `segments` are what is left of them."""
        held = {segment.first_index for segment in segments}
        return LogState(
            base=self.base,
            segments=segments,
            term_runs=[run for run in self.term_runs if run[0] < from_index],
            epoch_starts=[epoch for epoch in self.epoch_starts if epoch[0] < from_index],
            corrupt={first: why for first, why in self.corrupt.items() if first in held},
            lost=self.lost,
        )

    def advance(self, base: LogBase) -> LogState:
        """Return the state without the segments that end at or below the new base."""
        segments = [segment for segment in self.segments if segment.first_index > base.index]
        last = self.last_index
        return LogState(
            base=base,
            segments=segments,
            term_runs=runs_between(self.term_runs, base.index + 1, last),
            epoch_starts=[epoch for epoch in self.epoch_starts if epoch[0] > base.index],
            corrupt={first: why for first, why in self.corrupt.items() if first > base.index},
            lost=self.lost,
        )

    def term_at(self, index: int) -> int:
        """Return the term of an entry held, or of the base; 0 for any other."""
        if index == self.base.index:
            return self.base.term
        at = bisect_right(self.term_runs, index, key=lambda run: run[0]) - 1
        return self.term_runs[at][1] if at >= 0 and index <= self.last_index else 0


def runs_between(runs: Sequence[TermRun], first: int, last: int) -> list[TermRun]:
    """Return the runs of the entries first..last; a run that begins before them begins with them."""
    found: list[TermRun] = []
    for start, term in runs:
        if start > last:
            break
        if start <= first:
            found = [(RaftIndex(first), term)]
        else:
            found.append((start, term))
    return found if first <= last else []
