"""How long one stream's forced move waits for promises beyond those that it has. Pure.

Rule 1: with enough promises nothing is lost by choosing: regions that were asked and are heard get a short grace, for
        their logs can make the orphan branch shorter.
Rule 2: with too few, and a loss that an operator accepted, a record is lost for good when a region is left out that has
        it. So every region that is heard is waited for, also while its stream elects a leader, until its own deadline.
Rule 3: each stream has its own patience: that one of them has waited says nothing of the others in its wave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from georelay.ids import RegionNumber
from mesh.home.move_core import Move

_NS_PER_MS: Final = 1_000_000
GRACE_MS: Final = 250  # from when the promises sufficed
LOSS_WAIT_MS: Final = 6_000  # for each region, from when it was asked and heard: one question and an answer fit in


class Patience:
    """What one attempt has waited for so far."""

    def __init__(self) -> None:
        self._enough_ns: int | None = None
        self._since_ns: dict[RegionNumber, int] = {}  # regions that are heard and have not promised

    def is_in_grace(self, now_ns: int) -> bool:
        """Return whether the promises sufficed only a moment ago."""
        return self._enough_ns is not None and now_ns - self._enough_ns < GRACE_MS * _NS_PER_MS

    def is_over(
        self,
        move: Move,
        *,
        asked: Collection[RegionNumber],
        is_heard: Callable[[RegionNumber], bool],
        now_ns: int,
    ) -> bool:
        """Return whether the attempt is to be decided with the promises that it has.

        Args:
            move: in Stage.PROMISING; every region that did not promise was asked.
            asked: regions whose answer about the stream is on its way.
            is_heard: whether a region answered anything lately.
        """
        missing = [region for region in move.regions if region not in move.answered]
        self._note_heard([region for region in missing if is_heard(region)], now_ns)
        if not move.has_enough:
            self._enough_ns = None
            return all(now_ns - since_ns >= LOSS_WAIT_MS * _NS_PER_MS for since_ns in self._since_ns.values())
        if self._enough_ns is None:
            self._enough_ns = now_ns
        return not (self.is_in_grace(now_ns) and any(region in asked for region in self._since_ns))

    def _note_heard(self, regions: Collection[RegionNumber], now_ns: int) -> None:
        self._since_ns = {region: self._since_ns.get(region, now_ns) for region in regions}
