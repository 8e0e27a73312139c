"""Whose turn it is on one link: catch-up never keeps the newest records of other streams waiting. Pure.

Rule 1: a session that is at the tail of its log goes before those that are behind, in the order in which they began to
        wait. What it has to send fits one frame, or it would be behind.
Rule 2: those that are behind go in a ring, one frame each.
Rule 3: they fill the link only up to a part of its room: the rest is for the tail, so that it waits for that part at
        most, however many are behind.
Rule 4: after TAIL_TURNS_MAX turns of the tail while somebody behind waits, that one has a turn: nobody starves.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

TAIL_TURNS_MAX: Final = 16

S = TypeVar("S")


class FairTurns(Generic[S]):
    """Who waits on one link.

    Invariants: 1 nobody waits twice   2 the tail's turns in a row <= TAIL_TURNS_MAX while somebody behind may go.
    """

    def __init__(self) -> None:
        self._tail: dict[S, None] = {}
        self._behind: dict[S, None] = {}
        self._tail_turns = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._tail) + len(self._behind)

    def wait(self, session: S, *, is_behind: bool) -> None:
        """Let a session wait at the end of its queue; one that waits already only changes the queue."""
        into, other = (self._behind, self._tail) if is_behind else (self._tail, self._behind)
        other.pop(session, None)
        into.setdefault(session)

    def discard(self, session: S) -> None:
        """Forget a session."""
        self._tail.pop(session, None)
        self._behind.pop(session, None)

    def clear(self) -> None:
        """Forget everybody."""
        self._tail.clear()
        self._behind.clear()

    def next(self, *, has_room: bool, has_bulk_room: bool) -> S | None:
        """Return whose turn it is, None when nobody may send now.

        Args:
            has_room: there is room for anybody. has_bulk_room: also for those that are behind.
        """
        may_go = self._behind if has_bulk_room else {}
        if self._tail and has_room and not (may_go and self._tail_turns >= TAIL_TURNS_MAX):
            self._tail_turns += 1
            return _first(self._tail)
        if may_go:
            self._tail_turns = 0
            return _first(self._behind)
        return None


def _first(queue: dict[S, None]) -> S:
    session = next(iter(queue))
    del queue[session]
    return session
