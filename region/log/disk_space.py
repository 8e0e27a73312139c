"""How much room the data directory has left, and what that forbids.

A write that finds the disk full stops the data directory for good, so the disk is never filled: below the reserve
publishes are refused (the group's own entries still pass, retention among them), below its last part a follower takes
no entries either.

    level  free bytes                        publish  entries from a leader
    OK     >= reserve                        yes      yes
    LOW    < reserve                         refused  yes
    FULL   < reserve * LAST_PART             refused  refused

A level is left upwards only with RECOVERY_FACTOR more room than it is entered with, so it does not flutter.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import DiskFull
from region.log.filesystem import FileSystem

log = structlog.get_logger()

DISK_RESERVE_BYTES: Final = 512 * 1024 * 1024
LAST_PART: Final = 0.25
RECOVERY_FACTOR: Final = 1.25


class DiskLevel(enum.Enum):
    """What the free room allows."""

    OK = "ok"
    LOW = "low"
    FULL = "full"


_ORDER: Final = {DiskLevel.FULL: 0, DiskLevel.LOW: 1, DiskLevel.OK: 2}


def level_of(free_bytes: int, reserve_bytes: int, before: DiskLevel) -> DiskLevel:
    """Return the level for this much room, coming from `before`."""

    def plain(bytes_left: float) -> DiskLevel:
        if bytes_left >= reserve_bytes:
            return DiskLevel.OK
        return DiskLevel.LOW if bytes_left >= reserve_bytes * LAST_PART else DiskLevel.FULL

    now = plain(free_bytes)
    return max(before, plain(free_bytes / RECOVERY_FACTOR), key=_ORDER.__getitem__) if _rises(before, now) else now


def _rises(before: DiskLevel, now: DiskLevel) -> bool:
    return _ORDER[now] > _ORDER[before]


class DiskSpace:
    """The room of one data directory. `check` measures (one statvfs, microseconds); the rest only remembers.

    Args:
        path: the data directory.
        reserve_bytes: kept free for what must go on when publishing may not; >= 0, and 0 switches the watch off.
    """

    def __init__(self, fs: FileSystem, path: Path, *, reserve_bytes: int = DISK_RESERVE_BYTES) -> None:
        self._fs = fs
        self._path = path
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0
        self.level = DiskLevel.OK
        self.check()

    @property
    def writable(self) -> bool:
        """Return whether publishes are taken."""
        return self.level is DiskLevel.OK

    def check(self) -> DiskLevel:
        """Measure and return the level; any thread. Raises OSError."""
        self.free_bytes = self._fs.free_bytes(self._path)
        before, self.level = self.level, level_of(self.free_bytes, self.reserve_bytes, self.level)
        if self.level is not before:
            log.warning("disk.level_changed", level=self.level.value, before=before.value, free_bytes=self.free_bytes)
        return self.level

    def admit(self) -> None:
        """Raise DiskFull when a publish must be refused; nothing is stored then."""
        if self.level is not DiskLevel.OK:
            raise DiskFull(
                f"the disk of this broker has {self.free_bytes} bytes left, {self.reserve_bytes} are its reserve: "
                "free room or let retention remove more"
            )
