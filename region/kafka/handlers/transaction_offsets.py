"""TxnOffsetCommit: offsets of a group that count only if a transaction commits.

Rule 1: the broker that coordinates the group answers; others answer NOT_COORDINATOR.
Rule 2: offsets are held only after the transaction's coordinator has said that it is open and has the group: they carry
        its number, by which the group tells them from those of the next one.
"""

from __future__ import annotations

from georelay.errors import GeorelayError
from georelay.wire.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from region.coordination.part import Part
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.coordinator_codes import coordinator_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource


class TxnOffsetCommitHandler:
    """Answers TxnOffsetCommit."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    def handle(self, slot: Slot, request: TxnOffsetCommitRequest) -> None:
        """Answer TxnOffsetCommit at the group's coordinator."""
        slot.spawn(self._answer(slot, request))

    async def _answer(self, slot: Slot, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        places = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
        codes: dict[tuple[str, int], int] = {}
        try:
            codes = await self._held(slot, request)
        except GeorelayError as error:
            codes = dict.fromkeys(places, coordinator_code(error, version=slot.api_version))
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=row.partition_index,
                            error_code=codes.get((topic.name, row.partition_index), 0),
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def _held(self, slot: Slot, request: TxnOffsetCommitRequest) -> dict[tuple[str, int], int]:
        principal = slot.connection.principal
        coordinators = self._services.coordinators
        access = self._services.access
        access.check(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        access.check(principal, Operation.READ, Resource.GROUP, request.group_id)
        codes: dict[tuple[str, int], int] = {}
        offsets = []
        for topic in request.topics:
            refused = access.refusal(principal, Operation.READ, Resource.TOPIC, topic.name)
            for row in topic.partitions:
                if refused is not None:
                    codes[topic.name, row.partition_index] = kafka_code(refused)
                    continue
                offsets.append(
                    {
                        "topic": topic.name,
                        "partition": row.partition_index,
                        "offset": row.committed_offset,
                        "leader_epoch": row.committed_leader_epoch,
                        "metadata": row.committed_metadata or "",
                    }
                )
        groups = coordinators.part_here(request.group_id, Part.GROUPS)
        producer = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch}
        verified = await coordinators.call(
            Part.TRANSACTIONS,
            request.transactional_id,
            "verify",
            {"transactional_id": request.transactional_id, "group_id": request.group_id, **producer},
            principal=principal.name,
        )
        body = {
            "group": request.group_id,
            "member_id": request.member_id,
            "instance_id": request.group_instance_id,
            "generation": request.generation_id,
            "number": verified["number"],
            "offsets": offsets,
            **producer,
        }
        answer = await groups.call("txn_commit", body, principal=principal.name)
        codes.update({(row["topic"], row["partition"]): row["error_code"] for row in answer["partitions"]})
        return codes
