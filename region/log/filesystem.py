"""The only door from the log to a disk.

Rule 1: every byte that the log reads or writes goes through a FileSystem, so a test can put one underneath that
records the order of writes and syncs, or that forgets at a crash whatever was not synced.
Rule 2: implementations raise OSError and nothing else; what an error means is decided above.
Rule 3: whoever reads bytes of a log does so through `reading`: a disk that cannot give bytes back
(`Unreadable`) is not one that failed to take them.

To inject another file system pass it as `fs` to `DataDirectory.open`: every log, index and journal of that data
directory then uses it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

IOV_MAX: Final = 1024  # buffers per pwritev; Linux refuses more
_LOCK_POLL_S: Final = 0.05
SECTOR_BYTES: Final = 512  # the largest piece that a disk writes whole or not at all
Buffer = bytes | bytearray | memoryview
_T = TypeVar("_T")
# What Linux and its file systems answer when a disk does not give bytes back, or gives back wrong ones.
UNREADABLE_ERRNOS: Final = frozenset(
    (errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG)
)


class Unreadable(OSError):
    """The disk does not give back what is stored on it: a bad sector, or a disk that is away for a while."""


class FileSystem(Protocol):
    """POSIX files by integer handle. Positions and sizes are bytes."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """Open a file; with `create` it is made when missing (durable only after `fsync_directory`)."""
        ...

    def close(self, handle: int) -> None:
        """Close without syncing."""
        ...

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write at most IOV_MAX buffers at `position`; return the bytes written."""
        ...

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self, handle: int) -> int:
        """Return the length of the file."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def fdatasync(self, handle: int) -> None:
        """Return when the content and length of the file are durable."""
        ...

    def try_lock(self, handle: int) -> bool:
        """Take the exclusive lock of the file until it is closed; False if another process has it."""
        ...

    def fsync_directory(self, path: Path) -> None:
        """Return when the names in the directory are durable."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` atomically."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a directory, in any order."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents; no error if it is there."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether anything has this name."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Return whether it is a directory."""
        ...

    def allocate(self, handle: int, position: int, size: int) -> None:
        """Reserve room for `size` bytes at `position`; the file grows to hold them, and they read as zeros."""
        ...

    def sync_file_system(self, handle: int) -> None:
        """Return when everything written to the file system that holds the file is durable, names as well."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Return what may still be written to the file system that holds `path`."""
        ...

    def on_own_file_system(self, path: Path) -> bool:
        """Return whether a directory is the root of a file system on which `sync_file_system` reports every error."""
        ...


class OsFileSystem:
    """The operating system's files.

    Args:
        lock_wait_s: how long `try_lock` waits for another process to let a lock go, >= 0; it blocks meanwhile.
    """

    _lock_wait_s = 0.0

    def __init__(self, *, lock_wait_s: float = 0.0) -> None:
        self._lock_wait_s = lock_wait_s

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(handle, buffers, position)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        first = os.pread(handle, size, position)
        if len(first) == size or not first:
            return first
        pieces = [first]  # one pread may stop early (2 GiB, a signal); only an empty one means the end
        while (got := sum(map(len, pieces))) < size and (piece := os.pread(handle, size - got, position + got)):
            pieces.append(piece)
        return b"".join(pieces)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def try_lock(self, handle: int) -> bool:
        deadline_s = time.monotonic() + self._lock_wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(_LOCK_POLL_S)
            else:
                return True

    def fsync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def list_directory(self, path: Path) -> list[str]:
        return os.listdir(path)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: Path) -> bool:
        return os.path.isdir(path)

    def allocate(self, handle: int, position: int, size: int) -> None:
        # Not posix_fallocate: where the kernel cannot, the C library writes blocks itself, against our own writes.
        if _LIBC.fallocate(handle, 0, ctypes.c_longlong(position), ctypes.c_longlong(size)) != 0:
            raise _os_error("fallocate")

    def sync_file_system(self, handle: int) -> None:
        if _LIBC.syncfs(handle) != 0:
            raise _os_error("syncfs")

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def on_own_file_system(self, path: Path) -> bool:
        return _SYNCFS_REPORTS_ERRORS and os.stat(path).st_dev != os.stat(path.parent).st_dev


