"""How late the router was: the worst of each second. A measurement taken while it was late is worth nothing.

Rule: time is handed in; the newest SECONDS_KEPT seconds are kept, the worst for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SECONDS_KEPT: Final = 600


class LagBook:
    """Per-second maxima; `note` is called for each packet."""

    def __init__(self) -> None:
        self.worst_ns = 0
        self.samples = 0
        self._second = 0
        self._worst_of_second_ns = 0
        self._seconds: deque[tuple[int, int]] = deque(maxlen=SECONDS_KEPT)

    def note(self, now_ns: int, lag_ns: int) -> None:
        """Note that something due `lag_ns` before `now_ns` was done now; `now_ns` never goes back."""
        second = now_ns // 1_000_000_000
        if second != self._second:
            if self._second:
                self._seconds.append((self._second, self._worst_of_second_ns))
            self._second, self._worst_of_second_ns = second, 0
        self.samples += 1
        if lag_ns > self._worst_of_second_ns:
            self._worst_of_second_ns = lag_ns
            self.worst_ns = max(self.worst_ns, lag_ns)

    def maxima(self) -> list[tuple[int, int]]:
        """Return (second of the clock, worst lag in ns) of the seconds kept, the running one last."""
        return [*self._seconds, (self._second, self._worst_of_second_ns)] if self._second else []
