"""The data directory of one broker: whose it is, who uses it, and what lies where.

    FORMAT              {"format": 2, "mesh": …, "broker": …, "disk": uuid, "crc": …}; written last when a directory
                        is made
    LOCK                held (flock) by the process that uses the directory, or seals the traces of one that died
    hard-state          region.log.hard_state
    flushed-marks       region.log.flushed_marks
    entry-journal-*     region.log.entry_journal; there are none after a clean stop
    groups/<group id>/  region.log.group_folder
    trash/              groups on their way out
    damaged/<group id>/ groups that could not be used any more: for people, never read

Format 2 added flushed marks, manifests, and index files that are trusted; a directory of format 1 is upgraded at its
first open (its index files are made again from the segments) and then refused by older brokers.
Format 3 is format 2 with an entry journal to replay: a broker that knows of none refuses it. A clean stop and a replay
leave format 2.

Rule: nothing is written into a directory that is not ours. Every refusal is one line that says what is wrong.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import DataDirectoryError
from georelay.ids import BrokerId, GroupId
from georelay.wire.crc import crc32c
from region.log.entry_journal import EntryJournal, replay_journal
from region.log.errors import LogUnreadable, OpenNotDurable
from region.log.filesystem import (
    FileSystem,
    OsFileSystem,
    Unreadable,
    read_file,
    remove_tree,
    replace_file,
)
from region.log.flushed_marks import FlushedMarks
from region.log.group_log import GroupLog
from region.log.hard_state import JOURNAL_NAME, HardStateJournal

log = structlog.get_logger()

DIRECTORY_FORMAT: Final = 2
JOURNALED_FORMAT: Final = 3
_FORMAT_BEFORE: Final = 1
FORMAT_BYTES_MAX: Final = 4096
_FORMAT: Final = "FORMAT"
_LOCK: Final = "LOCK"
_GROUPS: Final = "groups"
_TRASH: Final = "trash"
_DAMAGED: Final = "damaged"
DAMAGED_GROUPS_MAX: Final = 8  # kept aside; they take room until somebody removes them
# Left by a crash while it was made; gossip remembers its pools there, and starts before the disk does.
_BEFORE_FORMAT: Final = frozenset({_LOCK, f"{_FORMAT}.tmp", _GROUPS, _TRASH, "gossip"})


class DataDirectory:
    """An open, locked data directory. Made by `open`, ended by `close`."""

    def __init__(
        self,
        path: Path,
        *,
        mesh_id: str,
        broker_id: BrokerId,
        disk_id: str,
        fs: FileSystem,
        lock_handle: int,
        marks: FlushedMarks,
    ) -> None:
        self.path = path
        self.mesh_id = mesh_id
        self.broker_id = broker_id
        self.disk_id = disk_id
        self.fs = fs
        self.marks = marks
        self.entries = EntryJournal(fs, path, used=self._mark_journaled)
        self._lock_handle: int | None = lock_handle
        self._opened: set[GroupId] = set()  # what they had promised is known again
        own = fs.on_own_file_system(path)
        self.sync_all: Callable[[], None] | None = self._sync_file_system if own else None

    @classmethod
    def open(cls, path: Path, *, mesh_id: str, broker_id: BrokerId, fs: FileSystem | None = None) -> DataDirectory:
        """Open the directory, making it when it is missing or empty.

        Args:
            mesh_id: of the mesh this broker belongs to; stays with the directory.
            broker_id: of this broker; stays with the directory.
            fs: every file below the directory is reached through it; None: the operating system's.

        Raises:
            DataDirectoryError: locked, of another mesh or broker, of an unknown format, not ours or not writable.
            OpenNotDurable: a write or sync failed; what is on disk decides at the next start.
        """
        fs = fs or OsFileSystem()
        with _one_line_errors(path), lost_writes(path):
            _refuse_foreign(fs, path)
            fs.make_directory(path)
            lock_handle = fs.open(path / _LOCK, create=True)
            try:
                _lock(fs, path, lock_handle)
                fs.make_directory(path / _GROUPS)
                fs.make_directory(path / _TRASH)
                disk_id, found_format = _read_or_make_format(fs, path, mesh_id, broker_id)
                for name in fs.list_directory(path / _TRASH):
                    remove_tree(fs, path / _TRASH / name)
                replay_journal(fs, path, lambda group: path / _GROUPS / str(group))
                marks = _open_marks(fs, path, found_format)
                if found_format != DIRECTORY_FORMAT:  # after its marks are begun: from then on they are expected
                    _write_format(fs, path, mesh_id, broker_id, disk_id)
                if found_format == _FORMAT_BEFORE:
                    log.info("data_directory.upgraded", path=str(path), from_format=1, to_format=DIRECTORY_FORMAT)
            except BaseException:
                fs.close(lock_handle)
                raise
        return cls(
            path, mesh_id=mesh_id, broker_id=broker_id, disk_id=disk_id, fs=fs, lock_handle=lock_handle, marks=marks
        )

    def group_path(self, group: GroupId) -> Path:
        """Return the folder of a group; it appears with the group's first append."""
        return self.path / _GROUPS / str(group)

    def group_ids(self) -> list[GroupId]:
        """Return the groups that have a folder, in order."""
        return _group_ids(self.fs, self.path)

    def open_group(self, group: GroupId) -> GroupLog:
        """Recover the log of a group; `lost` of the answer says whether damage has shortened it.

        Raises:
            LogCorrupt: damage, and nothing tells what was durable; the text names file and position.
            LogUnreadable: the disk does not give the log back; nothing of it was changed.
            OpenNotDurable: a write or sync failed; what is on disk decides at the next start.
            DataDirectoryError: the operating system refused for another reason.
        """
        with _one_line_errors(self.path), _disk_errors(self.group_path(group)):
            mark = self.marks.get(group)
            found = GroupLog.open(
                self.group_path(group), self.fs, mark=mark, is_mark_damaged=mark is None and self.marks.is_damaged
            )
            if found.lost is not None:
                self.marks.note({group: found.lost})
                self.marks.sync()  # a killed process may not have: the loss must not be forgotten
            elif found.last_index > 0 and found.end_mark != mark:
                # Now, as nothing may be written to this log for long: if a power cut took the mark back, damage that
                # came meanwhile would count as the loss of less than was acknowledged.
                self.marks.note({group: found.end_mark})
                self.marks.sync()
            self._opened.add(group)
            self._settle_marks()
            return found

    def _settle_marks(self) -> None:
        """Give up damaged rows of the marks when no group can miss one any more."""
        unopened = [group for group in self.group_ids() if group not in self._opened] if self.marks.is_damaged else []
        if self.marks.is_damaged and all(self.marks.get(group) is not None for group in unopened):
            self.marks.clear_damaged()

    def open_hard_states(self) -> HardStateJournal:
        """Load the journal of terms and votes.

        Raises:
            LogCorrupt: damage.
            DataDirectoryError: it is missing although groups are here: their votes are lost.
        """
        with _one_line_errors(self.path):
            if not self.fs.exists(self.path / JOURNAL_NAME) and self.group_ids():
                raise DataDirectoryError(
                    f"{self.path / JOURNAL_NAME} is missing: the votes of this broker are lost; remove its data "
                    "directory and let the broker join anew, on an empty disk"
                )
            return HardStateJournal.open(self.fs, self.path)

    def remove_group(self, group: GroupId, *, keep: bool = False) -> None:
        """Remove the folder of a group whose log is closed. After a crash it is there whole or not at all.

        Args:
            keep: keep it aside, for people, in the place of an older one; unless DAMAGED_GROUPS_MAX are there already.

        Raises:
            DataDirectoryError: the operating system refused.
        """
        with _one_line_errors(self.path):
            source = self.group_path(group)
            self.marks.forget(group)  # or a new group of this number would seem to have lost its log
            if not self.fs.exists(source):
                return
            target = self.path / _TRASH / f"{group}-{uuid.uuid4().hex}"
            kept = self._place_for_damaged(group) if keep else None
            self.fs.rename(source, kept or target)
            self.fs.fsync_directory((kept or target).parent)
            self.fs.fsync_directory(source.parent)
            if kept is None:
                remove_tree(self.fs, target)
            else:
                log.warning("group.kept_aside", path=str(kept))

    def _place_for_damaged(self, group: GroupId) -> Path | None:
        """Return where to keep a group aside, made free; None when there is no room for one more."""
        home = self.path / _DAMAGED
        self.fs.make_directory(home)
        place = home / str(group)
        if self.fs.exists(place):
            remove_tree(self.fs, place)
        return place if len(self.fs.list_directory(home)) < DAMAGED_GROUPS_MAX else None

    def close(self) -> None:
        """Release the lock."""
        self.marks.close()
        self.entries.close()
        if self._lock_handle is not None:
            self.fs.close(self._lock_handle)
            self._lock_handle = None

    def _mark_journaled(self, journaled: bool) -> None:
        """Say in FORMAT whether there may be an entry journal: before there is one, and after it is gone."""
        version = JOURNALED_FORMAT if journaled else DIRECTORY_FORMAT
        _write_format(self.fs, self.path, self.mesh_id, self.broker_id, self.disk_id, version)

    def _sync_file_system(self) -> None:
        assert self._lock_handle is not None
        self.fs.sync_file_system(self._lock_handle)


