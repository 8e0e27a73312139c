"""How long a dial of another broker is waited for. Pure.

What a network takes is known; what a machine takes that is short of a core is not. A dial that is given up too early is
work for both sides and brings nothing, and its successor is given up at the same moment: the connection never comes up.

Rule 1: each dial whose time was up doubles the time of the next one, up to DIAL_MS_MAX; one that was refused says
        nothing of how long an answer takes.
Rule 2: who has answered is expected to answer as fast as at first again.
"""

from __future__ import annotations

from typing import Final

DIAL_MS_MAX: Final = 10_000


class DialPatience:
    """The patience with one other broker.

    Args:
        first_ms: for a first dial, and after each that was answered.
    """

    def __init__(self, first_ms: int) -> None:
        self._first_ms = first_ms
        self.ms = first_ms

    def used_up(self) -> None:
        """Note that a dial had no answer within `ms`."""
        self.ms = max(self._first_ms, min(2 * self.ms, DIAL_MS_MAX))

    def answered(self) -> None:
        """Note that a dial had its answer."""
        self.ms = self._first_ms
