"""CreateTopics and DeleteTopics: definitions are forwarded to the definitions home by the cluster.

Rule 1: a topic that was created, or would be, is answered with its settings to who may see them (KIP-525); in one
        request that holds for the first SETTINGS_ANSWERED_MAX topics.
Rule 2: a refusal has the code of what is wrong: the name, the replication factor, or a setting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from georelay.errors import GeorelayError, InvalidTopic, Throttled
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.requests import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from georelay.wire.responses import (
    CreatableTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from region.controller.topic import TOPIC_NAME
from region.kafka.connection import Slot
from region.kafka.error_map import RowRefused, kafka_code
from region.kafka.handlers.first_leaders import first_leaders
from region.kafka.patience import within
from region.kafka.ports import TopicSpec, TopicView
from region.kafka.services import KafkaServices
from region.kafka.topic_settings import created_rows, values_of, values_wished, wished
from region.security.access import Operation, Principal, Resource

SETTINGS_ANSWERED_MAX: Final = 1_000
TOPICS_PER_TURN: Final = 50  # between two turns other clients are served


class CreateTopicsHandler:
    """Answers CreateTopics."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access
        self._region_name = services.region_name

    def handle(self, slot: Slot, request: CreateTopicsRequest) -> None:
        """Create topics one after the other."""
        slot.spawn(self._answer(request, slot.connection.principal))

    async def _answer(self, request: CreateTopicsRequest, principal: Principal) -> CreateTopicsResponse:
        times = Counter(topic.name for topic in request.topics)
        rows: list[CreatableTopicResult] = []
        for name, topic in {topic.name: topic for topic in request.topics}.items():
            row = await self._create(topic, request, principal, is_double=times[name] > 1)
            rows.append(row if len(rows) < SETTINGS_ANSWERED_MAX else replace(row, configs=()))
            if len(rows) % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not request.validate_only:
            created = [row.name for row in rows if row.error_code == ErrorCode.NONE]
            await first_leaders(self._cluster, created, wait_s=request.timeout_ms / 1000)
        is_throttled = any(row.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED for row in rows)
        return CreateTopicsResponse(throttle_time_ms=is_throttled * Throttled.retry_after_s * 1_000, topics=rows)

    async def _create(
        self, topic: CreatableTopic, request: CreateTopicsRequest, principal: Principal, *, is_double: bool
    ) -> CreatableTopicResult:
        try:
            self._access.check_create_topic(principal, topic.name)
            if is_double:
                raise RowRefused(ErrorCode.INVALID_REQUEST, "the topic stands twice in the request")
            spec = _spec(topic)
            if request.validate_only:
                spec = self._checked(spec)
                would_be = CreatableTopicResult(
                    name=topic.name, num_partitions=spec.partitions, replication_factor=spec.replication_factor
                )
                return self._with_configs(would_be, values_wished(spec), principal)
            with self._access.noted(principal, "topic.created", topic=topic.name):
                view = await within(request.timeout_ms, self._created(spec, principal))
        except (RowRefused, GeorelayError) as error:
            code = kafka_code(error)
            return CreatableTopicResult(name=topic.name, error_code=code, error_message=str(error), configs=())
        created = CreatableTopicResult(
            name=topic.name,
            topic_id=view.wire_id,
            num_partitions=view.partitions,
            replication_factor=view.replication_factor,
        )
        return self._with_configs(created, values_of(view.definition, self._region_name), principal)

    async def _created(self, spec: TopicSpec, principal: Principal) -> TopicView:
        try:
            return await self._cluster.create_topic(spec, by=self._access.share_of(principal))
        except InvalidTopic as error:
            raise self._refusal(spec, error) from error

    def _checked(self, spec: TopicSpec) -> TopicSpec:
        try:
            return self._cluster.check_topic(spec)
        except InvalidTopic as error:
            raise self._refusal(spec, error) from error

    def _refusal(self, spec: TopicSpec, error: InvalidTopic) -> RowRefused:
        """Return the error with the code of the first part of a wish that is refused by itself."""
        bare = TopicSpec(name=spec.name)
        placed = replace(bare, homes=spec.homes, home=spec.home)
        code = ErrorCode.INVALID_CONFIG
        if not self._is_valid(bare):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif self._is_valid(placed) and not self._is_valid(replace(placed, replication_factor=spec.replication_factor)):
            code = ErrorCode.INVALID_REPLICATION_FACTOR
        return RowRefused(code, str(error))

    def _is_valid(self, spec: TopicSpec) -> bool:
        try:
            self._cluster.check_topic(spec)
        except InvalidTopic:
            return False
        except GeorelayError:
            return True  # it is there meanwhile, or may not be made: not a mistake of its form
        return True

    def _with_configs(
        self, row: CreatableTopicResult, values: Mapping[str, str], principal: Principal
    ) -> CreatableTopicResult:
        """Add the settings, or say that the principal may not see them; then it sees no numbers either."""
        refused = self._access.refusal(principal, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, row.name)
        if refused is None:
            return replace(row, configs=created_rows(values))
        code = kafka_code(refused)
        return replace(row, topic_config_error_code=code, num_partitions=-1, replication_factor=-1, configs=())


