"""Which of many alike events are written down: the first at once, then one per REPEAT_S with how many there were.

Rule: at most KEYS_MAX kinds of event are known and LINES_PER_S lines come out; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

REPEAT_S: Final = 10.0
KEYS_MAX: Final = 1_000
LINES_PER_S: Final = 20.0


@dataclass(slots=True)
class _Kind:
    written_s: float
    unwritten: int = 0


class RepeatFilter:
    """Decides about one event at a time; times are monotonic seconds."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._credit = LINES_PER_S
        self._since_s = 0.0
        self.dropped = 0  # of kinds that were forgotten before they were written

    def count(self, key: Hashable, now_s: float) -> int:
        """Count an event; return how many events a line stands for now, 0: write none."""
        kind = self._kinds.get(key)
        if kind is None:
            self._make_room()
            kind = self._kinds[key] = _Kind(written_s=now_s - REPEAT_S)
        kind.unwritten += 1
        if now_s - kind.written_s < REPEAT_S or not self._has_credit(now_s):
            return 0
        count, kind.unwritten, kind.written_s = kind.unwritten, 0, now_s
        return count

    def _make_room(self) -> None:
        while len(self._kinds) >= KEYS_MAX:
            oldest = next(iter(self._kinds))
            self.dropped += self._kinds.pop(oldest).unwritten

    def _has_credit(self, now_s: float) -> bool:
        self._credit = min(LINES_PER_S, self._credit + max(0.0, now_s - self._since_s) * LINES_PER_S)
        self._since_s = now_s
        if self._credit < 1:
            return False
        self._credit -= 1
        return True
