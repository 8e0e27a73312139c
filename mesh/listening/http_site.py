"""An aiohttp application behind an Acceptor: admission, TLS, and an end for those who send a request too slowly.

Rule 1: a connection must bring the head of its first request within FIRST_HEAD_S, and every later head, once begun,
        within HEAD_S; a body must come with at least BODY_BYTES_PER_S after its first BODY_S.
Rule 2: bodies are read by handlers only, with aiohttp's flow control: a slow one holds a buffer, no more.
Rule 3: a connection that has become a WebSocket (`watch`) is pinged after PING_S of silence and cut off after
        SILENCE_S: the other end is gone, or does not read. One that we do not read is not judged.
Rule 4: what is no request of HTTP is refused by a problem document as well.
Rule 5: who takes no byte of what waits for it for UNREAD_S is cut off; for UNREAD_PRESSED_S while more than
        UNREAD_BYTES_MAX wait for all clients together. What is taken the kernel says (RFC 4898, bytes acknowledged):
        what waits here is as much as before where a stream goes on as fast as its client reads.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from georelay.cadence import pause_s
from georelay.errors import BadRequest
from georelay.limits import KIB, MIB
from georelay.tls import TlsContexts
from mesh.listening.acceptor import Acceptor, cut_off
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal

FIRST_HEAD_S: Final = 30.0
HEAD_S: Final = 10.0
BODY_S: Final = 30.0
BODY_BYTES_PER_S: Final = 100 * KIB
IDLE_S: Final = 120.0  # between two requests; clients keep idle connections for a shorter time
SWEEP_S: Final = 1.0
PING_S: Final = 20.0
SILENCE_S: Final = 60.0
UNREAD_S: Final = 60.0
UNREAD_PRESSED_S: Final = 2.0
UNREAD_BYTES_MAX: Final = 256 * MIB
DETAIL_CHARS_MAX: Final = 200
_ACKED: Final = slice(120, 128)  # tcpi_bytes_acked of struct tcp_info (linux/tcp.h)

log = structlog.get_logger()


@dataclass(slots=True)
class _Socket:
    """What is asked of a WebSocket's owner, and when it was last heard."""

    heard: Callable[[int], None]
    ping: Callable[[], None]
    heard_s: float
    is_pinged: bool = False


class HttpConnection(RequestHandler):
    """One connection; knows since when it owes us the rest of a request."""

    _connected_s = 0.0
    _head_since_s = 0.0
    _body_since_s = 0.0
    _body_bytes = 0
    _body_of: object = None
    _seen = False
    _socket: _Socket | None = None
    _taken_s = 0.0  # when the client was last seen to take something, or nothing waited for it
    _acked_bytes = -1
    unread_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to count."""
        self._connected_s = self._loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Note whether a head is begun and not whole."""
        self._body_bytes += len(data)
        if self._socket is not None:
            self._socket.heard_s, self._socket.is_pinged = self._loop.time(), False
            self._socket.heard(len(data))
            super().data_received(data)
            return
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._seen = True
            self._head_since_s = 0.0
        elif not self._head_since_s:
            self._head_since_s = self._loop.time()

    def watch(self, *, heard: Callable[[int], None], ping: Callable[[], None]) -> None:
        """Treat it as a WebSocket from now on.

        Args:
            heard: told how many bytes came. ping: sends a ping.
        """
        self._socket = _Socket(heard, ping, self._loop.time())

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what aiohttp cannot read, in our words (rule 4)."""
        refused = super().handle_error(request, status, exc, message)
        if status < HTTPStatus.INTERNAL_SERVER_ERROR and isinstance(refused, web.Response):
            refused.body = _malformed(status, message or "it is no request of HTTP/1.1")
            refused.content_type = "application/problem+json"
            refused.charset = None
        return refused

    def note_unread(self, now_s: float) -> int:
        """Look at what the client has not taken; return how much."""
        self.unread_bytes = 0 if self.transport is None else self.transport.get_write_buffer_size()
        acked_bytes = _acked_bytes(self.transport) if self.unread_bytes else -1
        if not self.unread_bytes or acked_bytes != self._acked_bytes:
            self._taken_s = now_s
        self._acked_bytes = acked_bytes
        return self.unread_bytes

    def reads_nothing(self, now_s: float, patience_s: float) -> bool:
        """Return whether it has taken nothing of what waits for it, for so long."""
        return self.unread_bytes > 0 and now_s - self._taken_s > patience_s

    def is_late(self, now_s: float) -> bool:
        """Return whether it was waited for long enough."""
        if self._socket is not None:
            return self._is_silent(self._socket, now_s)
        request = self._current_request
        if request is None:
            self._body_of = None
            if self._head_since_s:
                return now_s - self._head_since_s > HEAD_S
            return not self._seen and now_s - self._connected_s > FIRST_HEAD_S
        if request.content.is_eof():
            return False
        if self._body_of is not request:
            self._body_of, self._body_since_s, self._body_bytes = request, now_s, 0
        return now_s - self._body_since_s > BODY_S + self._body_bytes / BODY_BYTES_PER_S

    def _is_silent(self, socket: _Socket, now_s: float) -> bool:
        """Return whether a WebSocket was silent for SILENCE_S; ping it before."""
        if self._reading_paused:
            socket.heard_s = now_s
        silent_s: float = now_s - socket.heard_s
        if silent_s > PING_S and not socket.is_pinged:
            socket.is_pinged = True
            socket.ping()
        return silent_s > SILENCE_S


def _acked_bytes(transport: asyncio.BaseTransport | None) -> int:
    """Return how many bytes the other end has taken so far, -1 where the connection is gone."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return -1
    try:
        info: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
    except OSError:
        return -1
    return int.from_bytes(info[_ACKED], sys.byteorder)


