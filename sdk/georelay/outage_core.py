"""When is something known to be out of order, and no longer only late? Pure: monotonic nanoseconds are arguments.

Whoever publishes is made to wait while a leader is elected, or a link is dialled again. After that an answer at once is
worth more than a wait: nothing is stored, and the caller can go elsewhere.

Rule 1: an outage is known when it was seen again and again for `patience_ns` and never over in between.
Rule 2: one that was not seen for FORGOTTEN_AFTER times as long is forgotten: what is seen next may be another one.
"""

from __future__ import annotations

from typing import Final

FORGOTTEN_AFTER: Final = 6


class Outage:
    """One thing that may be out of order."""

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._since_ns: int | None = None
        self._seen_ns = 0

    def seen(self, now_ns: int) -> None:
        """Note that it is out of order now."""
        if self._since_ns is None or self._is_forgotten(now_ns):
            self._since_ns = now_ns
        self._seen_ns = now_ns

    def over(self) -> None:
        """Note that it works."""
        self._since_ns = None

    def is_known(self, now_ns: int) -> bool:
        """Return whether there is nothing to wait for."""
        if self._since_ns is None or self._is_forgotten(now_ns):
            return False
        return now_ns - self._since_ns >= self._patience_ns

    def _is_forgotten(self, now_ns: int) -> bool:
        return now_ns - self._seen_ns > FORGOTTEN_AFTER * self._patience_ns
