"""GET /v1/socket: carries the messages of a client's WebSocket to a broker of one region, and its messages back.

Rule 1: messages pass as they are; each side is read as fast as the other one takes it, one message at a time. What
        neither side has taken yet is bounded; a caller holds as much as stays free beside it, and is told to come
        again later when there is more.
Rule 2: a socket stays in its region and at its broker: that of the client's pin, the nearest, or `?region=`. When the
        broker goes, or the region is drained for clients and was not asked for by name, the client is told to come back
        (1012), and goes on by offset.
Rule 3: a browser's session only reads over a socket: its handshake cannot carry what a change needs besides the
        cookie.
Rule 4: clients that are gone are found by pings, brokers by the kernel's keep-alive: a client that reads slowly holds
        up the broker's pongs.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import aiohttp
import structlog
from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

from gateway.metrics import GatewayMetrics
from gateway.rest.caller import AUTHORIZATION, authorization_of, client_of
from gateway.rest.leaving import LeavingClients
from gateway.rest.proxy import read_bounded
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.places import Callers, Places
from gateway.routing.router import Router
from georelay.credentials import CLIENT_HEADER
from georelay.errors import AccessDenied, BadRequest, Busy, Unauthenticated, Unavailable
from georelay.limits import MIB
from mesh.listening.acceptor import cut_off
from mesh.listening.http_sockets import ANSWER_MESSAGE_BYTES_MAX, CLOSE_S, SocketMemory, new_socket

log = structlog.get_logger()

SOCKETS_MAX: Final = 20_000  # of one gateway; one caller has at most as many as stay free
HELD_BYTES_MAX: Final = 256 * MIB  # of all messages that the other side has not taken yet
CONNECT_S: Final = 2.0
SEND_S: Final = 30.0
KEEPALIVE_S: Final = 15
KEEPALIVES: Final = 3
_REFUSED: Final = {400: BadRequest, 401: Unauthenticated, 403: AccessDenied, 503: Busy}

_NOT_SENT: Final = (None, 1005, WSCloseCode.ABNORMAL_CLOSURE)  # no code came

_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


def refusals() -> aiohttp.TraceConfig:
    """Return what lets a session raise what a broker says when it refuses a socket; aiohttp shows the status alone."""
    config = aiohttp.TraceConfig()
    config.on_request_end.append(_raise_refusal)
    return config


async def _raise_refusal(_session: Any, _context: Any, ended: aiohttp.TraceRequestEndParams) -> None:
    answer = ended.response
    refused = _REFUSED.get(answer.status)
    if refused is None:
        return
    try:
        detail = json.loads(await read_bounded(answer))["detail"]
    except (ValueError, KeyError, TypeError):  # something else than a broker answers there
        detail = None
    raise refused(detail if isinstance(detail, str) and detail else f"the socket was refused: HTTP {answer.status}")


class SocketRelay:
    """The handler. `session` has a connection for each socket, and `refusals`."""

    def __init__(
        self,
        router: Router,
        *,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        callers: Callers,
        scheme: str = "http",
    ) -> None:
        self._router = router
        self._session = session
        self._metrics = metrics
        self._callers = callers
        self._scheme = scheme
        self._places = Places(SOCKETS_MAX)
        self._leaving = LeavingClients(router)
        self._held_bytes = 0
        self._held_by: Counter[str] = Counter()  # callers

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Carry messages until either side closes.

        Raises:
            BadRequest: no handshake, unknown region. Unavailable: no broker of the region took it. Busy: too many.
        """
        ws = new_socket()
        if not ws.can_prepare(request).ok:
            raise BadRequest("this is for WebSocket (RFC 6455, version 13): docs/protocol/websocket.md")
        client, named = client_of(request), request.query.get("region")
        region = named if named is not None else self._router.first_for(client)
        candidates = self._router.candidates(region) if region is not None else ()
        if not candidates:
            raise Unavailable(f"region {region} is not ready" if region else "no region is ready; try again")
        caller = self._callers.of(authorization_of(request), request.remote or "")
        async with self._places.of(caller, patience_s=CONNECT_S):
            broker_ws = await self._connect(request, candidates)
            async with broker_ws:
                never = nullcontext(asyncio.get_running_loop().create_future())
                watched = never if named else self._leaving.watched(client, region or "")
                with self._metrics.sockets.track_inprogress(), watched as leaves:
                    await self._carry(request, ws, broker_ws, leaves, partial(self._take, caller))
        return ws

    async def _connect(
        self, request: web.Request, candidates: tuple[BrokerEndpoints, ...]
    ) -> aiohttp.ClientWebSocketResponse:
        for broker in candidates:
            try:
                async with asyncio.timeout(CONNECT_S):
                    found = await self._session.ws_connect(
                        _broker_url(self._scheme, request, broker),
                        headers=_headers(request),
                        max_msg_size=ANSWER_MESSAGE_BYTES_MAX,
                        compress=0,
                        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                    )
            except (aiohttp.ClientError, TimeoutError) as error:
                log.info("socket.broker_not_reached", broker=broker.id, error=type(error).__name__)
            else:
                self._callers.let_in(authorization_of(request))
                _keep_alive(found)
                return found
            self._metrics.failovers.labels("http").inc()
        raise Unavailable(f"none of {len(candidates)} brokers took the socket; try again")

    async def _carry(
        self,
        request: web.Request,
        ws: web.WebSocketResponse,
        broker_ws: aiohttp.ClientWebSocketResponse,
        leaves: asyncio.Future[None],
        take: Callable[[int], bool],
    ) -> None:
        await ws.prepare(request)
        memory = SocketMemory(request, ws, take)
        loop = asyncio.get_running_loop()
        ways = [
            loop.create_task(_pass_on(ws, broker_ws, gave=memory.release), name="socket-to-broker"),
            loop.create_task(
                _pass_on(broker_ws, ws, took=take, gave=lambda size: take(-size)), name="socket-to-client"
            ),
        ]
        try:
            await asyncio.wait([*ways, leaves], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ended = await asyncio.gather(*ways, return_exceptions=True)
            memory.close()
        failed = next((error for error in ended if isinstance(error, ConnectionError | TimeoutError)), None)
        if failed is not None:
            log.info("socket.left", peer=request.remote, error=repr(failed))
        if ws.closed or isinstance(ended[0], TimeoutError | ConnectionError):
            await broker_ws.close(code=WSCloseCode.GOING_AWAY)
        code = broker_ws.close_code
        if isinstance(ended[1], Busy):
            await _send_away(request, ws, ended[1])
        elif isinstance(ended[1], TimeoutError):
            cut_off(request.transport)  # it does not read
        elif not ws.closed:
            is_lost = code in _NOT_SENT
            why = b"the region is drained for clients" if leaves.done() else b"the broker is gone"
            await ws.close(
                code=WSCloseCode.SERVICE_RESTART if is_lost else code or WSCloseCode.OK,
                message=why + b": come back and go on by offset" if is_lost else b"",
            )

    def _take(self, caller: str, size_bytes: int) -> bool:
        """Count bytes of a caller, or give them back (below 0); False: there is no room, and nothing was counted."""
        held_bytes = self._held_by[caller]
        if size_bytes > 0 and held_bytes >= HELD_BYTES_MAX - self._held_bytes:
            return False
        self._held_bytes += size_bytes
        self._held_by[caller] = held_bytes + size_bytes
        if not self._held_by[caller]:
            del self._held_by[caller]
        return True


async def _pass_on(
    source: _Socket,
    sink: _Socket,
    *,
    took: Callable[[int], bool] = lambda _: True,
    gave: Callable[[int], object],
) -> None:
    """Send what comes from one side to the other until it closes.

    Args:
        took: counts a message, False: there is no room. gave: told once the sink has taken it.

    Raises:
        ConnectionError, TimeoutError: of the sink. Busy: no room.
    """
    while (message := await source.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
        raw = message.data.encode() if message.type is WSMsgType.TEXT else message.data
        if not took(len(raw)):
            raise Busy("what waits here for this client and others of its user fills their share")
        try:
            async with asyncio.timeout(SEND_S):
                await sink.send_frame(raw, message.type)
        finally:
            gave(len(raw))


async def _send_away(request: web.Request, ws: web.WebSocketResponse, why: Busy) -> None:
    """Tell a client to come again later; one that does not read that either is cut off."""
    log.info("socket.sent_away", peer=request.remote, error=str(why))
    try:
        async with asyncio.timeout(CLOSE_S):
            await ws.close(code=WSCloseCode.TRY_AGAIN_LATER, message=str(why).encode())
    except TimeoutError:
        cut_off(request.transport)


def _headers(request: web.Request) -> dict[str, str]:
    authorization = authorization_of(request)
    given = {} if authorization is None else {"Authorization": authorization}
    return given | {CLIENT_HEADER: request.remote or ""}


def _broker_url(scheme: str, request: web.Request, broker: BrokerEndpoints) -> URL:
    query = {name: value for name, value in request.query.items() if name != "region"}
    if AUTHORIZATION in request:  # of a session
        query["read_only"] = "true"
    return URL(f"{scheme}://{broker.admin}/v1/socket").with_query(query)


def _keep_alive(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Let the kernel notice when the broker's host is gone."""
    raw: Any = ws.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES)
