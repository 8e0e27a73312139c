"""A segment on its way into the log: its bytes come from another replica, in any pieces.

Rule 1: the bytes are believed only after `verify`: every checksum, every index and the chain from the first entry to
the last.
Rule 2: until the flusher links the file in, it is no part of the log; a restart removes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from georelay.limits import RECORD_BATCH_BYTES_MAX, SEGMENT_BYTES_MAX
from region.log.entry import ENTRY_HEADER_BYTES
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, write_fully
from region.log.index import IndexFile, SegmentInfo
from region.log.log_state import LogBase, LogState
from region.log.segment import ScanStop, scan_segment, segment_path

STAGED_BYTES_MAX: Final = SEGMENT_BYTES_MAX + ENTRY_HEADER_BYTES + RECORD_BATCH_BYTES_MAX


class StagedSegment:
    """One staged file. One thread at a time; made by `GroupLog.stage_segment`."""

    def __init__(self, fs: FileSystem, directory: Path, first_index: int, *, interval_bytes: int) -> None:
        self.first_index = first_index
        self.target = segment_path(directory, first_index)
        self.path = self.target.with_suffix(".staged")
        self.content: IndexFile | None = None  # after `verify`
        self._fs = fs
        self._interval_bytes = interval_bytes
        if not fs.exists(directory):
            fs.make_directory(directory)
        self._handle: int | None = fs.open(self.path, create=True)
        fs.truncate(self._handle, 0)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write a piece at its position in the segment.

        Raises:
            ValueError: outside what a segment may have. OSError.
        """
        assert self._handle is not None
        if position < 0 or position + len(data) > STAGED_BYTES_MAX:
            raise ValueError(f"bytes {position}..{position + len(data)} are outside a segment")
        self.content = None
        write_fully(self._fs, self._handle, [data], position)

    def verify(self, previous_chain: int | None) -> SegmentInfo:
        """Read everything back, check it and make it durable; return what it is.

        Args:
            previous_chain: chain of the entry before the segment; None if it is not known.

        Raises:
            LogCorrupt: not whole, intact entries that follow each other, or none at all. OSError.
        """
        assert self._handle is not None
        state = LogState(base=LogBase(chain=previous_chain or 0))
        segment = state.add_segment(self.target, self.first_index, interval_bytes=self._interval_bytes)
        scan = scan_segment(self._fs, self._handle, first_index=self.first_index, previous_chain=previous_chain)
        for found in scan:
            if isinstance(found, ScanStop):
                raise LogCorrupt(self.path, found.position, found.reason)
            segment.note(found)
            state.note(found)
        if segment.size_bytes == 0:
            raise LogCorrupt(self.path, 0, "a segment without an entry")
        self._fs.fdatasync(self._handle)
        self.content = state.index_file(segment)
        return self.content.info

    def close(self) -> None:
        """Close the file; it stays until it is linked in or discarded."""
        if self._handle is not None:
            self._fs.close(self._handle)
            self._handle = None

    def discard(self) -> None:
        """Remove the file. Raises OSError."""
        self.close()
        if self._fs.exists(self.path):
            self._fs.remove(self.path)
