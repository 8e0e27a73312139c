"""A wall clock that somebody sets to another time while the broker runs."""

from __future__ import annotations

from georelay.clock import SystemClock

NS_PER_MS = 1_000_000


class SteppedClock(SystemClock):
    """The system's clocks; `step_ms` is added to the wall clock. The monotonic clock never steps: no kernel lets it."""

    def __init__(self) -> None:
        self.step_ms = 0

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, wrong by `step_ms`."""
        return super().wall_ns() + self.step_ms * NS_PER_MS
