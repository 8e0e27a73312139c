"""Shares of a room that many principals fill: who takes much leaves as much free. Pure.

Rule 1: a principal may hold as much as stays free beside it. Alone it gets half of the room, the next one half of the
        rest, and however many came before, there is room for one more (the dynamic threshold of Choudhury and Hahne,
        "Dynamic queue length thresholds for shared-memory packet switches", 1998).
Rule 2: what does not grow is never refused: a room that is full goes on with what it has.
Rule 3: NOBODY holds what brokers keep for themselves, and what was stored before principals were written down. Only the
        room as a whole bounds it.
"""

from __future__ import annotations

import enum
import json
from typing import Final

NOBODY: Final = ""
PRINCIPAL_CHARS_MAX: Final = 1_000


class Room(enum.Enum):
    """Whether something fits."""

    FREE = "free"
    OWN_SHARE_FULL = "own_share_full"  # its principal holds as much as stays free
    FULL = "full"  # for everybody


class Shares:
    """What each principal holds of `room`, in any unit."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.used = 0
        self._held: dict[str, int] = {}

    def add(self, principal: str, change: int) -> None:
        """Follow that a principal holds more, or less."""
        self.used += change
        held = self._held.get(principal, 0) + change
        if held:
            self._held[principal] = held
        else:
            self._held.pop(principal, None)

    def held_by(self, principal: str) -> int:
        """Return what a principal holds."""
        return self._held.get(principal, 0)

    @property
    def largest(self) -> int:
        """Return what the principal holds that holds the most; 0 without any."""
        return max((held for principal, held in self._held.items() if principal != NOBODY), default=0)

    def left(self, principal: str) -> int:
        """Return by how much a principal may hold more."""
        free = self.room - self.used
        return max(0, free if principal == NOBODY else (free - self.held_by(principal)) // 2)

    def look(self, principal: str, growth: int, *, on_its_way: Shares | None = None) -> Room:
        """Return whether a principal may hold `growth` more.

        Args:
            on_its_way: what will be held besides, once it is applied.
        """
        if growth <= 0:
            return Room.FREE
        used, held = self.used + growth, self.held_by(principal) + growth
        if on_its_way is not None:
            used, held = used + on_its_way.used, held + on_its_way.held_by(principal)
        if used > self.room:
            return Room.FULL
        return Room.FREE if principal == NOBODY or held <= self.room - used else Room.OWN_SHARE_FULL


def text_bytes(text: str) -> int:
    """Return what a text takes in JSON as `dump_object` writes it, its quotes not counted."""
    if text.isascii() and text.isprintable():
        return len(text) + text.count('"') + text.count("\\")
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2
