"""InitProducerId: producer ids for idempotent producers, unique in the whole mesh."""

from __future__ import annotations

from georelay.errors import GeorelayError
from georelay.wire.requests import InitProducerIdRequest
from georelay.wire.responses import InitProducerIdResponse
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.transactions import TransactionHandlers
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource


class InitProducerIdHandler:
    """Answers InitProducerId; what has a transactional id is the coordinator's.

    A client without one that asks for a new epoch of its id gets a new id: as good a fence.
    """

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access
        self._transactions = TransactionHandlers(services)

    def handle(self, slot: Slot, request: InitProducerIdRequest) -> None:
        """Allocate an id."""
        if request.transactional_id is not None:
            self._transactions.init(slot, request)
        else:
            slot.spawn(self._allocate(slot.connection.principal))

    async def _allocate(self, principal: Principal) -> InitProducerIdResponse:
        try:
            if not self._access.allows(principal, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER):
                self._access.check_any(principal, Operation.WRITE, Resource.TOPIC)  # KIP-679
            producer_id = await self._cluster.allocate_producer_id()
        except GeorelayError as error:
            return InitProducerIdResponse(error_code=kafka_code(error))
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
