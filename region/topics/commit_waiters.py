"""Who waits for the commit of an entry: futures by index, answered in the order of the log."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from georelay.errors import GeorelayError, OutcomeUnknown
from georelay.ids import Offset, RaftIndex
from region.kafka.ports import Published


class _Waiting(NamedTuple):
    """One who waits. `needs_lease`: what it is told holds only while this broker has a lease."""

    entry_index: RaftIndex
    future: asyncio.Future[Published]
    answer: Published
    needs_lease: bool


class CommitWaiters:
    """Futures that wait for one stream's commits, ascending by index."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def add(
        self, index: RaftIndex, answer: Published, *, committed: RaftIndex, needs_lease: bool = False
    ) -> asyncio.Future[Published]:
        """Return a future that resolves to `answer` when `index` is committed; `committed` is so already."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        if index <= committed:
            future.set_result(answer)
        elif waiting and waiting[-1].entry_index > index:  # a duplicate of an earlier batch
            row = next(row for row, other in enumerate(waiting) if other.entry_index >= index)
            waiting.insert(row, _Waiting(index, future, answer, needs_lease))
        else:
            waiting.append(_Waiting(index, future, answer, needs_lease))
        return future

    def committed(self, index: RaftIndex, *, has_lease: bool = True, is_isolated: bool = False) -> None:
        """Answer everyone up to `index`.

        Args:
            has_lease: whether who needs a lease may be told that it is stored.
            is_isolated: whether this region is cut off from the majority of mesh control; the answers say so.
        """
        waiting = self._waiting
        while waiting and waiting[0].entry_index <= index:
            row = waiting.popleft()
            if row.future.done():
                continue
            if row.needs_lease and not has_lease:
                _refuse(row.future, OutcomeUnknown("the lease of this home ran out before the batch was committed"))
            else:
                row.future.set_result(replace(row.answer, is_isolated=True) if is_isolated else row.answer)

    def fail(self, from_index: RaftIndex) -> None:
        """Tell everyone at or above `from_index` that the outcome is unknown."""
        while self._waiting and self._waiting[-1].entry_index >= from_index:
            _refuse(self._waiting.pop().future, OutcomeUnknown("the leader changed before the batch was committed"))

    def refuse_from(self, offset: Offset, error: GeorelayError) -> None:
        """Tell everyone whose records would begin at or above `offset` that they are not stored."""
        kept: deque[_Waiting] = deque()
        for row in self._waiting:
            if row.answer.base_offset >= offset:
                _refuse(row.future, error)
            else:
                kept.append(row)
        self._waiting = kept


def _refuse(future: asyncio.Future[Published], error: GeorelayError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # that nobody waits for it any more is no error
