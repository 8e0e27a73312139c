"""The files of a broker's data directory of which campaigns flip a bit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEALED_MIN: Final = 3  # files of a kind before one of them is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """One kind of file: in the folder of a group, the topic's or the controller's, or at the top.

    Args:
        newest: the last one of its folder; else any of those before it.
        running: it is changed under the running broker; else after a kill -9.
        stopped: after a clean stop instead: only that leaves such a file for certain, or none of the entry journal,
            from which what was flipped would be written again before anybody looked.
        restored: it must become again what it was.
    """

    ending: str
    of_group: bool = True
    controller: bool = False
    newest: bool = False
    running: bool = False
    stopped: bool = False
    restored: bool = False

    def choose(self, home: Path, group: int, rng: random.Random) -> Path | None:
        """Return a file of a data directory, None while there is none to choose."""
        if not self.of_group:
            return home / self.ending
        folder = home / "groups" / ("0" if self.controller else str(group))
        paths = sorted(path for path in folder.glob(f"*{self.ending}") if path.stat().st_size)
        if self.newest:
            return paths[-1] if paths else None
        return rng.choice(paths[:-1]) if len(paths) > SEALED_MIN else None


FILE_KINDS: Final = {
    "sealed-log": FileKind(ending=".log", stopped=True, restored=True),
    "running-log": FileKind(ending=".log", running=True, restored=True),
    "active-log": FileKind(ending=".log", newest=True),
    "sealed-index": FileKind(ending=".index"),
    "newest-manifest": FileKind(ending=".manifest", newest=True),
    "controller-log": FileKind(ending=".log", controller=True, newest=True),
    "controller-manifest": FileKind(ending=".manifest", controller=True, newest=True, stopped=True),
    **{name: FileKind(ending=name, of_group=False) for name in ("flushed-marks", "hard-state", "founding.json")},
    "FORMAT": FileKind(ending="FORMAT", of_group=False),
}
