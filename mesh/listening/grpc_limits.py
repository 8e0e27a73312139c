"""Limits of a gRPC listener. gRPC accepts by itself: connections are bounded in all by its own options, and calls are
bounded per address here.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from georelay.limits import KIB
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal, group_of

METADATA_BYTES_MAX: Final = 16 * KIB
IDLE_MS: Final = 600_000  # a connection without a call
STREAMS_PER_CONNECTION_MAX: Final = 1_000
CALLS_PER_ADDRESS_MAX: Final = 1_000


def connection_options(limits: AdmissionLimits) -> tuple[tuple[str, int], ...]:
    """Return what gRPC itself is told."""
    return (
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_s * 1000)),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.keepalive_time_ms", 60_000),  # a client that has gone silently is noticed
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 5),
    )


class CallLimits(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Refuses the calls of an address that has too many open."""

    def __init__(
        self,
        limits: AdmissionLimits,
        counters: AdmissionCounters,
        *,
        calls_per_address_max: int = CALLS_PER_ADDRESS_MAX,
    ) -> None:
        self._calls_max = min(calls_per_address_max, limits.connections_per_address_max)
        self._counters = counters
        self._calls: Counter[str] = Counter()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streamed(handler.stream_stream), *_codecs(handler))
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streamed(handler.unary_stream), *_codecs(handler))
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._single(handler.stream_unary), *_codecs(handler))
        return grpc.unary_unary_rpc_method_handler(self._single(handler.unary_unary), *_codecs(handler))

    def _single(self, behaviour: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            address = await self._begin(context)
            try:
                return await behaviour(request, context)
            finally:
                self._end(address)

        return call

    def _streamed(self, behaviour: Any) -> Any:
        if not inspect.isasyncgenfunction(behaviour):  # it writes to the context itself
            return self._single(behaviour)

        async def call(request: Any, context: Any) -> Any:
            address = await self._begin(context)
            try:
                async for answer in behaviour(request, context):
                    yield answer
            finally:
                self._end(address)

        return call

    async def _begin(self, context: Any) -> str:
        address = _address_of(context.peer())
        if self._calls[address] >= self._calls_max:
            self._counters.refuse(Refusal.TOO_MANY_OF_ADDRESS)
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"over {self._calls_max} calls of one address are open"
            )
        self._calls[address] += 1
        return address

    def _end(self, address: str) -> None:
        self._calls[address] -= 1
        if not self._calls[address]:
            del self._calls[address]


def _codecs(handler: Any) -> tuple[Any, Any]:
    return handler.request_deserializer, handler.response_serializer


def _address_of(peer: str) -> str:
    """Return the address in gRPC's "ipv4:10.0.0.1:53100" or "ipv6:%5B::1%5D:53100"."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return group_of(host or peer)
