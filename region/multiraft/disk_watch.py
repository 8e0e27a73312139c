"""How long and how much this broker's disk lags behind what it was asked to make durable. Pure.

The flusher posts tokens in the order of submission, so the oldest write outstanding is the front of a queue.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

from georelay.limits import MIB

UNFLUSHED_BYTES_MAX: Final = 64 * MIB  # received or proposed here and not durable; beyond it Appends are not read
SLOW_MS: Final = 500.0  # a write outstanding for longer: leadership is handed over
HUNG_MS_MIN: Final = 1_000.0  # the least that counts as hung, however short elections are


class DiskPace(enum.Enum):
    """How the disk does."""

    FINE = "fine"
    SLOW = "slow"  # leaders hand over
    HUNG = "hung"  # leaders step down


class DiskWatch:
    """Writes on their way to the disk: when each was submitted, and its bytes."""

    def __init__(self, *, unflushed_bytes_max: int, hung_ms: float) -> None:
        self._unflushed_bytes_max = unflushed_bytes_max
        self._hung_ms = max(hung_ms, HUNG_MS_MIN)
        self._outstanding: deque[tuple[int, int]] = deque()  # (submitted ns, bytes)
        self.unflushed_bytes = 0
        self.overfull = False

    @property
    def outstanding(self) -> int:
        """Return how many writes are not durable yet."""
        return len(self._outstanding)

    def submitted(self, size_bytes: int, now_ns: int) -> None:
        """Note one write."""
        self._outstanding.append((now_ns, size_bytes))
        self.unflushed_bytes += size_bytes
        if self.unflushed_bytes > self._unflushed_bytes_max:
            self.overfull = True

    def durable(self, count: int) -> None:
        """Note that the oldest `count` writes are durable."""
        for _ in range(count):
            self.unflushed_bytes -= self._outstanding.popleft()[1]
        if self.unflushed_bytes <= self._unflushed_bytes_max // 2:
            self.overfull = False

    def pace(self, now_ns: int) -> DiskPace:
        """Return how the disk does, judged by the oldest write outstanding."""
        if not self._outstanding:
            return DiskPace.FINE
        age_ms = (now_ns - self._outstanding[0][0]) / 1e6
        if age_ms > self._hung_ms:
            return DiskPace.HUNG
        return DiskPace.SLOW if age_ms > SLOW_MS else DiskPace.FINE
