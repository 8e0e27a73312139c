"""The manifests in a group's folder.

Rule 1: a manifest is written under another name, synced and renamed: it is whole or not there.
Rule 2: what cannot be read or does not fit its name counts as missing; an older one, or the log itself, stands in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import structlog

from region.log.filesystem import FileSystem, Unreadable, read_file, replace_file
from region.log.manifest import Manifest, ManifestError

log = structlog.get_logger()

NEWEST_KEPT: Final = 2  # the second stands in when the first is damaged


def manifest_path(directory: Path, index: int) -> Path:
    """Return the file of the manifest taken after entry `index`."""
    return directory / f"{index:020d}.manifest"


def load_manifest(fs: FileSystem, path: Path, index: int) -> Manifest | None:
    """Return the manifest in a file; None when it is missing, damaged or of another index. Raises OSError."""
    try:
        manifest = Manifest.decode(read_file(fs, path))
    except FileNotFoundError:
        return None
    except ManifestError as error:
        log.critical("manifest.damaged", path=str(path), reason=str(error))
        return None
    if manifest.index != index:
        log.critical("manifest.damaged", path=str(path), reason=f"it is of index {manifest.index}")
        return None
    return manifest


class ManifestFiles:
    """The manifests of one group by index. Writing belongs to the flusher; reading is for any thread."""

    def __init__(self, fs: FileSystem, directory: Path, indexes: Collection[int]) -> None:
        self._fs = fs
        self._directory = directory
        self.indexes: tuple[int, ...] = tuple(sorted(indexes))  # replaced, never changed
        self.damaged: set[int] = set()  # found wrong by a read and not written again since
        self.unreadable: Unreadable | None = None  # the last refusal of the disk to give one back

    def read(self, index: int) -> Manifest | None:
        """Return the manifest of `index`, read from disk; None if there is none that can be read."""
        if index not in self.indexes:
            return None
        path, found = manifest_path(self._directory, index), None
        try:
            found = load_manifest(self._fs, path, index)
        except Unreadable as error:
            log.critical("manifest.damaged", path=str(path), reason=str(error))
            self.unreadable = error
        if found is None and index in self.indexes:  # else it was removed meanwhile
            self.damaged.add(index)
        return found

    def newest(self, lo: int, hi: int) -> Manifest | None:
        """Return the newest readable manifest with lo <= index <= hi."""
        wanted = (index for index in reversed(self.indexes) if lo <= index <= hi)
        return next((found for index in wanted if (found := self.read(index)) is not None), None)

    def write(self, manifest: Manifest) -> None:
        """Make a manifest durable. Raises OSError."""
        replace_file(self._fs, manifest_path(self._directory, manifest.index), manifest.encode())
        self.indexes = tuple(sorted({*self.indexes, manifest.index}))
        self.damaged.discard(manifest.index)

    def prune(self, boundaries: Collection[int]) -> None:
        """Remove all but the newest whole ones and those of `boundaries`. Not synced: one too many does no harm."""
        old = {*self.indexes[:-NEWEST_KEPT], *self.damaged}
        self.remove(index for index in self.indexes if index in old and index not in boundaries)

    def remove_above(self, index: int) -> None:
        """Remove those of entries that the log does not have any more."""
        self.remove(found for found in self.indexes if found > index)

    def remove_below(self, index: int) -> None:
        """Remove those of entries before the log's base."""
        self.remove(found for found in self.indexes if found < index)

    def remove(self, indexes: Iterable[int]) -> None:
        """Remove the manifests of these indexes."""
        doomed = frozenset(indexes)
        self.indexes = tuple(index for index in self.indexes if index not in doomed)
        for index in sorted(doomed):
            path = manifest_path(self._directory, index)
            if self._fs.exists(path):
                self._fs.remove(path)
