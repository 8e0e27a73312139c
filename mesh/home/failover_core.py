"""When control takes a region for lost: nobody hears it, and it asked for leases, which run out. Pure.

Rule 1: silence is counted from the last answer, and at the earliest from the election: what a leader did not hear
        before it was one says nothing.
Rule 2: a sign of life is one of a region that has a leader. Without a majority of its brokers it commits nothing, keeps
        no promise and acknowledges nothing: that one of its brokers lives is no reason to wait for it.
Rule 3: with fewer than three voters nothing moves by itself: the one that is cut off cannot be told from the other.
Rule 4: only regions that ask for leases are failed over: of others nobody knows when they stop acknowledging.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from georelay.ids import RegionNumber

_NS_PER_MS: Final = 1_000_000
SILENT_MS: Final = 2_000  # as long as a lease: a shorter silence would gain nothing
HEAR_EVERY_MS: Final = 400
VOTERS_MIN: Final = 3
assert HEAR_EVERY_MS * 4 < SILENT_MS


class Silence:
    """Who was heard when, at the control leader."""

    def __init__(self) -> None:
        self._elected_ns: int | None = None
        self._heard_ns: dict[RegionNumber, int] = {}

    def elected(self, now_ns: int) -> None:
        """Begin to listen."""
        self._elected_ns = now_ns
        self._heard_ns.clear()

    def deposed(self) -> None:
        """Listen no more: nobody is silent."""
        self._elected_ns = None

    def heard(self, region: RegionNumber, now_ns: int) -> None:
        """Follow any sign of life."""
        self._heard_ns[region] = now_ns

    def silent_ms(self, region: RegionNumber, now_ns: int) -> int:
        """Return for how long a region was not heard; 0 when this broker is not the leader."""
        if self._elected_ns is None:
            return 0
        since_ns = max(self._heard_ns.get(region, self._elected_ns), self._elected_ns)
        return (now_ns - since_ns) // _NS_PER_MS

    def is_heard(self, region: RegionNumber, now_ns: int) -> bool:
        """Return whether a region answered lately."""
        return self.silent_ms(region, now_ns) < SILENT_MS

    def left_ms(self, regions: Iterable[RegionNumber], now_ns: int) -> int:
        """Return for how long none of these regions can be lost yet, whatever is not heard; 0 when one may be."""
        return max(0, SILENT_MS - max((self.silent_ms(region, now_ns) for region in regions), default=0))

    def lost(
        self, regions: Iterable[RegionNumber], *, leased: Collection[RegionNumber], voters: int, now_ns: int
    ) -> list[RegionNumber]:
        """Return the regions that are lost now."""
        if voters < VOTERS_MIN:
            return []
        return [region for region in regions if region in leased and not self.is_heard(region, now_ns)]
