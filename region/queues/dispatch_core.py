"""Which of several waiting consumers gets the next record. Pure.

Rule 1: records are given out one at a time, so that of two consumers that both wait neither gets all.
Rule 2: round_robin takes whoever waits longest, least_outstanding whoever holds the fewest leases; of equals, whoever
        waits longest. Who got a record waits anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from region.queues.definition import Dispatch


class Waits(Protocol):
    """A receive that waits."""

    @property
    def consumer(self) -> str:
        """Return whose it is."""


W = TypeVar("W", bound=Waits)


class WaitingLine(Generic[W]):
    """Receives that wait, in the order in which they get records with round_robin."""

    def __init__(self) -> None:
        self._line: dict[W, None] = {}

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._line

    def join(self, waiter: W) -> None:
        """Wait at the end; somebody who waits already goes there."""
        self._line.pop(waiter, None)
        self._line[waiter] = None

    def leave(self, waiter: W) -> None:
        """Wait no longer."""
        self._line.pop(waiter, None)

    def clear(self) -> list[W]:
        """Send all away; returns them."""
        waiters = list(self._line)
        self._line.clear()
        return waiters

    def next(self, dispatch: Dispatch, outstanding: Callable[[str], int]) -> W:
        """Return who gets the next record (the line is not empty).

        Args:
            outstanding: leases of a consumer, with what it was given just now.
        """
        if dispatch is Dispatch.ROUND_ROBIN:
            return next(iter(self._line))
        return min(self._line, key=lambda waiter: outstanding(waiter.consumer))
