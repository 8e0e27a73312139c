"""The first half of a dial: a TCP connection, before TLS.

Rule: the other machine's kernel answers it, however busy the broker there is. So it has a fixed time, that of a
      network, and all that follows has the patience of dial_patience_core.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import uvloop

AddressRow: TypeAlias = tuple[Any, ...]  # of getaddrinfo
P = TypeVar("P", bound=asyncio.BaseProtocol)


async def resolved(host: str, port: int) -> list[AddressRow]:
    """Return what `host` stands for. Raises OSError: nobody knows it."""
    return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


async def connected(rows: Sequence[AddressRow], *, first: int = 0) -> socket.socket:
    """Return a connection to one of the addresses, asked in turn from number `first` on. Raises OSError: none takes it.

    `carried` owns it from then on; until then it is the caller's to close.
    """
    first %= len(rows)
    failure = OSError("no address")
    for family, kind, protocol, _, address in [*rows[first:], *rows[:first]]:
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


class _Told:
    """What a protocol was told of its connection; the protocol needs an instance dictionary."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_up = False
        protocol.connection_made, protocol.connection_lost = self._made, self._lost

    def _made(self, transport: asyncio.BaseTransport) -> None:
        self._is_up = True
        del self._protocol.connection_made  # the class's own again
        self._protocol.connection_made(transport)

    def _lost(self, error: Exception | None) -> None:
        del self._protocol.connection_lost
        if self._is_up:
            self._protocol.connection_lost(error)
        self._is_up = False

    def given_up(self) -> None:
        """Tell that the connection is lost, if it was told that it is there."""
        if self._is_up:
            self._lost(None)


async def carried(make: Callable[[], P], connection: socket.socket, **options: Any) -> P:
    """Return the protocol of a connection, as create_connection makes it. Raises OSError.

    Who cancels it just when the connection is made has it closed, and its protocol told: uvloop tells nobody then.
    """
    loop = asyncio.get_running_loop()
    told: list[_Told] = []
    is_over = True

    def watched() -> P:
        protocol = make()
        told.append(_Told(protocol))
        return protocol

    try:
        transport, protocol = await loop.create_connection(watched, sock=connection, **options)
        is_over = transport.is_closing()
        return protocol
    except BaseException:
        if told and isinstance(loop, uvloop.Loop):
            told[0].given_up()
        raise
    finally:
        if is_over and isinstance(loop, uvloop.Loop):
            # uvloop closes the number of a connection that ends this early, and does not tell the object. That would
            # close it again, when it is that of a log by then, and what gets it next is written to as if it were one.
            connection.detach()


async def connected_within(host: str, port: int, *, timeout_ms: int) -> socket.socket:
    """Return a connection to a host that takes it in time, as `connected` does. Raises OSError."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await connected(await resolved(host, port))
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout_ms} ms") from None
