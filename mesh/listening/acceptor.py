"""Accepts the TCP connections of one listener: admission first, then TLS, then the owner's protocol.

Rule 1: at most ACCEPTS_PER_TURN connections are taken from the kernel in one turn of the event loop, and no more than
        the admission's rate: a flood waits in the kernel's backlog and costs open connections nothing.
Rule 2: a connection that is refused is reset at once; not a byte of it is read.
Rule 3: every handshake uses the newest certificate; one that does not end in time is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from georelay.tls import TlsContexts
from mesh.listening.admission_core import Admission, AdmissionCounters, AdmissionLimits, Refusal

log = structlog.get_logger()

ACCEPTS_PER_TURN: Final = 16
BACKLOG: Final = 1_024
PAUSE_S_MIN: Final = 0.005  # while the rate is used up
NO_DESCRIPTORS_PAUSE_S: Final = 0.2
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Acceptor:
    """One listening address, until `close`.

    Args:
        factory: makes the protocol of one connection; `connection_made` follows when TLS is up.
        name: for the log.
        limits: see AdmissionLimits.
        counters: what is counted; give one to read it as metrics.
        contexts: None: plain text.
        monotonic_s: clock; another only in tests.
    """

    def __init__(
        self,
        factory: ProtocolFactory,
        *,
        name: str,
        limits: AdmissionLimits | None = None,
        counters: AdmissionCounters | None = None,
        contexts: TlsContexts | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory = factory
        self._name = name
        self._contexts = contexts
        self._monotonic_s = monotonic_s
        self.counters = AdmissionCounters() if counters is None else counters
        self._admission = Admission(limits or AdmissionLimits(), self.counters, now_s=monotonic_s())
        self._sockets: list[socket.socket] = []
        self._opening: dict[asyncio.Task[None], socket.socket] = {}
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    async def start(self, host: str, port: int) -> int:
        """Bind and accept on an address, "" for all of them; returns the port of the first one.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        rows = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(rows):
                listener = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
                self._sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                listener.listen(BACKLOG)
        except OSError as error:
            await self.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
        for listener in self._sockets:
            loop.add_reader(listener.fileno(), self._accept, listener)
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop accepting and drop handshakes; connections that are up are the owner's."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for pause in self._pauses.values():
            pause.cancel()
        for listener in self._sockets:
            with contextlib.suppress(OSError, ValueError):
                loop.remove_reader(listener.fileno())
            listener.close()
        self._sockets.clear()
        opening = tuple(self._opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    # --- accepting -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        admission = self._admission
        for _ in range(ACCEPTS_PER_TURN):
            now_s = self._monotonic_s()
            if not admission.may_accept(now_s):
                self._pause(listener, max(PAUSE_S_MIN, admission.wait_s(now_s)))
                return
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                log.error("listener.out_of_descriptors", listener=self._name)  # noqa: TRY400  it is one of four
                self._pause(listener, NO_DESCRIPTORS_PAUSE_S)
                return
            admitted = admission.admit(str(address[0]), now_s, handshake=self._contexts is not None)
            if isinstance(admitted, Refusal):
                _reset(connection)
                continue
            connection.setblocking(False)
            self._open(connection, admitted)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        number = listener.fileno()
        loop.remove_reader(number)
        self._pauses[number] = loop.call_later(seconds, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        self._pauses.pop(listener.fileno(), None)
        if not self._closed:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _open(self, connection: socket.socket, key: str) -> None:
        task = asyncio.get_running_loop().create_task(self._opened(connection, key))
        self._opening[task] = connection
        task.add_done_callback(self._opening_ended)

    def _opening_ended(self, task: asyncio.Task[None]) -> None:
        connection = self._opening.pop(task)
        if task.cancelled():  # perhaps before there was a transport that would close it
            connection.close()

    async def _opened(self, connection: socket.socket, key: str) -> None:
        """Shake hands and hand over."""
        protocol = _Counted(self._factory(), self._admission, key)
        options: dict[str, Any] = {}
        if self._contexts is not None:
            options = {"ssl": self._contexts.server(), "ssl_handshake_timeout": self._admission.limits.handshake_s}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol.take, connection, **options)
        except (ssl.SSLError, OSError) as error:  # a TimeoutError is an OSError
            late = isinstance(error, TimeoutError) or "timeout" in str(error).lower() or "longer than" in str(error)
            reason = Refusal.HANDSHAKE_TIMEOUT if late else Refusal.HANDSHAKE_FAILED
            self.counters.refuse(reason)
            self._admission.handshake_failed(key, self._monotonic_s())
            detail = getattr(error, "reason", None) or type(error).__name__
            log.debug("listener.handshake_failed", listener=self._name, reason=str(detail))
        finally:
            if self._contexts is not None:
                self._admission.handshaken(key)
            if not protocol.is_up:  # the loop has closed the connection
                self._admission.closed(key)


class _Counted:
    """Notes when a protocol's connection is up and when it is lost; the protocol needs an instance dictionary."""

    __slots__ = ("_admission", "_key", "_protocol", "is_up")

    def __init__(self, protocol: asyncio.BaseProtocol, admission: Admission, key: str) -> None:
        self._protocol = protocol
        self._admission = admission
        self._key = key
        self.is_up = False

    def take(self) -> asyncio.BaseProtocol:
        """Return the protocol, watched."""
        self._protocol.connection_made = self._made  # type: ignore[method-assign]
        self._protocol.connection_lost = self._lost  # type: ignore[method-assign,assignment]
        return self._protocol

    def _made(self, transport: asyncio.BaseTransport) -> None:
        self.is_up = True
        del self._protocol.connection_made  # the class's own again
        self._protocol.connection_made(transport)

    def _lost(self, error: Exception | None) -> None:
        del self._protocol.connection_lost  # or it would be kept until the collector finds the cycle
        if self.is_up:  # some loops tell a failed handshake as a loss
            self._admission.closed(self._key)
            self._protocol.connection_lost(error)


def cut_off(transport: asyncio.WriteTransport | None) -> None:
    """End a connection whose other end does not read. It is told (RST), and what waits for it in the kernel goes.

    After a mere abort() the kernel would keep that, and the connection, for minutes.
    """
    if transport is None:
        return
    raw: Any = transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):  # it is closed already
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def _reset(connection: socket.socket) -> None:
    """Close without a farewell: nothing of it stays in the kernel."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
