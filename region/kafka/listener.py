"""The Kafka listener of one broker: accepts, counts and sweeps connections; owns nothing of what they ask for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.limits import KAFKA_CONNECTIONS_MAX
from mesh.listening.acceptor import Acceptor
from mesh.listening.listeners import ListenerParts
from region.kafka.connection import DEFAULT_LIMITS, ConnectionLimits, KafkaConnection, Slot
from region.kafka.dispatch import handler_table
from region.kafka.frame_buffer import SHARED_BYTES
from region.kafka.handlers.sasl import SaslHandler
from region.kafka.request_memory import RequestMemory
from region.kafka.services import KafkaServices
from region.security.access import Principal

log = structlog.get_logger()

SWEEP_S: Final = 0.5  # how late a deadline may be noticed


class KafkaListener:
    """Serves the Kafka protocol on one address until `close`."""

    def __init__(
        self,
        services: KafkaServices,
        *,
        host: str,
        port: int,
        connections_max: int = KAFKA_CONNECTIONS_MAX,
        parts: ListenerParts | None = None,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        memory: RequestMemory | None = None,
        answers: RequestMemory | None = None,
    ) -> None:
        self._services = services
        self._host = host
        self._port = port
        self._connections_max = connections_max
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._sasl = SaslHandler(services)
        self._handlers = handler_table(services, self._sasl)
        self._connections: set[KafkaConnection] = set()
        self._limits = limits
        self._memory = RequestMemory() if memory is None else memory
        self._answers = RequestMemory() if answers is None else answers
        self._tls = None if parts is None else parts.contexts
        self._acceptor = Acceptor(
            self._connection,
            name="kafka",
            limits=None if parts is None else parts.limits,
            counters=None if parts is None else parts.counters,
            contexts=self._tls,
        )
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the port that is bound (the one asked for, or the one the system chose for 0)."""
        return self._port

    async def start(self) -> int:
        """Bind and accept; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._port = await self._acceptor.start(self._host, self._port)
        self._sweeper = asyncio.get_running_loop().call_later(pause_s(SWEEP_S), self._sweep)
        log.info("kafka_listener.started", host=self._host, port=self._port)
        return self._port

    async def close(self) -> None:
        """Stop accepting, drop all connections and what they wait for."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._acceptor.close()
        connections = tuple(self._connections)
        tasks = [task for connection in connections for task in connection.tasks]
        for connection in connections:
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sasl.close()

    def _connection(self) -> KafkaConnection:
        services = self._services
        return KafkaConnection(
            dispatch=self._dispatch,
            sasl=self._sasl,
            sign_in_needed=self._sasl.sign_in.required,
            counters=services.counters,
            wall_ns=services.wall_ns,
            monotonic_ns=services.monotonic_ns,
            opened=self._opened,
            closed=self._closed,
            shared=self._shared,
            limits=self._limits,
            memory=self._memory,
            answers=self._answers,
            peer_name=None if self._tls is None else self._peer_name,
            refused=self._acceptor.counters.refuse,
        )

    def _peer_name(self, transport: asyncio.BaseTransport) -> str:
        assert self._tls is not None
        name = self._tls.principal_of(transport.get_extra_info("ssl_object"))
        return name if self._sasl.sign_in.is_still_valid(Principal(name=name)) else ""  # a disabled user's is none

    def _dispatch(self, slot: Slot, request: Any) -> None:
        quotas = self._services.quotas
        if quotas.is_idle:
            self._handlers[type(request)](slot, request)
            return
        monotonic_ns = self._services.monotonic_ns
        began_ns = monotonic_ns()
        self._handlers[type(request)](slot, request)
        connection = slot.connection
        connection.mute(quotas.request(connection.principal, (monotonic_ns() - began_ns) / 1e9))

    def _opened(self, connection: KafkaConnection) -> bool:
        counters = self._services.counters
        if len(self._connections) >= self._connections_max:
            counters.connections_refused += 1
            return False
        counters.connections_accepted += 1
        self._connections.add(connection)
        counters.connections_open = len(self._connections)
        return True

    def _closed(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)
        self._services.counters.connections_open = len(self._connections)

    def _sweep(self) -> None:
        now_ns = self._services.monotonic_ns()
        sign_in = self._sasl.sign_in
        for connection in tuple(self._connections):
            connection.sweep(now_ns)
            if connection.is_served and not sign_in.is_still_valid(connection.principal):
                log.info("kafka_connection.user_ended", peer=connection.peer, user=connection.principal.user)
                connection.close()
        self._sweeper = asyncio.get_running_loop().call_later(pause_s(SWEEP_S), self._sweep)
