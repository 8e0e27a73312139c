"""Counting majorities: pure arithmetic over a Membership, joint or not.

A vote counts once for each voter, whatever arrives twice; who is no voter is never counted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from georelay.ids import BrokerId
from region.raft.core.types import Membership


class Outcome(enum.Enum):
    """State of an election."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority_index(matches: list[int]) -> int:
    """Return the highest index that a majority of `matches` has reached. Sorts `matches`, which is not empty."""
    matches.sort()
    return matches[(len(matches) - 1) // 2]


def quorum_index(membership: Membership, match: Callable[[BrokerId], int]) -> int:
    """Return the highest index that is durable on a quorum, `match` telling how far a voter is."""
    index = majority_index([match(voter) for voter in membership.voters])
    if membership.outgoing:
        index = min(index, majority_index([match(voter) for voter in membership.outgoing]))
    return index


def is_quorum(membership: Membership, among: Callable[[BrokerId], bool]) -> bool:
    """Return whether the voters for which `among` holds are a quorum."""
    return _is_majority(membership.voters, among) and (
        not membership.outgoing or _is_majority(membership.outgoing, among)
    )


def _is_majority(voters: tuple[BrokerId, ...], among: Callable[[BrokerId], bool]) -> bool:
    return 2 * sum(1 for voter in voters if among(voter)) > len(voters)


class Poll:
    """The answers to one campaign."""

    __slots__ = ("_answers", "_membership")

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._answers: dict[BrokerId, bool] = {}

    def record(self, voter: BrokerId, granted: bool) -> Outcome:
        """Count an answer, the first of each voter only, and return where the election stands."""
        self._answers.setdefault(voter, granted)
        if is_quorum(self._membership, lambda elector: self._answers.get(elector) is True):
            return Outcome.WON
        if is_quorum(self._membership, lambda elector: self._answers.get(elector) is not False):
            return Outcome.OPEN
        return Outcome.LOST
