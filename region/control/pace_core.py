"""How fast one principal may create topics: each partition of a topic costs, as in KIP-599.

Rule 1: a principal has STREAMS_AT_ONCE to begin with, and gets STREAMS_PER_S back. What it may not take costs nothing.
Rule 2: who deletes has created before, or may do what administrators do. So creations alone are bounded.
Rule 3: administrators, and all where nobody signs in, come without a name and are not bounded.
Rule 4: control's leader keeps it in memory; after a change of the leader everybody begins anew.
Pure.
"""

from __future__ import annotations

import math
from typing import Final

from georelay.errors import Throttled

STREAMS_PER_S: Final = 1.0
STREAMS_AT_ONCE: Final = 2_000.0
PRINCIPALS_MAX: Final = 10_000  # whose buckets are not full; whoever has most left is forgotten first


class CreationPace:
    """What principals may create now; times are monotonic seconds."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # how many, at which time

    def clear(self) -> None:
        """Begin anew."""
        self._left.clear()

    def take(self, principal: str, partitions: int, now_s: float) -> None:
        """Count a topic that is about to be created. Raises Throttled: it must not be yet."""
        if not principal:
            return
        left = self._left_of(principal, now_s)
        if partitions > left:
            wait_s = math.ceil((partitions - left) / STREAMS_PER_S)
            raise Throttled(
                f"{principal} creates topics too fast: {STREAMS_AT_ONCE:.0f} partitions at once and "
                f"{STREAMS_PER_S:.0f} a second afterwards; this topic can be created in {wait_s} s"
            )
        if principal not in self._left and len(self._left) >= PRINCIPALS_MAX:
            del self._left[max(self._left, key=lambda name: self._left_of(name, now_s))]
        self._left[principal] = (left - partitions, now_s)

    def _left_of(self, principal: str, now_s: float) -> float:
        left, at_s = self._left.get(principal, (STREAMS_AT_ONCE, now_s))
        return min(STREAMS_AT_ONCE, left + (now_s - at_s) * STREAMS_PER_S)
