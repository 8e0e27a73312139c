"""ElectLeaders and AlterPartitionReassignments: Kafka's words for what brokers of a region do with replicas.

Rule 1: brokers hand leadership to the first replica by themselves, so an election of the preferred leader is waited
        for, not ordered. Nobody but a replica that has everything leads: an unclean election is never done.
Rule 2: a move is begun and answered; ListPartitionReassignments shows how far it is. A move is taken back by a move to
        the replicas that count now.
Rule 3: both concern one region: its brokers, its replicas. They need ALTER on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from georelay.errors import BadRequest, GeorelayError, UnknownTopic
from georelay.ids import BROKERS_PER_REGION_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from region.controller.topology import BROKER_ID_MAX
from region.kafka.connection import Slot
from region.kafka.error_map import RowRefused, kafka_code
from region.kafka.patience import within
from region.kafka.ports import NO_LEADER
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource
from region.security.change_details import shown_numbers

PREFERRED: Final = 0
UNCLEAN: Final = 1
LOOK_S: Final = 0.05
PARTITIONS_PER_TURN: Final = 1_000  # looked at; between two turns other clients are served
_Place = tuple[str, int]
_Outcome = tuple[ErrorCode, str | None]
_DONE: Final[_Outcome] = (ErrorCode.NONE, None)
_NOT_NEEDED: Final[_Outcome] = (ErrorCode.ELECTION_NOT_NEEDED, "it leads already")


class ElectLeadersHandler:
    """Answers ElectLeaders (KIP-183, KIP-460)."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: ElectLeadersRequest) -> None:
        """Wait until the preferred replicas lead, as long as the client does."""
        slot.spawn(self._answer(request, slot.connection.principal))

    async def _answer(self, request: ElectLeadersRequest, principal: Principal) -> ElectLeadersResponse:
        is_all = request.topic_partitions is None
        places = self._places(request)
        refused = self._access.refusal(principal, Operation.ALTER, Resource.CLUSTER)
        if refused is not None:
            denied = {} if is_all else dict.fromkeys(places, (kafka_code(refused), None))
            return ElectLeadersResponse(error_code=kafka_code(refused), replica_election_results=_grouped(denied))
        if request.election_type not in (PREFERRED, UNCLEAN):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        loop = asyncio.get_running_loop()
        until = loop.time() + max(request.timeout_ms, 0) / 1000
        outcomes: dict[_Place, _Outcome] = {}
        waiting = dict.fromkeys(places, True)  # whether it is the first look
        while waiting:
            is_over = loop.time() >= until
            for count, (place, is_first) in enumerate(list(waiting.items()), start=1):
                outcome = self._look(place, request.election_type, is_first=is_first, is_over=is_over)
                if outcome is None:
                    waiting[place] = False
                else:
                    outcomes[place] = outcome
                    del waiting[place]
                if count % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if waiting:
                await asyncio.sleep(LOOK_S)
        shown = {place: outcomes[place] for place in places if not (is_all and outcomes[place] == _NOT_NEEDED)}
        return ElectLeadersResponse(replica_election_results=_grouped(shown))

    def _places(self, request: ElectLeadersRequest) -> list[_Place]:
        if request.topic_partitions is None:
            return [(view.name, index) for view in self._cluster.topics() for index in range(view.partitions)]
        wanted = [(row.topic, index) for row in request.topic_partitions for index in row.partitions]
        return list(dict.fromkeys(wanted))

    def _look(self, place: _Place, election_type: int, *, is_first: bool, is_over: bool) -> _Outcome | None:
        """Return what became of a partition's election, None while it is waited for."""
        name, index = place
        view = self._cluster.topic(name)
        if view is None or not 0 <= index < view.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name[:64]!r}"
        leader = self._cluster.leader_of(name, index)
        if election_type == UNCLEAN:
            if leader != NO_LEADER:
                return _NOT_NEEDED
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "only a replica that has everything may lead"
        preferred = next(iter(self._cluster.replicas_of(name, index)), NO_LEADER)
        if leader == preferred != NO_LEADER:
            return _NOT_NEEDED if is_first else _DONE
        if preferred not in {broker.id for broker in self._cluster.brokers() if broker.alive}:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred}, the first replica, is not there"
        if not is_over:
            return None
        return ErrorCode.REQUEST_TIMED_OUT, f"brokers hand it to {preferred} by themselves, and did not yet; ask again"


def _grouped(outcomes: Mapping[_Place, _Outcome]) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionElectionResult]] = {}
    for (name, index), (code, text) in outcomes.items():
        topics.setdefault(name, []).append(PartitionElectionResult(index, code, text))
    return [ReplicaElectionResult(topic=name, partition_result=rows) for name, rows in topics.items()]


class AlterPartitionReassignmentsHandler:
    """Answers AlterPartitionReassignments (KIP-455, KIP-860)."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access

    def handle(self, slot: Slot, request: AlterPartitionReassignmentsRequest) -> None:
        """Begin to move partitions, one after the other; each has its own outcome."""
        slot.spawn(self._answer(request, slot.connection.principal))

    async def _answer(
        self, request: AlterPartitionReassignmentsRequest, principal: Principal
    ) -> AlterPartitionReassignmentsResponse:
        refused = self._access.refusal(principal, Operation.ALTER, Resource.CLUSTER)
        if refused is not None:
            return AlterPartitionReassignmentsResponse(error_code=kafka_code(refused), error_message=str(refused))
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                try:
                    await self._move(topic.name, wanted, request, principal)
                except (RowRefused, GeorelayError) as error:
                    rows.append(ReassignablePartitionResponse(wanted.partition_index, kafka_code(error), str(error)))
                else:
                    rows.append(ReassignablePartitionResponse(wanted.partition_index))
            topics.append(ReassignableTopicResponse(name=topic.name, partitions=rows))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=topics
        )

    async def _move(
        self,
        name: str,
        wanted: ReassignablePartition,
        request: AlterPartitionReassignmentsRequest,
        principal: Principal,
    ) -> None:
        index = wanted.partition_index
        view = self._cluster.topic(name)
        if view is None or not 0 <= index < view.partitions:
            raise UnknownTopic(f"there is no partition {index} of {name[:64]!r}")
        row = next(row for row in await self._cluster.replicas_status(name) if row.partition == index)
        if wanted.replicas is None and row.is_settled:
            raise RowRefused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "nothing moves")
        replicas = row.voters if wanted.replicas is None else _checked(tuple(wanted.replicas))
        if not request.allow_replication_factor_change and len(replicas) != len(row.target):
            text = f"the partition has {len(row.target)} replicas, and their number is not to change"
            raise RowRefused(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        about = {"topic": name, "partitions": str(index), "replicas": shown_numbers(replicas)}
        try:
            with self._access.noted(principal, "topic.reassigned", **about):
                await within(request.timeout_ms, self._cluster.reassign(name, index, replicas))
        except BadRequest as error:
            raise RowRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)) from error


def _checked(replicas: tuple[int, ...]) -> tuple[int, ...]:
    is_good = 1 <= len(replicas) <= BROKERS_PER_REGION_MAX and len(set(replicas)) == len(replicas)
    if not is_good or not all(1 <= broker <= BROKER_ID_MAX for broker in replicas):
        text = f"replicas: name 1..{BROKERS_PER_REGION_MAX} brokers of this region, none of them twice"
        raise RowRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return replicas
