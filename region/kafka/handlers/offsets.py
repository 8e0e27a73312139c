"""ListOffsets and OffsetForLeaderEpoch: where a partition starts and ends, and where an epoch ends.

Rule: an end is confirmed by a quorum before it is told. A leader that was cut off and does not know it yet would
otherwise tell an end that is behind what its successor has acknowledged. Nothing at or above the end is found: for a
reader of committed records (isolation level 1) that is the last stable offset, for others the visible end. "No record
of that time", or "none newer", is such a word about the end: a leader that was just elected may not know yet what its
predecessor showed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from georelay.errors import GeorelayError, Unavailable
from georelay.ids import Epoch, Offset
from georelay.wire.api import ErrorCode
from georelay.wire.requests import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from georelay.wire.responses import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.positions import epoch_error, is_leaving, led_stream
from region.kafka.ports import Stream
from region.kafka.services import KafkaServices
from region.security.access import AccessDenied, Operation, Resource

LATEST: Final = -1  # the end of what can be read: the visible end or the last stable offset
READ_COMMITTED: Final = 1
EARLIEST: Final = -2
NEWEST_TIMESTAMP: Final = -3
NEWEST_TIMESTAMP_SINCE_VERSION: Final = 7


class ListOffsetsHandler:
    """Answers ListOffsets."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: ListOffsetsRequest) -> None:
        """Look every partition up; lookups by timestamp may read the disk."""
        slot.spawn(self._answer(slot, request))

    async def _answer(self, slot: Slot, request: ListOffsetsRequest) -> ListOffsetsResponse:
        principal = slot.connection.principal
        times = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        topics = []
        for topic in request.topics:
            refused = self._access.refusal(principal, Operation.DESCRIBE, Resource.TOPIC, topic.name)
            if refused is not None:
                denied = [
                    ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=kafka_code(refused))
                    for row in topic.partitions
                ]
                topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=denied))
                continue
            is_committed = request.isolation_level == READ_COMMITTED
            once = [row for row in topic.partitions if times[topic.name, row.partition_index] == 1]
            rows = await asyncio.gather(*(self._row(slot, topic.name, row, is_committed) for row in once))
            rows += [  # as Kafka does: each of them would be a lookup
                ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=ErrorCode.INVALID_REQUEST)
                for row in topic.partitions
                if times[topic.name, row.partition_index] > 1
            ]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    async def _row(
        self, slot: Slot, name: str, wanted: ListOffsetsPartition, is_committed: bool
    ) -> ListOffsetsPartitionResponse:
        index, version = wanted.partition_index, slot.api_version
        stream = led_stream(self._cluster, name, index, is_leaving=is_leaving(self._cluster, slot))
        if isinstance(stream, ErrorCode):
            return ListOffsetsPartitionResponse(partition_index=index, error_code=stream)
        code = epoch_error(stream, wanted.current_leader_epoch)
        if code:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
        is_known = wanted.timestamp >= EARLIEST or (
            wanted.timestamp == NEWEST_TIMESTAMP and version >= NEWEST_TIMESTAMP_SINCE_VERSION
        )
        if not is_known:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION)
        try:
            offset, timestamp_ms = await _lookup(stream, wanted.timestamp, is_committed=is_committed)
        except GeorelayError as error:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=kafka_code(error))
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=stream.epoch
        )


async def _lookup(stream: Stream, timestamp: int, *, is_committed: bool) -> tuple[int, int]:
    """Return (offset, timestamp); -1 for what does not exist."""
    if timestamp == LATEST:
        visible_end = await stream.confirmed_end()
        return _end(stream, is_committed=True) if is_committed else visible_end, -1
    if timestamp == EARLIEST:
        return stream.log_start, -1
    if timestamp != NEWEST_TIMESTAMP:  # the first record that is shown now stays the first one
        found = await stream.offset_for_timestamp(timestamp)
        if found is not None and found[0] < _end(stream, is_committed=is_committed):
            return found
    await stream.confirmed_end()
    by_time = stream.max_timestamp() if timestamp == NEWEST_TIMESTAMP else stream.offset_for_timestamp(timestamp)
    found = await by_time
    return (-1, -1) if found is None or found[0] >= _end(stream, is_committed=is_committed) else found


def _end(stream: Stream, *, is_committed: bool) -> Offset:
    """Return the end for a reader. Raises Unavailable while it is not known which records are decided."""
    if not is_committed:
        return stream.visible_end
    end = stream.last_stable_offset
    if not stream.is_last_stable_known:
        raise Unavailable(f"which records of {stream.key} are decided is not known yet: ask again")
    return end


class OffsetForLeaderEpochHandler:
    """Answers OffsetForLeaderEpoch: up to where a client's history and the stream's are one."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: OffsetForLeaderEpochRequest) -> None:
        """Answer from the epoch tables."""
        topics = []
        for topic in request.topics:
            refused = self._access.refusal(slot.connection.principal, Operation.DESCRIBE, Resource.TOPIC, topic.topic)
            rows = [self._row(slot, topic.topic, partition, refused) for partition in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        slot.answer(OffsetForLeaderEpochResponse(topics=topics))

    def _row(
        self, slot: Slot, name: str, wanted: OffsetForLeaderPartition, refused: AccessDenied | None
    ) -> EpochEndOffset:
        if refused is not None:
            return EpochEndOffset(error_code=kafka_code(refused), partition=wanted.partition)
        stream = led_stream(self._cluster, name, wanted.partition, is_leaving=is_leaving(self._cluster, slot))
        if isinstance(stream, ErrorCode):
            return EpochEndOffset(error_code=stream, partition=wanted.partition)
        code = epoch_error(stream, wanted.current_leader_epoch)
        if code:
            return EpochEndOffset(error_code=code, partition=wanted.partition)
        epoch, end = stream.epoch_end(Epoch(wanted.leader_epoch))
        return EpochEndOffset(error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end)
