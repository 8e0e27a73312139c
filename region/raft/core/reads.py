"""Linearizable reads without a log entry: a leader proves that it still leads, then a read may see its commit index.

Rule 1: a read gets the commit index of a moment after it was asked, and leaves only when a quorum has answered a
question that was sent after that moment. So no newer leader had committed anything by then.
Rule 2: nothing is asked before an entry of the leader's own term is committed: until then its commit index may be
older than what the leader before has acknowledged. Reads wait for it.
Rule 3: all reads of one ready() share one round; the answer to a round answers every round before it.
Source: Ongaro's thesis, section 6.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from georelay.errors import Busy
from georelay.ids import BrokerId
from region.raft.core.quorum import is_quorum
from region.raft.core.ready import ReadState
from region.raft.core.types import Membership

READS_OPEN_MAX: Final = 10_000  # asked and not answered, of one group; beyond it a read gets Busy


@dataclass(frozen=True, slots=True)
class _Round:
    """One question to all voters, and the reads that wait for its answers."""

    number: int
    index: int
    contexts: list[int]


class LeaderReads:
    """The open reads of one leader's term."""

    __slots__ = ("_answered", "_count", "_rounds", "_waiting", "due", "number")

    def __init__(self) -> None:
        self._waiting: list[int] = []  # in no round yet
        self._rounds: deque[_Round] = deque()
        self._answered: dict[BrokerId, int] = {}  # highest round that each follower has confirmed
        self._count = 0
        self.number = 0  # of the newest round
        self.due = False  # a question has to be sent

    def ask(self, context: int) -> None:
        """Queue a read. Raises Busy when READS_OPEN_MAX are open."""
        if self._count >= READS_OPEN_MAX:
            raise Busy(f"{self._count} reads wait for a quorum, the limit is {READS_OPEN_MAX}")
        self._count += 1
        self._waiting.append(context)
        self.due = True

    @property
    def is_asked(self) -> bool:
        """Return whether a question is not answered yet."""
        return bool(self._rounds)

    def ask_again(self) -> None:
        """Repeat the newest question if it is not answered: question or answers may be lost."""
        if self._rounds:
            self.due = True

    def begin(self, commit: int) -> int:
        """Put all waiting reads into a round that reads at `commit`; return the number to ask with."""
        self.due = False
        if self._waiting:
            self.number += 1
            self._rounds.append(_Round(self.number, commit, self._waiting))
            self._waiting = []
        return self.number

    def answered(self, voter: BrokerId, number: int) -> None:
        """Note that `voter` has confirmed round `number`; one that was never asked counts for nothing."""
        if number <= self.number:
            self._answered[voter] = max(number, self._answered.get(voter, 0))

    def confirmed(self, membership: Membership, own: BrokerId) -> list[ReadState]:
        """Take the reads that a quorum of `membership` has confirmed; the leader `own` confirms itself."""
        states: list[ReadState] = []
        while self._rounds and is_quorum(membership, self._confirms(own, self._rounds[0].number)):
            found = self._rounds.popleft()
            states += [ReadState(context, found.index) for context in found.contexts]
        self._count -= len(states)
        return states

    def _confirms(self, own: BrokerId, number: int) -> Callable[[BrokerId], bool]:
        return lambda voter: voter == own or self._answered.get(voter, 0) >= number

    def contexts(self) -> list[int]:
        """Return every open read, oldest first."""
        return [context for found in self._rounds for context in found.contexts] + self._waiting