@contextmanager
def held_while_idle(path: Path, fs: FileSystem | None = None) -> Iterator[bool]:
    """Hold the lock of a data directory, without waiting; yields False when a process has it.

    Nothing but the lock is touched. A broker that starts meanwhile waits for it.

    Raises:
        DataDirectoryError: nobody ever had it, the directory may be gone; or the operating system refused.
    """
    fs = fs or OsFileSystem()
    with _one_line_errors(path):
        lock_handle = fs.open(path / _LOCK) if fs.exists(path / _LOCK) else None
    if lock_handle is None:
        raise DataDirectoryError(f"data directory {path} has no {_LOCK} file: it is lost, or no broker ever used it")
    try:
        with _one_line_errors(path):
            is_free = fs.try_lock(lock_handle)
        yield is_free
    finally:
        fs.close(lock_handle)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Tell a disk that does not give bytes back from one that did not take them."""
    try:
        with lost_writes(path):
            yield
    except Unreadable as error:
        raise LogUnreadable(path, 0, str(error)) from error


@contextmanager
def lost_writes(path: Path) -> Iterator[None]:
    """Raise OpenNotDurable for a write or sync that the disk did not take: a later sync would not say so again."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO and not isinstance(error, Unreadable):
            raise OpenNotDurable(f"a write or sync failed while {path} was opened: {error}") from error
        raise


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


