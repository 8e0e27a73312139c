"""The Kafka listener of one broker: accepts, counts and sweeps connections; owns nothing of what they ask for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from georelay.limits import KAFKA_CONNECTIONS_MAX
from region.kafka.connection import KafkaConnection, Slot
from region.kafka.dispatch import handler_table
from region.kafka.frame_buffer import SHARED_BYTES
from region.kafka.handlers.sasl import SaslHandler
from region.kafka.services import KafkaServices

log = structlog.get_logger()

SWEEP_S: Final = 0.5  # how late a deadline may be noticed
BACKLOG: Final = 1_024


class KafkaListener:
    """Serves the Kafka protocol on one address until `close`."""

    def __init__(
        self, services: KafkaServices, *, host: str, port: int, connections_max: int = KAFKA_CONNECTIONS_MAX
    ) -> None:
        self._services = services
        self._host = host
        self._port = port
        self._connections_max = connections_max
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._sasl = SaslHandler(services)
        self._handlers = handler_table(services, self._sasl)
        self._connections: set[KafkaConnection] = set()
        self._server: asyncio.Server | None = None
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
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self._host, self._port, backlog=BACKLOG)
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        log.info("kafka_listener.started", host=self._host, port=self._port)
        return self._port

    async def close(self) -> None:
        """Stop accepting, drop all connections and what they wait for."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = tuple(self._connections)
        tasks = [task for connection in connections for task in connection.tasks]
        if self._server is not None:
            self._server.close()
        for connection in connections:
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sasl.close()
        if self._server is not None:
            await self._server.wait_closed()

    def _connection(self) -> KafkaConnection:
        services = self._services
        return KafkaConnection(
            dispatch=self._dispatch,
            sasl=self._sasl,
            sign_in_needed=services.credentials.required,
            counters=services.counters,
            wall_ns=services.wall_ns,
            monotonic_ns=services.monotonic_ns,
            opened=self._opened,
            closed=self._closed,
            shared=self._shared,
        )

    def _dispatch(self, slot: Slot, request: Any) -> None:
        self._handlers[type(request)](slot, request)

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
        for connection in tuple(self._connections):
            connection.sweep(now_ns)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
