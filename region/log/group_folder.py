"""The files of one group's folder, and what a crash may have left half done in it.

    <first index>.log          a segment                    <first index>.index       its index
    <index>.manifest           the state after an entry     <first index>.staged      a segment that is being fetched
    <index>.install            a manifest that replaces the whole log: everything else is on its way out
    <first index>.start        everything below is on its way out
    *.removed                  on its way out               *.damaged                 kept until the replica is repaired
    *.tmp                      a file that was never finished

`.install` and `.start` are what makes an operation on many files one: it has happened as soon as their name is
durable, and whoever finds them finishes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, open_to_read, read_at, reading, replace_file
from region.log.manifest import Manifest
from region.log.manifest_files import load_manifest, manifest_path
from region.log.segment import index_path

log = structlog.get_logger()

_DIGITS: Final = 20
_INSTALL: Final = ".install"
_START: Final = ".start"
DAMAGED_SUFFIX: Final = ".damaged"
_LEFTOVERS: Final = (".tmp", ".staged", ".removed")
_NUMBERED: Final = (".log", ".index", ".manifest")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContent:
    """First indexes of the segments and indexes of the manifests, in order."""

    segments: list[int]
    manifests: list[int]


def number_of(directory: Path, name: str) -> int:
    """Return the index in a file's name.

    Raises:
        LogCorrupt: the name is not ours.
    """
    stem = name.partition(".")[0]
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()) or int(stem) < 1:
        raise LogCorrupt(directory / name, 0, "a segment is named by its first index in 20 digits")
    return int(stem)


def settle_folder(fs: FileSystem, directory: Path) -> FolderContent:
    """Finish or undo what a crash interrupted; return what the folder holds (nothing when it does not exist).

    Raises:
        LogCorrupt: a segment with a foreign name. OSError: Unreadable also for a manifest that is to be installed.
    """
    if not fs.exists(directory):
        return FolderContent(segments=[], manifests=[])
    for name in sorted(reading(fs.list_directory, directory)):
        if name.endswith(_INSTALL):
            _settle_install(fs, directory, number_of(directory, name))
        elif name.endswith(_START):
            finish_start(fs, directory, number_of(directory, name))
    names = set(fs.list_directory(directory))
    orphans = {name for name in names if name.endswith(".index") and name.replace(".index", ".log") not in names}
    leftovers = orphans | {name for name in names if name.endswith(_LEFTOVERS)}
    for name in sorted(leftovers):
        fs.remove(directory / name)
    if leftovers:
        fs.fsync_directory(directory)  # an old index file must not come back beside a new segment of its name
    return FolderContent(
        segments=sorted(number_of(directory, name) for name in names if name.endswith(".log")),
        manifests=sorted(number_of(directory, name) for name in names if name.endswith(".manifest")),
    )


def begin_install(fs: FileSystem, directory: Path, manifest: Manifest) -> None:
    """Decide durably that the log is replaced by what follows `manifest`. Raises OSError."""
    replace_file(fs, directory / f"{manifest.index:020d}{_INSTALL}", manifest.encode())


def finish_install(fs: FileSystem, directory: Path, index: int) -> None:
    """Put away everything else and make the installed manifest the group's only one. Raises OSError."""
    source = directory / f"{index:020d}{_INSTALL}"
    for name in sorted(fs.list_directory(directory)):
        if name.endswith(_NUMBERED):
            put_away(fs, directory / name)
    fs.fsync_directory(directory)
    fs.rename(source, manifest_path(directory, index))
    fs.fsync_directory(directory)


def _settle_install(fs: FileSystem, directory: Path, index: int) -> None:
    path = directory / f"{index:020d}{_INSTALL}"
    if load_manifest(fs, path, index) is None:  # whole when it got its name, so the disk has damaged it since
        fs.remove(path)
        return
    log.info("install.finished", path=str(path))
    finish_install(fs, directory, index)


def begin_start(fs: FileSystem, directory: Path, first_index: int) -> None:
    """Decide durably that the log begins at `first_index`. Raises OSError."""
    fs.close(fs.open(directory / f"{first_index:020d}{_START}", create=True))
    fs.fsync_directory(directory)


def finish_start(fs: FileSystem, directory: Path, first_index: int) -> None:
    """Put away the segments below `first_index` and the manifests below its base. Raises OSError."""
    for name in sorted(fs.list_directory(directory)):
        if not name.endswith(_NUMBERED):
            continue
        floor = first_index - 1 if name.endswith(".manifest") else first_index
        if number_of(directory, name) < floor:
            put_away(fs, directory / name)
    fs.fsync_directory(directory)
    fs.remove(directory / f"{first_index:020d}{_START}")
    fs.fsync_directory(directory)


def put_away(fs: FileSystem, path: Path) -> None:
    """Take a file out of the log. Removing a large one takes long, so that is left for later; small ones go at once."""
    if path.suffix == ".log":
        fs.rename(path, path.with_name(f"{path.name}.removed"))
    else:
        fs.remove(path)


def remove_leftovers(fs: FileSystem, directory: Path, suffix: str) -> None:
    """Remove what was put away under this suffix. Raises OSError."""
    for name in fs.list_directory(directory):
        if name.endswith(suffix):
            fs.remove(directory / name)


def set_aside(fs: FileSystem, path: Path, position: int) -> None:
    """Keep a copy of a damaged segment from `position` on: until the replica is repaired it may be all there is."""
    handle = open_to_read(fs, path)
    try:
        size = fs.size(handle)
        tail = read_at(fs, handle, size - position, position)
    finally:
        fs.close(handle)
    replace_file(fs, path.with_name(f"{path.stem}.{position}{DAMAGED_SUFFIX}"), tail)


def set_aside_whole(fs: FileSystem, path: Path) -> None:
    """Take a segment behind the damage out of the log and keep it; durable when it returns."""
    if fs.exists(index_path(path)):
        fs.remove(index_path(path))
    fs.rename(path, path.with_name(f"{path.name}{DAMAGED_SUFFIX}"))
    fs.fsync_directory(path.parent)
