"""How long trace files are kept: by age and by size, the oldest first. Used by the writer's thread only.

Rule 1: a broker deletes files that it wrote itself, in this run or an earlier one; never another broker's.
Rule 2: the folder is read once; after that what is written and deleted is remembered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from georelay.trace.files import TraceFileName

MS: Final = 1_000_000

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
        self._files: deque[_Kept] = deque()
        self.size_bytes = 0
        self.files_deleted = 0

    @property
    def files(self) -> int:
        """Return the number of files kept."""
        return len(self._files)

    def load(self) -> None:
        """Find the files of earlier runs.

        Raises:
            OSError: the directory cannot be read.
        """
        found: dict[Path, _Kept] = {}
        for path in self._directory.glob(f"date=*/hour=*/region={self._region}/*.parquet"):
            name = TraceFileName.parse(path.name)
            if name is not None and name.broker == self._broker:
                status = path.stat()
                found[path] = _Kept(path, status.st_size, status.st_mtime_ns)
        self._files = deque(sorted(found.values(), key=lambda kept: (kept.written_ns, kept.path)))
        self.size_bytes = sum(kept.size_bytes for kept in self._files)

    def added(self, path: Path, now_ns: int) -> None:
        """Note a file that was written now."""
        size_bytes = path.stat().st_size
        self._files.append(_Kept(path, size_bytes, now_ns))
        self.size_bytes += size_bytes

    def enforce(self, now_ns: int) -> int:
        """Delete what is over age or size; return how many files.

        Raises:
            OSError: a file cannot be deleted; it is tried again next time.
        """
        deleted = 0
        while self._files and self._is_over(self._files[0], now_ns):
            kept = self._files[0]
            kept.path.unlink(missing_ok=True)
            self._files.popleft()
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


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and those above it that nothing is left in, up to `top`."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:  # not empty: another broker's files, or newer ones
            return
        folder = folder.parent