def _spec(topic: CreatableTopic) -> TopicSpec:
    """Return the definition asked for, or the most telling error Kafka has."""
    if TOPIC_NAME.fullmatch(topic.name) is None:
        raise RowRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic name is 1..249 of a-z A-Z 0-9 . _ -")
    if topic.assignments:
        raise RowRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas are assigned by the regions")
    if topic.num_partitions != -1 and not 1 <= topic.num_partitions <= PARTITIONS_PER_TOPIC_MAX:
        text = f"partitions must be 1..{PARTITIONS_PER_TOPIC_MAX}, or -1 for the default"
        raise RowRefused(ErrorCode.INVALID_PARTITIONS, text)
    if topic.replication_factor != -1 and topic.replication_factor < 1:
        text = "the replication factor must be at least 1, or -1 for the default"
        raise RowRefused(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    spec = TopicSpec(name=topic.name, partitions=topic.num_partitions, replication_factor=topic.replication_factor)
    try:
        return spec.with_settings(wished((row.name, row.value) for row in topic.configs))
    except InvalidTopic as error:
        raise RowRefused(ErrorCode.INVALID_CONFIG, str(error)) from error


class DeleteTopicsHandler:
    """Answers DeleteTopics."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: DeleteTopicsRequest) -> None:
        """Delete topics one after the other."""
        slot.spawn(self._answer(request, slot.connection.principal))

    async def _answer(self, request: DeleteTopicsRequest, principal: Principal) -> DeleteTopicsResponse:
        named = [DeleteTopicState(name=name) for name in request.topic_names]
        by_id = {}
        if not all(topic.name for topic in request.topics):
            by_id = {view.wire_id: view.name for view in self._cluster.topics()}
        rows = [
            await self._delete(topic, by_id.get(topic.topic_id), request.timeout_ms, principal)
            for topic in (*request.topics, *named)
        ]
        return DeleteTopicsResponse(responses=rows)

    async def _delete(
        self, topic: DeleteTopicState, found: str | None, timeout_ms: int, principal: Principal
    ) -> DeletableTopicResult:
        """Delete one; `found`: the topic that its id stands for."""
        name = topic.name or None
        if name is None:
            name = found
            if name is not None and not self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name):
                name = None  # whoever may not see it does not learn from its id that it is there
        if name is None:
            return DeletableTopicResult(
                name=None, topic_id=topic.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID, error_message="no such id"
            )
        try:
            self._access.check(principal, Operation.DELETE, Resource.TOPIC, name)
            with self._access.noted(principal, "topic.deleted", topic=name):
                await within(timeout_ms, self._cluster.delete_topic(name))
        except GeorelayError as error:
            return DeletableTopicResult(
                name=name, topic_id=topic.topic_id, error_code=kafka_code(error), error_message=str(error)
            )
        return DeletableTopicResult(name=name, topic_id=topic.topic_id)
