"""Local health (Lifeguard): how far we trust our own accusations. 0 is well; each point stretches our probes.

A member that is slow itself sees everybody else fail. So a failed probe, a missing nack, an accusation against us
and a stall of our own all raise the score, and a good probe lowers it.

Source: Dadgar, Phillips, Currey, "Lifeguard: Local Health Awareness for More Accurate Failure Detection" (2018), 3.
"""

from __future__ import annotations


class Awareness:
    """The score, 0..maximum - 1.

    Args:
        maximum: `Timing.awareness_max`, at least 1.
    """

    __slots__ = ("_highest", "score")

    def __init__(self, maximum: int) -> None:
        assert maximum >= 1, maximum
        self._highest = maximum - 1
        self.score = 0

    def apply(self, delta: int) -> None:
        """Change the score within its bounds."""
        self.score = min(self._highest, max(0, self.score + delta))

    def scaled_s(self, period_s: float) -> float:
        """Return a period as long as our health wants it."""
        return period_s * (self.score + 1)
