"""Logical clocks (Lamport 1978): what happened after something was heard of has a later time.

Rule: a time over LTIME_MAX is refused where messages are read; else one forged message would end the clock.
"""

from __future__ import annotations

from typing import Final

LTIME_MAX: Final = 2**62
FIRST_LTIME: Final = 1


class LamportClock:
    """One clock. `time` is the time that the next own event gets."""

    __slots__ = ("time",)

    def __init__(self, time: int = FIRST_LTIME) -> None:
        self.time = max(FIRST_LTIME, time)

    def take(self) -> int:
        """Return the time of an event that happens now, and go on."""
        taken = self.time
        self.time += 1
        return taken

    def witness(self, seen: int) -> None:
        """Note a time that another one used: own events from now on are later."""
        if seen >= self.time:
            self.time = seen + 1
