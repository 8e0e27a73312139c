"""The read side of a group's log: pure lookups on an immutable view of what is durable.

Offsets of one stream can occur twice in a region's log: records that this region had beyond the prefix on which the
mesh agreed when an epoch began stay in the log as an orphan branch. Entries before an EPOCH entry whose offsets reach
its start are orphans; no lookup by offset or time ever returns them. The way is epoch -> segment -> sparse index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from mesh.replication.stream_header import OWNS_OFFSETS
from region.log.entry import Entry, EntryError
from region.log.errors import LogCorrupt, LogUnreadable
from region.log.filesystem import FileSystem, Unreadable, open_to_read
from region.log.index import EpochStart
from region.log.segment import SCAN_WINDOW_BYTES, FrameWindow, Segment, max_timestamp_ms

_READ_WINDOW_BYTES_MIN: Final = 64 * 1024
_NO_CEILING: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The entries of one epoch in this log: indexes [first, last]; those that reach `ceiling` are orphans."""

    first: int
    last: int
    ceiling: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The durable part of a log. A newer view replaces it; its own answers stay true until a truncation."""

    fs: FileSystem
    segments: tuple[Segment, ...]
    epoch_starts: tuple[EpochStart, ...]
    first_index: int
    last_index: int
    corrupt: Mapping[int, tuple[int, str]]  # by first index of the segment; grows while the view is in use

    def sealed(self) -> tuple[Segment, ...]:
        """Return the segments that do not change any more."""
        return self.segments[:-1]

    def read_entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Return entries with lo <= index < hi up to `max_bytes`, the first one whatever its size."""
        found: list[Entry] = []
        size = 0
        with closing(self._entries(lo, min(hi - 1, self.last_index), window_bytes=max_bytes)) as entries:
            for entry in entries:
                size += len(entry.frame)
                if found and size > max_bytes:
                    break
                found.append(entry)
                if size >= max_bytes:
                    break
        return found

    def read_from_offset(self, offset: int, max_bytes: int, up_to_index: int) -> list[Entry]:
        """Return entries that own offsets, from the one that owns `offset` on, along the valid branches."""
        found: list[Entry] = []
        size = 0
        while (branch := self._branch_of(offset, up_to_index)) is not None:
            start = self._seek_offset(branch, offset)
            with closing(self._entries(start, branch.last, window_bytes=max_bytes - size)) as entries:
                for entry in entries:
                    if entry.type not in OWNS_OFFSETS or entry.next_offset <= offset:
                        continue
                    if entry.next_offset > branch.ceiling:
                        break
                    if entry.base_offset > offset and not found:
                        return []  # the log begins above the offset
                    size += len(entry.frame)
                    if found and size > max_bytes:
                        return found
                    found.append(entry)
                    offset = entry.next_offset
                    if size >= max_bytes:
                        return found
            if offset < branch.ceiling:
                return found
        return found

    def entry_for_timestamp(self, timestamp_ms: int, up_to_index: int) -> Entry | None:
        """Return the first entry of the valid branches with a timestamp at or after `timestamp_ms`."""
        for branch in self._branches(up_to_index):
            for at in self._segments_of(branch):
                segment = self.segments[at]
                if segment.max_timestamp_ms < timestamp_ms or len(segment.index) == 0:
                    continue
                start = max(segment.index.index_for_timestamp(timestamp_ms), branch.first)
                with closing(self._entries(start, min(self._last_index_of(at), branch.last))) as entries:
                    for entry in entries:
                        if entry.next_offset > branch.ceiling:
                            break
                        if entry.type in OWNS_OFFSETS and max_timestamp_ms(entry) >= timestamp_ms:
                            return entry
        return None

    def _branches(self, up_to_index: int) -> list[Branch]:
        """Return the branches in index order; the first holds what precedes the first EPOCH entry."""
        last = min(up_to_index, self.last_index)
        starts = [epoch for epoch in self.epoch_starts if epoch[0] <= last]
        branches: list[Branch] = []
        ceiling = _NO_CEILING
        for index, _, start in reversed(starts):
            branches.append(Branch(first=index, last=last, ceiling=ceiling))
            last, ceiling = index - 1, min(ceiling, start)
        if last >= self.first_index:
            branches.append(Branch(first=self.first_index, last=last, ceiling=ceiling))
        branches.reverse()
        return branches

    def _branch_of(self, offset: int, up_to_index: int) -> Branch | None:
        """Return the branch whose entry for `offset` is the valid one: the last epoch that starts at or below it."""
        # Ceilings never go down from branch to branch (each is the lowest start that follows), so the first branch
        # that ends above the offset is the one.
        return next((branch for branch in self._branches(up_to_index) if offset < branch.ceiling), None)

    def _seek_offset(self, branch: Branch, offset: int) -> int:
        """Return an index in the branch at or before the entry that owns `offset`."""
        inside = self._segments_of(branch)
        at = max(bisect_right(self.segments, offset, inside.start, inside.stop, key=_base_offset) - 1, inside.start)
        return max(self.segments[at].index.index_for_offset(offset), branch.first)

    def _segments_of(self, branch: Branch) -> range:
        return range(self._segment_at(branch.first), self._segment_at(branch.last) + 1)

    def _segment_at(self, index: int) -> int:
        return max(bisect_right(self.segments, index, key=_first_index) - 1, 0)

    def _last_index_of(self, at: int) -> int:
        return self.segments[at + 1].first_index - 1 if at + 1 < len(self.segments) else self.last_index

    def refuse_corrupt(self, segment: Segment) -> None:
        """Raise LogCorrupt when the segment is known to be damaged and was not replaced yet."""
        found = self.corrupt.get(segment.first_index)
        if found is not None:
            raise LogCorrupt(segment.path, *found)

    def _entries(self, first: int, last: int, *, window_bytes: int = SCAN_WINDOW_BYTES) -> Generator[Entry, None, None]:
        """Yield the entries first..last, each fully checked, across segments."""
        window_bytes = max(_READ_WINDOW_BYTES_MIN, min(window_bytes, SCAN_WINDOW_BYTES))
        while first <= last:
            at = self._segment_at(first)
            segment_last = min(last, self._last_index_of(at))
            self.refuse_corrupt(self.segments[at])
            yield from read_segment(self.fs, self.segments[at], first, segment_last, window_bytes=window_bytes)
            first = segment_last + 1


