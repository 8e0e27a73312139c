"""A gRPC server that is there again when it has stopped by itself.

grpcio ends the whole server, listening socket included, when ONE request has a method that is not UTF-8 (seen with
1.85.1, with no handler of ours involved; anybody who can connect can send it). It says so only when its last call has
ended, so the socket is watched. The calls that run are not harmed: they may end in the old server while a new one
listens. Looking takes descriptors: while none are left the watch says so and looks again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.tls import TlsContexts
from georelay.tls_grpc import server_credentials
from mesh.listening.accepted_sockets import AcceptedSockets
from mesh.listening.admission_core import AdmissionCounters
from mesh.listening.own_sockets import listening_on, socket_of

log = structlog.get_logger()

LOOK_S: Final = 0.2
CONNECTIONS_LOOK_S: Final = 1.0
AGAIN_S: Final = 0.1  # the port may be taken for a moment
OLD_CALLS_S: Final = 600.0  # then they are ended


class GrpcServer:
    """One listening address until `stop`.

    Args:
        make: returns a new `grpc.aio` server with its handlers; called again after each failure.
        address: "host:port".
        tls: None for plain text.
        connections: bounds those that it accepts.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        address: str,
        *,
        tls: TlsContexts | None = None,
        counters: AdmissionCounters | None = None,
        connections: AcceptedSockets | None = None,
    ) -> None:
        self._connections = connections
        self._make = make
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._counters = counters or AdmissionCounters()
        self._server: Any = None
        self._listener: list[tuple[int, str]] = []  # its sockets, where they could be told
        self._watching: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Bind and serve; returns the port (RuntimeError, as of grpcio: it cannot be bound)."""
        self._server = await self._started()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=f"grpc-{self._port}")
        return self._port

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return self._port

    async def stop(self, grace_s: float | None, *, when_told: Callable[[], None] | None = None) -> None:
        """Accept no more; give running calls `grace_s`, None: no time.

        Args:
            when_told: called when every connection has been told (GOAWAY): what a call writes from then on reaches its
                client after that, and the client begins no call any more that this server would drop.
        """
        if self._watching is None:
            return
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        stopping = asyncio.get_running_loop().create_task(self._server.stop(grace_s))
        await asyncio.sleep(0)  # its first step tells them
        if when_told is not None:
            when_told()
        await stopping

    async def _started(self) -> Any:
        server = self._make()
        address = f"{self._host}:{self._port}"
        if self._tls is None:
            self._port = int(server.add_insecure_port(address))
        else:
            self._port = int(server.add_secure_port(address, server_credentials(self._tls)))
        await server.start()
        try:
            self._listener = listening_on(self._port)
        except OSError:  # no descriptor is left to look with: the port is looked at instead
            self._listener = []
        return server

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        look_at_s = loop.time()
        while True:
            await asyncio.sleep(pause_s(LOOK_S))
            try:
                if self._connections is not None and loop.time() >= look_at_s:
                    look_at_s = loop.time() + CONNECTIONS_LOOK_S
                    await self._connections.look(self._port)
                if not self._is_listening():
                    await self._replace()
            except OSError as error:
                log.warning("grpc_server.cannot_look", port=self._port, reason=str(error))

    async def _replace(self) -> None:
        """Let the server that stopped end its calls, and start another one."""
        log.error("grpc_server.stopped_by_itself", port=self._port)
        self._counters.restarts += 1
        leaving = asyncio.get_running_loop().create_task(_leave(self._server))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await self._start_again()

    def _is_listening(self) -> bool:
        """Return whether its sockets are there, or the port is taken at least.

        Only a socket that listens keeps one with SO_REUSEADDR from binding. Raises OSError: it cannot be told now.
        """
        if self._listener and all(socket_of(descriptor) == what for descriptor, what in self._listener):
            return True
        host = self._host.strip("[]")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, self._port))
            except OSError:
                return True
        return False

    async def _start_again(self) -> None:
        while True:
            try:
                self._server = await self._started()
            except (RuntimeError, OSError) as error:  # OSError: its certificates cannot be read now
                log.warning("grpc_server.cannot_listen", port=self._port, reason=str(error)[:200])
                await asyncio.sleep(AGAIN_S)
            else:
                return


async def _leave(server: Any) -> None:
    """Let the calls of a server that listens no more end by themselves."""
    try:
        await server.stop(OLD_CALLS_S)
    except Exception as error:  # noqa: BLE001  it repeats what ended it
        log.info("grpc_server.left", reason=f"{type(error).__name__}: {error}"[:200])
