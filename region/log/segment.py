"""Segments: the files that are both the Raft log and the record log.

`<first index, 20 digits>.log` holds entry frames back to back; only the last one may have zeros behind its last frame
(room taken in advance). A segment is closed for ever (sealed) when the next frame would take it over its size limit,
when its owner asks, and by an EPOCH entry, which opens a new one unless no entry of the segment owns an offset and the
epoch does not start below it (a new group has its first EPOCH entry behind its first leader's NOOP, and to seal a
segment costs several syncs). So offsets never go back inside a segment.

Rule 1: a segment is cut to its last frame and synced, and its index file with it, before the next one is created.
Whatever is wrong in a sealed segment is damage.
Rule 2: only the last segment can have a torn tail: frames above the group's flushed mark. Without a mark only what a
crash can do counts as torn (`tear_explains`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from region.log.entry import ENTRY_HEADER_BYTES, Entry, EntryError, decode_entry, frame_bytes
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, read_at, tear_explains
from region.log.index import NO_TIMESTAMP, IndexFile, SegmentInfo, SparseIndex

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
    previous_chain: int
    last_chain: int
    last_term: int
    size_bytes: int = 0
    last_position: int = 0
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
        self.last_position = self.size_bytes
        self.size_bytes += len(entry.frame)
        self.last_index = entry.index
        self.next_offset = entry.base_offset + entry.record_count
        self.last_chain = entry.chain
        self.last_term = entry.term

    def may_begin_epoch(self, entry: Entry) -> bool:
        """Return whether an EPOCH entry may follow here without a segment of its own: offsets stay in order."""
        return self.base_offset == self.next_offset <= entry.base_offset

    def info(self) -> SegmentInfo:
        """Return the segment as a whole."""
        return SegmentInfo(
            first_index=self.first_index,
            last_index=self.last_index,
            size_bytes=self.size_bytes,
            last_position=self.last_position,
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            max_timestamp_ms=self.max_timestamp_ms,
            last_term=self.last_term,
            previous_chain=self.previous_chain,
            last_chain=self.last_chain,
        )

    @classmethod
    def from_index(cls, path: Path, file: IndexFile) -> Segment:
        """Return the segment at `path` as its index file describes it."""
        info = file.info
        return cls(
            path=path,
            first_index=info.first_index,
            last_index=info.last_index,
            base_offset=info.base_offset,
            next_offset=info.next_offset,
            previous_chain=info.previous_chain,
            last_chain=info.last_chain,
            last_term=info.last_term,
            size_bytes=info.size_bytes,
            last_position=info.last_position,
            max_timestamp_ms=info.max_timestamp_ms,
            index=file.index,
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
            self._buffer = memoryview(read_at(self._fs, self._handle, max(size, self._window_bytes), position))
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
class ScanStop:
    """Where a scan ended before the end of the file, at the entry that should have been `index`.

    `is_room`: what follows begins like room taken in advance. `tear_explains`: an interrupted write explains it.
    """

    position: int
    index: int
    reason: str
    is_room: bool
    tear_explains: bool


def scan_segment(
    fs: FileSystem, handle: int, *, first_index: int, previous_chain: int | None, position: int = 0
) -> Iterator[Entry | ScanStop]:
    """Yield every entry from `position` on, fully checked, then a ScanStop if the file does not end with the last one.

    Args:
        first_index: of the entry at `position`.
        previous_chain: chain of the entry before it; None if it is not known.
    """
    window = FrameWindow(fs, handle)
    index, chain, file_bytes = first_index, previous_chain, fs.size(handle)
    while position < file_bytes:
        try:
            entry = window.entry_at(position, previous_chain=chain)
            if entry.index != index:
                raise EntryError(f"index {entry.index} where {index} must be")
        except EntryError as error:
            yield _stop(window, position, index, error)
            return
        yield entry
        position += len(entry.frame)
        index, chain = index + 1, entry.chain


def _stop(window: FrameWindow, position: int, index: int, error: EntryError) -> ScanStop:
    head = window.bytes_at(position, ENTRY_HEADER_BYTES)
    torn = error.torn  # the file ends inside the frame
    if not torn:
        try:
            size = window.frame_size_at(position)
        except EntryError:
            size = ENTRY_HEADER_BYTES
        torn = tear_explains(window.bytes_at(position, size), position)
    return ScanStop(position=position, index=index, reason=str(error), is_room=not any(head), tear_explains=torn)


def verify_frames(fs: FileSystem, handle: int, path: Path, info: SegmentInfo, *, piece_bytes: int) -> Iterator[int]:
    """Read a sealed segment from its first to its last byte; yield the bytes read after each piece.

    Raises:
        LogCorrupt: it is not what `info` says. OSError.
    """
    found, read = info.first_index - 1, 0
    chain = info.previous_chain
    for item in scan_segment(fs, handle, first_index=info.first_index, previous_chain=chain):
        if isinstance(item, ScanStop):
            raise LogCorrupt(path, item.position, item.reason)
        found, chain, read = item.index, item.chain, read + len(item.frame)
        if read >= piece_bytes:
            yield read
            read = 0
    if found != info.last_index or chain != info.last_chain or fs.size(handle) != info.size_bytes:
        raise LogCorrupt(path, fs.size(handle), f"it ends with entry {found}, not with {info.last_index}")
    yield read
