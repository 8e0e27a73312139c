"""How many packets are read: a bucket for everybody, and one for each source. Pure.

Rule: a flood from one address takes that address's share only; the sources that are remembered are few, oldest out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

PACKETS_PER_S: Final = 20_000
SOURCE_PACKETS_PER_S: Final = 2_000
BURST_S: Final = 2.0
SOURCES_MAX: Final = 4_096


class _Bucket:
    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left, self.at = left, at

    def take(self, rate: float, now: float) -> bool:
        self.left = min(rate * BURST_S, self.left + (now - self.at) * rate)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class PacketGate:
    """Says of every packet whether it is read. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(PACKETS_PER_S * BURST_S, now)
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()

    def admits(self, host: str, now: float) -> bool:
        """Return whether a packet from `host` is read."""
        bucket = self._sources.get(host)
        if bucket is None:
            if len(self._sources) >= SOURCES_MAX:
                self._sources.popitem(last=False)
            bucket = self._sources[host] = _Bucket(SOURCE_PACKETS_PER_S * BURST_S, now)
        return bucket.take(SOURCE_PACKETS_PER_S, now) and self._all.take(PACKETS_PER_S, now)
