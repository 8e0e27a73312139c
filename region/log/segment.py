"""Segments: the files that are both the Raft log and the record log.

`<first index, 20 digits>.log` holds entry frames back to back and nothing else. A segment is closed for ever (sealed)
when the next frame would take it over its size limit, and by every EPOCH entry, which opens a new one; so offsets
never go back inside a segment.

Rule 1: a segment is synced before the next one is created. Whatever is wrong in a sealed segment is damage.
Rule 2: only the last segment can have a torn tail, and only what a crash can do counts as torn (`tear_explains`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from region.log.entry import ENTRY_HEADER_BYTES, Entry, EntryError, decode_entry, frame_bytes
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, tear_explains
from region.log.index import NO_TIMESTAMP, SegmentSummary, SparseIndex

SCAN_WINDOW_BYTES: Final = 1024 * 1024
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 48 + 36
_EPOCH: Final = struct.Struct(">I")
_EPOCH_AT: Final = 48 + 8


def segment_path(directory: Path, first_index: int) -> Path:
    """Return the file of the segment that begins at `first_index`."""
    return directory / f"{first_index:020d}.log"


def index_path(segment: Path) -> Path:
    """Return the index file beside a segment."""
    return segment.with_suffix(".index")


def max_timestamp_ms(entry: Entry) -> int:
    """Return the largest timestamp in the entry's batch without decoding the header."""
    return int(_MAX_TIMESTAMP.unpack_from(entry.frame, _MAX_TIMESTAMP_AT)[0])


def entry_epoch(entry: Entry) -> int:
    """Return the home epoch of an entry without decoding the header."""
    return int(_EPOCH.unpack_from(entry.frame, _EPOCH_AT)[0])


@dataclass(slots=True, kw_only=True)
class Segment:
    """One segment file as its writer sees it. Readers use only `path`, `first_index`, `base_offset` and `index`.

    Invariants: 1 last_index >= first_index - 1   2 size_bytes is the end of the last whole entry
    3 base_offset is the first entry's (or next_offset while it is empty).
    """

    path: Path
    first_index: int
    last_index: int
    base_offset: int
    next_offset: int
    last_chain: int
    last_term: int
    size_bytes: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    index: SparseIndex = field(repr=False)

    def note(self, entry: Entry) -> None:
        """Account for `entry`, which follows at `size_bytes`."""
        if self.size_bytes == 0:
            self.base_offset = entry.base_offset
        self.index.note(entry.index, entry.base_offset, self.max_timestamp_ms, self.size_bytes)
        stamp = max_timestamp_ms(entry)
        if stamp > self.max_timestamp_ms:
            self.max_timestamp_ms = stamp
        self.size_bytes += len(entry.frame)
        self.last_index = entry.index
        self.next_offset = entry.base_offset + entry.record_count
        self.last_chain = entry.chain
        self.last_term = entry.term

    def encode_index(self) -> bytes:
        """Return what the index file of this segment must hold once it is sealed."""
        return self.index.encode(
            SegmentSummary(
                first_index=self.first_index,
                last_index=self.last_index,
                segment_bytes=self.size_bytes,
                next_offset=self.next_offset,
                max_timestamp_ms=self.max_timestamp_ms,
                last_chain=self.last_chain,
                last_term=self.last_term,
            )
        )


class FrameWindow:
    """Reads frames of one open file through a buffer, so small entries do not cost a system call each."""

    def __init__(self, fs: FileSystem, handle: int, *, window_bytes: int = SCAN_WINDOW_BYTES) -> None:
        self._fs = fs
        self._handle = handle
        self._window_bytes = window_bytes
        self._start = 0
        self._buffer = memoryview(b"")

    def bytes_at(self, position: int, size: int) -> memoryview:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        at = position - self._start
        if at < 0 or at + size > len(self._buffer):
            self._buffer = memoryview(self._fs.pread(self._handle, max(size, self._window_bytes), position))
            self._start, at = position, 0
        return self._buffer[at : at + size]

    def frame_size_at(self, position: int) -> int:
        """Return the length of the frame at `position` (only its header is checked).

        Raises:
            EntryError: no entry starts there.
        """
        return frame_bytes(self.bytes_at(position, ENTRY_HEADER_BYTES))

    def entry_at(self, position: int, *, previous_chain: int | None) -> Entry:
        """Return the entry at `position`, fully checked.

        Raises:
            EntryError: not a whole, intact entry.
        """
        size = self.frame_size_at(position)
        return decode_entry(self.bytes_at(position, size), previous_chain=previous_chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """Where a scan of the last segment ended before the end of the file."""

    position: int
    reason: str


def scan_segment(
    fs: FileSystem, handle: int, path: Path, *, first_index: int, previous_chain: int | None, sealed: bool
) -> Iterator[Entry | TornTail]:
    """Yield every entry of a segment, fully checked, then a TornTail if the file does not end with the last one.

    Args:
        previous_chain: chain of the entry before the segment; None if it is not known.
        sealed: a torn tail is damage then.

    Raises:
        LogCorrupt: bytes that no interrupted write explains.
    """
    window = FrameWindow(fs, handle)
    position, index, chain, file_bytes = 0, first_index, previous_chain, fs.size(handle)
    while position < file_bytes:
        try:
            entry = window.entry_at(position, previous_chain=chain)
        except EntryError as error:
            if sealed or not _is_torn(window, position, error):
                raise LogCorrupt(path, position, str(error)) from error
            yield TornTail(position=position, reason=str(error))
            return
        if entry.index != index:
            raise LogCorrupt(path, position, f"index {entry.index} where {index} must be")
        yield entry
        position += len(entry.frame)
        index, chain = index + 1, entry.chain


def _is_torn(window: FrameWindow, position: int, error: EntryError) -> bool:
    if error.torn:
        return True  # the file ends inside the frame
    try:
        size = window.frame_size_at(position)
    except EntryError:
        size = ENTRY_HEADER_BYTES
    return tear_explains(window.bytes_at(position, size), position)
