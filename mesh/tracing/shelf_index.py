"""Which trace files and spools of one broker there are, without reading a folder twice that did not change.

Rule 1: names only; what is in a file is somebody else's to read.
Rule 2: spools are listed before folders: a spool that became a file in between is seen twice, never not at all.
Rule 3: a folder that was written to just now is read again next time: its time stamp may not move within a clock tick.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.trace.files import SPOOL_FOLDER, TraceFileName, broker_of_spool
from georelay.trace.kinds import TraceKind

FOLDERS_REMEMBERED_MAX: Final = 256
COMPACTED_DIGITS: Final = 12  # of the number in the name of a file that was made of several; brokers write six
_FRESH_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfFile:
    """One Parquet file. `hour` is its folder, as `date=2026-11-21/hour=23`, and sorts by time."""

    path: Path
    hour: str
    boot_id: str
    first: int
    is_compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSpool:
    """One spool, by its name."""

    path: Path
    boot_id: str
    number: int


@dataclass(frozen=True, slots=True)
class _Folder:
    """What was in a folder when its time stamp was `changed_ns` (0: look again). None: a name that is not ours."""

    changed_ns: int
    names: dict[str, ShelfFile | None]
    files: dict[TraceKind, tuple[ShelfFile, ...]]


_KIND_OF: Final = {kind.value: kind for kind in TraceKind}


class ShelfIndex:
    """Lists the files of one broker.

    Args:
        directory: the trace directory.
        region, broker: whose files count.
        now_ns: wall clock.
    """

    def __init__(self, directory: Path, *, region: str, broker: int, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._region = region
        self._broker = broker
        self._now_ns = now_ns
        self._folders: OrderedDict[str, _Folder] = OrderedDict()

    def forget(self) -> None:
        """Read every folder anew next time."""
        self._folders.clear()

    def hours(self) -> list[str]:
        """Return the folders of hours, oldest first; empty ones too."""
        dates = sorted(_names(self._directory, "date="))
        return [f"{date}/{hour}" for date in dates for hour in sorted(_names(self._directory / date, "hour="))]

    def files(self, hour: str, kind: TraceKind) -> tuple[ShelfFile, ...]:
        """Return the files of a kind in the folder of an hour."""
        folder = self._directory / hour / f"region={self._region}"
        try:
            changed_ns = folder.stat().st_mtime_ns
        except FileNotFoundError:
            return ()
        known = self._folders.get(hour, _Folder(0, {}, {}))
        if known.changed_ns != changed_ns:
            is_settled = self._now_ns() - changed_ns > _FRESH_NS
            known = self._read(folder, hour, known.names, changed_ns if is_settled else 0)
            self._folders[hour] = known
            if len(self._folders) > FOLDERS_REMEMBERED_MAX:
                self._folders.popitem(last=False)
        self._folders.move_to_end(hour)
        return known.files.get(kind, ())

    def _read(self, folder: Path, hour: str, before: dict[str, ShelfFile | None], changed_ns: int) -> _Folder:
        """Look at a folder; only names that were not there `before` are parsed: this runs beside the event loop."""
        names = {
            name: before[name] if name in before else self._file(folder, hour, name) for name in os.listdir(folder)
        }
        found: dict[TraceKind, list[ShelfFile]] = {}
        for name, file in names.items():
            if file is None:
                continue
            found.setdefault(_KIND_OF[name.partition("-")[0]], []).append(file)
        return _Folder(changed_ns, names, {kind: tuple(files) for kind, files in found.items()})

    def _file(self, folder: Path, hour: str, text: str) -> ShelfFile | None:
        name = TraceFileName.parse(text)
        if name is None or name.broker != self._broker:
            return None
        return ShelfFile(
            path=folder / text,
            hour=hour,
            boot_id=name.boot_id,
            first=name.sequence,
            is_compacted=len(text.rpartition("-")[2]) >= COMPACTED_DIGITS + len(".parquet"),
        )

    def spools(self, kind: TraceKind) -> list[ShelfSpool]:
        """Return the spools of a kind, in the order of their numbers within a run."""
        found = []
        for path in _inside(self._directory / SPOOL_FOLDER):
            if broker_of_spool(path.name) != self._broker:
                continue
            word, _, boot_id, number = path.stem.split("-")
            if word == kind.value:
                found.append(ShelfSpool(path=path, boot_id=boot_id, number=int(number)))
        return sorted(found, key=lambda spool: spool.number)


def _names(folder: Path, prefix: str) -> Iterator[str]:
    return (path.name for path in _inside(folder) if path.name.startswith(prefix))


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
