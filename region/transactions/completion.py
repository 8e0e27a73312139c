"""Telling everybody who is in a decided transaction how it ended, until all have heard.

Rule 1: the decision is replicated before this begins. After a failover the new leader begins again from the start:
        whoever has heard already says so.
Rule 2: a participant that cannot be reached is asked again for ever; only a deleted topic is let off.
Rule 3: bounded: at most ENDS_IN_FLIGHT_MAX participants of one coordinator are asked at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from georelay.errors import GeorelayError
from georelay.ids import StreamKey
from region.transactions.participants import Participants
from region.transactions.transaction_core import Transaction, TransactionEnd, end_of

log = structlog.get_logger()

ENDS_IN_FLIGHT_MAX: Final = 256
AGAIN_S: Final = 0.02
AGAIN_S_MAX: Final = 1.0
_LOUD_AFTER_TRIES: Final = 10


class Completions:
    """The decided transactions of one coordinator while its leader is here.

    Args:
        finished: writes down that everybody has heard; called again after an error.
    """

    def __init__(self, participants: Participants, finished: Callable[[Transaction], Awaitable[None]]) -> None:
        self._participants = participants
        self._finished = finished
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(ENDS_IN_FLIGHT_MAX)

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, transaction: Transaction) -> None:
        """Tell the participants of a PREPARE state; nothing happens when that goes on already."""
        name = transaction.transactional_id
        if name in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._run(transaction), name=f"end transaction {name}")
        self._tasks[name] = task
        task.add_done_callback(partial(self._over, name))

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("transaction.completion_broke", transactional_id=name, error=repr(task.exception()))

    async def _run(self, transaction: Transaction) -> None:
        end = end_of(transaction)
        await asyncio.gather(
            *(self._until_heard(partial(self._tell_partition, key, end), str(key)) for key in transaction.partitions),
            *(self._until_heard(partial(self._tell_group, group, end), group) for group in transaction.groups),
        )
        await self._until_heard(partial(self._write_down, transaction), transaction.transactional_id)

    async def _until_heard(self, tell: Callable[[], Awaitable[None]], who: str) -> None:
        pause_s, tries = AGAIN_S, 0
        while True:
            try:
                await tell()
            except GeorelayError as error:
                tries += 1
                say = log.warning if tries == _LOUD_AFTER_TRIES else log.debug
                say("transaction.end_not_heard", participant=who, tries=tries, reason=str(error))
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)

    async def _tell_partition(self, key: StreamKey, end: TransactionEnd) -> None:
        async with self._slots:
            try:
                await self._participants.end_partition(key, end)
            except GeorelayError:
                if not await self._participants.is_gone(key):
                    raise

    async def _tell_group(self, group: str, end: TransactionEnd) -> None:
        async with self._slots:
            await self._participants.end_group(group, end)

    async def _write_down(self, transaction: Transaction) -> None:
        await self._finished(transaction)

    def stop(self) -> None:
        """Stop: another broker leads and goes on."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
