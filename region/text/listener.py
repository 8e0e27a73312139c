"""The text listener of one broker: accepts, counts and sweeps connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from mesh.listening.acceptor import Acceptor
from mesh.listening.admission_core import AdmissionLimits
from mesh.listening.listeners import ListenerParts
from region.text.connection import TextConnection
from region.text.services import TextServices

log = structlog.get_logger()

CONNECTIONS_MAX: Final = 1_000
SWEEP_S: Final = 1.0
LEAVING_S_MAX: Final = 3.0  # members tell their groups; then the process goes on to end


class TextListener:
    """Serves the text protocol on one address until `close`."""

    def __init__(
        self,
        services: TextServices,
        *,
        host: str,
        port: int,
        connections_max: int = CONNECTIONS_MAX,
        parts: ListenerParts | None = None,
    ) -> None:
        self._services = services
        self._host = host
        self._port = port
        self._connections: set[TextConnection] = set()
        self._contexts = None if parts is None else parts.contexts
        self._acceptor = Acceptor(
            self._connection,
            name="text",
            limits=(AdmissionLimits() if parts is None else parts.limits).within(connections_max),
            counters=None if parts is None else parts.counters,
            contexts=self._contexts,
        )
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Return how many are open."""
        return len(self._connections)

    async def start(self) -> int:
        """Bind and accept; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._port = await self._acceptor.start(self._host, self._port)
        self._sweeper = asyncio.get_running_loop().call_later(pause_s(SWEEP_S), self._sweep)
        log.info("text_listener.started", host=self._host, port=self._port)
        return self._port

    async def close(self) -> None:
        """Stop accepting, and end every connection; members leave their groups."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._acceptor.close()
        connections = tuple(self._connections)
        tasks = [connection.task for connection in connections if connection.task is not None]
        for connection in connections:
            connection.abort()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LEAVING_S_MAX)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _connection(self) -> TextConnection:
        return TextConnection(
            self._services,
            opened=self._connections.add,
            closed=self._connections.discard,
            certificate_name=self._certificate_name,
        )

    def _certificate_name(self, ssl_object: Any) -> str:
        return "" if self._contexts is None else self._contexts.principal_of(ssl_object)

    def _sweep(self) -> None:
        now_ns = self._services.monotonic_ns()
        for connection in tuple(self._connections):
            connection.sweep(now_ns)
        self._sweeper = asyncio.get_running_loop().call_later(pause_s(SWEEP_S), self._sweep)
