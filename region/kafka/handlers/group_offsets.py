"""OffsetCommit, OffsetFetch and OffsetDelete.

Rule 1: names are turned into streams here, at the group's coordinator: what is kept belongs to a stream.
Rule 2: every partition has its own outcome, and a commit is answered when it is applied.
Rule 3: of topics that a client may not describe it learns nothing, not even that they exist.
Rule 4: that nothing was committed is said only by who must know: a client begins elsewhere then, for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from georelay.ids import StreamKey
from georelay.wire.api import ErrorCode
from georelay.wire.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from region.groups.offsets_core import NO_LEADER_EPOCH, NO_OFFSET, CommittedOffset
from region.groups.part import GroupsPart
from region.groups.settings import OFFSETS_PER_COMMIT_MAX
from region.groups.values import Identity
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.group_parts import LOADING, part_for
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource

ERROR_SINCE: Final = 2  # OffsetFetch: before, every partition carries the error of the group
BATCH_SINCE: Final = 8  # OffsetFetch: several groups
GROUPS_PER_REQUEST_MAX: Final = 100

Row = tuple[int, CommittedOffset | None, ErrorCode]  # partition, offset, error
Place = tuple[str, int]


class GroupOffsetsHandler:
    """Answers everything about committed offsets."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    # --- OffsetCommit -----------------------------------------------------------------------------

    def commit(self, slot: Slot, request: OffsetCommitRequest) -> None:
        """Answer when the offsets are applied."""
        part = part_for(self._services, slot, Operation.READ, request.group_id, may_be_unnamed=True)
        if not isinstance(part, ErrorCode) and sum(len(t.partitions) for t in request.topics) > OFFSETS_PER_COMMIT_MAX:
            part = ErrorCode.INVALID_REQUEST
        if isinstance(part, ErrorCode):
            slot.answer(_commit_response(request.topics, {}, part))
            return
        refused: dict[Place, ErrorCode] = {}
        keys: dict[Place, StreamKey] = {}
        rows: dict[StreamKey, CommittedOffset] = {}
        for topic in request.topics:
            denied = self._denied(slot, Operation.READ, topic.name)
            for wanted in topic.partitions:
                place = (topic.name, wanted.partition_index)
                key = part.names.key_of(*place)
                if denied is not ErrorCode.NONE or key is None:
                    refused[place] = denied or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                keys[place] = key
                rows[key] = CommittedOffset(
                    offset=wanted.committed_offset,
                    leader_epoch=wanted.committed_leader_epoch,
                    metadata=wanted.committed_metadata or "",
                )

        def done(codes: Mapping[StreamKey, ErrorCode]) -> None:
            outcomes = {**refused, **{place: codes[key] for place, key in keys.items()}}
            slot.answer(_commit_response(request.topics, outcomes, ErrorCode.NONE))

        who = Identity(
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
        )
        part.commit(request.group_id, who, rows, done, principal=slot.connection.principal.name)

    # --- OffsetFetch ------------------------------------------------------------------------------

    def fetch(self, slot: Slot, request: OffsetFetchRequest) -> None:
        """Answer from what is applied here."""
        if slot.api_version < BATCH_SINCE:
            places = None if request.topics is None else _places((t.name, t.partition_indexes) for t in request.topics)
            code, found = self._offsets(slot, request.group_id, places, require_stable=request.require_stable)
            if code is not ErrorCode.NONE and slot.api_version < ERROR_SINCE:
                for name, partition in places or ():
                    found.setdefault(name, []).append((partition, None, code))
            slot.answer(OffsetFetchResponse(error_code=code, topics=_topics(found)))
            return
        groups = []
        for at, wanted in enumerate({group.group_id: group for group in request.groups}.values()):
            places = None if wanted.topics is None else _places((t.name, t.partition_indexes) for t in wanted.topics)
            code, found = ErrorCode.INVALID_REQUEST, {}
            if at < GROUPS_PER_REQUEST_MAX:
                code, found = self._offsets(slot, wanted.group_id, places, require_stable=request.require_stable)
            groups.append(
                OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=code, topics=_group_topics(found))
            )
        slot.answer(OffsetFetchResponse(groups=groups))

    def _offsets(
        self, slot: Slot, group_id: str, places: Sequence[Place] | None, *, require_stable: bool
    ) -> tuple[ErrorCode, dict[str, list[Row]]]:
        part = part_for(self._services, slot, Operation.DESCRIBE, group_id, may_be_unnamed=True)
        if isinstance(part, ErrorCode):
            return part, {}
        if places is None:
            return ErrorCode.NONE, self._all_offsets(slot, part, group_id, require_stable=require_stable)
        denied = {name: self._denied(slot, Operation.DESCRIBE, name) for name in {place[0] for place in places}}
        keys = {place: part.names.key_of(*place) for place in places if denied[place[0]] is ErrorCode.NONE}
        if None in keys.values() and not self._services.cluster.ready():
            return LOADING, {}  # the topic may be younger than what this broker has heard of
        found = part.fetch(group_id, [key for key in keys.values() if key is not None], require_stable=require_stable)
        topics: dict[str, list[Row]] = {}
        for place in places:
            key = keys.get(place)
            row, code = found[key] if key is not None else (None, denied[place[0]])
            topics.setdefault(place[0], []).append((place[1], row, code))
        return ErrorCode.NONE, topics

    def _all_offsets(
        self, slot: Slot, part: GroupsPart, group_id: str, *, require_stable: bool
    ) -> dict[str, list[Row]]:
        access, principal = self._services.access, slot.connection.principal
        topics: dict[str, list[Row]] = {}
        for key, (row, code) in part.fetch(group_id, None, require_stable=require_stable).items():
            name = part.names.name_of(key)
            if name is not None and access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name):
                topics.setdefault(name, []).append((key.partition, row, code))
        return topics

    # --- OffsetDelete -----------------------------------------------------------------------------

    def delete(self, slot: Slot, request: OffsetDeleteRequest) -> None:
        """Forget offsets that no member needs."""
        part = part_for(self._services, slot, Operation.DELETE, request.group_id, may_be_unnamed=True)
        if isinstance(part, ErrorCode):
            slot.answer(OffsetDeleteResponse(error_code=part))
            return
        places = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
        denied = {name: self._denied(slot, Operation.READ, name) for name in {place[0] for place in places}}
        keys = {place: part.names.key_of(*place) for place in places if denied[place[0]] is ErrorCode.NONE}

        def done(error: ErrorCode, codes: Mapping[StreamKey, ErrorCode]) -> None:
            if error is not ErrorCode.NONE:
                slot.answer(OffsetDeleteResponse(error_code=error))
                return
            topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
            for name, partition in dict.fromkeys(places):
                key = keys.get((name, partition))
                code = denied[name] or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key is None else codes[key]
                row = OffsetDeleteResponsePartition(partition_index=partition, error_code=code)
                topics.setdefault(name, []).append(row)
            rows = [OffsetDeleteResponseTopic(name=name, partitions=found) for name, found in topics.items()]
            slot.answer(OffsetDeleteResponse(topics=rows))

        part.delete_offsets(request.group_id, [key for key in keys.values() if key is not None], done)

    def _denied(self, slot: Slot, operation: Operation, topic: str) -> ErrorCode:
        refused = self._services.access.refusal(slot.connection.principal, operation, Resource.TOPIC, topic)
        return ErrorCode.NONE if refused is None else kafka_code(refused)


def _places(topics: Iterable[tuple[str, Sequence[int]]]) -> list[Place]:
    return [(name, partition) for name, partitions in topics for partition in partitions]


def _commit_response(
    topics: Sequence[OffsetCommitRequestTopic], outcomes: Mapping[Place, ErrorCode], default: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=outcomes.get((topic.name, row.partition_index), default),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def _topics(found: Mapping[str, Sequence[Row]]) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition,
                    committed_offset=NO_OFFSET if row is None else row.offset,
                    committed_leader_epoch=NO_LEADER_EPOCH if row is None else row.leader_epoch,
                    metadata="" if row is None else row.metadata,
                    error_code=code,
                )
                for partition, row, code in rows
            ],
        )
        for name, rows in found.items()
    ]


def _group_topics(found: Mapping[str, Sequence[Row]]) -> list[OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponseTopics(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=row.partition_index,
                    committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch,
                    metadata=row.metadata,
                    error_code=row.error_code,
                )
                for row in topic.partitions
            ],
        )
        for topic in _topics(found)
    ]
