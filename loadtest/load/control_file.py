"""The file by which a broker under `python -m region.faults` is told what is broken (region.faults.settings)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

APPLY_SECONDS_MAX: Final = 60  # a broker that was just started obeys once it runs
POLL_SECONDS: Final = 0.02


class ControlFile:
    """One broker's; it is written at once, with nothing broken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._faults: dict[str, Any] = {"version": 1, "generation": 0}
        self._write()

    def set(self, **faults: Any) -> None:
        """Break this too; None heals one."""
        self._faults |= faults | {"generation": self._faults["generation"] + 1}
        self._write()

    async def obeyed(self, still: Callable[[], bool]) -> bool:
        """Wait until the broker obeys this or something newer, as long as `still` says that it could; else False."""
        applied = self.path.with_name(self.path.name + ".applied")
        wanted = int(self._faults["generation"])
        deadline = time.monotonic() + APPLY_SECONDS_MAX
        while still() and (not applied.exists() or int(applied.read_text() or 0) < wanted):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _write(self) -> None:
        draft = self.path.with_name(self.path.name + ".tmp")
        draft.write_text(json.dumps({key: value for key, value in self._faults.items() if value is not None}))
        os.replace(draft, self.path)
