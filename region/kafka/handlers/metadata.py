"""Metadata: brokers of this region, topics, leaders.

Rule 1: the bytes of an answer are cached per (metadata epoch, version, topics asked for): encoding ten topics of
        twelve partitions costs a millisecond of event loop, patching a correlation id nothing.
Rule 2: an unknown topic is created with defaults when client and mesh both allow it.
Rule 3: while a partition elects a leader the answer waits for it, a moment: clients that read "no leader" ask again
        after a second only, and an election takes a fifth of that. One that stays without a leader is not waited for.
Rule 4: the leader epoch is the HOME epoch; a change of the leader inside the region does not move it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

from georelay.errors import GeorelayError
from georelay.wire.api import ErrorCode, encode_response
from georelay.wire.requests import MetadataRequest, MetadataRequestTopic
from georelay.wire.responses import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from region.controller.topic import TOPIC_NAME
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.ports import NO_LEADER, TopicView
from region.kafka.services import KafkaServices

CACHED_ANSWERS_MAX: Final = 256
CREATED_PER_REQUEST_MAX: Final = 100  # further unknown topics of one request are only unknown
LEADER_WAIT_S: Final = 0.5  # counted from when a partition was first seen without a leader
LEADER_POLL_S: Final = 0.01
LEADERLESS_PARTITIONS_MAX: Final = 10_000  # remembered; beyond it the memory starts anew
_CORRELATION: Final = struct.Struct(">i")

_Key = tuple[int, tuple[tuple[bytes, str | None], ...] | None]


class MetadataHandler:
    """Answers Metadata; owns the cache."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._cache: dict[_Key, bytes] = {}
        self._cache_epoch = -1
        self._leaderless_since: dict[tuple[str | None, int], float] = {}

    def handle(self, slot: Slot, request: MetadataRequest) -> None:
        """Answer from the cache, build the answer, or create what is missing first."""
        wanted = self._wanted(request, slot.api_version)
        key = (slot.api_version, None if wanted is None else tuple((t.topic_id, t.name) for t in wanted))
        if self._cache_epoch != self._cluster.metadata_epoch:
            self._cache.clear()
            self._cache_epoch = self._cluster.metadata_epoch
        cached = self._cache.get(key)
        if cached is not None:
            slot.answer_encoded((cached[:4], _CORRELATION.pack(slot.header.correlation_id), cached[8:]))
            return
        creatable = self._creatable(wanted) if request.allow_auto_topic_creation else []
        if creatable:
            slot.spawn(self._create_and_answer(wanted, creatable))
            return
        response = self._response(wanted, {})
        if self._is_electing(response):
            slot.spawn(self._answer_with_leaders(wanted))
            return
        buffers = encode_response(response, api_version=slot.api_version, correlation_id=slot.header.correlation_id)
        if len(self._cache) < CACHED_ANSWERS_MAX and all(topic.error_code == 0 for topic in response.topics):
            self._cache[key] = b"".join(buffers)
        slot.answer_encoded(buffers)

    @staticmethod
    def _wanted(request: MetadataRequest, version: int) -> Sequence[MetadataRequestTopic] | None:
        """Return the topics asked for, None for all."""
        if request.topics is None or (version == 0 and not request.topics):
            return None
        return request.topics

    def _creatable(self, wanted: Sequence[MetadataRequestTopic] | None) -> list[str]:
        if wanted is None or not self._cluster.auto_create_topics:
            return []
        unknown = [topic.name for topic in wanted if topic.name and self._cluster.topic(topic.name) is None]
        return [name for name in dict.fromkeys(unknown) if TOPIC_NAME.fullmatch(name)][:CREATED_PER_REQUEST_MAX]

    def _is_electing(self, response: MetadataResponse) -> bool:
        """Return whether a partition lost its leader so lately that it is worth to wait for the next one."""
        now = asyncio.get_running_loop().time()
        since = self._leaderless_since
        if len(since) > LEADERLESS_PARTITIONS_MAX:
            since.clear()
        electing = False
        for topic in response.topics:
            for row in topic.partitions:
                key = (topic.name, row.partition_index)
                if row.leader_id != NO_LEADER:
                    since.pop(key, None)
                elif now - since.setdefault(key, now) < LEADER_WAIT_S:
                    electing = True
        return electing

    async def _answer_with_leaders(self, wanted: Sequence[MetadataRequestTopic] | None) -> MetadataResponse:
        epoch = self._cluster.metadata_epoch
        response = self._response(wanted, {})
        while self._is_electing(response):
            await asyncio.sleep(LEADER_POLL_S)
            if epoch != self._cluster.metadata_epoch:
                epoch = self._cluster.metadata_epoch
                response = self._response(wanted, {})
        return response

    async def _create_and_answer(
        self, wanted: Sequence[MetadataRequestTopic] | None, names: Sequence[str]
    ) -> MetadataResponse:
        refused: dict[str, ErrorCode] = {}
        for name in names:
            try:
                await self._cluster.ensure_topic(name)
            except GeorelayError as error:
                refused[name] = kafka_code(error)
        return self._response(wanted, refused)

    def _response(
        self, wanted: Sequence[MetadataRequestTopic] | None, refused: dict[str, ErrorCode]
    ) -> MetadataResponse:
        cluster = self._cluster
        brokers = cluster.brokers()
        alive = frozenset(broker.id for broker in brokers if broker.alive)
        if wanted is None:
            topics = [self._topic(view, alive) for view in cluster.topics()]
        else:
            topics = [self._asked(topic, refused, alive) for topic in wanted]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.id, host=broker.kafka_host, port=broker.kafka_port, rack=cluster.region
                )
                for broker in brokers
            ],
            cluster_id=cluster.mesh_id,
            controller_id=cluster.controller_id,
            topics=topics,
        )

    def _asked(
        self, topic: MetadataRequestTopic, refused: dict[str, ErrorCode], alive: frozenset[int]
    ) -> MetadataResponseTopic:
        if topic.name is None:
            found = next((view for view in self._cluster.topics() if view.wire_id == topic.topic_id), None)
            if found is None:
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id)
            return self._topic(found, alive)
        view = self._cluster.topic(topic.name)
        if view is not None:
            return self._topic(view, alive)
        code = refused.get(topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if TOPIC_NAME.fullmatch(topic.name) is None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif topic.name not in refused and self._cluster.auto_create_topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(error_code=code, name=topic.name)

    def _topic(self, view: TopicView, alive: frozenset[int]) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=view.name,
            topic_id=view.wire_id,
            is_internal=view.internal,
            partitions=[self._partition(view.name, index, alive) for index in range(view.partitions)],
        )

    def _partition(self, name: str, index: int, alive: frozenset[int]) -> MetadataResponsePartition:
        cluster = self._cluster
        leader = cluster.leader_of(name, index)
        replicas = list(cluster.replicas_of(name, index))
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=leader,
            leader_epoch=cluster.epoch_of(name, index),
            replica_nodes=replicas,
            isr_nodes=[replica for replica in replicas if replica in alive],
            offline_replicas=[replica for replica in replicas if replica not in alive],
        )
