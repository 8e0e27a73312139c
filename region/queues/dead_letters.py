"""Publishes the condemned records of one queue to its dead-letter topic, and only then has them done.

Rule 1: a dead letter has a number that is replicated before it is published: it is the sequence of the queue's own
        producer, so that a letter that is published twice, also by two leaders, is stored once. So its bytes follow
        from the record and the state of the queue alone; the time in it is the record's.
Rule 2: at most DEAD_LETTERS_IN_FLIGHT_MAX letters are published and not yet done: the topic recognises so many.
Rule 3: a letter is done only while its number still names its record: the record may have been cut off meanwhile.
Rule 4: letters have no gaps, so one of which nothing is known yet (an epoch of its partition is not followed) holds up
        those behind it, and none before it.
Rule 5: when the topic does not know the producer any more (nothing was published for a day, or it was made again), the
        queue takes a new one, and so it does when its home has moved. Only then a letter that was stored without being
        done can be there twice.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

import structlog

from georelay.errors import GeorelayError, OutOfOrderSequence, ProducerFenced, TooLarge, Unavailable, UnknownTopic
from georelay.ids import brokers_own, is_brokers_own
from georelay.wire.batch import build_batch
from georelay.wire.murmur2 import partition_for_key
from georelay.wire.records import Record
from region.coordination.log import CoordinatorLog
from region.kafka.ports import Publish, Published
from region.queues.commands_core import NameProducer
from region.queues.contents import read_again
from region.queues.limits import DEAD_LETTERS_IN_FLIGHT_MAX
from region.queues.live_queue import LiveQueue
from region.queues.queue_core import NO_PRODUCER, Place, Row

log = structlog.get_logger()

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
SEQUENCES: Final = 2**31
_NEW_PRODUCER: Final = (OutOfOrderSequence, ProducerFenced)  # UnknownProducer is an OutOfOrderSequence

Headers = tuple[tuple[str, bytes | None], ...]
Letters = list[tuple[int, Place]]


async def publish_letters(queue: LiveQueue, coordinator: CoordinatorLog) -> None:
    """Publish until cancelled."""
    retry_s = RETRY_S
    while True:
        queue.letters.clear()
        try:
            if not queue.state.letters:
                await _renew_old_producer(queue)
                await queue.letters.wait()
            await _publish_some(queue, coordinator)
            retry_s = RETRY_S
        except GeorelayError as error:
            log.warning("dead_letters.delayed", queue=queue.name, code=error.code, reason=str(error))
            await queue.pause(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)


async def _publish_some(queue: LiveQueue, coordinator: CoordinatorLog) -> None:
    if queue.state.producer_id == NO_PRODUCER:
        await _take_producer(queue)
    letters = list(islice(queue.state.letters.items(), DEAD_LETTERS_IN_FLIGHT_MAX))
    definition = queue.state.definition
    target = definition.dead_letter_topic
    view = queue.cluster.topic(target)
    if view is None:
        raise UnknownTopic(f"the dead-letter topic {target!r} of queue {queue.name} does not exist: create it again")
    partition = partition_for_key(queue.name.encode(), view.partitions)
    letters, contents = await _read(queue, letters)
    now_ns = coordinator.now_us() * 1000
    waits: list[tuple[int, Place, asyncio.Future[Published]]] = []
    lost: Letters = []
    for number, place in letters:
        row, content = queue.state.row(place), contents.get(place)
        if row is None or queue.state.letters.get(number) != place:
            break  # it was cut off meanwhile
        if content is None:
            lost.append((number, place))
            break  # the numbers behind it would have a gap
        raw = _letter(queue, place, row, content, sequence=number % SEQUENCES)
        letter = Publish.built(raw, received_ns=now_ns, entry_region=queue.cluster.region_number, lane=queue)
        waits.append((number, place, queue.cluster.publish(target, partition, letter)))
    await _finish(queue, waits)
    lost = [(number, place) for number, place in lost if queue.state.letters.get(number) == place]
    if lost:
        await queue.skip([place for _, place in lost])
        await _take_producer(queue)  # the letter's number is missing now


async def _read(queue: LiveQueue, letters: Letters) -> tuple[Letters, dict[Place, Record]]:
    """Return the first letters, as many as something is known of, and their records; see read_again.

    Raises as read_again, and Unavailable as LiveQueue.epoch_of: nothing is known of the very first.
    """
    wanted: dict[Place, int] = {}
    for _, place in letters:
        try:
            wanted[place] = queue.epoch_of(place)
        except Unavailable:
            if not wanted:
                raise
            break
    topic, known = queue.view().name, letters[: len(wanted)]
    try:
        return known, await read_again(queue.cluster, topic, wanted)
    except GeorelayError:  # of one that cannot be read now: those before it need not wait for it
        if len(known) == 1:
            raise
    first = known[0][1]
    return known[:1], await read_again(queue.cluster, topic, {first: wanted[first]})


async def _finish(queue: LiveQueue, waits: list[tuple[int, Place, asyncio.Future[Published]]]) -> None:
    """Have done what is stored; raise why the first of the others is not."""
    if waits:
        await asyncio.wait([future for _, _, future in waits])
    stored: list[Place] = []
    for number, place, future in waits:
        error = future.exception()
        if error is not None:
            break
        if queue.state.letters.get(number) == place:
            stored.append(place)
    if stored:
        await queue.bury(stored)
        return  # what failed behind them is tried with the next ones
    if waits:
        error = waits[0][2].exception()
        if error is None:
            return  # all that was stored was cut off meanwhile
        if isinstance(error, _NEW_PRODUCER):
            log.info("dead_letters.new_producer", queue=queue.name, reason=str(error))
            await _take_producer(queue)
            return
        raise error


async def _renew_old_producer(queue: LiveQueue) -> None:
    """Take a new producer for one of a broker of before its ids were kept from clients: nothing of it is under way."""
    if queue.state.producer_id != NO_PRODUCER and not is_brokers_own(queue.state.producer_id):
        await _take_producer(queue)


async def _take_producer(queue: LiveQueue) -> None:
    producer_id = brokers_own(await queue.cluster.allocate_producer_id())
    await queue.propose(NameProducer(queue=queue.name, producer_id=producer_id), shrinks=True)


def _letter(queue: LiveQueue, place: Place, row: Row, content: Record, *, sequence: int) -> bytes:
    headers: Headers = (
        *content.headers,
        ("georelay-queue", queue.name.encode()),
        ("georelay-topic", queue.state.definition.topic.encode()),
        ("georelay-partition", str(place.partition).encode()),
        ("georelay-offset", str(place.offset).encode()),
        ("georelay-deliveries", str(row.deliveries).encode()),
        ("georelay-reason", row.reason.encode()),
    )

    def build(value: bytes | None, key: bytes | None, extra: Headers) -> bytes:
        return build_batch(
            [(value, key, extra)],
            timestamps_ms=content.timestamp_ms,
            producer_id=queue.state.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )

    try:
        return build(content.value, content.key, headers)
    except TooLarge:  # out of a compressed batch: say where it is instead
        size = str(len(content.value or b"")).encode()
        return build(None, None, (*headers[len(content.headers) :], ("georelay-value-bytes", size)))
