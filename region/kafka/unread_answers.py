"""Answers that one client has not read: those that wait for their turn, and those that the transport still holds.

Rule 1: with `limit_bytes` of them the client gets no more records; one answer that was begun may pass the limit.
Rule 2: with the budget of all clients used up, only who has nothing unread is served, ROOM_BYTES_MIN at a time: so
        clients that do not read cannot stop those that do.
Rule 3: while that budget is used up, a client that has read nothing for UNREAD_S is stuck.
"""

from __future__ import annotations

from typing import Final

from georelay.limits import MIB
from region.kafka.request_memory import RequestMemory

ROOM_BYTES_MIN: Final = 1 * MIB
UNREAD_S: Final = 10.0


class UnreadAnswers:
    """The account of one connection. `budget`: of all connections of its listener."""

    __slots__ = ("_budget", "_is_closed", "_limit_bytes", "_unsent_bytes", "_unsent_since_ns", "used_bytes")

    def __init__(self, limit_bytes: int, budget: RequestMemory) -> None:
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._is_closed = False
        self._unsent_bytes = 0
        self._unsent_since_ns = 0  # monotonic; 0: the client reads
        self.used_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Return how many bytes of records an answer may hold now; 0: none."""
        if self._budget.is_full:
            return 0 if self.used_bytes else ROOM_BYTES_MIN
        return max(self._limit_bytes - self.used_bytes, 0)

    def count(self, size_bytes: int) -> None:
        """Count bytes; a negative size gives them back."""
        if not self._is_closed:
            self.used_bytes += size_bytes
            self._budget.take(size_bytes)

    def note_unsent(self, size_bytes: int, now_ns: int) -> None:
        """Keep the account of what the transport holds while the client does not read; 0: it does."""
        if not size_bytes:
            self._unsent_since_ns = 0
        elif not self._unsent_since_ns or size_bytes < self._unsent_bytes:
            self._unsent_since_ns = now_ns
        self.count(size_bytes - self._unsent_bytes)
        self._unsent_bytes = size_bytes

    def is_stuck(self, now_ns: int) -> bool:
        """Return whether the client holds up others (rule 3)."""
        since_ns = self._unsent_since_ns
        return bool(since_ns) and self._budget.is_full and now_ns - since_ns > UNREAD_S * 1e9

    def close(self) -> None:
        """Give everything back; what is counted later is not."""
        self.count(-self.used_bytes)
        self._is_closed = True