def _kernel() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYNCFS_REPORTS_ERRORS: Final = _kernel() >= (5, 8)  # older kernels return success from syncfs whatever was lost


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def write_fully(fs: FileSystem, handle: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write all buffers at `position` without joining them; return the bytes written.

    Raises:
        OSError: also for a short write. It is not continued: a disk that took half of a write is full or failing,
            and the half frame behind the durable end is what recovery cuts off.
    """
    written = 0
    if len(buffers) == 1:  # most writes
        written = fs.pwritev(handle, buffers, position)
        if written != len(buffers[0]):
            raise OSError(errno.EIO, f"short write: {written} of {len(buffers[0])} bytes at {position}")
        return written
    for start in range(0, len(buffers), IOV_MAX):
        chunk = buffers[start : start + IOV_MAX]
        wanted = sum(map(len, chunk))
        done = fs.pwritev(handle, chunk, position + written)
        if done != wanted:
            raise OSError(errno.EIO, f"short write: {done} of {wanted} bytes at {position + written}")
        written += done
    return written


def reading(read: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Do `read`. Raises Unreadable when the disk refuses; any other OSError is about this process, or the name."""
    try:
        return read(*arguments, **options)
    except OSError as error:
        if error.errno in UNREADABLE_ERRNOS:
            raise Unreadable(error.errno, error.strerror, error.filename) from error
        raise


def read_at(fs: FileSystem, handle: int, size: int, position: int) -> bytes:
    """Do `fs.pread`. Raises as `reading`."""
    return reading(fs.pread, handle, size, position)


def open_to_read(fs: FileSystem, path: Path) -> int:
    """Do `fs.open` for reading. Raises as `reading`."""
    return reading(fs.open, path, write=False)


def read_file(fs: FileSystem, path: Path) -> bytes:
    """Return the whole content of a small file. Raises as `reading`."""
    handle = open_to_read(fs, path)
    try:
        return read_at(fs, handle, fs.size(handle), 0)
    finally:
        fs.close(handle)


def replace_file(fs: FileSystem, path: Path, content: bytes, *, sync_name: bool = True) -> None:
    """Make `content` the file's content: after a crash it is the old or the new one, whole.

    Args:
        sync_name: False: which of the two it is after a crash is decided by the next sync of the directory.
    """
    draft = path.with_name(path.name + ".tmp")
    handle = fs.open(draft, create=True)
    try:
        fs.truncate(handle, 0)
        write_fully(fs, handle, [content], 0)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)
    fs.rename(draft, path)
    if sync_name:
        fs.fsync_directory(path.parent)


def remove_tree(fs: FileSystem, path: Path) -> None:
    """Remove a directory and what is in it; names that vanish meanwhile are fine."""
    for name in fs.list_directory(path):
        child = path / name
        if fs.is_directory(child):
            remove_tree(fs, child)
            continue
        with suppress(FileNotFoundError):
            fs.remove(child)
    fs.remove_directory(path)


def tear_explains(raw: bytes | memoryview, file_position: int) -> bool:
    """Return whether a write that a crash interrupted can have left `raw` at `file_position`.

    A disk writes whole sectors, and the log only ever appends: what an interrupted write did not reach reads as
    zeros. So some sector's part of the bytes must be all zero; if none is, every sector arrived and what is wrong
    in them is damage. (Bytes that the file is too short for are torn without asking.)
    """
    start = 0
    while start < len(raw):
        end = min(len(raw), start + SECTOR_BYTES - (file_position + start) % SECTOR_BYTES)
        if not any(raw[start:end]):
            return True
        start = end
    return False
