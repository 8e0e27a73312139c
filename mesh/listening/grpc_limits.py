"""Limits of a gRPC listener. gRPC accepts by itself: connections are bounded in all by its own options, per address by
AcceptedSockets; calls are bounded here, per address and in all.

Rule 1: calls of services that are open to everybody have a room of their own, small, and an end: nobody who need not
        sign in takes a place of those who have to.
Rule 2: calls of `quick_methods` are refused while those before them wait for each other, see StandingQueue.
Rule 3: what is refused says so: RESOURCE_EXHAUSTED with the code BUSY in the trailing metadata, counted by reason.
        grpcio's own bound (`calls_at_once`) is beyond all rooms: what meets that one is ended without a word.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from georelay.errors import Busy, GeorelayError, Unavailable
from georelay.limits import KIB
from mesh.listening.accepted_sockets import AcceptedSockets, SocketLimits
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal, group_of
from mesh.listening.pending_calls import PendingCalls
from mesh.listening.standing_queue_core import StandingQueue

METADATA_BYTES_MAX: Final = 16 * KIB
IDLE_MS: Final = 600_000  # a connection without a call
STREAMS_PER_CONNECTION_MAX: Final = 1_000
CALLS_MAX: Final = 2_000
PENDING_CALLS_MAX: Final = 4_000  # of gRPC that we have not seen yet
CALLS_PER_ADDRESS_MAX: Final = 1_000
OPEN_CALLS_MAX: Final = 200
OPEN_CALLS_PER_ADDRESS_MAX: Final = 20
OPEN_CALL_S: Final = 600.0
PEERS_KEPT: Final = 4_096  # connections whose address is asked for with every call
WAITS_METADATA: Final = "georelay-durability"  # of a publish that waits for other regions


def connection_options(limits: AdmissionLimits) -> tuple[tuple[str, int], ...]:
    """Return what gRPC itself is told."""
    return (
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_s * 1000)),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.enable_channelz", 1),  # for PendingCalls
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        # Calls that came while the loop was busy: gRPC kills those beyond the first, CANCELLED and without a code.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS_MAX),
        ("grpc.keepalive_time_ms", 60_000),  # a client that has gone silently is noticed
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),  # clients look every second whether we are there
        ("grpc.http2.max_ping_strikes", 5),
    )


def connections_of(limits: AdmissionLimits, counters: AdmissionCounters, *, name: str) -> AcceptedSockets:
    """Return what bounds the connections of clients by address."""
    return AcceptedSockets(SocketLimits(per_address_max=limits.connections_per_address_max), counters, name=name)


def calls_at_once(calls_max: int) -> int:
    """Return what grpcio is told to run at once: all rooms, and as many that are just being refused."""
    return 2 * (calls_max + OPEN_CALLS_MAX)


def service_of(method: str) -> str:
    """Return "georelay.v1.Admin" of "/georelay.v1.Admin/CreateTopic"."""
    return method.removeprefix("/").rpartition("/")[0]


def trailers_of(error: GeorelayError) -> tuple[tuple[str, str], ...]:
    """Return what says in the trailing metadata of a call which error ended it."""
    return (("georelay-code", error.code), ("georelay-outcome", error.outcome.value))


class _Room:
    """Calls that are open, by address."""

    def __init__(self, *, calls_max: int, calls_per_address_max: int, call_s: float | None = None) -> None:
        self._calls_max = calls_max
        self._calls_per_address_max = calls_per_address_max
        self.call_s = call_s
        self._calls: Counter[str] = Counter()
        self._open = 0

    def refusal(self, address: str) -> tuple[Refusal, str] | None:
        """Return why there is no room for a call of an address, None where there is."""
        if self._calls[address] >= self._calls_per_address_max:
            return Refusal.TOO_MANY_OF_ADDRESS, f"over {self._calls_per_address_max} calls of one address are open"
        if self._open >= self._calls_max:
            return Refusal.TOO_MANY, f"over {self._calls_max} calls are open here; try again"
        return None

    def enter(self, address: str) -> None:
        self._calls[address] += 1
        self._open += 1

    def leave(self, address: str) -> None:
        self._open -= 1
        self._calls[address] -= 1
        if not self._calls[address]:
            del self._calls[address]


class CallLimits:
    """Refuses calls where too many are open; see mesh.listening.limited_handlers.

    Args:
        open_services: those that nobody has to sign in for.
        quick_methods: those whose calls are over at once, unless they ask for more regions ("/broker.Broker/Publish").
        calls_max: how many of the others may be open. open_call_s: how long one of an open service may be.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        counters: AdmissionCounters,
        *,
        open_services: Collection[str] = (),
        quick_methods: Collection[str] = (),
        calls_max: int = CALLS_MAX,
        calls_per_address_max: int = CALLS_PER_ADDRESS_MAX,
        open_call_s: float = OPEN_CALL_S,
    ) -> None:
        per_address = limits.connections_per_address_max
        self._room = _Room(calls_max=calls_max, calls_per_address_max=min(calls_per_address_max, per_address))
        self._open_room = _Room(
            calls_max=OPEN_CALLS_MAX,
            calls_per_address_max=min(OPEN_CALLS_PER_ADDRESS_MAX, per_address),
            call_s=open_call_s,
        )
        self._open_services = open_services
        self._queues = {method: StandingQueue() for method in quick_methods}
        self._counters = counters
        self._pending: PendingCalls | None = None

    def watch(self, server: int) -> None:
        """Learn which server these calls come from (newest_server)."""
        self._pending = PendingCalls(server)

    def seen(self) -> None:
        """Note that a call has come."""
        if self._pending is not None:
            self._pending.seen(time.monotonic_ns())

    def within(self, handler: Any, method: str) -> Any:
        """Return the handler of a method within its limits."""
        room = self._open_room if service_of(method) in self._open_services else self._room
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streamed(handler.stream_stream, room), *_codecs(handler))
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streamed(handler.unary_stream, room), *_codecs(handler))
        behaviour = self.limited(handler.stream_unary if handler.request_streaming else handler.unary_unary, method)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(behaviour, *_codecs(handler))
        return grpc.unary_unary_rpc_method_handler(behaviour, *_codecs(handler))

    def limited(self, behaviour: Any, method: str) -> Any:
        """Return a handler of one answer within the limits of its method."""
        room = self._open_room if service_of(method) in self._open_services else self._room
        single = self._single(behaviour, room)
        return single if (queue := self._queues.get(method)) is None else self._quick(single, queue)

    def _quick(self, behaviour: Any, queue: StandingQueue) -> Any:
        async def call(request: Any, context: Any) -> Any:
            if any(key == WAITS_METADATA for key, _ in context.invocation_metadata() or ()):
                return await behaviour(request, context)
            now_ns = time.monotonic_ns()
            if queue.is_over(now_ns, waiting=0 if self._pending is None else self._pending.waiting):
                self._counters.refuse(Refusal.OVERLOADED)
                text = f"{queue.calls_open} such calls wait for each other here; try again"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text, trailers_of(Busy()))
            begun = queue.begin(now_ns)
            is_done = False
            try:
                answer = await behaviour(request, context)
                is_done = True
                return answer
            finally:
                queue.end(begun, time.monotonic_ns(), is_done=is_done)

        return call

    def _single(self, behaviour: Any, room: _Room) -> Any:
        async def call(request: Any, context: Any) -> Any:
            address = await self._begin(context, room)
            try:
                if room.call_s is None:
                    return await behaviour(request, context)
                async with asyncio.timeout(room.call_s) as lifetime:
                    return await behaviour(request, context)
            except TimeoutError:
                await _end_of_life(context, lifetime)
                raise
            finally:
                room.leave(address)

        return call

    def _streamed(self, behaviour: Any, room: _Room) -> Any:
        if not inspect.isasyncgenfunction(behaviour):  # it writes to the context itself
            return self._single(behaviour, room)

        async def call(request: Any, context: Any) -> Any:
            address = await self._begin(context, room)
            try:
                async with asyncio.timeout(room.call_s) as lifetime:
                    async for answer in behaviour(request, context):
                        yield answer
            except TimeoutError:
                await _end_of_life(context, lifetime)
                raise
            finally:
                room.leave(address)

        return call

    async def _begin(self, context: Any, room: _Room) -> str:
        address = address_of(context.peer())
        refusal = room.refusal(address)
        if refusal is not None:
            self._counters.refuse(refusal[0])
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal[1], trailers_of(Busy()))
        room.enter(address)
        return address


async def _end_of_life(context: Any, lifetime: asyncio.Timeout) -> None:
    """End a call that was open for as long as it may be; another timeout is the handler's own."""
    if lifetime.expired():
        text = "this call was open for as long as one without a sign-in may be: begin another one"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text, trailers_of(Unavailable()))


def _codecs(handler: Any) -> tuple[Any, Any]:
    return handler.request_deserializer, handler.response_serializer


@lru_cache(PEERS_KEPT)
def address_of(peer: str) -> str:
    """Return the address in gRPC's "ipv4:10.0.0.1:53100" or "ipv6:%5B::1%5D:53100"."""
    return group_of(host_of(peer) or peer)


def host_of(peer: str) -> str:
    """Return the IP address in gRPC's name of a peer, "" when it has none."""
    return end_of(peer)[0]


@lru_cache(PEERS_KEPT)
def end_of(peer: str) -> tuple[str, int]:
    """Return address and port in gRPC's name of a peer: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234"; ("", 0): none."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else ("", 0)
