"""ApiVersions: what this broker speaks. Versions it does not know are answered by the connection."""

from __future__ import annotations

from georelay.wire.api import api_versions_response
from georelay.wire.requests import ApiVersionsRequest
from region.kafka.connection import Slot


def handle_api_versions(slot: Slot, request: ApiVersionsRequest) -> None:  # noqa: ARG001 - the table's signature
    """Answer with the advertised APIs."""
    slot.answer(api_versions_response())
