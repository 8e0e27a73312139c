"""The file of a log's last segment while it is open for appending, and the room taken for it in advance.

A write into room that the file has already costs the sync less than one that makes the file longer. Room is taken in
steps, 64 KiB first and twice as much each time up to 16 MiB, and only once a segment has some size: thousands of small
partitions stay small. It is taken off the write path, by another thread, and given back when the segment is sealed.

Rule 1: whatever lies between the end of the log and the end of the file is zero.
Rule 2: what was written is dirty until a sync of this file, or the entry journal, holds it durably. What only the
journal holds lags: `sync` covers it too, and must before the file is closed for another.
Rule 3: after one failed sync of the file every other one fails. Linux drops the pages and tells it once: of two threads
that sync one file, the other one would hear that all is well.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from region.log.filesystem import Buffer, FileSystem, write_fully

log = structlog.get_logger()

ROOM_FROM_BYTES: Final = 32 * 1024
ROOM_STEP_BYTES_MIN: Final = 64 * 1024
ROOM_STEP_BYTES_MAX: Final = 16 * 1024 * 1024


class ActiveFile:
    """At most one open file. Everything but `make_room` belongs to the flusher."""

    def __init__(self, fs: FileSystem, *, size_bytes_max: int) -> None:
        self._fs = fs
        self.size_bytes_max = size_bytes_max
        self._handle: int | None = None
        self._path = Path()
        self._dirty = False
        self._lags = False
        self._fresh: list[Buffer] = []  # what is dirty, and nothing else is
        self._end = 0  # of the log in the file
        self._room_end = 0  # of the file
        self._step = ROOM_STEP_BYTES_MIN
        self._asked = False
        self._refused = False  # this file system cannot
        self._failure: OSError | None = None
        self._lock = threading.Lock()  # held while room is taken, and to close or cut the file
        self._sync_lock = threading.Lock()  # held to sync or close it

    @property
    def is_open(self) -> bool:
        """Return whether there is an open file."""
        return self._handle is not None

    @property
    def is_dirty(self) -> bool:
        """Return whether something was written that is not durable anywhere."""
        return self._dirty

    @property
    def fresh(self) -> tuple[int, Sequence[Buffer]] | None:
        """Return where what is dirty begins, and its pieces; None when more than that has to be made durable."""
        if not self._fresh or self._handle is None:
            return None
        return self._end - sum(map(len, self._fresh)), self._fresh

    def journaled(self) -> None:
        """Take note that the entry journal holds what is fresh."""
        self._dirty, self._lags, self._fresh = False, True, []

    def open(self, path: Path, *, size_bytes: int, create: bool = False) -> None:
        """Open the file of a segment whose log ends at `size_bytes`."""
        self._handle = self._fs.open(path, create=create)
        self._path = path
        self._end = size_bytes
        self._room_end = self._fs.size(self._handle)
        self._step, self._asked = ROOM_STEP_BYTES_MIN, False

    def write(self, frames: Sequence[Buffer], position: int) -> int:
        """Write behind the end of the log. Returns the bytes written. Raises OSError."""
        assert self._handle is not None
        if not self._dirty or self._fresh:
            self._fresh.extend(frames)
        self._dirty = True
        written = write_fully(self._fs, self._handle, frames, position)
        self._end = position + written
        return written

    def sync(self) -> int:
        """Make what was written durable. Returns the syncs done. Raises OSError."""
        if not (self._dirty or self._lags) or self._handle is None:
            return 0
        with self._sync_lock:
            self._fdatasync()
        self.synced()
        return 1

    def sync_aside(self) -> None:
        """Make durable what was written before; any thread. It still counts as lagging. Raises OSError."""
        with self._sync_lock:
            self._fdatasync()

    def _fdatasync(self) -> None:
        if self._handle is None:
            return
        if self._failure is not None:
            raise self._failure
        try:
            self._fs.fdatasync(self._handle)
        except OSError as error:
            self._failure = error
            raise

    def synced(self) -> None:
        """Take note that the whole file was synced."""
        self._dirty, self._lags, self._fresh = False, False, []

    def cut(self, size_bytes: int) -> None:
        """Cut the file; durable with the next sync. Raises OSError."""
        with self._lock:
            self._cut(size_bytes)

    def give_room_back(self) -> None:
        """Cut the file to the end of the log, and let no more room be taken. Raises OSError."""
        with self._lock:
            self._asked = False
            if self._handle is not None and self._room_end > self._end:
                self._cut(self._end)

    def _cut(self, size_bytes: int) -> None:
        assert self._handle is not None
        self._fs.truncate(self._handle, size_bytes)
        self._end = self._room_end = size_bytes
        self._dirty, self._fresh = True, []

    def close(self) -> None:
        """Close the file as it is."""
        with self._lock, self._sync_lock:
            if self._handle is not None:
                self._fs.close(self._handle)
            self._handle = None
            self.synced()

    def ask_for_room(self) -> bool:
        """Return whether `make_room` should be called now; it is not asked for twice."""
        if self._handle is None or self._asked or self._refused or self._end < ROOM_FROM_BYTES:
            return False
        if self._room_end - self._end >= self._step // 2 or self._room_end >= self.size_bytes_max:
            return False
        self._asked = True
        return True

    def make_room(self) -> None:
        """Take the room that was asked for; any thread. A disk that refuses is none the worse for it: writes go on."""
        with self._lock:
            if self._handle is None or not self._asked:
                return
            start = max(self._end, self._room_end)
            size = min(self._step, self.size_bytes_max - start)
            self._asked = False
            if size <= 0:
                return
            try:
                self._fs.allocate(self._handle, start, size)
            except OSError as error:
                log.info("segment.room_refused", segment=str(self._path), reason=str(error))
                self._refused = True
                self._room_end = self._fs.size(self._handle)  # ext4 gives what it has before it says that it is full
                return
            self._room_end = start + size
            self._step = min(2 * self._step, ROOM_STEP_BYTES_MAX)
