"""A file in memory that outlives its process, with a link to it in a folder that its next run knows.

A store into the mapped file of a disk waits while that disk's journal or a frozen file system makes it wait, and is a
SIGBUS where the disk has failed: it would hold up or end the process. A file on tmpfs has no disk.

    file   = what its owner keeps, and at 128: mark | u16 length | u16 length | path of the link | folders
    folder = u64 device | u64 inode, from the root to the folder of the link         (integers in the machine's order)

The folders tell whether somebody sees what the maker saw: another container may see others under the same paths, or
none. The number of a mount namespace does not tell: the kernel gives those of ended ones out again. The time of the
file is the last sign of who has it mapped.

Rule 1: whoever made a file has a lock on it while the file is open, or mapped: a mapping has a descriptor of its own.
Rule 2: what a link of the own folder names stays. What another start of the same user finds unlocked it removes when
        it sees all the folders, and no such link in the last. Where those that it sees are the file's, and the next is
        not there, that one was deleted or moved: then the file stays for GONE_S after its last sign. It stays for
        UNSEEN_S where a folder is another one (another container's, not mounted, made anew), or the file names none.
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
_MARK: Final = b"georelay link 3\n"
_NOTE: Final = struct.Struct("=HH")
_FOLDER: Final = struct.Struct("=QQ")
_OLD_MARK: Final = b"georelay link 2\n"  # with the number of a mount namespace and no folders
_OLD_NOTE: Final = struct.Struct("=QH")


def make(link: Path, size_bytes: int) -> int:
    """Make a file of zeros whose memory is allocated, and a link to it; return its descriptor.

    Raises:
        OSError: there is no tmpfs, no room in it, or no way to make a link; nothing is left.
    """
    if not os.path.ismount(MEMORY_FOLDER):
        raise FileNotFoundError(errno.ENOENT, "no tmpfs is mounted there", str(MEMORY_FOLDER))
    note = _note(link.absolute())
    if len(note) > HEADER_BYTES - LINK_AT:
        raise OSError(errno.ENAMETOOLONG, "the path is too long", str(link))
    number, name = tempfile.mkstemp(prefix=PREFIX, dir=MEMORY_FOLDER)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(number, 0, size_bytes)
        link.unlink(missing_ok=True)
        os.symlink(name, link)
        os.pwrite(number, note, LINK_AT)
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
        noted = _read_note(os.pread(number, HEADER_BYTES, 0))
        if noted is None:
            return  # it is being made, or is not of this kind
        link, folders = noted
        if _target(link) != path and time.time() - status.st_mtime >= _kept_for_s(link.parent, folders):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(number)


def _kept_for_s(folder: Path, noted: bytes) -> float:
    """Return how long after its last sign a file stays whose link is not in its folder. Raises OSError."""
    seen = _folders(folder)
    if not noted.startswith(seen):
        return UNSEEN_S
    return -math.inf if seen == noted else GONE_S


def _folders(folder: Path) -> bytes:
    """Return the numbers of the folders from the root to this one, or to the last that is there. Raises OSError."""
    numbers = b""
    for path in (*reversed(folder.parents), folder):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            break
        numbers += _FOLDER.pack(status.st_dev, status.st_ino)
    return numbers


def _note(link: Path) -> bytes:
    target, folders = os.fsencode(link), _folders(link.parent)
    return _MARK + _NOTE.pack(len(target), len(folders)) + target + folders


def _read_note(raw: bytes) -> tuple[Path, bytes] | None:
    """Return a link and the numbers of its folders, none in a note of before; None for what is no whole note."""
    if len(raw) < HEADER_BYTES:
        return None
    at, folders_length = LINK_AT + len(_MARK), 0
    if raw.startswith(_MARK, LINK_AT):
        length, folders_length = _NOTE.unpack_from(raw, at)
        at += _NOTE.size
    elif raw.startswith(_OLD_MARK, LINK_AT):
        _, length = _OLD_NOTE.unpack_from(raw, at)
        at += _OLD_NOTE.size
    else:
        return None
    end = at + length
    target = raw[at:end]
    if end + folders_length > HEADER_BYTES or not target.startswith(b"/") or b"\0" in target:
        return None
    return Path(os.fsdecode(target)), raw[end : end + folders_length]


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
