"""DescribeTopicPartitions (KIP-966): topics in pages, for consoles of clusters with many partitions.

Rule 1: topics come sorted by name, partitions by number, at most PARTITIONS_MAX of them in one answer. What is left is
        named by a cursor, and the next request begins there.
Rule 2: a topic that the principal may not describe is left out of "all topics"; named, it is answered with
        TOPIC_AUTHORIZATION_FAILED whether it exists or not, as Metadata does.
Rule 3: no replica leads without the majority's records, so none is an "eligible leader" beside the in-sync ones.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from georelay.wire.api import ErrorCode
from georelay.wire.cluster import (
    DescribedTopicPartition,
    DescribedTopicPartitions,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicPartitionsCursor,
)
from region.controller.topic import TOPIC_NAME
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.metadata import partition_row
from region.kafka.ports import TopicView
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

PARTITIONS_MAX: Final = 2_000  # in one answer; Kafka's max.request.partition.size.limit


class DescribeTopicPartitionsHandler:
    """Answers DescribeTopicPartitions."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: DescribeTopicPartitionsRequest) -> None:
        """Answer with a page."""
        cursor = request.cursor or TopicPartitionsCursor("", 0)
        if cursor.partition_index < 0 or request.response_partition_limit < 1:
            slot.answer(DescribeTopicPartitionsResponse(topics=_refused(request)))
            return
        left = min(request.response_partition_limit, PARTITIONS_MAX)
        alive = frozenset(broker.id for broker in self._cluster.brokers() if broker.alive)
        rows, following = [], None
        for name in self._names(slot.connection.principal, request):
            if name < cursor.topic_name:
                continue
            start = cursor.partition_index if name == cursor.topic_name else 0
            view = self._cluster.topic(name)
            if left == 0:
                following = TopicPartitionsCursor(name, start)
                break
            row = self._row(slot.connection.principal, name, view, start, start + left, alive)
            rows.append(row)
            left -= max(1, len(row.partitions))  # a topic that is refused counts too: the answer stays bounded
            if view is not None and row.partitions and start + len(row.partitions) < view.partitions:
                following = TopicPartitionsCursor(name, start + len(row.partitions))
                break
        slot.answer(DescribeTopicPartitionsResponse(topics=rows, next_cursor=following))

    def _names(self, principal: Principal, request: DescribeTopicPartitionsRequest) -> list[str]:
        if request.topics:
            return sorted({topic.name for topic in request.topics})
        access = self._access
        known = [view.name for view in self._cluster.topics()]
        return sorted(name for name in known if access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name))

    def _row(
        self, principal: Principal, name: str, view: TopicView | None, start: int, end: int, alive: Container[int]
    ) -> DescribedTopicPartitions:
        denied = self._access.refusal(principal, Operation.DESCRIBE, Resource.TOPIC, name)
        if denied is not None:
            return DescribedTopicPartitions(kafka_code(denied), name)
        if view is None:
            is_name = TOPIC_NAME.fullmatch(name) is not None
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION
            return DescribedTopicPartitions(code, name)
        return DescribedTopicPartitions(
            ErrorCode.NONE,
            name,
            topic_id=view.wire_id,
            is_internal=view.internal,
            partitions=[self._partition(name, index, alive) for index in range(start, min(end, view.partitions))],
            topic_authorized_operations=self._access.authorized_operations(principal, Resource.TOPIC, name),
        )

    def _partition(self, name: str, index: int, alive: Container[int]) -> DescribedTopicPartition:
        row = partition_row(self._cluster, name, index, alive)
        return DescribedTopicPartition(
            row.error_code,
            index,
            row.leader_id,
            leader_epoch=row.leader_epoch,
            replica_nodes=row.replica_nodes,
            isr_nodes=row.isr_nodes,
            eligible_leader_replicas=(),
            last_known_elr=(),
            offline_replicas=row.offline_replicas,
        )


def _refused(request: DescribeTopicPartitionsRequest) -> list[DescribedTopicPartitions]:
    """Return INVALID_REQUEST for each topic asked for: the answer has no error of its own."""
    return [DescribedTopicPartitions(ErrorCode.INVALID_REQUEST, topic.name) for topic in request.topics]
