"""A publisher over wires (loadtest.load.wires): so many connections, each sends what is due next.

Rule 1: a connection sends one after the other, and is one process of the history: between connections nothing is
        promised about order.
Rule 2: whoever does not know whether a record is stored goes on as another process: what comes after that record may
        be stored before it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from loadtest.history.history_file import HistoryWriter
from loadtest.load.campaign import TRANSACTIONS
from loadtest.load.engine_values import Plan, WallClock
from loadtest.load.publisher import GIVE_UP_S, Outgoing, Publisher
from loadtest.load.wires import FAILURES, SERIAL, Aborted, NativeWire, Refused, TransactionWire, Wire, is_not_stored

AGAIN_S: Final = 0.1
POLL_S: Final = 0.05


class WirePublisher(Publisher):
    """Its connections live in an event loop that belongs to the engine."""

    def __init__(self, plan: Plan, row: int, region: str, clock: WallClock, *, loop: asyncio.AbstractEventLoop) -> None:
        """Connect. Raises what `loadtest.load.wires` raises."""
        super().__init__(plan, row, region, clock)
        self._loop = loop
        self._due: asyncio.Queue[list[Outgoing]] = asyncio.Queue()
        kind, rngs = self.users.kind, [random.Random(f"{self.name}/{slot}") for slot in range(self.users.connections)]
        if kind == TRANSACTIONS:
            wires: list[Wire] = [
                TransactionWire(plan, region, rng, name=f"{self.name}.{slot}", abort_share=self.users.abort_share)
                for slot, rng in enumerate(rngs)
            ]
        elif kind in SERIAL:
            wires = [SERIAL[kind](plan, region, rng) for rng in rngs]
        else:
            wires = [NativeWire(plan, region, rngs[0], durability=self.users.durability)]
        self._lines = [_Line(self, wire, f"{self.name}.{slot}") for slot, wire in enumerate(wires)]
        for line in self._lines:
            self._run(line.wire.open())
        self._tasks = [asyncio.run_coroutine_threadsafe(line.work(self._due), loop) for line in self._lines]

    def offer(self, records: list[Outgoing]) -> None:
        """Put records on their way."""
        self._loop.call_soon_threadsafe(self._due.put_nowait, records)

    def settle(self, seconds: float) -> int:
        """Wait for the last answers, and let everything go; return how many did not come."""
        deadline = time.monotonic() + seconds
        while self.answered < self.sent and time.monotonic() < deadline:
            time.sleep(POLL_S)
        left = self.sent - self.answered
        for task, line in zip(self._tasks, self._lines, strict=True):
            task.cancel()
            self._run(line.close())
        return left

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Line:
    """One connection and its history."""

    def __init__(self, owner: Publisher, wire: Wire, name: str) -> None:
        self.wire = wire
        self._owner = owner
        self._name = name
        self._histories = [owner.writer(name)]
        self._is_broken = False

    async def work(self, due: asyncio.Queue[list[Outgoing]]) -> None:
        """Send what is due, one after the other, until cancelled."""
        while True:
            records = await due.get()
            history = self._histories[-1]
            numbers = [self._owner.begin(history, record) for record in records]
            try:
                answer = await self._sent(records)
            except Aborted:
                for number, record in zip(numbers, records, strict=True):
                    self._owner.aborted(history, number, record)
            except FAILURES as error:
                is_sure = is_not_stored(error) and self._owner.users.kind != TRANSACTIONS
                for number, record in zip(numbers, records, strict=True):
                    self._owner.failed(history, number, record, str(error), is_sure=is_sure)
                self._is_broken = True
                if not is_sure:
                    self._histories.append(self._owner.writer(f"{self._name}.{len(self._histories)}"))
            else:
                if isinstance(answer, asyncio.Future):
                    answer.add_done_callback(partial(self._settle, history, numbers[0], records[0]))
                    continue
                for number, record, offset in zip(numbers, records, answer, strict=True):
                    self._owner.stored(history, number, record, offset)

    async def close(self) -> None:
        """Let everything go."""
        await self.wire.close()
        for history in self._histories:
            history.close()

    async def _sent(self, records: Sequence[Outgoing]) -> Any:
        """Send until it is stored or nobody knows: what is refused is sent again, over a new connection."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                if self._is_broken:
                    await self.wire.close()
                    await self.wire.open()
                    self._is_broken = False
            except FAILURES as error:
                if time.monotonic() > deadline:
                    raise Refused(str(error)) from error
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                return await self.wire.publish(records)
            except FAILURES as error:
                self._is_broken = True
                may_repeat = is_not_stored(error) and self._owner.users.kind in SERIAL
                if not may_repeat or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(AGAIN_S)

    def _settle(self, history: HistoryWriter, number: int, record: Outgoing, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            return  # it is told as one that was never answered
        error = done.exception()
        if error is None:
            self._owner.stored(history, number, record, done.result().offset, epoch=done.result().epoch)
        else:
            assert isinstance(error, Exception), "nobody cancels it"
            self._owner.failed(history, number, record, str(error), is_sure=is_not_stored(error))
