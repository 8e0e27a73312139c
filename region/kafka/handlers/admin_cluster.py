"""DescribeCluster, DescribeLogDirs and ListPartitionReassignments: what consoles ask of a cluster before anything else.

Rule 1: a cluster is one region: its brokers, its replicas, its moves.
Rule 2: brokers are no secret to who may connect, as Metadata shows them too; sizes and moves need DESCRIBE on the
        cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from georelay.errors import GeorelayError, UnknownTopic
from georelay.wire.api import ErrorCode
from georelay.wire.cluster import (
    BROKER_ENDPOINTS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from georelay.wire.responses import NO_OPERATIONS
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.ports import PartitionReplicas, ReplicaSize
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

CONTROLLER_ENDPOINTS: Final = 2
NOTHING_ALLOWED: Final = 0
TOPICS_PER_TURN: Final = 50  # of a list of all topics; between two turns other clients are served


class DescribeClusterHandler:
    """Answers DescribeCluster (KIP-700)."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: DescribeClusterRequest) -> None:
        """Answer with the brokers of this region."""
        if request.endpoint_type != BROKER_ENDPOINTS:
            known = request.endpoint_type == CONTROLLER_ENDPOINTS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            text = "this is a broker: ask for the endpoints of brokers (1)"
            slot.answer(
                DescribeClusterResponse(error_code=code, error_message=text, endpoint_type=request.endpoint_type)
            )
            return
        cluster = self._cluster
        brokers = [
            DescribeClusterBroker(broker_id=row.id, host=row.kafka_host, port=row.kafka_port, rack=cluster.region)
            for row in cluster.brokers()
        ]
        wanted = request.include_cluster_authorized_operations
        slot.answer(
            DescribeClusterResponse(
                cluster_id=cluster.mesh_id,
                controller_id=cluster.controller_id,
                brokers=brokers,
                cluster_authorized_operations=self._operations(slot.connection.principal) if wanted else NO_OPERATIONS,
            )
        )

    def _operations(self, principal: Principal) -> int:
        if not self._access.allows(principal, Operation.DESCRIBE, Resource.CLUSTER):
            return NOTHING_ALLOWED
        return self._access.authorized_operations(principal, Resource.CLUSTER)


class DescribeLogDirsHandler:
    """Answers DescribeLogDirs: the one data directory of the broker that is asked."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: DescribeLogDirsRequest) -> None:
        """Answer with the replicas that this broker holds."""
        refused = self._access.refusal(slot.connection.principal, Operation.DESCRIBE, Resource.CLUSTER)
        if refused is not None:
            slot.answer(DescribeLogDirsResponse(error_code=kafka_code(refused)))
            return
        storage = self._cluster.storage()
        wanted = None if request.topics is None else {row.topic: frozenset(row.partitions) for row in request.topics}
        result = DescribeLogDirsResult(
            error_code=ErrorCode.NONE,
            log_dir=storage.directory,
            topics=_sizes(storage.replicas, wanted),
            total_bytes=storage.total_bytes,
            usable_bytes=storage.usable_bytes,
        )
        slot.answer(DescribeLogDirsResponse(results=(result,)))


def _sizes(rows: Iterable[ReplicaSize], wanted: Mapping[str, frozenset[int]] | None) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for row in rows:
        if wanted is None or row.partition in wanted.get(row.topic, ()):
            size = DescribeLogDirsPartition(partition_index=row.partition, partition_size=row.size_bytes)
            topics.setdefault(row.topic, []).append(size)
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in sorted(topics.items())]


class ListPartitionReassignmentsHandler:
    """Answers ListPartitionReassignments (KIP-455): partitions that are not yet where they shall be."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: ListPartitionReassignmentsRequest) -> None:
        """Answer with the moves of this region."""
        refused = self._access.refusal(slot.connection.principal, Operation.DESCRIBE, Resource.CLUSTER)
        if refused is not None:
            slot.answer(ListPartitionReassignmentsResponse(error_code=kafka_code(refused), error_message=str(refused)))
            return
        slot.spawn(self._answer(request))

    async def _answer(self, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
        if request.topics is None:
            wanted: dict[str, frozenset[int] | None] = {view.name: None for view in self._cluster.topics()}
        else:
            wanted = {row.name: frozenset(row.partition_indexes) for row in request.topics}
        topics = []
        for count, (name, partitions) in enumerate(wanted.items(), start=1):
            if count % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                rows = _moves(await self._cluster.replicas_status(name), partitions)
            except UnknownTopic:  # as in Apache Kafka: what does not exist does not move
                continue
            except GeorelayError as error:
                return ListPartitionReassignmentsResponse(error_code=kafka_code(error), error_message=str(error))
            if rows:
                topics.append(OngoingTopicReassignment(name=name, partitions=rows))
        return ListPartitionReassignmentsResponse(topics=topics)


def _moves(
    replicas: Sequence[PartitionReplicas], partitions: frozenset[int] | None
) -> list[OngoingPartitionReassignment]:
    return [
        OngoingPartitionReassignment(
            partition_index=row.partition,
            replicas=(*row.voters, *(broker for broker in row.target if broker not in row.voters)),
            adding_replicas=[broker for broker in row.target if broker not in row.voters],
            removing_replicas=[broker for broker in row.voters if broker not in row.target],
        )
        for row in replicas
        if not row.is_settled and (partitions is None or row.partition in partitions)
    ]
