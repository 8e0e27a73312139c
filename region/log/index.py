"""The sparse index of one segment: where in the file an index, an offset or a time is found.

Four parallel arrays, one point for the first entry that starts at or after each INDEX_INTERVAL_BYTES: arrays, because
a garbage collection over a million small objects would be a latency spike. Base offsets never go back inside a
segment (an EPOCH entry opens a new one), so every column is sorted and found by bisection.

Beside a sealed segment the index is kept as `<first index>.index`. Layout of format 1 (big-endian):

    pos  size  field
      0     4  magic           "GRIX"
      4     2  format          1
      6     2  reserved        0
      8     8  first_index     of the segment
     16     8  last_index
     24     8  segment_bytes
     32     8  next_offset     after the last entry
     40     8  max_timestamp_ms
     48     4  last_chain      chain of the last entry
     52     4  last_term_low   low 32 bits of the last entry's term
     56     4  points
     60     4  reserved        0
     64  32*n  points: index u64, base_offset i64, max_timestamp_before_ms i64, position u64
   last     4  CRC-32C of everything before it

The file is a cache: when missing or wrong it is made again from the segment, which alone is the truth.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from georelay.wire.crc import crc32c

_MAGIC: Final = b"GRIX"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct(">4sHHQQQqqIIII")
_POINT: Final = struct.Struct(">QqqQ")
_CRC: Final = struct.Struct(">I")
assert _HEADER.size == 64

NO_TIMESTAMP: Final = -1  # of control entries, and of clients that give none


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """What a sealed segment's index file says about the segment as a whole."""

    first_index: int
    last_index: int
    segment_bytes: int
    next_offset: int
    max_timestamp_ms: int
    last_chain: int
    last_term: int


class SparseIndex:
    """Points of one segment, in file order.

    Invariants: 1 the four arrays have one length   2 each is sorted   3 the first point is the segment's first entry
    4 max_timestamps_ms[i] covers the entries BEFORE point i, so a search by time starts at the last smaller one.
    """

    __slots__ = ("_next_point", "base_offsets", "indexes", "interval_bytes", "max_timestamps_ms", "positions")

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.indexes = array("Q")
        self.base_offsets = array("q")
        self.max_timestamps_ms = array("q")
        self.positions = array("Q")
        self._next_point = 0

    def __len__(self) -> int:
        return len(self.indexes)

    def note(self, index: int, base_offset: int, max_timestamp_before_ms: int, position: int) -> None:
        """Tell of an appended entry; a point is made when one is due."""
        if position < self._next_point:
            return
        # `indexes` grows last: a reader in another thread never looks beyond its length.
        self.base_offsets.append(base_offset)
        self.max_timestamps_ms.append(max_timestamp_before_ms)
        self.positions.append(position)
        self.indexes.append(index)
        self._next_point = position + self.interval_bytes

    def position_for_index(self, index: int) -> tuple[int, int]:
        """Return (index, position) of the last point at or below `index`."""
        at = max(bisect_right(self.indexes, index) - 1, 0)
        return self.indexes[at], self.positions[at]

    def index_for_offset(self, offset: int) -> int:
        """Return an index at or before the entry that owns `offset`."""
        at = bisect_right(self.base_offsets, offset, 0, len(self.indexes)) - 1
        return self.indexes[max(at, 0)]

    def index_for_timestamp(self, timestamp_ms: int) -> int:
        """Return an index at or before the first entry with a timestamp >= `timestamp_ms`."""
        at = bisect_left(self.max_timestamps_ms, timestamp_ms, 0, len(self.indexes)) - 1
        return self.indexes[max(at, 0)]

    def index_for_position(self, position: int) -> int:
        """Return the index of the last point at or before a byte position."""
        at = bisect_right(self.positions, position, 0, len(self.indexes)) - 1
        return self.indexes[max(at, 0)]

    def cut(self, from_index: int) -> SparseIndex:
        """Return a copy without the points at or after `from_index`; readers keep the old one."""
        keep = bisect_left(self.indexes, from_index)
        copy = SparseIndex(self.interval_bytes)
        copy.indexes = self.indexes[:keep]
        copy.base_offsets = self.base_offsets[:keep]
        copy.max_timestamps_ms = self.max_timestamps_ms[:keep]
        copy.positions = self.positions[:keep]
        copy._next_point = copy.positions[-1] + self.interval_bytes if keep else 0
        return copy

    def encode(self, summary: SegmentSummary) -> bytes:
        """Return the content of the index file."""
        header = _HEADER.pack(
            _MAGIC,
            _FORMAT,
            0,
            summary.first_index,
            summary.last_index,
            summary.segment_bytes,
            summary.next_offset,
            summary.max_timestamp_ms,
            summary.last_chain,
            summary.last_term & 0xFFFF_FFFF,
            len(self),
            0,
        )
        columns = zip(self.indexes, self.base_offsets, self.max_timestamps_ms, self.positions, strict=True)
        body = header + b"".join(_POINT.pack(*point) for point in columns)
        return body + _CRC.pack(crc32c(body))
