"""Whether another event loop still turns: it is asked for a tick again and again. Pure.

Rule 1: at STALLED_S without an answer the member is announced as stalled; its neighbours see it, and it is not dead:
        gossip has a thread of its own.
Rule 2: at SUSPECT_S, and every SUSPECT_AGAIN_S after, this member trusts its own suspicions less (Lifeguard's local
        health, arXiv 1707.00788): what holds up the broker may hold up gossip too.
Rule 3: one answer ends it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

ASK_EVERY_S: Final = 1.0  # each question wakes up two loops
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
    ask: bool
    lag_s: float
    suspect_s: float


class Watchdog:
    """One watched loop. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.pulse = Pulse.STEADY
        self.lag_s = 0.0
        self.longest_lag_s = 0.0
        self._asked_at: float | None = None
        self._answered_at = now
        self._suspect_at = 0.0

    def answered(self, now: float) -> None:
        """Note the tick that was asked for."""
        if self._asked_at is not None:
            self.lag_s = now - self._asked_at
            self.longest_lag_s = max(self.longest_lag_s, self.lag_s)
        self._asked_at, self._answered_at = None, now

    def look(self, now: float) -> Look:
        """Judge, and say whether to ask for another tick."""
        lag_s = 0.0 if self._asked_at is None else now - self._asked_at
        self.longest_lag_s = max(self.longest_lag_s, lag_s)
        if lag_s > ASK_EVERY_S:
            self.lag_s = lag_s  # it has not answered yet, and is late already
        pulse = Pulse.SUSPECT if lag_s >= SUSPECT_S else Pulse.STALLED if lag_s >= STALLED_S else Pulse.STEADY
        changed, self.pulse = pulse is not self.pulse, pulse
        suspect_s = 0.0
        if pulse is Pulse.SUSPECT and (changed or now >= self._suspect_at):
            self._suspect_at, suspect_s = now + SUSPECT_AGAIN_S, lag_s
        ask = self._asked_at is None and now - self._answered_at >= ASK_EVERY_S / 2  # each look, but not at once
        if ask:
            self._asked_at = now
        return Look(pulse=pulse, changed=changed, ask=ask, lag_s=lag_s, suspect_s=suspect_s)
