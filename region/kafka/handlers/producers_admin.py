"""DescribeProducers: the idempotent and transactional producers that a partition's leader remembers (KIP-664).

Operators find a transaction that hangs with it: `current_txn_start_offset` is where the last stable offset stands.
Producers of the brokers themselves are not shown: no client has anything to do with them.
"""

from __future__ import annotations

from georelay.errors import AccessDenied, GeorelayError
from georelay.ids import is_brokers_own
from georelay.wire.api import ErrorCode
from georelay.wire.cluster import (
    DescribedProducersPartition,
    DescribedProducersTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
)
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.positions import is_leaving, led_stream
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource


class DescribeProducersHandler:
    """Answers DescribeProducers."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: DescribeProducersRequest) -> None:
        """Answer from the logs that this broker leads."""
        wanted: dict[str, dict[int, None]] = {}  # each once: an answer is much longer than a question
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        topics = []
        for name, indexes in wanted.items():
            refused = self._access.refusal(slot.connection.principal, Operation.READ, Resource.TOPIC, name)
            rows = [self._row(slot, name, index, refused) for index in indexes]
            topics.append(DescribedProducersTopic(name=name, partitions=rows))
        slot.answer(DescribeProducersResponse(topics=topics))

    def _row(self, slot: Slot, name: str, partition: int, refused: AccessDenied | None) -> DescribedProducersPartition:
        if refused is not None:
            return DescribedProducersPartition(partition, kafka_code(refused), str(refused))
        stream = led_stream(self._cluster, name, partition, is_leaving=is_leaving(self._cluster, slot))
        if isinstance(stream, ErrorCode):
            return DescribedProducersPartition(partition, stream)
        try:
            infos = self._cluster.producers_of(name, partition)
        except GeorelayError as error:
            return DescribedProducersPartition(partition, kafka_code(error), str(error))
        rows = [
            ProducerState(
                producer_id=info.producer_id,
                producer_epoch=info.producer_epoch,
                last_sequence=info.last_sequence,
                last_timestamp=info.newest_append_ms,
                coordinator_epoch=info.transaction_number,
                current_txn_start_offset=info.transaction_start,
            )
            for info in infos
            if not is_brokers_own(info.producer_id)
        ]
        return DescribedProducersPartition(partition, active_producers=rows)
