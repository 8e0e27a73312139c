"""Reads one partition of a queue's topic ahead of its consumers, for as long as this broker leads the coordinator.

Rule 1: it reads on while there is room for open records, and waits for room otherwise.
Rule 2: offsets without a record (markers, aborted transactions) are passed over, so that the cursor gets beyond them.
        What was passed over while another home epoch began is read again: it may have had no effect.
Rule 3: a home epoch of the partition is followed before anything else is read, also while there is no room: it may be
        what makes room, and dead letters wait for it. Nothing is taken in that the mesh has not agreed on
        (region.queues.epochs_core).
Rule 4: what retention has deleted before it was done is skipped, counted and said in the log; it never stops a queue.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from georelay.errors import GeorelayError, OffsetOutOfRange, UnknownTopic
from region.queues.contents import EARLIEST, agreed, begun_in_log, read_stretch
from region.queues.epochs_core import newest_epoch
from region.queues.limits import READ_BYTES, READ_WAIT_MS
from region.queues.live_queue import LiveQueue
from region.queues.queue_core import Passed

log = structlog.get_logger()

ROOM_S: Final = 1.0  # how long to wait for room before looking again
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
REMOTE_WAITS_MAX: Final = 64  # long polls of one broker's queues at other brokers; links carry other requests too
POLL_S: Final = 0.25  # instead, when there are so many


class RemoteWaits:
    """Counts the long polls of one broker's queues at other brokers."""

    def __init__(self) -> None:
        self.count = 0


async def read_partition(queue: LiveQueue, partition: int, waits: RemoteWaits) -> None:
    """Read until cancelled."""
    offset = queue.state.cursor(partition)
    retry_s = RETRY_S
    while True:
        queue.room.clear()
        try:
            begun = queue.begun(partition)
            if begun is not None:
                await queue.begin_epoch(partition, *begun)
                continue  # the next one may have begun meanwhile
            if not queue.index.has_room(partition):
                await _wait_for_room(queue)
                continue
            offset = min(offset, queue.begins.pop(partition, offset))
            offset = max(offset, queue.state.cursor(partition))  # it was purged
            offset = await _read_on(queue, partition, offset, waits)
            retry_s = RETRY_S
        except OffsetOutOfRange:
            offset = await _skip_deleted(queue, partition, offset)
        except GeorelayError as error:
            if isinstance(error, UnknownTopic):
                log.debug("queue.topic_unknown", queue=queue.name, partition=partition)
            await queue.pause(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)


async def _wait_for_room(queue: LiveQueue) -> None:
    try:
        async with asyncio.timeout(ROOM_S):
            await queue.room.wait()
    except TimeoutError:
        return  # what made room may not have said so: look again


async def _read_on(queue: LiveQueue, partition: int, offset: int, waits: RemoteWaits) -> int:
    topic, table = queue.view().name, queue.epoch_table(partition)
    begun = begun_in_log(queue.cluster, topic, partition)
    is_here = queue.cluster.stream(topic, partition) is not None
    may_wait = is_here or waits.count < REMOTE_WAITS_MAX
    waits.count += not is_here
    wait_ms = READ_WAIT_MS * may_wait
    reading = asyncio.ensure_future(queue.cluster.read_records(topic, partition, offset, READ_BYTES, wait_ms))
    queue.reading[partition] = reading
    try:
        answer = await reading
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return offset  # an epoch began, where nothing may come for long: see LiveQueue.follow_epochs
    finally:
        waits.count -= not is_here
        del queue.reading[partition]
    whole, epoch = await read_stretch(answer, offset), newest_epoch(table)
    if newest_epoch(queue.epoch_table(partition)) != epoch:
        return offset  # an epoch began meanwhile: it is followed first
    stretch = agreed(whole, table, first=offset, begun=begun)
    queue.read_up_to(partition, stretch.following, stretch.end)
    queue.add(partition, stretch.records)
    if stretch.gaps:
        await queue.pass_over(partition, stretch.gaps, Passed.NO_RECORD, epoch=epoch)
        if queue.state.epoch(partition) != epoch:
            return offset  # a purge followed the next one meanwhile: gaps may have been passed over in vain
    if stretch.following == offset and (not may_wait or whole.following > offset):
        await queue.pause(POLL_S)
    return stretch.following


async def _skip_deleted(queue: LiveQueue, partition: int, offset: int) -> int:
    """Return where the log begins now; what is below it is skipped."""
    epoch = queue.state.epoch(partition)
    try:
        answer = await queue.cluster.read_records(queue.view().name, partition, EARLIEST, 1, 0)
        if answer.log_start > offset:
            await queue.pass_over(partition, [(offset, answer.log_start)], Passed.RETENTION, epoch=epoch)
            return answer.log_start if queue.state.epoch(partition) == epoch else offset
    except GeorelayError as error:
        log.debug("queue.delayed", queue=queue.name, code=error.code)
    await queue.pause(RETRY_S)
    return offset
