"""The data directory of one broker: whose it is, who uses it, and what lies where.

    FORMAT              {"format": 1, "mesh": …, "broker": …, "disk": uuid}; written last when a directory is made
    LOCK                held (flock) by the process that uses the directory
    hard-state          region.log.hard_state
    groups/<group id>/  segments and indexes of one Raft group
    trash/              groups on their way out

Rule: nothing is written into a directory that is not ours. Every refusal is one line that says what is wrong.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import DataDirectoryError
from georelay.ids import BrokerId, GroupId
from region.log.filesystem import FileSystem, OsFileSystem, read_file, remove_tree, replace_file
from region.log.group_log import GroupLog
from region.log.hard_state import JOURNAL_NAME, HardStateJournal

log = structlog.get_logger()

DIRECTORY_FORMAT: Final = 1
FORMAT_BYTES_MAX: Final = 4096
_FORMAT: Final = "FORMAT"
_LOCK: Final = "LOCK"
_GROUPS: Final = "groups"
_TRASH: Final = "trash"
_BEFORE_FORMAT: Final = frozenset({_LOCK, f"{_FORMAT}.tmp", _GROUPS, _TRASH})  # left by a crash while it was made


class DataDirectory:
    """An open, locked data directory. Made by `open`, ended by `close`."""

    def __init__(
        self, path: Path, *, mesh_id: str, broker_id: BrokerId, disk_id: str, fs: FileSystem, lock_handle: int
    ) -> None:
        self.path = path
        self.mesh_id = mesh_id
        self.broker_id = broker_id
        self.disk_id = disk_id
        self.fs = fs
        self._lock_handle: int | None = lock_handle

    @classmethod
    def open(cls, path: Path, *, mesh_id: str, broker_id: BrokerId, fs: FileSystem | None = None) -> DataDirectory:
        """Open the directory, making it when it is missing or empty.

        Args:
            mesh_id: of the mesh this broker belongs to; stays with the directory.
            broker_id: of this broker; stays with the directory.
            fs: every file below the directory is reached through it; None: the operating system's.

        Raises:
            DataDirectoryError: locked, of another mesh or broker, of an unknown format, not ours or not writable.
        """
        fs = fs or OsFileSystem()
        with _one_line_errors(path):
            _refuse_foreign(fs, path)
            fs.make_directory(path)
            lock_handle = fs.open(path / _LOCK, create=True)
            try:
                _lock(fs, path, lock_handle)
                fs.make_directory(path / _GROUPS)
                fs.make_directory(path / _TRASH)
                disk_id = _read_or_make_format(fs, path, mesh_id, broker_id)
                for name in fs.list_directory(path / _TRASH):
                    remove_tree(fs, path / _TRASH / name)
            except BaseException:
                fs.close(lock_handle)
                raise
        return cls(path, mesh_id=mesh_id, broker_id=broker_id, disk_id=disk_id, fs=fs, lock_handle=lock_handle)

    def group_path(self, group: GroupId) -> Path:
        """Return the folder of a group; it appears with the group's first append."""
        return self.path / _GROUPS / str(group)

    def group_ids(self) -> list[GroupId]:
        """Return the groups that have a folder, in order."""
        names = self.fs.list_directory(self.path / _GROUPS)
        return sorted(GroupId(int(name)) for name in names if name.isascii() and name.isdigit())

    def open_group(self, group: GroupId) -> GroupLog:
        """Recover the log of a group.

        Raises:
            LogCorrupt: damage; the text names file and position.
            DataDirectoryError: the operating system refused.
        """
        with _one_line_errors(self.path):
            return GroupLog.open(self.group_path(group), self.fs)

    def open_hard_states(self) -> HardStateJournal:
        """Load the journal of terms and votes.

        Raises:
            LogCorrupt: damage.
            DataDirectoryError: it is missing although groups are here: their votes are lost.
        """
        with _one_line_errors(self.path):
            if not self.fs.exists(self.path / JOURNAL_NAME) and self.group_ids():
                raise DataDirectoryError(f"{self.path / JOURNAL_NAME} is missing: the votes of this broker are lost")
            return HardStateJournal.open(self.fs, self.path)

    def remove_group(self, group: GroupId) -> None:
        """Remove the folder of a group whose log is closed. After a crash it is there whole or not at all.

        Raises:
            DataDirectoryError: the operating system refused.
        """
        with _one_line_errors(self.path):
            source = self.group_path(group)
            if not self.fs.exists(source):
                return
            target = self.path / _TRASH / f"{group}-{uuid.uuid4().hex}"
            self.fs.rename(source, target)
            self.fs.fsync_directory(target.parent)
            self.fs.fsync_directory(source.parent)
            remove_tree(self.fs, target)

    def close(self) -> None:
        """Release the lock."""
        if self._lock_handle is not None:
            self.fs.close(self._lock_handle)
            self._lock_handle = None


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataDirectoryError(f"data directory {path} cannot be used: {error}") from error


def _lock(fs: FileSystem, path: Path, lock_handle: int) -> None:
    if not fs.try_lock(lock_handle):
        raise DataDirectoryError(f"data directory {path} is in use by another process")


def _refuse_foreign(fs: FileSystem, path: Path) -> None:
    """Raise before anything is written when the directory holds something, but nothing of ours."""
    if not fs.exists(path):
        return
    if not fs.is_directory(path):
        raise DataDirectoryError(f"data directory {path} is not a directory")
    names = set(fs.list_directory(path))
    if _FORMAT not in names and names - _BEFORE_FORMAT:
        raise DataDirectoryError(f"data directory {path} is not empty and has no {_FORMAT} file: choose an empty one")


def _read_or_make_format(fs: FileSystem, path: Path, mesh_id: str, broker_id: BrokerId) -> str:
    if fs.exists(path / _FORMAT):
        return _check_format(read_file(fs, path / _FORMAT), path, mesh_id, broker_id)
    disk_id = str(uuid.uuid4())
    fs.fsync_directory(path.parent)
    about = {"format": DIRECTORY_FORMAT, "mesh": mesh_id, "broker": broker_id, "disk": disk_id}
    replace_file(fs, path / _FORMAT, json.dumps(about).encode() + b"\n")
    log.info("data_directory.made", path=str(path), broker=broker_id, disk=disk_id)
    return disk_id


def _check_format(raw: bytes, path: Path, mesh_id: str, broker_id: BrokerId) -> str:
    """Return the disk id of a FORMAT file that fits.

    Raises:
        DataDirectoryError: it does not.
    """
    try:
        about = json.loads(raw[:FORMAT_BYTES_MAX])
        version, mesh, broker, disk = (about[name] for name in ("format", "mesh", "broker", "disk"))
    except (ValueError, TypeError, KeyError) as error:
        raise DataDirectoryError(f"{path / _FORMAT} cannot be read: {error!r}") from error
    if version != DIRECTORY_FORMAT:
        raise DataDirectoryError(f"data directory {path} has format {version}, this broker knows {DIRECTORY_FORMAT}")
    if mesh != mesh_id:
        raise DataDirectoryError(f"data directory {path} belongs to mesh {mesh!r}, not to {mesh_id!r}")
    if broker != broker_id:
        raise DataDirectoryError(f"data directory {path} belongs to broker {broker}, not to broker {broker_id}")
    return str(disk)
