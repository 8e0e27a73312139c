"""Commands between `propose` and `apply`: collected for one turn of the event loop, then waiting for their commit.

Rule 1: futures are answered in the order of the proposals, after the command was applied here.
Rule 2: what was not appended is NotLeader or Busy; what was appended and may be lost is OutcomeUnknown.
Rule 3: nobody waits for ever: a defect while a batch is appended makes it, and what is behind it, OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from georelay.errors import GeorelayError, NotLeader, OutcomeUnknown
from georelay.ids import RaftIndex
from georelay.limits import RECORDS_PER_BATCH_MAX
from region.coordination.limits import BATCH_BYTES_MAX
from region.coordination.part import Part

log = structlog.get_logger()

Command = tuple[Part, bytes]
Waiting = tuple[Command, "asyncio.Future[RaftIndex]"]


class Proposals:
    """The unfinished proposals of one coordinator.

    Args:
        append: appends commands as one batch and returns its index; raises GeorelayError when nothing was appended.
    """

    def __init__(self, append: Callable[[Sequence[Command]], RaftIndex]) -> None:
        self._append = append
        self._turn: list[Waiting] = []
        self._appended: deque[tuple[RaftIndex, list[Waiting]]] = deque()
        self.pending_bytes = 0

    def add(self, part: Part, command: bytes) -> asyncio.Future[RaftIndex]:
        """Take a command for the batches of this turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RaftIndex] = loop.create_future()
        if not self._turn:
            loop.call_soon(self._flush)
        self._turn.append(((part, command), future))
        self.pending_bytes += len(command)
        return future

    def _flush(self) -> None:
        turn, self._turn = self._turn, []
        batches = deque(_batches(turn))
        while batches:
            batch = batches.popleft()
            try:
                index = self._append([command for command, _ in batch])
            except GeorelayError as error:
                self._fail(batch, error)
            except Exception:
                log.exception("coordinator.append_broke", commands=len(batch), behind=sum(map(len, batches)))
                defect = OutcomeUnknown("the coordinator met a defect while it appended the command; its log has it")
                for left in (batch, *batches):
                    self._fail(left, defect)
                return
            else:
                self._appended.append((index, batch))

    def applied(self, index: RaftIndex, *, has_lease: bool = True) -> None:
        """Answer everyone whose command is applied: up to `index`.

        Args:
            has_lease: whether they may be told so; else another region may have taken over, and nobody here knows.
        """
        while self._appended and self._appended[0][0] <= index:
            at, batch = self._appended.popleft()
            if not has_lease:
                lost = OutcomeUnknown("the lease of the coordinator's home ran out before the command was committed")
                self._fail(batch, lost)
                continue
            for (_, command), future in batch:
                self.pending_bytes -= len(command)
                if not future.done():
                    future.set_result(at)

    def truncated(self, from_index: RaftIndex) -> None:
        """Tell those at or above `from_index` that their outcome is unknown."""
        while self._appended and self._appended[-1][0] >= from_index:
            self._fail(
                self._appended.pop()[1], OutcomeUnknown("the coordinator moved before the command was committed")
            )

    def deposed(self, *, leader: int) -> None:
        """Answer everyone: this broker does not lead any more."""
        turn, self._turn = self._turn, []
        self._fail(turn, NotLeader("this broker does not lead the coordinator any more", leader=leader))
        self.truncated(RaftIndex(0))

    def _fail(self, batch: Sequence[Waiting], error: GeorelayError) -> None:
        for (_, command), future in batch:
            self.pending_bytes -= len(command)
            if not future.done():
                future.set_exception(error)
                future.exception()  # that nobody waits for it any more is no error


def _batches(turn: Sequence[Waiting]) -> list[list[Waiting]]:
    """Return the commands of one turn, in order, in as few record batches as hold them."""
    batches: list[list[Waiting]] = []
    size_bytes = 0
    for waiting in turn:
        length = len(waiting[0][1])
        if not batches or size_bytes + length > BATCH_BYTES_MAX or len(batches[-1]) >= RECORDS_PER_BATCH_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1].append(waiting)
        size_bytes += length
    return batches
