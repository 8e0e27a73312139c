"""What readers got against what was acknowledged, and how long a healed link needed. Pure.

Rule 1: lost: acknowledged and never delivered to a reader. Duplicated: delivered more than once. Reordered: delivered
        after a later one of the same partition.
Rule 2: flowing again: the first delivery after the heal. Caught up: the first delivery after the heal that is at most
        CAUGHT_UP_MS above its floor, with nothing older outstanding (deliveries are in order, so it is enough).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

CAUGHT_UP_MS: Final = 250.0


class Delivery(NamedTuple):
    """A record at a reader: its number, when it should have been sent and when it came, monotonic nanoseconds."""

    number: int
    due_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many records went wrong."""

    delivered: int
    lost: int
    duplicated: int
    reordered: int

    @property
    def is_clean(self) -> bool:
        """Return whether none did."""
        return not (self.lost or self.duplicated or self.reordered)


def tally(acknowledged: Collection[int], deliveries: Sequence[Delivery]) -> Tally:
    """Compare what one reader got, in the order it got it, with what the producer was told is stored."""
    seen: set[int] = set()
    duplicated, reordered, highest = 0, 0, -1
    for delivery in deliveries:
        if delivery.number in seen:
            duplicated += 1
            continue
        seen.add(delivery.number)
        reordered += delivery.number < highest
        highest = max(highest, delivery.number)
    lost = sum(number not in seen for number in acknowledged)
    return Tally(delivered=len(seen), lost=lost, duplicated=duplicated, reordered=reordered)


def flowing_s(deliveries: Sequence[Delivery], healed_ns: int) -> float | None:
    """Return the seconds from the heal to the first delivery after it, None when there was none."""
    return next(((row.at_ns - healed_ns) / 1e9 for row in deliveries if row.at_ns > healed_ns), None)


def caught_up_s(deliveries: Sequence[Delivery], healed_ns: int, floor_ms: float) -> float | None:
    """Return the seconds from the heal until the reader was up to date, None when it never was."""
    for row in deliveries:
        if row.at_ns > healed_ns and (row.at_ns - row.due_ns) / 1e6 <= floor_ms + CAUGHT_UP_MS:
            return (row.at_ns - healed_ns) / 1e9
    return None
