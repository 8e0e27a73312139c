"""Who waits for the commit of an entry: futures by index, answered in the order of the log."""

from __future__ import annotations

import asyncio
from collections import deque

from georelay.errors import OutcomeUnknown
from georelay.ids import RaftIndex
from region.kafka.ports import Published


class CommitWaiters:
    """Futures that wait for one stream's commits, ascending by index."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RaftIndex, asyncio.Future[Published], Published]] = deque()

    def add(self, index: RaftIndex, answer: Published, *, committed: RaftIndex) -> asyncio.Future[Published]:
        """Return a future that resolves to `answer` when `index` is committed; `committed` is so already."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        if index <= committed:
            future.set_result(answer)
        elif waiting and waiting[-1][0] > index:  # a duplicate of an earlier batch
            row = next(row for row, other in enumerate(waiting) if other[0] >= index)
            waiting.insert(row, (index, future, answer))
        else:
            waiting.append((index, future, answer))
        return future

    def committed(self, index: RaftIndex) -> None:
        """Answer everyone up to `index`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= index:
            _, future, answer = waiting.popleft()
            if not future.done():
                future.set_result(answer)

    def fail(self, from_index: RaftIndex) -> None:
        """Tell everyone at or above `from_index` that the outcome is unknown."""
        while self._waiting and self._waiting[-1][0] >= from_index:
            _, future, _ = self._waiting.pop()
            if not future.done():
                future.set_exception(OutcomeUnknown("the leader changed before the batch was committed"))
                future.exception()  # that nobody waits for it any more is no error
