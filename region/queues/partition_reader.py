"""Reads one partition of a queue's topic ahead of its consumers, for as long as this broker leads the coordinator.

Rule 1: it takes in as many records as there is room for, and waits for room otherwise. What was read stays unfolded
        meanwhile for as long as nobody else needs the memory (region.api.unfolding_memory).
Rule 2: offsets without a record (markers, aborted transactions) are passed over, so that the cursor gets beyond them.
        What was passed over while another home epoch began is read again: it may have had no effect.
Rule 3: a home epoch of the partition is followed before anything else is read, also while there is no room: it may be
        what makes room, and dead letters wait for it. Nothing is taken in that the mesh has not agreed on
        (region.queues.epochs_core).
Rule 4: TAKEN_IN_PER_TURN_MAX records are taken in before everybody else has a turn, of all queues of a broker
        together.
Rule 5: what retention has deleted before it was done is skipped, counted and said in the log; it never stops a queue.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from georelay.errors import GeorelayError, OffsetOutOfRange, UnknownTopic
from region.queues.contents import EARLIEST, Unread, agreed, begun_in_log
from region.queues.epochs_core import newest_epoch
from region.queues.limits import READ_BYTES, READ_WAIT_MS, TAKEN_IN_PER_TURN_MAX
from region.queues.live_queue import LiveQueue
from region.queues.queue_core import Passed

log = structlog.get_logger()

ROOM_S: Final = 1.0  # how long to wait for room before looking again
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
REMOTE_WAITS_MAX: Final = 64  # long polls of one broker's queues at other brokers; links carry other requests too
POLL_S: Final = 0.25  # instead, when there are so many


class SharedReading:
    """What the readers of all queues of one broker share.

    Attributes:
        remote_waits: long polls at other brokers. turn: whose records are taken in now.
    """

    def __init__(self) -> None:
        self.remote_waits = 0
        self.turn = asyncio.Semaphore(1)


async def read_partition(queue: LiveQueue, partition: int, shared: SharedReading) -> None:
    """Read until cancelled."""
    reader = _Reader(queue, partition, shared)
    retry_s = RETRY_S
    try:
        while True:
            queue.room.clear()
            try:
                await reader.go_on()
                retry_s = RETRY_S
            except OffsetOutOfRange:
                await reader.skip_deleted()
            except GeorelayError as error:
                if isinstance(error, UnknownTopic):
                    log.debug("queue.topic_unknown", queue=queue.name, partition=partition)
                await queue.pause(retry_s)
                retry_s = min(retry_s * 2, RETRY_S_MAX)
    finally:
        await reader.close()


class _Reader:
    """Where one partition is read, and what is read and not taken in yet."""

    def __init__(self, queue: LiveQueue, partition: int, shared: SharedReading) -> None:
        self._queue = queue
        self._partition = partition
        self._shared = shared
        self._offset = queue.state.cursor(partition)
        self._unread: Unread | None = None

    async def go_on(self) -> None:
        """Do what comes next: follow an epoch, wait for room, read, or take in a piece of what was read."""
        queue, partition = self._queue, self._partition
        begun = queue.begun(partition)
        if begun is not None:
            await self.close()  # others may have got these offsets
            await queue.begin_epoch(partition, *begun)
            return  # the next one may have begun meanwhile
        if not queue.index.room(partition):
            await _wait_for_room(queue)
            return
        offset = min(self._offset, queue.begins.pop(partition, self._offset))
        self._offset = max(offset, queue.state.cursor(partition))  # it was purged
        unread = self._unread
        epoch = newest_epoch(queue.epoch_table(partition))
        if unread is None or unread.following != self._offset or unread.epoch != epoch:
            await self.close()
            await self._read()
        else:
            await self._take_in(unread)

    async def close(self) -> None:
        """Hold nothing that was read."""
        if self._unread is not None:
            await self._unread.close()
            self._unread = None

    async def _read(self) -> None:
        queue, partition, shared = self._queue, self._partition, self._shared
        topic, epoch = queue.view().name, newest_epoch(queue.epoch_table(partition))
        begun = begun_in_log(queue.cluster, topic, partition)
        is_here = queue.cluster.stream(topic, partition) is not None
        may_wait = is_here or shared.remote_waits < REMOTE_WAITS_MAX
        shared.remote_waits += not is_here
        wait_ms = READ_WAIT_MS * may_wait
        reading = asyncio.ensure_future(queue.cluster.read_records(topic, partition, self._offset, READ_BYTES, wait_ms))
        queue.reading[partition] = reading
        try:
            answer = await reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return  # an epoch began, where nothing may come for long: see LiveQueue.follow_epochs
        finally:
            shared.remote_waits -= not is_here
            del queue.reading[partition]
        self._unread = Unread(
            answer, self._offset, f"{topic}/{partition}", epoch=epoch, begun=begun, is_polled=not may_wait
        )

    async def _take_in(self, unread: Unread) -> None:
        """Take in as many records as there is room for, and no more than others can wait for."""
        queue, partition, first = self._queue, self._partition, self._offset
        if not await unread.fill():
            await self.close()
            return
        async with self._shared.turn:
            table, room = queue.epoch_table(partition), queue.index.room(partition)
            if newest_epoch(table) != unread.epoch or not room:
                return  # an epoch began meanwhile: it is followed first
            whole = unread.take(min(room, TAKEN_IN_PER_TURN_MAX))
            stretch = agreed(whole, table, first=first, begun=unread.begun)
            unread.begun = max([unread.begun, *(row.batch.epoch for row in stretch.records[-1:])])
            self._offset = stretch.following
            queue.read_up_to(partition, stretch.following, stretch.end)
            queue.add(partition, stretch.records)
            await asyncio.sleep(0)
        if stretch.gaps:
            await queue.pass_over(partition, stretch.gaps, Passed.NO_RECORD, epoch=unread.epoch)
            if queue.state.epoch(partition) != unread.epoch:
                self._offset = first  # a purge followed the next one meanwhile: gaps may have been passed over in vain
                return
        if stretch.following == first and (unread.is_polled or whole.following > first):
            await queue.pause(POLL_S)

    async def skip_deleted(self) -> None:
        """Go on where the log begins now; what is below it is skipped."""
        queue, partition, offset = self._queue, self._partition, self._offset
        epoch = queue.state.epoch(partition)
        try:
            answer = await queue.cluster.read_records(queue.view().name, partition, EARLIEST, 1, 0)
            if answer.log_start > offset:
                await queue.pass_over(partition, [(offset, answer.log_start)], Passed.RETENTION, epoch=epoch)
                if queue.state.epoch(partition) == epoch:
                    self._offset = answer.log_start
                return
        except GeorelayError as error:
            log.debug("queue.delayed", queue=queue.name, code=error.code)
        await queue.pause(RETRY_S)


async def _wait_for_room(queue: LiveQueue) -> None:
    try:
        async with asyncio.timeout(ROOM_S):
            await queue.room.wait()
    except TimeoutError:
        return  # what made room may not have said so: look again
