"""Bytes of requests that were received and not answered yet, of all connections of a listener together. The bytes of
answers that clients have not read are counted by another one; nobody waits for that, see unread_answers.

Rule 1: what was received is always handled: the bound only keeps further requests in the kernel's buffers, so a full
        budget cannot wait for itself.
Rule 2: a large frame takes its memory as it grows, and begins only while there is room; one that has begun may be
        completed, so the bound is passed by what has begun already, never by what only announces its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from georelay.limits import MIB

REQUEST_BYTES_MAX: Final = 512 * MIB


class RequestMemory:
    """The budget of one listener. `waits` counts how often a connection was not read because of it."""

    def __init__(self, limit_bytes: int = REQUEST_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waits = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_full(self) -> bool:
        """Return whether no further request should be read."""
        return self.used_bytes >= self.limit_bytes

    def has_share(self, held_bytes: int) -> bool:
        """Return whether somebody who holds so much may hold more: as much as stays free beside it."""
        return held_bytes < self.limit_bytes - self.used_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a frame that needs so much at first may begin."""
        return not self.is_full

    def take(self, size_bytes: int) -> None:
        """Count bytes; a negative size gives them back and wakes who waited."""
        self.used_bytes += size_bytes
        if size_bytes < 0 and self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting:
                wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there is room."""
        self.waits += 1
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Do not call it."""
        self._waiting.pop(wake, None)
