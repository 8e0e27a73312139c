"""Reads the reports of drills from a directory, and no more often than they may change."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gateway.console.drills_core import drill_row, newest
from georelay.limits import MIB

LOOK_S: Final = 30.0
REPORT_BYTES_MAX: Final = 8 * MIB
NAMES_MAX: Final = 10_000

Drills = tuple[list[dict[str, Any]], str]  # rows, and why there are none


class DrillReports:
    """The newest of each kind. `directory`: of `georelay drill --out`; None: this gateway shows none."""

    def __init__(self, directory: Path | None, *, mesh: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._mesh = mesh
        self._monotonic_s = monotonic_s
        self._until_s = float("-inf")
        self._known: Drills = ([], "this gateway shows no drills: set drills_dir to the --out of georelay drill")

    async def read(self) -> Drills:
        """Return what is known, at most LOOK_S old."""
        if self._directory is not None and self._monotonic_s() >= self._until_s:
            self._known = await asyncio.to_thread(_read, self._directory, self._mesh)
            self._until_s = self._monotonic_s() + LOOK_S
        return self._known


def _read(directory: Path, mesh: str) -> Drills:
    try:
        names = [path.name for path, _ in zip(directory.iterdir(), range(NAMES_MAX), strict=False)]
        rows = [row for name in newest(names) if (row := _row(directory / name, mesh)) is not None]
    except OSError as error:
        return [], f"drills_dir cannot be read: {error.strerror or error}"
    return rows, "" if rows else "drills_dir has no report of a drill: run georelay drill with that --out"


def _row(path: Path, mesh: str) -> dict[str, Any] | None:
    with path.open("rb") as file:
        raw = file.read(REPORT_BYTES_MAX + 1)
    if len(raw) > REPORT_BYTES_MAX:
        return None
    try:
        document = json.loads(raw)
    except ValueError:  # it is being written
        return None
    return drill_row(path.name, document, mesh=mesh) if isinstance(document, dict) else None
