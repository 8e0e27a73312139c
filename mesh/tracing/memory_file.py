"""A file in memory that outlives its process, with a link to it in a folder that its next run knows.

A store into the mapped file of a disk waits while that disk's journal or a frozen file system makes it wait, and is a
SIGBUS where the disk has failed: it would hold up or end the process. A file on tmpfs has no disk.

    file = what its owner keeps, and at 128: mark | u64 view | u16 length | path of the link  (in the machine's order)

The view is the number of its maker's mount namespace: processes of one see the same folders, those of another container
do not, and may see others under the same paths. Its time is the last sign of who has it mapped.

Rule 1: whoever made a file has a lock on it while the file is open, or mapped: a mapping has a descriptor of its own.
Rule 2: what a link of the own folder names stays. What another start of the same user finds unlocked it removes when
        its view is the file's, the folder of the link is there, and no such link in it. A folder that is not there may
        be deleted, moved or not mounted: then the file stays for GONE_S after its last sign, and for UNSEEN_S where the
        view is another one.
Rule 3: a link whose file is gone means that the machine has booted, or that the container was made anew.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MEMORY_FOLDER: Path = Path("/dev/shm")  # noqa: S108  (file-hierarchy(7); names are made by mkstemp)
PREFIX: Final = "georelay-rows-"
LINK_AT: Final = 128
HEADER_BYTES: Final = 4_096
GONE_S: Final = 600  # long enough to move a directory, or to mount it
UNSEEN_S: Final = 86_400
MOUNTS: Path = Path("/proc/self/ns/mnt")  # namespaces(7)
_MARK: Final = b"georelay link 2\n"
_NOTE: Final = struct.Struct("=QH")
_PATH_AT: Final = LINK_AT + len(_MARK) + _NOTE.size


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
        os.pwrite(number, _MARK + _NOTE.pack(_view(), len(target)) + target, LINK_AT)
    except OSError:
        os.close(number)
        with suppress(OSError):
            Path(name).unlink()
        raise
    return number


def remove(path: Path) -> None:
    """Remove a link and the file in memory that it names, or what else is there. Raises OSError."""
    target = in_memory(path)
    if target is not None:
        with suppress(PermissionError):  # another user's: the next start of that user gives it back
            target.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def is_dangling(path: Path) -> bool:
    """Return whether this is a link whose file is gone."""
    return path.is_symlink() and not path.exists()


def touch(file: Path) -> None:
    """Show that a file in memory is in use; what cannot be told now is told the next time."""
    with suppress(OSError):
        os.utime(file)


def give_back(folder: Path) -> None:
    """Remove files in memory that nobody will want, see Rule 2; what cannot be looked at stays.

    Args:
        folder: where the caller's own links are; it need not exist.
    """
    try:
        own = {_target(folder / name) for name in os.listdir(folder)}
    except FileNotFoundError:
        own = set()
    except OSError:
        return
    paths: list[Path] = []
    with suppress(OSError):
        paths = sorted(MEMORY_FOLDER.glob(f"{PREFIX}*"))
    for path in paths:
        if path not in own:
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
        view, length = _NOTE.unpack_from(raw, _PATH_AT - _NOTE.size)
        link = Path(os.fsdecode(raw[_PATH_AT : _PATH_AT + length]))
        if _target(link) != path and time.time() - status.st_mtime >= _kept_for_s(link.parent, view):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(number)


def _kept_for_s(folder: Path, view: int) -> float:
    """Return how long after its last sign a file stays whose link is not in its folder."""
    if view == 0 or view != _view():
        return UNSEEN_S
    return -math.inf if folder.is_dir() else GONE_S


def _view() -> int:
    """Return the number of the mount namespace, 0 where the kernel does not tell."""
    try:
        return MOUNTS.stat().st_ino
    except OSError:
        return 0


def in_memory(link: Path) -> Path | None:
    """Return the file in memory that a link names, None for any other path."""
    target = _target(link)
    is_own = target is not None and target.parent == MEMORY_FOLDER and target.name.startswith(PREFIX)
    return target if is_own else None


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except (OSError, ValueError):  # no link, none there, no path at all
        return None
