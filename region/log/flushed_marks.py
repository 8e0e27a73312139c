"""How far each group's log was durable when the flusher last said so: what tells a torn tail from damage.

A bad frame above a group's mark was never promised to anybody: a crash tore it, it is cut. A bad frame at or below the
mark was durable once: the disk lost it, and the replica must be repaired before it counts again.

Rule 1: a mark is written after the sync that it speaks of, and synced later, see MARKS_SYNC_MS of the flusher: one
        that is behind never calls a whole log damaged, but damage above it passes for a torn tail.
Rule 2: a mark is lowered durably before the log is cut below it; so it is never above what the disk must hold.
Rule 3: while a replica lacks what its mark says, the mark stays: a restart does not forget the loss.
Rule 4: a damaged row stays until every group has a mark again: whose it was, nobody knows (see is_damaged). A bad
        header and a row that is cut short are damaged rows: a sector or an end of the file is gone, and rows with it.
Rule 5: the file grows durably, by rows of zeros, before one of them is used. Marks of new groups are noted when all
        that was written to logs is synced, so a new size that a power cut left in part stands beside whole logs.

Layout of `flushed-marks`, format 1 (big-endian; rows of 32 bytes, so none crosses a sector and each is old or new):

    row 0: magic "GRFM", format u16, 22 bytes reserved, CRC-32C u32 of the row before it
    row n: group u32, chain u32, index u64, term u64, magic u32 "MARK", CRC-32C u32 of the row before it; or zeros
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import DataDirectoryError
from georelay.ids import GroupId, RaftIndex, Term
from georelay.wire.crc import crc32c
from region.log.filesystem import FileSystem, write_fully

log = structlog.get_logger()

MARKS_NAME: Final = "flushed-marks"
_ROW_BYTES: Final = 32
_HEADER: Final = struct.Struct(">4sH22s")
_ROW: Final = struct.Struct(">IIQQ4s")
_CRC: Final = struct.Struct(">I")
_FILE_MAGIC: Final = b"GRFM"
_ROW_MAGIC: Final = b"MARK"
_FORMAT: Final = 1
_FREE: Final = bytes(_ROW_BYTES)
_GROWTH_ROWS: Final = 128  # 4 KiB: new groups seldom wait for a sync of their own
assert _HEADER.size + _CRC.size == _ROW.size + _CRC.size == _ROW_BYTES


@dataclass(frozen=True, slots=True)
class FlushedMark:
    """The last entry of a log that is known to be durable."""

    index: RaftIndex
    term: Term
    chain: int

    def is_reached_by(self, term: int, index: int) -> bool:
        """Return whether a log that ends with this term and index has what the mark speaks of."""
        return (term, index) >= (self.term, self.index)


LostTail = FlushedMark  # a mark that the log does not reach any more


class FlushedMarks:
    """The marks of one data directory. Made by `open`; any thread."""

    def __init__(
        self,
        fs: FileSystem,
        handle: int,
        rows: dict[GroupId, tuple[int, FlushedMark]],
        damaged: dict[int, bytes],
        row_count: int,
    ) -> None:
        self._fs = fs
        self._handle: int | None = handle
        self._lock = threading.Lock()
        self._rows = rows
        self._content = bytearray(row_count * _ROW_BYTES)
        self._content[:_ROW_BYTES] = _encode_header()
        for group, (row, mark) in rows.items():
            self._put(row, _encode_row(group, mark))
        for row, content in damaged.items():
            self._put(row, content)
        self._damaged = sorted(damaged)
        used = {row for row, _ in rows.values()} | {*damaged}
        self._free = [row for row in range(row_count - 1, 0, -1) if row not in used]

    @classmethod
    def open(cls, fs: FileSystem, directory: Path, *, are_expected: bool = False) -> FlushedMarks:
        """Load the marks of `directory`; a missing file is begun, durably. A damaged row is no mark of any group.

        Args:
            are_expected: groups here may have marks, so a file that is missing or empty is damaged.

        Raises:
            DataDirectoryError: a format that this broker does not know.
            OSError: from the file system.
        """
        path = directory / MARKS_NAME
        fresh = not fs.exists(path)
        handle = fs.open(path, create=True)
        raw = fs.pread(handle, fs.size(handle), 0)
        rows, damaged = decode_marks(raw, path)
        if not raw and are_expected:
            log.error("mark.damaged", path=str(path), row=0)
            damaged[0] = _FREE
        marks = cls(fs, handle, rows, damaged, max(1, -(-len(raw) // _ROW_BYTES)))
        write_fully(fs, handle, [marks._content], 0)
        # Before any group is made: an empty file beside one has lost its rows. And what was read counts as durable from
        # now on: a killed process may not have synced it.
        fs.fdatasync(handle)
        if fresh:
            fs.fsync_directory(directory)
        return marks

    def get(self, group: GroupId) -> FlushedMark | None:
        """Return the mark of a group; None if nothing of it was ever durable, or its row is damaged."""
        found = self._rows.get(group)
        return None if found is None else found[1]

    @property
    def is_damaged(self) -> bool:
        """Return whether there are damaged rows: a group without a mark may have had one."""
        return bool(self._damaged)

    def clear_damaged(self) -> None:
        """Give up damaged rows durably: every group has its mark. Raises OSError."""
        with self._lock:
            for row in self._damaged:
                self._put(row, _FREE if row else _encode_header())
            self._write(self._damaged)
            self._sync()
            self._free += [row for row in self._damaged if row]
            self._damaged = []

    def note(self, marks: Mapping[GroupId, FlushedMark]) -> int:
        """Write these marks, not synced. Returns the bytes written. Raises OSError."""
        with self._lock:
            return self._write([self._set(group, mark) for group, mark in marks.items()])

    def lower(self, group: GroupId, mark: FlushedMark) -> None:
        """Make a lower mark durable, before the log is cut. Raises OSError."""
        with self._lock:
            self._write([self._set(group, mark)])
            self._sync()

    def forget(self, group: GroupId) -> None:
        """Drop the mark of a group durably, before its folder is removed. Raises OSError."""
        with self._lock:
            found = self._rows.pop(group, None)
            if found is None:
                return
            self._put(found[0], _FREE)
            self._write([found[0]])
            self._sync()
            self._free.append(found[0])

    def sync(self) -> None:
        """Make durable what was noted before; what is noted meanwhile need not wait for it. Raises OSError."""
        self._sync()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._handle is not None:
                self._fs.close(self._handle)
                self._handle = None

    def _set(self, group: GroupId, mark: FlushedMark) -> int:
        found = self._rows.get(group)
        row = self._new_row() if found is None else found[0]
        self._rows[group] = (row, mark)
        self._put(row, _encode_row(group, mark))
        return row

    def _new_row(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        count = len(self._content) // _ROW_BYTES
        grown = count + _GROWTH_ROWS - count % _GROWTH_ROWS
        room = _FREE * (grown - count)
        if self._handle is not None:
            write_fully(self._fs, self._handle, [room], len(self._content))
            self._sync()
        self._content.extend(room)
        self._free = list(range(grown - 1, count - 1, -1))

    def _put(self, row: int, content: bytes) -> None:
        self._content[row * _ROW_BYTES : (row + 1) * _ROW_BYTES] = content

    def _write(self, rows: list[int]) -> int:
        """Write everything between the lowest and the highest of the rows: one call, a few KiB at most."""
        if not rows or self._handle is None:
            return 0
        if len(rows) == 1:  # nearly always
            start = rows[0] * _ROW_BYTES
            return write_fully(self._fs, self._handle, [self._content[start : start + _ROW_BYTES]], start)
        start, end = min(rows) * _ROW_BYTES, (max(rows) + 1) * _ROW_BYTES
        return write_fully(self._fs, self._handle, [bytes(self._content[start:end])], start)

    def _sync(self) -> None:
        handle = self._handle
        if handle is not None:
            self._fs.fdatasync(handle)


def decode_marks(raw: bytes, path: Path) -> tuple[dict[GroupId, tuple[int, FlushedMark]], dict[int, bytes]]:
    """Return (row, mark) of every group whose row is intact, and the damaged rows as they are, the header's is 0.

    Raises:
        DataDirectoryError: an intact header of another format.
    """
    header = raw[:_ROW_BYTES]
    rows: dict[GroupId, tuple[int, FlushedMark]] = {}
    damaged: dict[int, bytes] = {}
    if len(header) == _ROW_BYTES and _is_intact(header):
        magic, version, _ = _HEADER.unpack_from(header)
        if magic == _FILE_MAGIC and version != _FORMAT:
            raise DataDirectoryError(f"{path} has format {version}, this broker knows {_FORMAT}")
    elif raw:
        log.error("mark.damaged", path=str(path), row=0)
        damaged[0] = _padded(header)
    for row in range(1, -(-len(raw) // _ROW_BYTES)):
        content = _padded(raw[row * _ROW_BYTES : (row + 1) * _ROW_BYTES])
        if content == _FREE:
            continue
        group, chain, index, term, magic = _ROW.unpack_from(content)
        if magic != _ROW_MAGIC or not _is_intact(content):
            log.error("mark.damaged", path=str(path), row=row)
            damaged[row] = content
            continue
        rows[GroupId(group)] = (row, FlushedMark(RaftIndex(index), Term(term), chain))
    return rows, damaged


def _padded(row: bytes) -> bytes:
    """Return a row that is cut short as one that is neither intact nor free, also when it is read again."""
    return row.ljust(_ROW_BYTES, b"\xff")


def _is_intact(row: bytes) -> bool:
    return bool(_CRC.unpack_from(row, _ROW_BYTES - _CRC.size)[0] == crc32c(row[: -_CRC.size]))


def _encode_header() -> bytes:
    header = _HEADER.pack(_FILE_MAGIC, _FORMAT, bytes(22))
    return header + _CRC.pack(crc32c(header))


def _encode_row(group: GroupId, mark: FlushedMark) -> bytes:
    row = _ROW.pack(group, mark.chain, mark.index, mark.term, _ROW_MAGIC)
    return row + _CRC.pack(crc32c(row))
