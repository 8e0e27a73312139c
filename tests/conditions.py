"""Waiting for what comes true in its own time: how long that takes is the machine's affair, not a test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 60.0  # beside much other work; nobody waits so long where nothing is wrong


async def until(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Return what a condition returns as soon as that is true; fail when it is not in so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.002)
    raise AssertionError("the condition did not come true in time")
