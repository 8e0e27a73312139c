"""CreatePartitions: a topic grows; the definitions home decides, every region follows.

Rule 1: the number of partitions only grows. Records keep their partitions: keys that hash to a new one go there from
        now on, so that the order of one key holds within the old and within the new partition.
Rule 2: regions assign the replicas of new partitions themselves.
"""

from __future__ import annotations

from collections import Counter

from georelay.errors import GeorelayError, InvalidTopic, PolicyViolation, UnknownTopic
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.cluster import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.first_leaders import first_leaders
from region.kafka.patience import within
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource


class CreatePartitionsHandler:
    """Answers CreatePartitions (KIP-195)."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: CreatePartitionsRequest) -> None:
        """Let topics grow, one after the other; each has its own outcome."""
        slot.spawn(self._answer(request, slot.connection.principal))

    async def _answer(self, request: CreatePartitionsRequest, principal: Principal) -> CreatePartitionsResponse:
        times = Counter(topic.name for topic in request.topics)
        rows = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            if times[topic.name] > 1:
                text = "the topic stands twice in the request"
                rows.append(CreatePartitionsTopicResult(topic.name, ErrorCode.INVALID_REQUEST, text))
            else:
                rows.append(await self._grow(topic, request, principal))
        if not request.validate_only:
            grown = [row.name for row in rows if row.error_code == ErrorCode.NONE]
            await first_leaders(self._cluster, grown, wait_s=request.timeout_ms / 1000)
        return CreatePartitionsResponse(results=rows)

    async def _grow(
        self, topic: CreatePartitionsTopic, request: CreatePartitionsRequest, principal: Principal
    ) -> CreatePartitionsTopicResult:
        try:
            self._access.check(principal, Operation.ALTER, Resource.TOPIC, topic.name)
            code, text = self._refusal(topic)
            if code is ErrorCode.NONE and not request.validate_only:
                with self._access.noted(principal, "topic.grown", topic=topic.name, partitions=str(topic.count)):
                    await within(request.timeout_ms, self._cluster.add_partitions(topic.name, topic.count))
        except InvalidTopic as error:  # somebody else let it grow meanwhile
            code, text = ErrorCode.INVALID_PARTITIONS, str(error)
        except GeorelayError as error:
            code, text = kafka_code(error), str(error)
        return CreatePartitionsTopicResult(topic.name, code, text)

    def _refusal(self, topic: CreatePartitionsTopic) -> tuple[ErrorCode, str | None]:
        """Judge by what this broker knows; the definitions home judges again."""
        view = self._cluster.topic(topic.name)
        if view is None:
            raise UnknownTopic(f"topic {topic.name[:60]!r} does not exist")
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(f"{topic.name!r} has the partitions of its plain name; let that one grow")
        if topic.assignments:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas are assigned by the regions"
        if topic.count <= view.partitions:
            text = f"the topic has {view.partitions} partitions; their number can only grow"
            return ErrorCode.INVALID_PARTITIONS, text
        if topic.count > PARTITIONS_PER_TOPIC_MAX:
            return ErrorCode.INVALID_PARTITIONS, f"a topic has {PARTITIONS_PER_TOPIC_MAX} partitions at most"
        return ErrorCode.NONE, None
