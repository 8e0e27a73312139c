"""DeleteRecords: the log start of partitions moves, in every region and for ever.

Rule 1: clients ask the leader inside their region, as for every other request about a partition; the cluster carries
        the wish to the leader of the home, which decides.
Rule 2: every partition has its own outcome, and asking twice is harmless.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.errors import GeorelayError, PolicyViolation
from georelay.wire.api import ErrorCode
from georelay.wire.requests import DeleteRecordsPartition, DeleteRecordsRequest
from georelay.wire.responses import DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.positions import is_leaving, led_stream
from region.kafka.patience import within
from region.kafka.ports import BEFORE_HIGH_WATERMARK
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource
from region.security.change_details import shown_before

PARTITIONS_AT_ONCE_MAX: Final = 32  # of one request; each is a commit of its own


class DeleteRecordsHandler:
    """Answers DeleteRecords."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._cluster = services.cluster

    def handle(self, slot: Slot, request: DeleteRecordsRequest) -> None:
        """Move the log start of every partition."""
        slot.spawn(self._answer(slot, request))

    async def _answer(self, slot: Slot, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        principal = slot.connection.principal
        free = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)
        topics = []
        for topic in request.topics:
            refused = self._services.access.refusal(principal, Operation.DELETE, Resource.TOPIC, topic.name)
            if refused is not None:
                denied = [
                    DeleteRecordsPartitionResult(partition_index=row.partition_index, error_code=kafka_code(refused))
                    for row in topic.partitions
                ]
                topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=denied))
                continue
            rows = await asyncio.gather(
                *(self._row(slot, topic.name, wanted, request.timeout_ms, free) for wanted in topic.partitions)
            )
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
        return DeleteRecordsResponse(topics=topics)

    async def _row(
        self,
        slot: Slot,
        name: str,
        wanted: DeleteRecordsPartition,
        timeout_ms: int,
        free: asyncio.Semaphore,
    ) -> DeleteRecordsPartitionResult:
        index = wanted.partition_index
        code = self._refusal(slot, name, wanted)
        if code is not ErrorCode.NONE:
            return DeleteRecordsPartitionResult(partition_index=index, error_code=code)
        about = {"topic": name, "partition": str(index), "before": shown_before(wanted.offset)}
        try:
            async with free:
                with self._services.access.noted(slot.connection.principal, "records.deleted", **about):
                    log_start = await within(timeout_ms, self._cluster.delete_records(name, index, wanted.offset))
        except GeorelayError as error:
            self._services.counters.refused(kafka_code(error))
            return DeleteRecordsPartitionResult(partition_index=index, error_code=kafka_code(error))
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=log_start)

    def _refusal(self, slot: Slot, name: str, wanted: DeleteRecordsPartition) -> ErrorCode:
        """Return why the partition is not touched, NONE when it may be."""
        leaving = is_leaving(self._cluster, slot)
        stream = led_stream(self._cluster, name, wanted.partition_index, is_leaving=leaving)
        if isinstance(stream, ErrorCode):
            return stream
        view = self._cluster.topic(name)
        if view is not None and (view.is_mirror_name or view.internal or view.definition.is_only_compacted):
            return kafka_code(PolicyViolation())
        return ErrorCode.OFFSET_OUT_OF_RANGE if wanted.offset < BEFORE_HIGH_WATERMARK else ErrorCode.NONE
