"""Whether frames of one link are worth compressing: measured, frame by frame. Pure.

Compressing costs this broker's time, and saves the link's. So

Rule 1: a frame is tried only when the link is what others wait for: more than a frame's worth waits behind it.
Rule 2: it pays when the time saved on the link, at the rate that the link was seen to carry, is more than MARGIN times
        the time that compressing took; and at least a tenth of the bytes is saved. Records that clients compressed
        do not pass that.
Rule 3: after a try that did not pay the next ones are left alone: 1, 2, 4 .. SKIPS_MAX frames, so what does not pay
        costs below 1 %. After one that paid the next is tried at once.
"""

from __future__ import annotations

from typing import Final

from georelay.limits import KIB

FRAME_BYTES_MIN: Final = 4 * KIB
BACKLOG_BYTES_MIN: Final = 64 * KIB
RATIO_MAX: Final = 0.9
MARGIN: Final = 2.0  # the event loop has other things to do
SKIPS_MAX: Final = 256
_NEWEST_WEIGHT: Final = 0.25  # of the newest frame in the rate of the link
_NS_PER_S: Final = 1_000_000_000


class CompressionCore:
    """One direction of one link."""

    def __init__(self) -> None:
        self._bytes_per_s = 0.0
        self._skips = 0  # frames still to be left alone
        self._next_skips = 1

    def carried(self, size_bytes: int, took_ns: int) -> None:
        """Follow a frame that the carrier took `took_ns` for, while more waited behind it."""
        rate = size_bytes * _NS_PER_S / max(took_ns, 1)
        known = self._bytes_per_s
        self._bytes_per_s = rate if known == 0 else known + _NEWEST_WEIGHT * (rate - known)

    def wants(self, size_bytes: int, *, backlog_bytes: int) -> bool:
        """Return whether to try this frame; `backlog_bytes` wait behind it."""
        if self._bytes_per_s == 0 or size_bytes < FRAME_BYTES_MIN or backlog_bytes < BACKLOG_BYTES_MIN:
            return False
        if self._skips:
            self._skips -= 1
            return False
        return True

    def pays(self, plain_bytes: int, packed_bytes: int, took_ns: int) -> bool:
        """Return whether to send the packed form of a frame that was tried."""
        saved_s = (plain_bytes - packed_bytes) / self._bytes_per_s
        paid = packed_bytes <= plain_bytes * RATIO_MAX and saved_s > MARGIN * took_ns / _NS_PER_S
        if paid:
            self._next_skips = 1
        else:
            self._skips = self._next_skips
            self._next_skips = min(2 * self._next_skips, SKIPS_MAX)
        return paid
