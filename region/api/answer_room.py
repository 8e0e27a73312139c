"""What answers with records hold until their clients take them: of all requests, event streams and sockets of a broker.

Rule 1: an answer has room before anything is made for it, for the largest that may come out of what was read. It keeps
        as much of it as it has made, and nothing once its client has taken that.
Rule 2: a principal holds as much as stays free beside it (region.coordination.shares_core): clients that do not read
        are not read for, and take nothing from others.
Rule 3: of a call over gRPC that reads many partitions CALL_BYTES_MAX are read and not taken yet, whoever calls. While
        all of them hold more than CALLS_BYTES_MAX, a call from which nothing was taken for STUCK_S is ended: others
        may stand still for as long as they like.
Rule 4: who waits for room holds nothing: what it has read is read again. Who holds something and finds no more room
        ends its answer there. So no two wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from georelay.errors import Busy
from georelay.limits import MIB, RECORD_BATCH_BYTES_MAX
from georelay.wire.batch import Compression, parse_header
from region.api.unfolding import FIELD_BYTES
from region.coordination.shares_core import Room, Shares
from region.kafka.ports import EntryLike, ReadAnswer

ANSWERS_BYTES_MAX: Final = 256 * MIB
CALL_BYTES_MAX: Final = 32 * MIB
CALLS_BYTES_MAX: Final = 512 * MIB
STUCK_S: Final = 10.0
COPIES: Final = 2  # of a batch on its way to a client of gRPC
RECORD_TEXT_BYTES_MAX: Final = 16 * MIB  # of a record as JSON; a larger one is passed over
ESCAPED: Final = 6  # JSON takes so many bytes for one
ROOM_S: Final = 10.0

_Line = OrderedDict["asyncio.Future[None]", tuple["AnswerRoom", int]]  # who waits, the first first


class AnswerMemory:
    """The rooms of all answers."""

    def __init__(self, limit_bytes: int = ANSWERS_BYTES_MAX) -> None:
        self._shares = Shares(limit_bytes)
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # by principal

    @property
    def used_bytes(self) -> int:
        """Return what all hold together."""
        return self._shares.used

    def take(self, principal: str, size_bytes: int) -> bool:
        """Let a principal hold so much more; False: there is no room."""
        if self._shares.look(principal, size_bytes) is not Room.FREE:
            return False
        self._shares.add(principal, size_bytes)
        return True

    def give(self, principal: str, size_bytes: int) -> None:
        """Take it back, and serve who waits: callers take turns."""
        self._shares.add(principal, -size_bytes)
        for caller in tuple(self._lines):
            line = self._lines[caller]
            while line:
                turn, (room, wanted_bytes) = next(iter(line.items()))
                if not turn.done():  # or it has just left, and its line too in this turn of the loop
                    if not room.has(wanted_bytes):
                        break
                    turn.set_result(None)
                self._lines.move_to_end(caller)
                self._leave(caller, turn)

    async def wait(self, principal: str, room: AnswerRoom, size_bytes: int) -> None:
        """Return once `room` has so much. Raises Busy: not in ROOM_S; it holds nothing."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(principal, OrderedDict())[turn] = room, size_bytes
        try:
            async with asyncio.timeout(ROOM_S):
                await turn
        except TimeoutError:
            room.end()  # it may have come just then
            held = self._shares.held_by(principal)
            raise Busy(f"{held} bytes of answers wait for clients of {principal} that do not read: try again") from None
        finally:
            self._leave(principal, turn)

    def _leave(self, principal: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(principal)
        if line is not None and line.pop(turn, None) is not None and not line:
            del self._lines[principal]


ANSWERS: Final = AnswerMemory()


class Total:
    """What all calls hold together."""

    def __init__(self) -> None:
        self.used_bytes = 0


CALLS: Final = Total()


class CallMemory(AnswerMemory):
    """That of one call; its rooms are NOBODY's."""

    def __init__(self, total: Total = CALLS, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(CALL_BYTES_MAX)
        self._total = total
        self._monotonic_s = monotonic_s
        self._taken_s = 0.0  # when something was last taken, or nothing was held

    def take(self, principal: str, size_bytes: int) -> bool:
        """As there; what the call holds counts in what all hold."""
        if not self.used_bytes:
            self._taken_s = self._monotonic_s()
        is_taken = super().take(principal, size_bytes)
        self._total.used_bytes += size_bytes * is_taken
        return is_taken

    def give(self, principal: str, size_bytes: int) -> None:
        """As there."""
        self._total.used_bytes -= size_bytes
        self._taken_s = self._monotonic_s()
        super().give(principal, size_bytes)

    def check(self) -> None:
        """Pass unless its client holds up others by not reading (Busy)."""
        is_pressed = self._total.used_bytes > CALLS_BYTES_MAX
        if is_pressed and self.used_bytes and self._monotonic_s() - self._taken_s > STUCK_S:
            waits = f"nothing of {self.used_bytes} bytes was taken for {STUCK_S:.0f} s"
            raise Busy(f"{waits}, and others need the room: go on later")


class AnswerRoom:
    """That of one answer.

    Attributes:
        size_bytes: what it holds.
    """

    def __init__(self, principal: str, memory: AnswerMemory = ANSWERS) -> None:
        self.size_bytes = 0
        self._principal = principal
        self._memory = memory
        self._lacks_bytes = 0

    def has(self, size_bytes: int) -> bool:
        """Return whether it holds so much, now at least."""
        growth = size_bytes - self.size_bytes
        if growth > 0 and not self._memory.take(self._principal, growth):
            self._lacks_bytes = size_bytes
            return False
        self.size_bytes = max(size_bytes, self.size_bytes)
        return True

    def keep(self, size_bytes: int) -> None:
        """Hold no more than that."""
        if (given := self.size_bytes - size_bytes) > 0:
            self.size_bytes = size_bytes
            self._memory.give(self._principal, given)

    async def wait(self) -> None:
        """Return once there is room for what there was none for. Raises Busy."""
        self.end()
        await self._memory.wait(self._principal, self, self._lacks_bytes)

    def end(self) -> None:
        """Hold nothing. Safe to repeat."""
        self.keep(0)


async def read_with_room(read: Callable[[], Awaitable[ReadAnswer]], room: AnswerRoom) -> ReadAnswer:
    """Return what `read` returns, once there is room for it in the memory of a call. Raises Busy, and as `read`."""
    while True:
        answer = await read()
        needed = COPIES * sum(len(entry.payload) for entry in answer.entries)
        if room.has(min(needed, CALL_BYTES_MAX)):
            return answer
        del answer
        await room.wait()


def needed_bytes(entry: EntryLike) -> int:
    """Return what the records of a batch take at most while a piece of them becomes text."""
    size_bytes = min(len(entry.payload) + FIELD_BYTES * entry.record_count, RECORD_BATCH_BYTES_MAX)
    if parse_header(entry.payload).compression is not Compression.NONE:
        size_bytes = RECORD_BATCH_BYTES_MAX  # of one record; a larger one is passed over
    return size_bytes + text_bytes_max(size_bytes)


def text_bytes_max(size_bytes: int) -> int:
    """Return what records of so many bytes take as JSON."""
    return min(ESCAPED * size_bytes, RECORD_TEXT_BYTES_MAX)
