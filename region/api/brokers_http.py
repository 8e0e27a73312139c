"""The brokers of this region over HTTP: list, add, drain, remove.

Rule 1: drain and add begin something and answer at once; GET /v1/brokers shows how far it is.
Rule 2: every request may be repeated: what is so already is answered like what was done now.
"""

from __future__ import annotations

import re
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.controller.topology import BROKER_ID_MAX
from region.kafka.ports import NO_REPLICAS, BrokerStatus, Cluster
from region.security.access import Access, Operation, Resource

PEERS_CHARS_MAX: Final = 260  # a DNS name, a colon and a port
PORT_MAX: Final = 65_535
ROUTE_CHARS_MAX: Final = 128
_BROKER_ID: Final = re.compile(r"[0-9]{1,7}")
_HOST_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class BrokersHttp:
    """Handlers of /v1/brokers."""

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._cluster = cluster
        self._access = access

    async def list(self, request: web.Request) -> web.Response:
        """Answer GET /v1/brokers."""
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        rows = await self._cluster.brokers_status()
        return json_response({"region": self._cluster.region, "brokers": [broker_json(row) for row in rows]})

    async def add(self, request: web.Request) -> web.Response:
        """Answer POST /v1/brokers/{broker}; the body is empty or {"peers": "host:port"}."""
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        broker = _broker_of(request)
        peers = await read_wish(request, parse_peers)
        with self._access.noted(request[PRINCIPAL], "broker.added", broker=str(broker), peers=peers):
            await self._cluster.add_broker(broker, peers)
        return json_response(await self._shown(broker))

    async def drain(self, request: web.Request) -> web.Response:
        """Answer POST /v1/brokers/{broker}/drain."""
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        broker = _broker_of(request)
        with self._access.noted(request[PRINCIPAL], "broker.drained", broker=str(broker)):
            await self._cluster.drain_broker(broker)
        return json_response(await self._shown(broker), status=202)

    async def remove(self, request: web.Request) -> web.Response:
        """Answer DELETE /v1/brokers/{broker}."""
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        broker = _broker_of(request)
        with self._access.noted(request[PRINCIPAL], "broker.removed", broker=str(broker)):
            await self._cluster.remove_broker(broker)
        return web.Response(status=204)

    async def note_route(self, request: web.Request) -> web.Response:
        """Answer POST /v1/routes/{kind}: a gateway asks whether its client may decide this about clients."""
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        subject, value = await read_wish(request, parse_route)
        kind = request.match_info["kind"][:20]
        with self._access.noted(request[PRINCIPAL], "route.decided", kind=kind, subject=subject, value=value):
            return json_response({"by": request[PRINCIPAL].name})

    async def _shown(self, broker: int) -> dict[str, Any]:
        """Return the broker as it is listed now; only its id when it is not."""
        rows = await self._cluster.brokers_status()
        return next((broker_json(row) for row in rows if row.id == broker), {"id": broker})


def broker_json(row: BrokerStatus) -> dict[str, Any]:
    """Return what the API says of a broker; what is not known is null."""
    return {
        "id": row.id,
        "state": row.state,
        "alive": row.alive,
        "kafka": row.kafka,
        "admin": row.admin,
        "replicas": None if row.replicas == NO_REPLICAS else row.replicas,
        "leaders": row.leaders,
        "moving": row.moving,
        "detail": row.detail,
    }


def parse_route(body: bytes) -> tuple[str, str]:
    """Return subject and value of a POST /v1/routes body (BadRequest: the text says why)."""
    value = parse_json(body)
    wish = value if isinstance(value, dict) else {}
    subject, wanted = wish.get("subject"), wish.get("value")
    if not isinstance(subject, str) or not isinstance(wanted, str) or not subject:
        raise BadRequest('the body is {"subject": text, "value": text}')
    return subject[:ROUTE_CHARS_MAX], wanted[:ROUTE_CHARS_MAX]


def parse_peers(body: bytes) -> str:
    """Return the peer address of a POST /v1/brokers/{broker} body, "" without one (BadRequest: the text says why)."""
    value = parse_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object or empty")
    unknown = value.keys() - {"peers"}
    if unknown:
        raise BadRequest(f"{min(unknown)[:64]}: unknown field; known is peers")
    return check_peers(value.get("peers", ""))


def check_peers(peers: object) -> str:
    """Return `peers`, which is "" or host:port (BadRequest)."""
    if peers == "":
        return ""
    found = _HOST_PORT.fullmatch(peers) if isinstance(peers, str) and len(peers) <= PEERS_CHARS_MAX else None
    if found is None or not 1 <= int(found[2]) <= PORT_MAX:
        raise BadRequest("peers: must be host:port of the broker's peer listener, or left out")
    return found[0]


def check_broker_id(number: int) -> int:
    """Return `number` (BadRequest: no broker can have that id)."""
    if not 1 <= number <= BROKER_ID_MAX:
        raise BadRequest(f"broker: {number} is not a broker id")
    return number


def _broker_of(request: web.Request) -> int:
    text = request.match_info["broker"]
    if _BROKER_ID.fullmatch(text) is None:
        raise BadRequest(f"broker: {text[:40]!r} is not a broker id")
    return check_broker_id(int(text))
