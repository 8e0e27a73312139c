"""Holds the broker's main loop: for that long nothing else runs in it, as when a callback computes or blocks.

Rule 1: the thread sleeps without the interpreter lock, so other threads run on: gossip, syncs, this tool's own.
Rule 2: once per generation of the control file. What the file says when the broker starts is past and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from region.faults.settings import FaultSettings


class Loop(Protocol):
    """What is asked of an event loop."""

    def call_soon_threadsafe(self, callback: Callable[[float], None], seconds: float, /) -> object:
        """Run a callback in the loop's thread soon; any thread."""


class LoopHold:
    """Obeys `loop_hold_ms`. `sleep`: blocks the thread it is called in for so many seconds."""

    def __init__(self, loop: Loop, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._loop = loop
        self._sleep = sleep
        self._generation: int | None = None

    def obey(self, settings: FaultSettings) -> None:
        """Hold the loop if this is a new generation that says so; any thread, one at a time."""
        before, self._generation = self._generation, settings.generation
        if before not in (None, settings.generation) and settings.loop_hold_ms:
            self._loop.call_soon_threadsafe(self._sleep, settings.loop_hold_ms / 1000)
