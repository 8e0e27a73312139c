"""The clocks of a process, as an argument: a test gives each broker its own, wrong if it likes.

Rule: what is promised for a time to others (leases) is counted with `elapsed_of`. Linux' CLOCK_MONOTONIC stands still
while the host is suspended, and the others' clocks go on; CLOCK_BOOTTIME counts that time, too (clock_gettime(2)).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it


class Clock(Protocol):
    """Wall time for stamps that people and other regions see, monotonic time for durations."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin; never goes back."""


@runtime_checkable
class ElapsedClock(Clock, Protocol):
    """A clock that can also say how much time passed with suspensions of the host."""

    def elapsed_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin, those of suspensions included; never goes back."""


class SystemClock:
    """The clocks of the operating system; read thirty times for a record, so without a call of ours around them."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def elapsed_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin, those of suspensions included; never goes back.

        Where the platform has no such clock: those of `monotonic_ns`.
        """
        return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def elapsed_of(clock: Clock) -> Callable[[], int]:
    """Return what leases are counted with: `elapsed_ns` where the clock has it, else `monotonic_ns`."""
    return clock.elapsed_ns if isinstance(clock, ElapsedClock) else clock.monotonic_ns
