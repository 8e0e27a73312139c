"""A file in memory that outlives its process, with a link to it in a folder that its next run knows.

A store into the mapped file of a disk waits while that disk's journal or a frozen file system makes it wait, and is a
SIGBUS where the disk has failed: it would hold up or end the process. A file on tmpfs has no disk.

    file = what its owner keeps, and at 128: mark | u16 length | path of the link     (integers in the machine's order)

Rule 1: whoever made a file has a lock on it while the file is open, or mapped: a mapping has a descriptor of its own.
Rule 2: a file of the same user that nobody has locked, and whose link is gone or names another file, is removed by the
        next start: its folder was deleted. A link whose file is gone means that the machine has booted, or that the
        container was made anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MEMORY_FOLDER: Path = Path("/dev/shm")  # noqa: S108  (file-hierarchy(7); names are made by mkstemp)
PREFIX: Final = "georelay-rows-"
LINK_AT: Final = 128
HEADER_BYTES: Final = 4_096
_MARK: Final = b"georelay link 1\n"
_LENGTH: Final = struct.Struct("@H")
_PATH_AT: Final = LINK_AT + len(_MARK) + _LENGTH.size


def make(link: Path, size_bytes: int) -> int:
    """Make a file of zeros whose memory is allocated, and a link to it; return its descriptor.

    Raises:
        OSError: there is no tmpfs, no room in it, or no way to make a link; nothing is left.
    """
    if not os.path.ismount(MEMORY_FOLDER):
        raise FileNotFoundError(errno.ENOENT, "no tmpfs is mounted there", str(MEMORY_FOLDER))
    target = os.fsencode(link.absolute())
    if len(target) > HEADER_BYTES - _PATH_AT:
        raise OSError(errno.ENAMETOOLONG, "the path is too long", str(link))
    number, name = tempfile.mkstemp(prefix=PREFIX, dir=MEMORY_FOLDER)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(number, 0, size_bytes)
        link.unlink(missing_ok=True)
        os.symlink(name, link)
        os.pwrite(number, _MARK + _LENGTH.pack(len(target)) + target, LINK_AT)
    except OSError:
        os.close(number)
        with suppress(OSError):
            Path(name).unlink()
        raise
    return number


def remove(path: Path) -> None:
    """Remove a link and the file in memory that it names, or what else is there. Raises OSError."""
    target = _target(path)
    if target is not None and target.parent == MEMORY_FOLDER and target.name.startswith(PREFIX):
        target.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def is_dangling(path: Path) -> bool:
    """Return whether this is a link whose file is gone."""
    return path.is_symlink() and not path.exists()


def give_back() -> None:
    """Remove the files that no link names any more; what cannot be looked at stays."""
    paths: list[Path] = []
    with suppress(OSError):
        paths = sorted(MEMORY_FOLDER.glob(f"{PREFIX}*"))
    for path in paths:
        with suppress(OSError):  # another user's, or another start has just removed it
            _give_back(path)


def _give_back(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return
        raw = os.pread(number, HEADER_BYTES, 0)
        if len(raw) < HEADER_BYTES or not raw.startswith(_MARK, LINK_AT):
            return  # it is being made, or is not of this kind
        (length,) = _LENGTH.unpack_from(raw, _PATH_AT - _LENGTH.size)
        if _target(Path(os.fsdecode(raw[_PATH_AT : _PATH_AT + length]))) != path:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(number)


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except (OSError, ValueError):  # no link, none there, no path at all
        return None