def _group_ids(fs: FileSystem, path: Path) -> list[GroupId]:
    names = fs.list_directory(path / _GROUPS)
    return sorted(GroupId(int(name)) for name in names if name.isascii() and name.isdigit())


def _open_marks(fs: FileSystem, path: Path, found_format: int) -> FlushedMarks:
    has_groups = bool(_group_ids(fs, path))
    marks = FlushedMarks.open(fs, path, are_expected=has_groups and found_format != _FORMAT_BEFORE)
    if marks.is_damaged and not has_groups:
        marks.clear_damaged()  # nothing was promised
    return marks


def _read_or_make_format(fs: FileSystem, path: Path, mesh_id: str, broker_id: BrokerId) -> tuple[str, int]:
    """Return the disk id and the format that the directory has."""
    if fs.exists(path / _FORMAT):
        return _check_format(read_file(fs, path / _FORMAT), path, mesh_id, broker_id)
    disk_id = str(uuid.uuid4())
    fs.fsync_directory(path.parent)
    _write_format(fs, path, mesh_id, broker_id, disk_id)
    log.info("data_directory.made", path=str(path), broker=broker_id, disk=disk_id)
    return disk_id, DIRECTORY_FORMAT


def _write_format(
    fs: FileSystem, path: Path, mesh_id: str, broker_id: BrokerId, disk_id: str, version: int = DIRECTORY_FORMAT
) -> None:
    about: dict[str, object] = {"format": version, "mesh": mesh_id, "broker": broker_id, "disk": disk_id}
    replace_file(fs, path / _FORMAT, json.dumps({**about, "crc": _crc_of(about)}).encode() + b"\n")


def _crc_of(about: dict[str, object]) -> int:
    fields = {name: value for name, value in about.items() if name != "crc"}
    return int(crc32c(json.dumps(fields, sort_keys=True).encode()))


def _check_format(raw: bytes, path: Path, mesh_id: str, broker_id: BrokerId) -> tuple[str, int]:
    """Return the disk id and the format of a FORMAT file that fits.

    Raises:
        DataDirectoryError: it does not fit.
    """
    try:
        about = json.loads(raw[:FORMAT_BYTES_MAX])
        version, mesh, broker, disk = (about[name] for name in ("format", "mesh", "broker", "disk"))
        damaged = version in (DIRECTORY_FORMAT, JOURNALED_FORMAT) and about["crc"] != _crc_of(about)
    except (ValueError, TypeError, KeyError) as error:
        raise DataDirectoryError(f"{path / _FORMAT} cannot be read: {error!r}") from error
    if version not in (_FORMAT_BEFORE, DIRECTORY_FORMAT, JOURNALED_FORMAT):
        raise DataDirectoryError(f"data directory {path} has format {version}, this broker knows {JOURNALED_FORMAT}")
    if damaged:
        raise DataDirectoryError(f"{path / _FORMAT} is damaged: remove the data directory and let the broker join anew")
    if mesh != mesh_id:
        raise DataDirectoryError(f"data directory {path} belongs to mesh {mesh!r}, not to {mesh_id!r}")
    if broker != broker_id:
        raise DataDirectoryError(f"data directory {path} belongs to broker {broker}, not to broker {broker_id}")
    return str(disk), int(version)
