"""Bytes of requests that were received and not answered yet, of all connections of a listener together. The bytes of
answers that clients have not read are counted by another one; nobody waits for that, see unread_answers.

Rule 1: what was received is always handled: the bound only keeps further requests in the kernel's buffers, so a full
        budget cannot wait for itself.
Rule 2: a large frame takes its memory as it grows, and begins only while there is room; one that has begun may be
        completed, so the bound is passed by what has begun already, never by what only announces its length.
Rule 3: who has signed in holds as much as stays free beside it: nobody has to have a right to send what is never whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from georelay.limits import MIB

REQUEST_BYTES_MAX: Final = 512 * MIB
NOBODY: Final = ""  # who has not signed in; only the whole bounds it


class RequestMemory:
    """The budget of one listener. `waits` counts how often a connection was not read because of it."""

    def __init__(self, limit_bytes: int = REQUEST_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waits = 0
        self._held_by: Counter[str] = Counter()
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}  # by name

    @property
    def is_full(self) -> bool:
        """Return whether no further request should be read."""
        return self.used_bytes >= self.limit_bytes

    def held_by(self, name: str) -> int:
        """Return what somebody holds."""
        return self._held_by[name]

    def has_room_for(self, name: str) -> bool:
        """Return whether somebody may hold more."""
        return self._held_by[name] < self.limit_bytes - self.used_bytes

    def take(self, size_bytes: int, name: str = NOBODY) -> None:
        """Count bytes; a negative size gives them back and wakes who waited."""
        self.used_bytes += size_bytes
        if name != NOBODY:
            self._held_by[name] += size_bytes
            if not self._held_by[name]:
                del self._held_by[name]
        if size_bytes < 0 and self._waiting:
            for waiting in [name for name in self._waiting if self.has_room_for(name)]:
                for wake in self._waiting.pop(waiting, {}):  # one that is woken may give bytes back at once
                    wake()

    def wait(self, wake: Callable[[], None], name: str = NOBODY) -> None:
        """Call `wake` once when there is room."""
        self.waits += 1
        self._waiting.setdefault(name, {})[wake] = None

    def forget(self, wake: Callable[[], None], name: str = NOBODY) -> None:
        """Do not call it."""
        waiting = self._waiting.get(name, {})
        waiting.pop(wake, None)
        if not waiting:
            self._waiting.pop(name, None)


class ConnectionMemory:
    """What one connection holds of it, in the name of who has signed in there."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._name = NOBODY
        self._held_bytes = 0
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Return whether no further request should be read."""
        return not self._memory.has_room_for(self._name)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a frame that needs so much at first may begin."""
        return not self.is_full

    def take(self, size_bytes: int) -> None:
        """Count bytes; a negative size gives them back."""
        if not self._is_closed:
            self._held_bytes += size_bytes
            self._memory.take(size_bytes, self._name)

    def is_of(self, name: str) -> None:
        """Count what is held, and what comes, for somebody."""
        self._memory.take(self._held_bytes, name)
        self._memory.take(-self._held_bytes, self._name)
        self._name = name

    def close(self) -> None:
        """Give everything back; what is counted later is not."""
        self.take(-self._held_bytes)
        self._is_closed = True

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there is room."""
        self._memory.wait(wake, self._name)

    def forget(self, wake: Callable[[], None]) -> None:
        """Do not call it."""
        self._memory.forget(wake, self._name)