def _malformed(status: int, message: str) -> bytes:
    detail = message.partition("\n")[0][:DETAIL_CHARS_MAX]
    document = {
        "type": f"urn:georelay:error:{BadRequest.code}",
        "title": "Bad request",
        "status": status,
        "detail": detail,
        "code": BadRequest.code,
        "outcome": BadRequest.outcome.value,
        "retry": BadRequest.retry.value,
    }
    return json.dumps(document).encode()


class HttpSite:
    """Serves one application on one address.

    Args:
        app: the application.
        name: for the log and the metrics.
        shutdown_s: how long running requests may go on after `close`.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        name: str,
        shutdown_s: float,
        contexts: TlsContexts | None = None,
        limits: AdmissionLimits | None = None,
        counters: AdmissionCounters | None = None,
    ) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that leaves ends its long poll
            shutdown_timeout=shutdown_s,
            keepalive_timeout=IDLE_S,
        )
        self._name = name
        self._acceptor = Acceptor(self._connection, name=name, limits=limits, counters=counters, contexts=contexts)
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port. Raises OSError."""
        await self._runner.setup()
        bound = await self._acceptor.start(host, port)
        self._sweeper = asyncio.get_running_loop().call_later(pause_s(SWEEP_S), self._sweep)
        return bound

    async def close(self) -> None:
        """Accept no more, end what is idle, give the rest its time."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._acceptor.close()
        await self._runner.cleanup()

    def _connection(self) -> HttpConnection:
        server: Any = self._runner.server
        # What web.Server.__call__ does, with our class.
        return HttpConnection(server, loop=server._loop, **server._kwargs)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        server: Any = self._runner.server
        now_s = loop.time()
        connections: list[HttpConnection] = [] if server is None else list(server.connections)
        unread_bytes = sum(connection.note_unread(now_s) for connection in connections)
        patience_s = UNREAD_S if unread_bytes <= UNREAD_BYTES_MAX else UNREAD_PRESSED_S
        for connection in connections:
            is_late = connection.is_late(now_s) or connection.reads_nothing(now_s, patience_s)
            if connection.transport is not None and is_late:
                self._acceptor.counters.refuse(Refusal.TOO_SLOW)
                log.info("http_connection.too_slow", listener=self._name, peer=str(connection.peername))
                cut_off(connection.transport)
        self._sweeper = loop.call_later(pause_s(SWEEP_S), self._sweep)
