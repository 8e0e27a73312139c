"""What was heard lately, by logical time: a ring that tells news from echoes (serf-wire 2.7).

Rule 1: one time may be used by several members: what is told apart below it is the key.
Rule 2: what is older than the ring, or below the floor, is old news for ever.
Rule 3: a slot holds at most KEYS_PER_SLOT_MAX keys; a forger cannot make it grow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

RING_SLOTS: Final = 512
KEYS_PER_SLOT_MAX: Final = 64

K = TypeVar("K", bound=Hashable)


class EventRing(Generic[K]):
    """The keys of the last RING_SLOTS times."""

    def __init__(self) -> None:
        self.floor = 0
        self._slots: list[tuple[int, list[K]] | None] = [None] * RING_SLOTS

    def accept(self, ltime: int, key: K, *, clock: int) -> bool:
        """Return whether this is news, and remember it. `clock`: the time of our clock, after it witnessed `ltime`."""
        if ltime < self.floor or (clock > RING_SLOTS and ltime < clock - RING_SLOTS):
            return False
        slot = self._slots[ltime % RING_SLOTS]
        if slot is None or slot[0] < ltime:
            self._slots[ltime % RING_SLOTS] = (ltime, [key])
            return True
        if slot[0] > ltime or key in slot[1] or len(slot[1]) >= KEYS_PER_SLOT_MAX:
            return False
        slot[1].append(key)
        return True

    def raise_floor(self, ltime: int) -> None:
        """Take everything before `ltime` for old."""
        self.floor = max(self.floor, ltime)

    def slots(self) -> Iterator[tuple[int, tuple[K, ...]]]:
        """Yield (time, keys) of what is remembered, in no order."""
        for slot in self._slots:
            if slot is not None:
                yield slot[0], tuple(slot[1])
