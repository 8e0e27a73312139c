"""Kafka bootstrap listener: joins each client connection with one connection to a ready broker.

Rule 1: one upstream connection per client connection, so order and correlation ids need no care.
Rule 2: neither side is read while the other cannot be written: memory per connection is bounded.
Rule 3: the region is the one that is best for this client (choosing_core), by the round trips of its own connection.
It is chosen when the client's first bytes have come: they tell its client id, and its handshake is over.
Rule 4: when one side ends, the other ends; every end has a counted reason.
Rule 5: a broker that is silent has LATE_S and two of its round trips. Then the others are tried beside it, one every
NEXT_S, and the first that is connected has the client: a region that is cut off is not known to be lost for three
seconds, and clients give an attempt up after one. One that owes an answer to a probe has HURRY_S instead of LATE_S, and
of those after it all up to the first that owes none are tried at once. A region that drains is tried when all others
have failed.
Rule 6: a client whose broker answers neither it nor probes is let go: it looks elsewhere at once, instead of when its
own patience ends. A gateway that was late itself does not judge: answers may be there that it has not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

import structlog

from gateway.config import split_address
from gateway.kafka.bootstrap_core import BootstrapSession, FrameRefused, client_id_of
from gateway.metrics import GatewayMetrics
from gateway.routing.client_book_core import ClientKey
from gateway.routing.client_routes import ClientRoutes, Question
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.router import Router
from georelay.limits import KAFKA_CONNECTIONS_MAX
from georelay.tls import TlsContexts
from mesh.distance.tcp_info import sample_of
from mesh.listening.acceptor import Acceptor
from mesh.listening.listeners import ListenerParts

CONNECT_TIMEOUT_S: Final = 2.0
LATE_S: Final = 0.3
HURRY_S: Final = 0.05  # so that the nearest one still comes first where it is only busy
ROUND_TRIPS: Final = 2  # of TCP and of TLS
NEXT_S: Final = 0.15
OWN_LATE_S: Final = 0.1
FIRST_BYTES_S: Final = 30.0  # a client speaks first
# What an end before a broker was connected says of the attempt; a client that left by itself says nothing.
UNJOINED: Final = {
    "connect_failed": "failed",
    "no_ready_region": "failed",
    "too_many_connections": "failed",
    "not_signed_in": "refused",
    "frame_refused": "refused",
}

log = structlog.get_logger()


class _Upstream(asyncio.Protocol):
    """The broker's side."""

    def __init__(self, client: _Client, broker: BrokerEndpoints) -> None:
        self._client = client
        self.broker = broker
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._client.on_broker_bytes(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()

    def close(self) -> None:
        """End a connection that is not needed."""
        if self.transport is not None:
            self.transport.close()


class _Client(asyncio.Protocol):
    """The client's side; owns the pair. Its bytes go on when a broker is connected."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self.patience: asyncio.TimerHandle | None = None  # ends who says nothing; None: it has said something
        self._session = BootstrapSession(sign_in_required=listener.sign_in_required())
        self._transport: asyncio.Transport | None = None
        self._broker: BrokerEndpoints | None = None  # that has this client
        self._upstream: asyncio.Transport | None = None
        self._owed: asyncio.TimerHandle | None = None  # looks after an answer that the broker owes
        self._early = b""  # what came before the broker was connected: one read at most
        self._joined = False
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("client_closed")
        self._listener.closed(self)

    def joined(self, side: _Upstream) -> None:
        """Start relaying, unless the client has gone in the meantime."""
        upstream = side.transport
        assert upstream is not None, "connected"
        self._upstream, self._broker = upstream, side.broker
        if self._ended or upstream.is_closing():
            upstream.close()
            self.end("broker_closed")
            return
        self._joined = True
        self._listener.connected("joined")
        if self._early:
            early, self._early = self._early, b""
            self._pass_on(upstream, early)
        self.resume_reading()

    def lost(self, side: _Upstream) -> None:
        """End when the broker that has this client has ended; another one that was tried as well may."""
        if self._upstream is not None and side.transport is self._upstream:
            self.end("broker_closed")

    def question(self) -> Question:
        """Return what is known of this client: its id in its first request, its address, its round trips."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        key = ClientKey(client_id_of(self._early), str(peer[0]) if isinstance(peer, tuple) else "")
        return Question(client=key, sample=sample_of(sock))

    def data_received(self, data: bytes) -> None:
        try:
            allowed = self._session.on_client_bytes(data)
        except FrameRefused as error:
            log.warning("bootstrap.frame_refused", reason=error.reason, detail=str(error))
            self.end(error.reason)
            return
        if self._upstream is None:
            self._early += allowed
            self.pause_reading()
            if self.patience is not None:
                self.patience.cancel()
                self.patience = None
                self._listener.join(self)
        elif allowed:
            self._pass_on(self._upstream, allowed)

    def _pass_on(self, upstream: asyncio.Transport, data: bytes) -> None:
        upstream.write(data)
        if self._owed is None and not self._ended:
            self._owed = asyncio.get_running_loop().call_later(LATE_S, self._look_after)

    def _look_after(self) -> None:
        """Let the client go when its broker owes an answer to probes as well (rule 6), else look again later."""
        assert self._broker is not None and self._owed is not None, "joined, and waiting"
        loop = asyncio.get_running_loop()
        was_late = loop.time() - self._owed.when() > OWN_LATE_S
        if not was_late and self._listener.is_silent(self._broker):
            self.end("broker_silent")
        else:
            self._owed = loop.call_later(LATE_S, self._look_after)

    def _owe_nothing(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def on_broker_bytes(self, data: bytes) -> None:
        """Pass an answer on."""
        self._owe_nothing()
        self._session.on_broker_bytes(data)
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self._upstream is not None and not self._upstream.is_closing():
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None and not self._upstream.is_closing():
            self._upstream.resume_reading()

    def pause_reading(self) -> None:
        """Stop reading the client: the broker's side is full."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read the client again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self, reason: str) -> None:
        """Close both sides once; what is written already is still sent."""
        if self._ended:
            return
        self._ended = True
        if self.patience is not None:
            self.patience.cancel()
        self._owe_nothing()
        self._listener.ended(reason)
        if not self._joined and reason in UNJOINED:
            self._listener.connected(UNJOINED[reason])
        for transport in (self._transport, self._upstream):
            if transport is not None:
                transport.close()


class KafkaListener:
    """Accepts bootstrap connections."""

    def __init__(
        self,
        routes: ClientRoutes,
        router: Router,
        metrics: GatewayMetrics,
        *,
        sign_in_required: Callable[[], bool],
        parts: ListenerParts | None = None,
        upstream: TlsContexts | None = None,
    ) -> None:
        self._upstream = upstream
        self._acceptor = Acceptor(
            lambda: _Client(self),
            name="kafka",
            limits=None if parts is None else parts.limits,
            counters=None if parts is None else parts.counters,
            contexts=None if parts is None else parts.contexts,
        )
        self.sign_in_required = sign_in_required
        self._routes = routes
        self._router = router
        self._metrics = metrics
        self._clients: set[_Client] = set()
        self._joining: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (OSError: it is taken)."""
        return await self._acceptor.start(host, port)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self._acceptor.close()
        for task in self._joining:
            task.cancel()
        await asyncio.gather(*self._joining, return_exceptions=True)
        for client in list(self._clients):
            client.end("gateway_closed")

    def opened(self, client: _Client) -> None:
        """Take in a new connection, or end it when there are too many."""
        if len(self._clients) >= KAFKA_CONNECTIONS_MAX:
            client.end("too_many_connections")
            return
        self._clients.add(client)
        self._metrics.kafka_connections.set(len(self._clients))
        client.patience = asyncio.get_running_loop().call_later(FIRST_BYTES_S, client.end, "said_nothing")

    def join(self, client: _Client) -> None:
        """Connect a client that has said something to a broker of its region."""
        task = asyncio.get_running_loop().create_task(self._join(client), name="bootstrap-join")
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    def closed(self, client: _Client) -> None:
        """Forget a connection."""
        self._clients.discard(client)
        self._metrics.kafka_connections.set(len(self._clients))

    def ended(self, reason: str) -> None:
        """Count why a connection ended."""
        self._metrics.kafka_closed.labels(reason).inc()

    def connected(self, result: str) -> None:
        """Count what became of an attempt to connect."""
        self._metrics.kafka_connects.labels(result).inc()

    def is_silent(self, broker: BrokerEndpoints) -> bool:
        """Return whether a broker owes an answer to a probe for longer than one that is busy."""
        return self._router.is_silent(broker)

    async def _join(self, client: _Client) -> None:
        tried = 0
        for regions in self._routes.order_for(client.question()):
            candidates = self._router.brokers_of(regions)
            round_trips_s = ROUND_TRIPS * ((regions[0].rtt_ns if regions else None) or 0) / 1e9
            is_late = bool(candidates) and self._router.is_late(candidates[0])
            late_s = (HURRY_S if is_late else LATE_S) + round_trips_s
            upstream = await self._first_of(client, candidates, late_s=late_s)
            if upstream is not None:
                client.joined(upstream)
                return
            tried += len(candidates)
        reason = "connect_failed" if tried else "no_ready_region"
        log.warning("bootstrap.refused", reason=reason, tried=tried)
        client.end(reason)

    async def _first_of(
        self, client: _Client, candidates: Sequence[BrokerEndpoints], *, late_s: float
    ) -> _Upstream | None:
        """Return the connection to the broker that answered first, None when none did (rule 5)."""
        left = deque(candidates)
        trying: set[asyncio.Task[_Upstream | None]] = set()
        try:
            while left or trying:
                trying |= self._try_next(client, left, is_first=len(left) == len(candidates))
                done, trying = await asyncio.wait(
                    trying, timeout=late_s if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                late_s = late_s if done else NEXT_S
                connected = [upstream for task in done if (upstream := task.result()) is not None]
                for upstream in connected[1:]:
                    upstream.close()
                if connected:
                    return connected[0]
                if left:
                    self._metrics.failovers.labels("kafka").inc()
            return None
        finally:
            for task in trying:
                task.cancel()
            for late in await asyncio.gather(*trying, return_exceptions=True):
                if late is not None and not isinstance(late, BaseException):
                    late.close()

    def _try_next(
        self, client: _Client, left: deque[BrokerEndpoints], *, is_first: bool
    ) -> set[asyncio.Task[_Upstream | None]]:
        """Begin to connect with the first broker, or with the next ones up to one that is not late (rule 5)."""
        begun: set[asyncio.Task[_Upstream | None]] = set()
        goes_on = True
        while left and goes_on:
            broker = left.popleft()
            goes_on = not is_first and self._router.is_late(broker)
            begun.add(asyncio.create_task(self._connect(client, broker), name="bootstrap-connect"))
            if left and goes_on:
                self._metrics.failovers.labels("kafka").inc()
        return begun

    async def _connect(self, client: _Client, broker: BrokerEndpoints) -> _Upstream | None:
        host, port = split_address(broker.kafka)
        tls = None if self._upstream is None else self._upstream.client()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, side = await loop.create_connection(lambda: _Upstream(client, broker), host, port, ssl=tls)
        except OSError:  # refused, unreachable, a certificate that does not fit or, as TimeoutError, no answer
            return None
        return side
