"""What the platters hold of a broker's entry journal, read without the shipping code."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar, Final
from weakref import WeakKeyDictionary, ref

from georelay.wire.crc import crc32c
from region.log.entry import ENTRY_HEADER_BYTES, LOCAL_PART
from tests.sim.disk import Folder, Inode, SimDisk

_NAMES: Final = ("entry-journal-0", "entry-journal-1")
_HEADER: Final = struct.Struct(">4sIQIII")
_ROW: Final = struct.Struct(">IIQQ")
_HEADER_BYTES: Final = 32
_ROWS_BEGIN: Final = 8_192  # behind the frame without rows
_DATA_PATH: Final = Path("/sim/data")


class _File:
    """The frames of one file, read on from where they ended before."""

    def __init__(self) -> None:
        self.version = -1
        self.begin = b""  # header of the first frame: another one is another use of the file
        self.position = 0
        self.sequence = -1  # of the first frame
        self.bodies: list[bytes] = []

    def read(self, inode: Inode) -> None:
        if inode.version == self.version:
            return
        raw = inode.durable
        if bytes(raw[:_HEADER_BYTES]) != self.begin:
            self.begin, self.position, self.sequence, self.bodies = bytes(raw[:_HEADER_BYTES]), 0, -1, []
        self.version = inode.version
        while self._read_frame(raw):
            pass

    def _read_frame(self, raw: bytearray) -> bool:
        header = bytes(raw[self.position : self.position + _HEADER_BYTES])
        if len(header) < _HEADER_BYTES or crc32c(header[:28]) != int.from_bytes(header[28:], "big"):
            return False
        _, _, sequence, rows, size, checksum = _HEADER.unpack_from(header)
        at = self.position + _HEADER_BYTES
        body = bytes(raw[at : at + size])
        if len(body) != size or crc32c(body) != checksum:
            return False
        if self.bodies and sequence != self.sequence + len(self.bodies):
            return False
        if not self.bodies:
            self.sequence = sequence
        self.bodies.append(body)
        self.position = at + -(-size // 32) * 32 if rows else _ROWS_BEGIN
        return True


class DurableJournal:
    """The entries that a replay would write, by group and index."""

    _of: ClassVar[WeakKeyDictionary[SimDisk, DurableJournal]] = WeakKeyDictionary()

    def __init__(self, disk: SimDisk) -> None:
        self._disk = ref(disk)
        self._files: dict[Inode, _File] = {}
        self._taken: list[tuple[_File, bytes, int]] = []  # with the use of each file, and its frames
        self._entries: dict[int, dict[int, bytes]] = {}

    @classmethod
    def of(cls, disk: SimDisk) -> DurableJournal:
        """Return that of a disk."""
        found = cls._of.get(disk)
        if found is None:
            found = cls._of[disk] = cls(disk)
        return found

    def entries(self, group: int) -> dict[int, bytes]:
        """Return the frames of a group's entries, by index."""
        self._look()
        return self._entries.get(group, {})

    def _look(self) -> None:
        disk = self._disk()
        folder = None if disk is None else disk.find(_DATA_PATH, durable=True)
        inodes = [folder.durable.get(name) for name in _NAMES] if isinstance(folder, Folder) else []
        files = {inode: self._files.get(inode) or _File() for inode in inodes if isinstance(inode, Inode)}
        if files.keys() == self._files.keys() and all(file.version == inode.version for inode, file in files.items()):
            return
        for inode, file in files.items():
            file.read(inode)
        self._files = files
        ordered = sorted((file.sequence, len(file.bodies), file) for file in files.values() if file.bodies)
        now = [(file, file.begin, count) for _, count, file in ordered]
        taken, self._taken = self._taken, now
        at = 0
        if now and len(now) == len(taken) and now[:-1] == taken[:-1] and now[-1][:2] == taken[-1][:2]:
            at, ordered = taken[-1][2], ordered[-1:]
        else:
            self._entries = {}
        for _, _, file in ordered:
            for body in file.bodies[at:]:
                self._take(body)

    def _take(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            group, size, _, _ = _ROW.unpack_from(body, at)
            at += _ROW.size
            if not size:
                self._entries.pop(group, None)
            end = at + size
            while at < end:
                _, _, _, payload_bytes, _, _, index, _, _ = LOCAL_PART.unpack_from(body, at)
                frame = body[at : at + ENTRY_HEADER_BYTES + payload_bytes]
                self._entries.setdefault(group, {})[index] = frame
                at += len(frame)
