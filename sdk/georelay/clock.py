"""The two clocks of a process, as an argument: a test gives each broker its own, wrong if it likes."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps that people and other regions see, monotonic time for durations."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin; never goes back."""


class SystemClock:
    """The clocks of the operating system."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin; never goes back."""
        return time.monotonic_ns()
