"""Metadata: brokers of this region, topics, leaders.

Rule 1: the bytes of an answer are cached per (metadata epoch, version, topics asked for): encoding ten topics of
        twelve partitions costs a millisecond of event loop, patching a correlation id nothing.
Rule 2: an unknown topic is created with defaults when client and mesh both allow it; the answer waits for its leaders.
Rule 3: while a partition elects a leader the answer waits for it, a moment: clients that read "no leader" ask again
        after a second only, and an election takes a fifth of that. One that stays without a leader is not waited for.
Rule 4: a topic that the principal may not describe is left out of "all topics"; named, it is answered with
        TOPIC_AUTHORIZATION_FAILED whether it exists or not, and an id that stands for it is unknown.
Rule 5: the leader epoch is the HOME epoch; a change of the leader inside the region does not move it.
Rule 6: a broker that has just started waits until it knows its region: "no brokers, no such topic" would send clients
        away for minutes.
Rule 7: while operators drain the region for clients, a client whose turn has come is told of the brokers and leaders of
        another region, as far as it leads as well (region.kafka.client_drain_core).
Rule 8: a region that was removed from the mesh sends its clients away: REBOOTSTRAP_REQUIRED (KIP-1102) lets those that
        know it begin at their bootstrap servers again, where a gateway names another region.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from georelay.errors import GeorelayError, Throttled
from georelay.limits import MIB
from georelay.wire.api import ErrorCode, encode_response
from georelay.wire.requests import MetadataRequest, MetadataRequestTopic
from georelay.wire.responses import (
    NO_OPERATIONS,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from georelay.wire.schema import NO_UUID
from region.controller.topic import TOPIC_NAME
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.first_leaders import first_leaders
from region.kafka.handlers.positions import is_leaving
from region.kafka.ports import NO_LEADER, BrokerInfo, Cluster, TopicView
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

CACHED_ANSWERS_MAX: Final = 256
CACHED_BYTES_MAX: Final = 64 * MIB
CREATED_PER_REQUEST_MAX: Final = 100  # further unknown topics of one request are only unknown
LEADER_WAIT_S: Final = 0.5  # counted from when a partition was first seen without a leader
LEADER_POLL_S: Final = 0.01
READY_WAIT_S: Final = 5.0  # after that the answer is what there is: the region may be gone for long
READY_POLL_S: Final = 0.02
NULL_NAME_SINCE: Final = 12  # version of the answer
LEADERLESS_PARTITIONS_MAX: Final = 10_000  # remembered; beyond it the memory starts anew
_CORRELATION: Final = struct.Struct(">i")

_Key = tuple[int, tuple[tuple[bytes, str | None], ...] | None, tuple[bool, bool], Principal | None, bool]


class _Asker(NamedTuple):
    """Who asks, whether it wants to know what it may do (KIP-430), and whether it is sent to another region."""

    principal: Principal
    of_topics: bool
    of_cluster: bool
    nameless: str | None  # how the version writes a topic without a name
    is_leaving: bool


class MetadataHandler:
    """Answers Metadata; owns the cache."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access
        self._cache: dict[_Key, bytes] = {}
        self._cache_bytes = 0
        self._cache_epoch = (-1, -1, -1)
        self._leaderless_since: dict[tuple[str | None, int], float] = {}
        self._knows_region = False

    def handle(self, slot: Slot, request: MetadataRequest) -> None:
        """Answer from the cache, build the answer, or create what is missing first."""
        if self._knows_region:
            self._handle(slot, request)
        else:
            self._handle_when_ready(slot, request, until=asyncio.get_running_loop().time() + READY_WAIT_S)

    def _handle_when_ready(self, slot: Slot, request: MetadataRequest, *, until: float) -> None:
        if slot.answered:  # the client has gone
            return
        loop = asyncio.get_running_loop()
        if self._cluster.ready():
            self._knows_region = True
        elif loop.time() < until:
            loop.call_later(READY_POLL_S, partial(self._handle_when_ready, slot, request, until=until))
            return
        self._handle(slot, request)

    def _handle(self, slot: Slot, request: MetadataRequest) -> None:
        wanted = self._wanted(request, slot.api_version)
        operations = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
        leaving = is_leaving(self._cluster, slot)
        nameless = None if slot.api_version >= NULL_NAME_SINCE else ""
        asker = _Asker(slot.connection.principal, *operations, nameless, leaving)
        names = None if wanted is None else tuple((t.topic_id, t.name) for t in wanted)
        key = (slot.api_version, names, operations, asker.principal if self._access.enforced else None, leaving)
        epoch = (self._cluster.metadata_epoch, self._access.version, self._cluster.drain.version)
        if self._cache_epoch != epoch:
            self._cache.clear()
            self._cache_bytes = 0
            self._cache_epoch = epoch
        cached = self._cache.get(key)
        if cached is not None:
            slot.answer_encoded((cached[:4], _CORRELATION.pack(slot.header.correlation_id), cached[8:]))
            return
        refused: dict[str, ErrorCode] = {}
        creatable = self._creatable(asker.principal, wanted, refused) if request.allow_auto_topic_creation else []
        if creatable:
            slot.spawn(self._create_and_answer(asker, wanted, creatable, refused))
            return
        response = self._response(asker, wanted, refused)
        if self._is_electing(response):
            slot.spawn(self._answer_with_leaders(asker, wanted))
            return
        buffers = encode_response(response, api_version=slot.api_version, correlation_id=slot.header.correlation_id)
        size_bytes = sum(map(len, buffers))
        has_room = len(self._cache) < CACHED_ANSWERS_MAX and self._cache_bytes + size_bytes <= CACHED_BYTES_MAX
        if has_room and all(topic.error_code == 0 for topic in response.topics):
            self._cache[key] = b"".join(buffers)
            self._cache_bytes += size_bytes
        slot.answer_encoded(buffers)

    @staticmethod
    def _wanted(request: MetadataRequest, version: int) -> Sequence[MetadataRequestTopic] | None:
        """Return the topics asked for, each once: an answer is much longer than a question. None for all."""
        if request.topics is None or (version == 0 and not request.topics):
            return None
        return list({(topic.topic_id, topic.name): topic for topic in request.topics}.values())

    def _creatable(
        self, principal: Principal, wanted: Sequence[MetadataRequestTopic] | None, refused: dict[str, ErrorCode]
    ) -> list[str]:
        """Return the names to create now; `refused` gets those that the principal may see and not create."""
        if wanted is None or not self._cluster.auto_create_topics:
            return []
        unknown = [topic.name for topic in wanted if topic.name and self._cluster.topic(topic.name) is None]
        names = []
        for name in [name for name in dict.fromkeys(unknown) if TOPIC_NAME.fullmatch(name)][:CREATED_PER_REQUEST_MAX]:
            if not self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name):
                continue  # answered as any other that it may not see
            if self._access.may_create_topic(principal, name):
                names.append(name)
            else:
                refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return names

    def _is_electing(self, response: MetadataResponse) -> bool:
        """Return whether a partition lost its leader so lately that it is worth to wait for the next one."""
        now = asyncio.get_running_loop().time()
        since = self._leaderless_since
        leaderless = set[tuple[str | None, int]]()
        for topic in response.topics:
            for row in topic.partitions:
                key = (topic.name, row.partition_index)
                if row.leader_id == NO_LEADER:
                    leaderless.add(key)
                else:
                    since.pop(key, None)
        if len(leaderless) > LEADERLESS_PARTITIONS_MAX:
            return False  # so many lost theirs that it will take longer, and nobody can be remembered
        if len(since) > LEADERLESS_PARTITIONS_MAX:
            since.clear()
        for key in leaderless:
            since.setdefault(key, now)
        return any(now - since[key] < LEADER_WAIT_S for key in leaderless)

    async def _answer_with_leaders(
        self, asker: _Asker, wanted: Sequence[MetadataRequestTopic] | None
    ) -> MetadataResponse:
        epoch = self._cluster.metadata_epoch
        response = self._response(asker, wanted, {})
        while self._is_electing(response):
            await asyncio.sleep(LEADER_POLL_S)
            if epoch != self._cluster.metadata_epoch:
                epoch = self._cluster.metadata_epoch
                response = self._response(asker, wanted, {})
        return response

    async def _create_and_answer(
        self,
        asker: _Asker,
        wanted: Sequence[MetadataRequestTopic] | None,
        names: Sequence[str],
        refused: dict[str, ErrorCode],
    ) -> MetadataResponse:
        for name in names:
            try:
                with self._access.noted(asker.principal, "topic.created", topic=name, how="automatic"):
                    await self._cluster.ensure_topic(name, by=self._access.share_of(asker.principal))
            except GeorelayError as error:
                is_throttled = isinstance(error, Throttled)  # which consumers and producers do not know: they wait
                refused[name] = ErrorCode.LEADER_NOT_AVAILABLE if is_throttled else kafka_code(error)
        await first_leaders(self._cluster, (name for name in names if name not in refused))
        return self._response(asker, wanted, refused)

    def _response(
        self, asker: _Asker, wanted: Sequence[MetadataRequestTopic] | None, refused: dict[str, ErrorCode]
    ) -> MetadataResponse:
        cluster = self._cluster
        if cluster.has_left:
            return MetadataResponse(cluster_id=cluster.mesh_id, error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        brokers = cluster.brokers()
        alive = frozenset(broker.id for broker in brokers if broker.alive)
        if wanted is None:
            topics = [self._topic(asker, view, alive) for view in cluster.topics() if self._sees(asker, view.name)]
        else:
            by_id = {}
            if any(map(_is_by_id, wanted)):
                by_id = {view.wire_id: view for view in cluster.topics()}
            topics = [self._asked(asker, topic, by_id.get(topic.topic_id), refused, alive) for topic in wanted]
        shown, controller = self._shown(asker, brokers, topics)
        return MetadataResponse(
            brokers=shown,
            cluster_id=cluster.mesh_id,
            controller_id=controller,
            topics=topics,
            cluster_authorized_operations=self._cluster_operations(asker),
        )

    def _shown(
        self, asker: _Asker, own: Sequence[BrokerInfo], topics: Sequence[MetadataResponseTopic]
    ) -> tuple[list[MetadataResponseBroker], int]:
        """Return the brokers that a client is told of, and the one that it sends changes of topics to (rule 7)."""
        cluster, drain = self._cluster, self._cluster.drain
        if not asker.is_leaving or not drain.is_open:
            return [_shown(broker, cluster.region) for broker in own], cluster.controller_id
        shown = [_shown(broker, drain.region) for broker in drain.brokers]
        ids = {broker.id for broker in own}
        if any(row.leader_id in ids for topic in topics for row in topic.partitions):
            shown += [_shown(broker, cluster.region) for broker in own]
        return shown, shown[0].node_id

    def _sees(self, asker: _Asker, name: str) -> bool:
        return self._access.allows(asker.principal, Operation.DESCRIBE, Resource.TOPIC, name)

    def _cluster_operations(self, asker: _Asker) -> int:
        if not asker.of_cluster:
            return NO_OPERATIONS
        if not self._access.allows(asker.principal, Operation.DESCRIBE, Resource.CLUSTER):
            return 0
        return self._access.authorized_operations(asker.principal, Resource.CLUSTER)

    def _asked(
        self,
        asker: _Asker,
        topic: MetadataRequestTopic,
        found: TopicView | None,  # by its id
        refused: dict[str, ErrorCode],
        alive: frozenset[int],
    ) -> MetadataResponseTopic:
        if topic.name is None or _is_by_id(topic):
            if found is None or not self._sees(asker, found.name):
                return MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=asker.nameless, topic_id=topic.topic_id
                )
            return self._topic(asker, found, alive)
        denied = self._access.refusal(asker.principal, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        if denied is not None:
            return MetadataResponseTopic(error_code=kafka_code(denied), name=topic.name)
        view = self._cluster.topic(topic.name)
        if view is not None:
            return self._topic(asker, view, alive)
        code = refused.get(topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if TOPIC_NAME.fullmatch(topic.name) is None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif topic.name not in refused and self._cluster.auto_create_topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(error_code=code, name=topic.name)

    def _topic(self, asker: _Asker, view: TopicView, alive: frozenset[int]) -> MetadataResponseTopic:
        operations = NO_OPERATIONS
        if asker.of_topics:
            operations = self._access.authorized_operations(asker.principal, Resource.TOPIC, view.name)
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=view.name,
            topic_id=view.wire_id,
            is_internal=view.internal,
            partitions=[self._partition(asker, view, index, alive) for index in range(view.partitions)],
            topic_authorized_operations=operations,
        )

    def _partition(
        self, asker: _Asker, view: TopicView, index: int, alive: Container[int]
    ) -> MetadataResponsePartition:
        row = partition_row(self._cluster, view.name, index, alive)
        leader = self._cluster.drain.leader(view, index) if asker.is_leaving else None
        if leader is None:
            return row
        return replace(
            row,
            error_code=ErrorCode.NONE,
            leader_id=leader,
            replica_nodes=[leader],
            isr_nodes=[leader],
            offline_replicas=[],
        )


def _shown(broker: BrokerInfo, region: str) -> MetadataResponseBroker:
    return MetadataResponseBroker(node_id=broker.id, host=broker.kafka_host, port=broker.kafka_port, rack=region)


def partition_row(cluster: Cluster, name: str, index: int, alive: Container[int]) -> MetadataResponsePartition:
    """Return what clients are told of a partition; `alive` are the brokers that run."""
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


def _is_by_id(topic: MetadataRequestTopic) -> bool:
    """Return whether a topic is asked for by its id: the name is null, or empty as Java's Admin writes it."""
    return topic.name is None or (not topic.name and topic.topic_id != NO_UUID)
