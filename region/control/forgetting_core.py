"""When mesh control forgets deletions: how far every region has followed them, as control's leader hears it.

Rule 1: what a region has not reported to this leader counts for nothing; one that is down keeps what it last said. A
        region that was removed does not count, a witness does.
Rule 2: what is forgotten was followed by every region KEPT_S ago. A wish that was sent twice does not arrive so late,
        and what looks for deleted things from time to time has found them.
Rule 3: below REMEMBERED_MAX deletions of a kind nothing is forgotten: a region that comes back from a backup has more
        that it can be told.
Rule 4: nothing here is replicated but the command. So a new leader waits another KEPT_S.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from georelay.ids import RegionNumber
from region.controller.command_kinds import FORGET_LEVEL, ForgetDeleted
from region.controller.mesh_rows import RegionRow, RegionState

APPLIED: Final = "applied"  # the marks in a region's report
KEPT_S: Final = 600.0
REMEMBERED_MAX: Final = 1_000
Marks = tuple[int, int]  # newest definition of a topic, and of security, that a region has


class ForgettingDeletions:
    """What control's leader knows of the regions' positions."""

    def __init__(self) -> None:
        self._marks: dict[RegionNumber, Marks] = {}
        self._then: tuple[float, Marks] | None = None

    def clear(self) -> None:
        """Begin anew: another leader was there meanwhile."""
        self._marks.clear()
        self._then = None

    def heard(self, region: RegionNumber, marks: Marks) -> None:
        """Take how far a region's controller says that it is."""
        self._marks[region] = marks

    def held_back_by(self, rows: Iterable[RegionRow], newest: Marks) -> list[str]:
        """Name the regions without which deletions cannot be forgotten, or that lack the newest definitions."""
        return [row.name for row in _counted(rows) if self._lacks(row, newest)]

    def due(
        self, now_s: float, rows: Iterable[RegionRow], deleted: Marks, forgotten: Marks = (0, 0)
    ) -> ForgetDeleted | None:
        """Return what is to be forgotten now.

        Args:
            now_s: monotonic seconds. deleted: how many deletions of topics, and of security, are remembered.
            forgotten: up to which index they are forgotten already; the newest definition never is.
        """
        counted = _counted(rows)
        known = [mark for row in counted if row.level >= FORGET_LEVEL and (mark := self._marks.get(row.number))]
        if len(known) < len(counted) or not known:
            self._then = None
            return None
        lowest = (min(mark[0] for mark in known), min(mark[1] for mark in known))
        if self._then is None:
            self._then = (now_s, lowest)
        at_s, followed = self._then
        if now_s - at_s < KEPT_S:
            return None
        self._then = (now_s, lowest)
        topics_to, security_to = (
            to if count > REMEMBERED_MAX and to - 1 > before else 0
            for to, count, before in zip(followed, deleted, forgotten, strict=True)
        )
        return ForgetDeleted(topics_to=topics_to, security_to=security_to) if topics_to or security_to else None

    def _lacks(self, row: RegionRow, newest: Marks) -> bool:
        mark = self._marks.get(row.number)
        return mark is None or row.level < FORGET_LEVEL or mark[0] < newest[0] or mark[1] < newest[1]


def _counted(rows: Iterable[RegionRow]) -> list[RegionRow]:
    return [row for row in rows if row.state is not RegionState.REMOVED]