def read_segment(
    fs: FileSystem, segment: Segment, first: int, last: int, *, window_bytes: int
) -> Generator[Entry, None, None]:
    """Yield the entries first..last of one segment, each fully checked.

    Raises:
        LogCorrupt: an entry is damaged, or the segment was changed meanwhile (the caller knows which).
        LogUnreadable: the disk does not give it back.
        OSError: FileNotFoundError when the segment was removed.
    """
    index, position = segment.index.position_for_index(first)
    try:
        handle = open_to_read(fs, segment.path)
    except Unreadable as error:
        raise LogUnreadable(segment.path, position, str(error)) from error
    try:
        window = FrameWindow(fs, handle, window_bytes=window_bytes)
        while index < first:
            position += window.frame_size_at(position)
            index += 1
        chain: int | None = None
        while index <= last:
            entry = window.entry_at(position, previous_chain=chain)
            if entry.index != index:
                raise LogCorrupt(segment.path, position, f"index {entry.index} where {index} must be")
            yield entry
            position += len(entry.frame)
            index, chain = index + 1, entry.chain
    except EntryError as error:
        raise LogCorrupt(segment.path, position, str(error)) from error
    except Unreadable as error:
        raise LogUnreadable(segment.path, position, str(error)) from error
    finally:
        fs.close(handle)


def _first_index(segment: Segment) -> int:
    return segment.first_index


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
