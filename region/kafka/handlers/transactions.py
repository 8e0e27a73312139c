"""InitProducerId with a transactional id, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

Rule 1: they are answered by the broker that is the coordinator of the transactional id; others answer NOT_COORDINATOR,
        and the client asks for the coordinator again.
Rule 2: each needs the right to WRITE with the transactional id, to WRITE the topics and to READ the group it names.
"""

from __future__ import annotations

from typing import Final

from georelay.errors import GeorelayError
from georelay.ids import NO_PRODUCER
from georelay.wire.api import ErrorCode
from georelay.wire.requests import InitProducerIdRequest
from georelay.wire.responses import InitProducerIdResponse
from georelay.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
)
from region.coordination.part import JsonObject, Part
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.coordinator_codes import coordinator_code, named_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

FENCED_SINCE_INIT: Final = 4  # version of InitProducerId from which a fenced producer is told so


class TransactionHandlers:
    """One handler method per API."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    async def _ask(self, slot: Slot, transactional_id: str, operation: str, body: JsonObject) -> JsonObject:
        """Ask the coordinator of an id, which must be this broker.

        Raises:
            NotCoordinator, AccessDenied, and what the coordinator raises.
        """
        principal = slot.connection.principal
        self._services.access.check(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
        part = self._services.coordinators.part_here(transactional_id, Part.TRANSACTIONS)
        return await part.call(operation, {"transactional_id": transactional_id, **body}, principal=principal.name)

    # --- InitProducerId ---------------------------------------------------------------------------

    def init(self, slot: Slot, request: InitProducerIdRequest) -> None:
        """Answer InitProducerId for the new owner of a transactional id."""
        slot.spawn(self._init(slot, request))

    async def _init(self, slot: Slot, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if not request.transactional_id:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        body = {
            "timeout_ms": request.transaction_timeout_ms,
            "producer_id": max(request.producer_id, NO_PRODUCER),
            "producer_epoch": max(request.producer_epoch, -1),
        }
        try:
            answer = await self._ask(slot, request.transactional_id, "init", body)
        except GeorelayError as error:
            code = coordinator_code(error, version=slot.api_version, fenced_since=FENCED_SINCE_INIT)
            return InitProducerIdResponse(error_code=code)
        return InitProducerIdResponse(producer_id=answer["producer_id"], producer_epoch=answer["producer_epoch"])

    # --- AddPartitionsToTxn -----------------------------------------------------------------------

    def add_partitions(self, slot: Slot, request: AddPartitionsToTxnRequest) -> None:
        """Answer AddPartitionsToTxn: all partitions or none."""
        slot.spawn(self._add_partitions(slot, request))

    async def _add_partitions(self, slot: Slot, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        wanted = [(topic.name, row) for topic in request.v3_and_below_topics for row in topic.partitions]
        codes = self._refusals(slot.connection.principal, wanted)
        if not codes:
            body = {
                "producer_id": request.v3_and_below_producer_id,
                "producer_epoch": request.v3_and_below_producer_epoch,
                "partitions": [list(place) for place in wanted],
            }
            try:
                answer = await self._ask(slot, request.v3_and_below_transactional_id, "add_partitions", body)
                codes = {place: named_code(answer["errors"].get(f"{place[0]}/{place[1]}")) for place in wanted}
            except GeorelayError as error:
                codes = dict.fromkeys(wanted, coordinator_code(error, version=slot.api_version))
        # One refusal is every partition's: nothing was added.
        rest = ErrorCode.OPERATION_NOT_ATTEMPTED if any(codes.values()) else ErrorCode.NONE
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=row, partition_error_code=codes.get((topic.name, row)) or rest
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _refusals(self, principal: Principal, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], ErrorCode]:
        """Return the places that the client may not write to, each with its code."""
        access = self._services.access
        refused = {
            name: access.refusal(principal, Operation.WRITE, Resource.TOPIC, name)
            for name in {name for name, _ in wanted}
        }
        return {place: kafka_code(error) for place in wanted if (error := refused[place[0]]) is not None}

    # --- AddOffsetsToTxn, EndTxn ------------------------------------------------------------------

    def add_offsets(self, slot: Slot, request: AddOffsetsToTxnRequest) -> None:
        """Answer AddOffsetsToTxn."""
        slot.spawn(self._add_offsets(slot, request))

    async def _add_offsets(self, slot: Slot, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        try:
            self._check_group(slot.connection.principal, request.group_id)
            body = {
                "producer_id": request.producer_id,
                "producer_epoch": request.producer_epoch,
                "group_id": request.group_id,
            }
            await self._ask(slot, request.transactional_id, "add_offsets", body)
        except GeorelayError as error:
            return AddOffsetsToTxnResponse(error_code=coordinator_code(error, version=slot.api_version))
        return AddOffsetsToTxnResponse()

    def _check_group(self, principal: Principal, group: str) -> None:
        self._services.access.check(principal, Operation.READ, Resource.GROUP, group)

    def end(self, slot: Slot, request: EndTxnRequest) -> None:
        """Answer EndTxn once the decision is replicated."""
        slot.spawn(self._end(slot, request))

    async def _end(self, slot: Slot, request: EndTxnRequest) -> EndTxnResponse:
        body = {
            "producer_id": request.producer_id,
            "producer_epoch": request.producer_epoch,
            "is_commit": request.committed,
        }
        try:
            await self._ask(slot, request.transactional_id, "end", body)
        except GeorelayError as error:
            return EndTxnResponse(error_code=coordinator_code(error, version=slot.api_version))
        return EndTxnResponse()
