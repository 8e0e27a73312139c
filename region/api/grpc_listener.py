"""The gRPC listener of one broker: it carries the services it is given and owns no decision of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
import structlog

from georelay.limits import MIB, RECORD_BATCH_BYTES_MAX
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.grpc_limits import CALLS_MAX, CallLimits, calls_at_once, connection_options, connections_of
from mesh.listening.grpc_requests import WINDOW_OPTIONS, Admit, RequestBudget, RequestLimits
from mesh.listening.grpc_server import GrpcServer
from mesh.listening.limited_handlers import LimitedHandlers
from mesh.listening.listeners import ListenerParts
from mesh.listening.pending_calls import newest_server
from region.api.carried_calls import CARRY_METHOD, PUBLISH_METHOD, CarriedCalls
from region.api.grpc_calls import OPEN_SERVICES

log = structlog.get_logger()

CLOSE_GRACE_S: Final = 1.0
QUICK_METHODS: Final = frozenset({PUBLISH_METHOD})
COUNTED_INSIDE: Final = frozenset({CARRY_METHOD})
MESSAGE_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX + MIB


class GrpcListener:
    """Serves generic handlers on one address until `close`."""

    def __init__(
        self,
        handlers: Sequence[Any],
        *,
        host: str,
        port: int,
        parts: ListenerParts | None = None,
        admit: Admit | None = None,
        carried: CarriedCalls | None = None,
    ) -> None:
        """Make it.

        Args:
            admit: judges a call before its request is read (GrpcCalls.admit).
            carried: one of the handlers' services, whose calls are within the limits of this listener.
        """
        self._carried = carried
        self.budget = RequestBudget(calls_max=CALLS_MAX)
        self._admit = admit
        self._parts = parts
        self._handlers = handlers
        self._host = host
        self._port = port
        self._server: GrpcServer | None = None

    async def start(self) -> int:
        """Bind and serve; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        address = f"{self._host}:{self._port}"
        parts = self._parts
        counters = AdmissionCounters() if parts is None else parts.counters
        self._server = GrpcServer(
            lambda: self._made(counters),
            address,
            tls=None if parts is None else parts.contexts,
            counters=counters,
            connections=connections_of(AdmissionLimits() if parts is None else parts.limits, counters, name="grpc"),
        )
        try:
            bound = await self._server.start()
        except RuntimeError as error:  # grpcio's way of saying "address in use"
            raise OSError(f"gRPC cannot listen on {address}: {error}") from error
        log.info("grpc_listener.started", host=self._host, port=bound)
        return bound

    def _made(self, counters: AdmissionCounters) -> Any:
        limits = AdmissionLimits() if self._parts is None else self._parts.limits
        options = (
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.so_reuseport", 0),  # a port taken by another process must be an error
            *connection_options(limits),
            *WINDOW_OPTIONS,
        )
        calls = CallLimits(limits, counters, open_services=OPEN_SERVICES, quick_methods=QUICK_METHODS)
        requests = RequestLimits(
            self.budget,
            counters,
            message_bytes_max=MESSAGE_BYTES_MAX,
            open_services=OPEN_SERVICES,
            admit=self._admit,
            counted_inside=COUNTED_INSIDE,
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_at_once(CALLS_MAX))
        calls.watch(newest_server())
        if self._carried is not None:
            self._carried.within(calls, requests)
        server.add_generic_rpc_handlers((LimitedHandlers(self._handlers, calls, requests),))
        return server

    async def close(self) -> None:
        """Stop accepting, give running calls a moment, then cancel them."""
        if self._server is not None:
            # Told earlier, a gateway would call one by one here, and calls that gRPC has not shown us yet are dropped.
            await self._server.stop(CLOSE_GRACE_S, when_told=None if self._carried is None else self._carried.close)
