"""GET /v1/socket: opens sockets and bounds how many there are. Their messages count in the budget of requests.

Rule 1: a principal has as many sockets as stay free beside it.
Rule 2: a socket whose sign-in has ended is closed within LOOK_S, whatever it does. One task looks at all of them, while
        there are any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

import structlog
from aiohttp import WSCloseCode, web
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.errors import BadRequest, Busy
from mesh.listening.acceptor import cut_off
from mesh.listening.http_sockets import SocketMemory, new_socket
from region.api.bodies import BODIES
from region.api.principal import PRINCIPAL
from region.api.records_http import checked_query
from region.api.socket import Socket, SocketServices
from region.coordination.shares_core import Room, Shares

log = structlog.get_logger()

SOCKETS_MAX: Final = 20_000  # of one broker
LOOK_S: Final = 15.0
CLOSE_S: Final = 2.0
PARAMETERS: Final = frozenset({"region", "read_only"})


class SocketsHttp(Collector):
    """The handler."""

    def __init__(self, services: SocketServices) -> None:
        self._services = services
        self._shares = Shares(SOCKETS_MAX)
        self._open: dict[web.WebSocketResponse, web.Request] = {}
        self._looking: asyncio.Task[None] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield how many are open."""
        yield GaugeMetricFamily("georelay_sockets_open", "WebSockets open now", self._shares.used)

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [web.get("/v1/socket", self._serve)]

    async def close(self, _: web.Application) -> None:
        """Say to everybody that the broker goes away (signal on_shutdown)."""
        if self._looking is not None:
            self._looking.cancel()
        goodbyes = [ws.close(code=WSCloseCode.GOING_AWAY, message=b"the broker stops") for ws in list(self._open)]
        await asyncio.gather(*goodbyes, return_exceptions=True)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        query = checked_query(request.query, self._services.cluster.region, PARAMETERS)
        is_read_only = query.get("read_only", "false")
        if is_read_only not in ("true", "false"):
            raise BadRequest("read_only: give true or false")
        ws = new_socket()
        if not ws.can_prepare(request).ok:
            raise BadRequest("this is for WebSocket (RFC 6455, version 13): docs/protocol/websocket.md")
        principal = request[PRINCIPAL]
        self._check_room(principal.name)
        self._shares.add(principal.name, 1)
        bodies = request.app[BODIES]
        try:
            await ws.prepare(request)
            self._open[ws] = request
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(
                    self._look_while_any(), name="sign-ins of sockets"
                )
            memory = SocketMemory(request, ws, partial(bodies.hold, request))
            await Socket(
                self._services,
                ws,
                principal=principal,
                bodies=bodies,
                release=memory.release,
                may_publish=is_read_only == "false",
            ).run()
        except (ConnectionError, TimeoutError) as error:
            log.info("socket.left", peer=request.remote, error=repr(error))
            cut_off(request.transport)
        finally:
            self._open.pop(ws, None)
            self._shares.add(principal.name, -1)
        return ws

    async def _look_while_any(self) -> None:
        while self._open:
            await asyncio.sleep(LOOK_S)
            ended = [row for row in self._open.items() if not self._services.is_still_valid(row[1][PRINCIPAL])]
            await asyncio.gather(*(_end(ws, request) for ws, request in ended), return_exceptions=True)

    def _check_room(self, name: str) -> None:
        room = self._shares.look(name, 1)
        if room is Room.FULL:
            raise Busy(f"this broker has {SOCKETS_MAX} sockets, its maximum; ask another one")
        if room is Room.OWN_SHARE_FULL:
            raise Busy(f"{name} has {self._shares.held_by(name)} sockets here, as many as are free: close some")


async def _end(ws: web.WebSocketResponse, request: web.Request) -> None:
    """Close a socket whose sign-in has ended; one that does not read the reason either is cut off."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await ws.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the sign-in has ended")
    except TimeoutError:
        cut_off(request.transport)
