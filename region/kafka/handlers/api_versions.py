"""ApiVersions: what this broker speaks. Versions it does not know are answered by the connection.

Rule: a client that names the mesh and the broker it wants (KIP-1242), and reached another one, is told to begin at its
bootstrap servers again. One that names not both is at a bootstrap server, a gateway's relay perhaps: whoever answers is
right.
"""

from __future__ import annotations

from georelay.wire.api import ErrorCode, api_versions_response
from georelay.wire.requests import ApiVersionsRequest
from region.kafka.connection import Slot
from region.kafka.services import KafkaServices


class ApiVersionsHandler:
    """Answers ApiVersions."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster

    def handle(self, slot: Slot, request: ApiVersionsRequest) -> None:
        """Answer with the advertised APIs."""
        slot.answer(api_versions_response(self._judge(request)))

    def _judge(self, request: ApiVersionsRequest) -> ErrorCode:
        wants_somebody = request.cluster_id is not None and request.node_id >= 0
        is_here = request.cluster_id == self._cluster.mesh_id and request.node_id == self._cluster.broker_id
        return ErrorCode.REBOOTSTRAP_REQUIRED if wants_somebody and not is_here else ErrorCode.NONE
