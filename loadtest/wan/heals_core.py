"""How long a healed link needed until records flowed and a reader was up to date. Pure.

Rule: flowing again: the first delivery after the heal. Caught up: the first delivery after the heal that is at most
      CAUGHT_UP_MS after it was due, with nothing older outstanding (deliveries are in order, so it is enough).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

CAUGHT_UP_MS: Final = 250.0


class Delivery(NamedTuple):
    """A record at a reader: its offset, when it was due there at best and when it came, monotonic nanoseconds."""

    offset: int
    due_ns: int
    at_ns: int


def flowing_s(deliveries: Sequence[Delivery], healed_ns: int) -> float | None:
    """Return the seconds from the heal to the first delivery after it, None when there was none."""
    return next(((row.at_ns - healed_ns) / 1e9 for row in deliveries if row.at_ns > healed_ns), None)


def caught_up_s(deliveries: Sequence[Delivery], healed_ns: int) -> float | None:
    """Return the seconds from the heal until the reader was up to date, None when it never was."""
    for row in deliveries:
        if row.at_ns > healed_ns and (row.at_ns - row.due_ns) / 1e6 <= CAUGHT_UP_MS:
            return (row.at_ns - healed_ns) / 1e9
    return None
