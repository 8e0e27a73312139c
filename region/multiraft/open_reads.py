"""Read-index requests of one group that wait: first for a quorum to confirm the leader, then for the apply."""

from __future__ import annotations

import asyncio

from georelay.errors import NotLeader, Unavailable
from georelay.ids import RaftIndex


class OpenReads:
    """Futures by context. A context is never used twice in one process life."""

    def __init__(self) -> None:
        self._contexts = 0
        self._unconfirmed: dict[int, asyncio.Future[RaftIndex]] = {}
        self._confirmed: list[tuple[int, asyncio.Future[RaftIndex]]] = []

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self._confirmed)

    def next_context(self) -> int:
        """Return the number of the next read."""
        self._contexts += 1
        return self._contexts

    def wait_for(self, context: int) -> asyncio.Future[RaftIndex]:
        """Return the future of a read that the core has accepted."""
        future: asyncio.Future[RaftIndex] = asyncio.get_running_loop().create_future()
        self._unconfirmed[context] = future
        return future

    def confirmed(self, context: int, index: int) -> None:
        """Note that `index` answers the read once it is applied."""
        future = self._unconfirmed.pop(context, None)
        if future is not None and not future.done():
            self._confirmed.append((index, future))

    def applied(self, applied_index: int) -> None:
        """Answer what is applied now."""
        if not self._confirmed:
            return
        waiting, self._confirmed = self._confirmed, []
        for index, future in waiting:
            if future.done():
                continue
            if index <= applied_index:
                future.set_result(RaftIndex(index))
            else:
                self._confirmed.append((index, future))

    def lost(self, context: int, leader: int) -> None:
        """Refuse a read whose leader went."""
        future = self._unconfirmed.pop(context, None)
        if future is not None and not future.done():
            future.set_exception(NotLeader("leadership went while a read was confirmed", leader=leader))

    def fail_all(self) -> None:
        """Refuse everything: the group serves no longer here."""
        futures = [*self._unconfirmed.values(), *(future for _, future in self._confirmed)]
        self._unconfirmed.clear()
        self._confirmed.clear()
        for future in futures:
            if not future.done():
                future.set_exception(Unavailable("this replica has stopped"))
