"""The sparse index of one segment: where in the file an index, an offset or a time is found.

Four parallel arrays, one point for the first entry that starts at or after each INDEX_INTERVAL_BYTES: arrays, because
a garbage collection over a million small objects would be a latency spike. Base offsets never go back inside a
segment (an EPOCH entry that would let them opens a new one), so every column is sorted and found by bisection.

Beside a segment the index is kept as `<first index>.index`: of the whole segment once it is sealed, of a durable
beginning of it before (a checkpoint, from where the next start reads on). Layout of format 2 (big-endian):

    pos  size  field
      0     4  magic           "GRIX"
      4     2  format          2
      6     2  reserved        0
      8     8  first_index     of the segment
     16     8  last_index
     24     8  segment_bytes   end of the last entry
     32     8  last_position   start of the last entry
     40     8  base_offset     of the first entry
     48     8  next_offset     after the last entry
     56     8  max_timestamp_ms
     64     8  last_term       term of the last entry
     72     4  previous_chain  chain before the first entry
     76     4  last_chain      chain of the last entry
     80     4  points
     84     4  term_runs
     88     4  epoch_starts
     92     4  reserved        0
     96  32*n  points: index u64, base_offset i64, max_timestamp_before_ms i64, position u64
        16*n   term runs: first index u64, term u64
        24*n   EPOCH entries: index u64, start i64, epoch u32, reserved u32
   last     4  CRC-32C of everything before it

Rule: the file only speaks of bytes that were durable before it was written. When it is missing or wrong (or of format
1, which knew less) it is made again from the segment, which alone is the truth.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex, Term
from georelay.wire.crc import crc32c

_MAGIC: Final = b"GRIX"
_FORMAT: Final = 2
_HEADER: Final = struct.Struct(">4sHHQQQQqqqQIIIIII")
_TERM_RUN: Final = struct.Struct(">QQ")
_EPOCH_START: Final = struct.Struct(">QqII")
_CRC: Final = struct.Struct(">I")
_POINT_WORDS: Final = 4
_WORD_BYTES: Final = 8
assert _HEADER.size == 96

EpochStart = tuple[RaftIndex, Epoch, Offset]  # of an EPOCH entry: where it stands and which offset it sets
TermRun = tuple[RaftIndex, Term]  # first index of a run of entries with one term

NO_TIMESTAMP: Final = -1  # of control entries, and of clients that give none


class IndexFileError(ValueError):
    """Bytes that are not an index file of the format this broker writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """A segment as a whole. Sizes are bytes; fields are those of the index file."""

    first_index: int
    last_index: int
    size_bytes: int
    last_position: int
    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    last_term: int
    previous_chain: int
    last_chain: int


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

    def columns(self) -> bytes:
        """Return the points as the index file holds them."""
        words = array("Q", bytes(len(self) * _POINT_WORDS * _WORD_BYTES))
        columns = (self.indexes, self.base_offsets, self.max_timestamps_ms, self.positions)
        for at, column in enumerate(columns):
            words[at::_POINT_WORDS] = array("Q", column.tobytes())
        return _big_endian(words).tobytes()

    @classmethod
    def from_columns(cls, raw: bytes, interval_bytes: int) -> SparseIndex:
        """Return the index whose `columns` these are."""
        words = array("Q")
        words.frombytes(raw)
        words = _big_endian(words)
        found = cls(interval_bytes)
        found.indexes = words[0::_POINT_WORDS]
        found.base_offsets = array("q", words[1::_POINT_WORDS].tobytes())
        found.max_timestamps_ms = array("q", words[2::_POINT_WORDS].tobytes())
        found.positions = words[3::_POINT_WORDS]
        found._next_point = found.positions[-1] + interval_bytes if found.positions else 0
        return found


def _big_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "little":
        words.byteswap()
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """The content of an index file."""

    info: SegmentInfo
    index: SparseIndex
    term_runs: tuple[TermRun, ...]
    epoch_starts: tuple[EpochStart, ...]

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        info = self.info
        header = _HEADER.pack(
            _MAGIC,
            _FORMAT,
            0,
            info.first_index,
            info.last_index,
            info.size_bytes,
            info.last_position,
            info.base_offset,
            info.next_offset,
            info.max_timestamp_ms,
            info.last_term,
            info.previous_chain,
            info.last_chain,
            len(self.index),
            len(self.term_runs),
            len(self.epoch_starts),
            0,
        )
        runs = (_TERM_RUN.pack(*run) for run in self.term_runs)
        epochs = (_EPOCH_START.pack(index, start, epoch, 0) for index, epoch, start in self.epoch_starts)
        body = b"".join((header, self.index.columns(), *runs, *epochs))
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, raw: bytes, *, interval_bytes: int) -> IndexFile:
        """Decode and check.

        Raises:
            IndexFileError: damaged, cut short or of another format.
        """
        if len(raw) < _HEADER.size + _CRC.size:
            raise IndexFileError(f"an index file has more than {len(raw)} bytes")
        if _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] != crc32c(memoryview(raw)[: -_CRC.size]):
            raise IndexFileError("the checksum of the index file is wrong")
        magic, version, _, *numbers = _HEADER.unpack_from(raw)
        if magic != _MAGIC or version != _FORMAT:
            raise IndexFileError(f"index file format {version}, not {_FORMAT}")
        *fields, points, term_runs, epoch_starts, _ = numbers
        points_end = _HEADER.size + points * _POINT_WORDS * _WORD_BYTES
        runs_end = points_end + term_runs * _TERM_RUN.size
        end = runs_end + epoch_starts * _EPOCH_START.size
        if end + _CRC.size != len(raw) or points < 1:
            raise IndexFileError(f"the lengths of the index file do not add up to {len(raw)} bytes")
        names = ("first_index", "last_index", "size_bytes", "last_position", "base_offset", "next_offset")
        more = ("max_timestamp_ms", "last_term", "previous_chain", "last_chain")
        return cls(
            info=SegmentInfo(**dict(zip(names + more, fields, strict=True))),
            index=SparseIndex.from_columns(raw[_HEADER.size : points_end], interval_bytes),
            term_runs=tuple(
                (RaftIndex(index), Term(term)) for index, term in _TERM_RUN.iter_unpack(raw[points_end:runs_end])
            ),
            epoch_starts=tuple(
                (RaftIndex(index), Epoch(epoch), Offset(start))
                for index, start, epoch, _ in _EPOCH_START.iter_unpack(raw[runs_end:end])
            ),
        )
