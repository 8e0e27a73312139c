"""InitProducerId: producer ids for idempotent producers, unique in the whole mesh."""

from __future__ import annotations

from georelay.errors import GeorelayError
from georelay.wire.api import ErrorCode
from georelay.wire.requests import InitProducerIdRequest
from georelay.wire.responses import InitProducerIdResponse
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.services import KafkaServices


class InitProducerIdHandler:
    """Answers InitProducerId. A client that asks for a new epoch of its id gets a new id: as good a fence."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster

    def handle(self, slot: Slot, request: InitProducerIdRequest) -> None:
        """Allocate an id; transactions are refused."""
        if request.transactional_id is not None:
            slot.answer(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        else:
            slot.spawn(self._allocate())

    async def _allocate(self) -> InitProducerIdResponse:
        try:
            producer_id = await self._cluster.allocate_producer_id()
        except GeorelayError as error:
            return InitProducerIdResponse(error_code=kafka_code(error))
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
