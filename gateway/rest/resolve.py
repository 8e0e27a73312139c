"""The answers about the mesh itself: which region is nearest, and what every broker reports."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Final

import aiohttp

from gateway.rest.proxy import read_bounded
from gateway.routing.region_view_core import RankedBroker, RankedRegion
from gateway.routing.resolving import milliseconds, region_json
from gateway.routing.router import Router

RESOLVE_TTL_S: Final = 30
STATUS_TIMEOUT_S: Final = 3.0


def resolve_document(mesh_id: str, ranked: tuple[RankedRegion, ...]) -> dict[str, Any]:
    """Return the JSON of GET /v1/resolve: regions best first; addresses of ready brokers come first."""
    return {
        "mesh": mesh_id,
        "ttl_s": RESOLVE_TTL_S,
        "regions": [region_json(region) for region in ranked],
    }


class StatusCollector:
    """Asks every broker for its /v1/status at once; one that does not answer is part of the answer."""

    def __init__(self, mesh_id: str, router: Router, session: aiohttp.ClientSession, *, scheme: str = "http") -> None:
        self._scheme = scheme
        self._mesh_id = mesh_id
        self._router = router
        self._session = session

    async def collect(self, authorization: str | None) -> dict[str, Any]:
        """Return the JSON of GET /v1/status, regions best first."""
        headers = {"Authorization": authorization} if authorization else {}
        regions = await asyncio.gather(*(self._region(region, headers) for region in self._router.ranking()))
        return {"mesh": self._mesh_id, "regions": list(regions)}

    async def _region(self, region: RankedRegion, headers: dict[str, str]) -> dict[str, Any]:
        brokers = await asyncio.gather(*(self._broker(broker, headers) for broker in region.brokers))
        return {
            "region": region.name,
            "number": region.number,
            "ready": region.ready,
            "rtt_ms": milliseconds(region.rtt_ns),
            "brokers": sorted(brokers, key=lambda broker: broker["id"]),
        }

    async def _broker(self, broker: RankedBroker, headers: dict[str, str]) -> dict[str, Any]:
        status, error = None, ""
        try:
            async with self._session.get(
                f"{self._scheme}://{broker.endpoints.admin}/v1/status",
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=STATUS_TIMEOUT_S),
            ) as answer:
                if answer.status == 200:
                    status = json.loads(await read_bounded(answer))
                else:
                    error = f"HTTP {answer.status}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
            error = reason_of(failure)
        return {
            "id": broker.endpoints.id,
            "ready": broker.ready,
            "rtt_ms": milliseconds(broker.rtt_ns),
            "kafka": broker.endpoints.kafka,
            "admin": broker.endpoints.admin,
            "status": status,
            "error": error,
        }


def reason_of(failure: Exception) -> str:
    """Return why a broker did not answer, for a person: aiohttp's own text names an "ssl" that there may not be."""
    if isinstance(failure, TimeoutError):
        return f"no answer within {STATUS_TIMEOUT_S:g} s"
    if isinstance(failure, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is refused: {failure.certificate_error}"
    if isinstance(failure, aiohttp.ClientConnectorSSLError):
        return "the TLS handshake failed"
    if isinstance(failure, aiohttp.ClientConnectorError) and failure.os_error.errno:
        return os.strerror(failure.os_error.errno).lower()
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return "the connection ended without an answer"
    return str(failure) or type(failure).__name__
