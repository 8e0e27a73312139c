"""A cap on the bytes of one direction of one link: when the next frame may go. Pure.

A virtual clock (RFC 2697 without colours): each frame takes size / rate of it, and it may lag BURST_NS behind the real
one, so that an idle link sends at once.
"""

from __future__ import annotations

from typing import Final

BURST_NS: Final = 50_000_000
_NS_PER_S: Final = 1_000_000_000


class Pace:
    """One direction of one link. `bytes_per_s` 0: no cap."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_ns = 0

    @property
    def is_capped(self) -> bool:
        """Return whether there is a cap."""
        return self._bytes_per_s > 0

    def wait_ns(self, now_ns: int) -> int:
        """Return how long the next frame has to wait, 0 when it may go."""
        return max(self._free_at_ns - now_ns, 0)

    def sent(self, size_bytes: int, now_ns: int) -> None:
        """Follow one frame."""
        if self._bytes_per_s:
            begin_ns = max(self._free_at_ns, now_ns - BURST_NS)
            self._free_at_ns = begin_ns + size_bytes * _NS_PER_S // self._bytes_per_s

    def within(self, bytes_max: int, *, seconds: float, bytes_min: int) -> int:
        """Return how many bytes may wait so that they are sent within `seconds`: bytes_min..bytes_max."""
        if not self._bytes_per_s:
            return bytes_max
        return max(bytes_min, min(bytes_max, int(self._bytes_per_s * seconds)))
