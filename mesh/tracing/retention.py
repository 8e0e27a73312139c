"""How long trace files are kept: by age and by size, the oldest first. Used by the writer's thread only.

Rule 1: a broker deletes files that it wrote itself, in this run or an earlier one, or that were made of those; never
        another broker's.
Rule 2: what is written and deleted here is remembered; every LOOK_AGAIN_NS the folders that changed since are read
        again: compaction makes one file of many, and people delete files.
Rule 3: a file is not younger than the end of its folder's hour: what compaction wrote keeps the age of its rows.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from georelay.trace.files import TraceFileName

MS: Final = 1_000_000
AGE_MS_MAX: Final = 30 * 86_400_000
SIZE_BYTES_MAX: Final = 10 << 30
LOOK_AGAIN_NS: Final = 600 * 10**9
_HOUR_NS: Final = 3_600 * 10**9
_SETTLED_NS: Final = 2 * 10**9  # a folder that was written to just now may be so again within the same time stamp

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Kept:
    path: Path
    size_bytes: int
    written_ns: int


class Retention:
    """The files of one broker.

    Args:
        directory: the trace directory.
        region: name of the region, a folder of the layout.
        broker: mesh-wide broker id.
        age_ms_max: files that were written longer ago are deleted; -1 keeps them.
        size_bytes_max: the oldest are deleted while all together are larger; -1 keeps them.
    """

    def __init__(self, directory: Path, *, region: str, broker: int, age_ms_max: int, size_bytes_max: int) -> None:
        self._directory = directory
        self._region = region
        self._broker = broker
        self._age_ns_max = age_ms_max * MS
        self._size_bytes_max = size_bytes_max
        self._files: dict[Path, _Kept] = {}  # the oldest first
        self._changed_ns: dict[Path, int] = {}  # folder -> its time stamp when it was read
        self._looked_ns = 0
        self.size_bytes = 0
        self.files_deleted = 0

    @property
    def files(self) -> int:
        """Return the number of files kept."""
        return len(self._files)

    def load(self, now_ns: int) -> None:
        """Find the files that there are; only folders that changed since the last time are read.

        Raises:
            OSError: the directory cannot be read.
        """
        self._looked_ns = now_ns
        folders = set(self._folders())
        found = {path: kept for path, kept in self._files.items() if path.parent in folders}
        changed_ns: dict[Path, int] = {}
        for folder in folders:
            try:
                changed_ns[folder] = self._settled(folder.stat().st_mtime_ns, now_ns)
                if changed_ns[folder] and changed_ns[folder] == self._changed_ns.get(folder):
                    continue
                names = set(os.listdir(folder))
            except FileNotFoundError:  # it was empty, and somebody removed it
                continue
            for path in [path for path in found if path.parent == folder and path.name not in names]:
                del found[path]
            for path in (folder / name for name in names):
                kept = None if path in found else self._kept(path)
                if kept is not None:
                    found[path] = kept
        self._changed_ns = changed_ns
        oldest_first = sorted(found.values(), key=lambda kept: (kept.written_ns, kept.path))
        self._files = {kept.path: kept for kept in oldest_first}
        self.size_bytes = sum(kept.size_bytes for kept in oldest_first)

    def _folders(self) -> Iterator[Path]:
        return self._directory.glob(f"date=*/hour=*/region={self._region}")

    @staticmethod
    def _settled(changed_ns: int, now_ns: int) -> int:
        return changed_ns if now_ns - changed_ns > _SETTLED_NS else 0

    def _kept(self, path: Path) -> _Kept | None:
        name = TraceFileName.parse(path.name)
        if name is None or name.broker != self._broker:
            return None
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return _Kept(path, status.st_size, min(status.st_mtime_ns, _end_of_hour_ns(path)))

    def added(self, path: Path, now_ns: int) -> None:
        """Note a file that was written now."""
        before = self._files.pop(path, None)
        kept = _Kept(path, path.stat().st_size, now_ns)
        self._files[path] = kept
        self.size_bytes += kept.size_bytes - (0 if before is None else before.size_bytes)

    def enforce(self, now_ns: int) -> int:
        """Delete what is over age or size; return how many files.

        Raises:
            OSError: a file cannot be deleted, or a folder not be read; it is tried again next time.
        """
        if now_ns - self._looked_ns >= LOOK_AGAIN_NS:
            self.load(now_ns)
        deleted = 0
        while self._files and self._is_over(kept := next(iter(self._files.values())), now_ns):
            kept.path.unlink(missing_ok=True)
            del self._files[kept.path]
            self.size_bytes -= kept.size_bytes
            deleted += 1
            _remove_empty(kept.path.parent, self._directory)
        if deleted:
            self.files_deleted += deleted
            log.info("trace.files_expired", files=deleted, kept_bytes=self.size_bytes)
        return deleted

    def _is_over(self, kept: _Kept, now_ns: int) -> bool:
        if 0 <= self._age_ns_max < now_ns - kept.written_ns:
            return True
        return 0 <= self._size_bytes_max < self.size_bytes


def _end_of_hour_ns(path: Path) -> int:
    """Return the end of the hour of a file's folder: its rows were begun before."""
    date, hour = (part.partition("=")[2] for part in path.parts[-4:-2])
    began = datetime.datetime.strptime(f"{date} {hour} +0000", "%Y-%m-%d %H %z")
    return int(began.timestamp()) * 10**9 + _HOUR_NS


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and those above it that nothing is left in, up to `top`."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:  # not empty: another broker's files, or newer ones
            return
        folder = folder.parent
