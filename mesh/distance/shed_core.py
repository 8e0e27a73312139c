"""Which share of its clients a region wants elsewhere: one slow loop, apart from every client's choice. Pure.

Rule 1: the share rises while the region is busier than TARGET and falls while it is not, GAIN x the difference at a
        time. Clients follow within 36 s, four periods: a higher gain would swing.
Rule 2: over 1.0 work piles up and the share rises faster: overload hurts, spill costs some milliseconds.
Rule 3: the share leaks. When every region is busier than it would like, shares meet somewhere below the end of the
        scale, where they still say who is busier, instead of all standing at it.
"""

from __future__ import annotations

import math
from typing import Final

SHED_HEADER: Final = "Georelay-Shed"  # of a broker's answer to /readyz: its share, 0..SHED_MAX
PERIOD_S: Final = 10.0
TARGET: Final = 0.85  # busy share of the time
GAIN: Final = 0.1
OVERLOAD_GAIN: Final = 0.2
LEAK: Final = 0.01
SHED_MAX: Final = 0.95
BUSY_MAX: Final = 3.0  # a wild number moves the share no further than this


def share_from(header: str | None) -> float | None:
    """Return the share that a broker says it sheds, 0..SHED_MAX; None when it says none that can be read."""
    try:
        share = float(header or "nan")
    except ValueError:
        return None
    return None if math.isnan(share) else min(max(share, 0.0), SHED_MAX)


class ShedLoop:
    """The share of one region; `step` once per PERIOD_S."""

    def __init__(self) -> None:
        self.share = 0.0

    def step(self, busy: float) -> float:
        """Return the share after a period in which the region was busy for this share of it (above 1: overloaded)."""
        busy = min(max(busy, 0.0), BUSY_MAX)
        gain = OVERLOAD_GAIN if busy > 1.0 else GAIN
        self.share = min(SHED_MAX, max(0.0, self.share * (1 - LEAK) + gain * (busy - TARGET)))
        return self.share
