"""DescribeTransactions and ListTransactions: what the coordinators led by this broker know, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from georelay.errors import GeorelayError, UnknownTransactionalId
from georelay.wire.api import ErrorCode
from georelay.wire.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TransactionState,
)
from region.coordination.part import Part
from region.kafka.connection import Slot
from region.kafka.handlers.coordinator_codes import coordinator_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

STATE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty": "Empty",
        "ongoing": "Ongoing",
        "prepare_commit": "PrepareCommit",
        "prepare_abort": "PrepareAbort",
        "complete_commit": "CompleteCommit",
        "complete_abort": "CompleteAbort",
        "dead": "Dead",
    }
)
_STATES: Final = MappingProxyType({name: state for state, name in STATE_NAMES.items()})


class TransactionsAdminHandler:
    """Answers both."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    def describe(self, slot: Slot, request: DescribeTransactionsRequest) -> None:
        """Answer DescribeTransactions for the ids whose coordinator is here."""
        slot.spawn(self._describe(slot, request))

    async def _describe(self, slot: Slot, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        rows = [await self._described(slot.connection.principal, name) for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=rows)

    async def _described(self, principal: Principal, name: str) -> TransactionState:
        access = self._services.access
        try:
            access.check(principal, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
            part = self._services.coordinators.part_here(name, Part.TRANSACTIONS)
            found = await part.call("describe", {"transactional_id": name}, principal=principal.name)
        except UnknownTransactionalId:
            return TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
        except GeorelayError as error:
            return TransactionState(error_code=coordinator_code(error), transactional_id=name)
        return TransactionState(
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=STATE_NAMES[found["state"]],
            transaction_timeout_ms=found["timeout_ms"],
            transaction_start_time_ms=found["started_ms"],
            producer_id=found["producer_id"],
            producer_epoch=found["producer_epoch"],
            topics=[
                TopicData(topic=topic, partitions=partitions)
                for topic, partitions in found["partitions"]
                if access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, topic)
            ],
        )

    def list(self, slot: Slot, request: ListTransactionsRequest) -> None:
        """Answer ListTransactions with the ids whose coordinators are here, as Kafka does."""
        slot.spawn(self._list(slot, request))

    async def _list(self, slot: Slot, request: ListTransactionsRequest) -> ListTransactionsResponse:
        principal = slot.connection.principal
        known = [name for name in request.state_filters if name in _STATES]
        body = {"states": [_STATES[name] for name in known], "producer_ids": [*request.producer_id_filters]}
        rows: list[Any] = []
        if known or not request.state_filters:
            try:
                for part in self._services.coordinators.parts_here(Part.TRANSACTIONS):
                    rows += (await part.call("list", dict(body), principal=principal.name))["transactions"]
            except GeorelayError as error:
                return ListTransactionsResponse(error_code=coordinator_code(error))
        allows = self._services.access.allows
        return ListTransactionsResponse(
            unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
            transaction_states=[
                ListedTransaction(transactional_id=name, producer_id=producer, transaction_state=STATE_NAMES[state])
                for name, producer, state in sorted(rows)
                if allows(principal, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
            ],
        )
