"""Whether another event loop still turns: it says so again and again, and is doubted when it does not. Pure.

Rule 1: STALLED_S after a sign of life was due the member is announced as stalled; its neighbours see it, and it is
        not dead: gossip has a thread of its own.
Rule 2: at SUSPECT_S, and every SUSPECT_AGAIN_S after, this member trusts its own suspicions less (Lifeguard's local
        health, arXiv 1707.00788): what holds up the broker may hold up gossip too.
Rule 3: one sign of life ends it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

TURN_EVERY_S: Final = 0.25  # between two signs of life; and between two looks
STALLED_S: Final = 5.0
SUSPECT_S: Final = 15.0
SUSPECT_AGAIN_S: Final = 5.0


class Pulse(enum.StrEnum):
    """How the watched loop is; the values are those of the tag `stalled`."""

    STEADY = ""
    STALLED = "stalled"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the clock found. `suspect_s`: not 0.0 when awareness must hear of a stall of so many seconds."""

    pulse: Pulse
    changed: bool
    lag_s: float
    suspect_s: float


class Watchdog:
    """One watched loop. Times are monotonic seconds.

    `turned` is called in the watched loop's thread and `look` in another one: it stores a number, and wakes nobody up.
    """

    def __init__(self, now: float) -> None:
        self.pulse = Pulse.STEADY
        self.lag_s = 0.0
        self.longest_lag_s = 0.0
        self._turned_at = now
        self._suspect_at = 0.0

    def turned(self, now: float) -> None:
        """Note a sign of life; one is due every TURN_EVERY_S."""
        self._note_lag(now)
        self._turned_at = now

    def look(self, now: float) -> Look:
        """Judge."""
        lag_s = self._note_lag(now)
        pulse = Pulse.SUSPECT if lag_s >= SUSPECT_S else Pulse.STALLED if lag_s >= STALLED_S else Pulse.STEADY
        changed, self.pulse = pulse is not self.pulse, pulse
        suspect_s = 0.0
        if pulse is Pulse.SUSPECT and (changed or now >= self._suspect_at):
            self._suspect_at, suspect_s = now + SUSPECT_AGAIN_S, lag_s
        return Look(pulse=pulse, changed=changed, lag_s=lag_s, suspect_s=suspect_s)

    def _note_lag(self, now: float) -> float:
        lag_s = self.lag_s = max(0.0, now - self._turned_at - TURN_EVERY_S)
        self.longest_lag_s = max(self.longest_lag_s, lag_s)
        return lag_s
