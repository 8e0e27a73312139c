"""The operating system's files on a disk that is slow, full, or forgets at a kill what was not synced.

Rule 1: unless it is told to lie, what was synced is the kernel's and survives a kill.
Rule 2: a full disk behaves as Linux does: first a short write, then ENOSPC; cutting and removing files gives room.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from region.faults.settings import FaultSettings
from region.faults.unsynced_file import UnsyncedFile
from region.log.filesystem import Buffer, OsFileSystem


class FaultyFileSystem(OsFileSystem):
    """Obeys `apply`; without it, it is the operating system's file system."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings = FaultSettings()
        self._free_bytes: int | None = None
        self._files: dict[tuple[int, int], UnsyncedFile] = {}  # by (device, inode): several handles see one file
        self._handles: dict[int, tuple[int, int]] = {}

    def apply(self, settings: FaultSettings) -> None:
        """Be broken in this way from now on; any thread."""
        with self._lock:
            if settings.free_bytes != self._settings.free_bytes:
                self._free_bytes = settings.free_bytes
            self._settings = settings

    # --- handles -------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        handle = super().open(path, create=create, write=write)
        about = os.fstat(handle)
        with self._lock:
            key = self._handles[handle] = (about.st_dev, about.st_ino)
            self._files.setdefault(key, UnsyncedFile())
        return handle

    def close(self, handle: int) -> None:
        with self._lock:
            key = self._handles.pop(handle)
            last = key not in self._handles.values()
            file = self._files.pop(key) if last else None
        try:
            if file is not None:
                file.flush(handle)  # not durable, but no longer ours to forget: nobody has it open
        finally:
            super().close(handle)

    def _file(self, handle: int) -> UnsyncedFile:
        with self._lock:
            return self._files[self._handles[handle]]

    # --- content -------------------------------------------------------------------------------------

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        time.sleep(self._settings.write_delay_ms / 1000)
        file = self._file(handle)
        data = b"".join(buffers)
        room = self._take(max(0, position + len(data) - file.size(handle)))
        data = data[: len(data) - room] if room else data
        if not data and buffers:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(position, data)
        if not self._settings.volatile_writes:
            file.flush(handle)
        return len(data)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        return self._file(handle).read(handle, size, position)

    def size(self, handle: int) -> int:
        return self._file(handle).size(handle)

    def truncate(self, handle: int, size: int) -> None:
        file = self._file(handle)
        self._give(max(0, file.size(handle) - size))
        file.cut(size)
        if not self._settings.volatile_writes:
            file.flush(handle)

    def allocate(self, handle: int, position: int, size: int) -> None:
        file = self._file(handle)
        missing = self._take(max(0, position + size - file.size(handle)))
        if missing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.flush(handle)
        super().allocate(handle, position, size)

    def remove(self, path: Path) -> None:
        freed = os.stat(path, follow_symlinks=False).st_size
        super().remove(path)
        self._give(freed)

    def free_bytes(self, path: Path) -> int:
        there = super().free_bytes(path)
        with self._lock:
            return there if self._free_bytes is None else min(there, self._free_bytes)

    # --- durability ----------------------------------------------------------------------------------

    def fdatasync(self, handle: int) -> None:
        time.sleep(self._settings.sync_delay_ms / 1000)
        if self._settings.lying_syncs:
            return
        self._file(handle).flush(handle)
        super().fdatasync(handle)

    def sync_file_system(self, handle: int) -> None:
        time.sleep(self._settings.sync_delay_ms / 1000)
        if self._settings.lying_syncs:
            return
        with self._lock:
            opened = {key: (each, self._files[key]) for each, key in self._handles.items()}
        for each, file in opened.values():
            file.flush(each)
        super().sync_file_system(handle)

    def fsync_directory(self, path: Path) -> None:
        time.sleep(self._settings.sync_delay_ms / 1000)
        super().fsync_directory(path)

    # --- room ----------------------------------------------------------------------------------------

    def _take(self, wanted: int) -> int:
        """Take room; return how many of the bytes wanted do not fit."""
        with self._lock:
            if self._free_bytes is None:
                return 0
            got = min(wanted, self._free_bytes)
            self._free_bytes -= got
            return wanted - got

    def _give(self, freed: int) -> None:
        with self._lock:
            if self._free_bytes is not None:
                self._free_bytes += freed
