"""One request and its answer over TCP, both sides, within one deadline (serf-wire 2.4).

Rule 1: at most CONNECTIONS_MAX strangers are served at a time, CONNECTIONS_PER_HOST_MAX of one address. For one more
        the oldest is closed, and counted: an exchange takes milliseconds, so that is one who holds a place.
Rule 2: the deadline is for all of it: connecting, sending, reading.
Rule 3: what all strangers together have sent and is not whole yet takes at most HELD_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from mesh.gossip.faults import GossipFault, PacketError
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import Address
from mesh.gossip.packet import seal_stream
from mesh.gossip.stream_reader import StreamReader

CONNECTIONS_MAX: Final = 128
CONNECTIONS_PER_HOST_MAX: Final = 64
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
READ_BYTES: Final = 64 * 1024


class ExchangeFailed(Exception):
    """A peer did not answer as it should; the text says why in one line."""


class Answerer(Protocol):
    """Takes a request; returns the answer, None for none. Raises GossipFault."""

    def __call__(self, blob: bytes, source: Address) -> bytes | None:
        """Answer."""


async def exchange(address: Address, blob: bytes, *, keyring: Keyring | None, label: str, timeout_s: float) -> bytes:
    """Send one request to `address` and return the plain answer.

    Raises:
        ExchangeFailed: not reached, no answer in time, another key or label.
    """
    where = f"{address[0]}:{address[1]}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(seal_stream(blob, keyring=keyring, label=label, is_reply=False))
            await writer.drain()
            incoming = StreamReader(keyring=keyring, label=label, is_reply=True)
            while True:
                data = await reader.read(READ_BYTES)
                if not data:
                    raise ExchangeFailed(
                        f"{where} closed the connection without an answer: another key or label, or no gossip there"
                    )
                answer = incoming.feed(data)
                if answer is not None:
                    return answer
    except TimeoutError as error:
        raise ExchangeFailed(f"{where} did not answer within {timeout_s:g} s") from error
    except PacketError as error:
        raise ExchangeFailed(f"{where}: {_explained(error, keyring)}") from error
    except OSError as error:
        raise ExchangeFailed(f"{where} is not reached: {error.strerror or error}") from error
    finally:
        if writer is not None:
            writer.close()


def _explained(error: PacketError, keyring: Keyring | None) -> str:
    if error.reason == "plaintext":
        return "its pool is not encrypted, ours is: give both the same keyring_file"
    if error.reason == "no_key":
        return "its pool has another key" if keyring is not None else "its pool is encrypted, ours is not: keyring_file"
    return str(error)


class ExchangeServer:
    """Serves requests on a listening socket. `refused`: told of every request that was not answered, with the cause."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        answer: Answerer,
        refused: Callable[[GossipFault, Address], None],
        keyring: Keyring | None,
        label: str,
        timeout_s: float,
        counts: Counter[str],
    ) -> None:
        self._socket = sock
        self._answer = answer
        self._refused = refused
        self._keyring = keyring
        self._label = label
        self._timeout_s = timeout_s
        self._counts = counts
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], str] = {}  # oldest first
        self.held_bytes = 0

    async def start(self) -> None:
        """Accept from now on."""
        self._server = await asyncio.start_server(self._accepted, sock=self._socket)

    async def close(self) -> None:
        """Accept no more and drop what is served."""
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("?",))[0])
        of_host = [other for other, source in self._serving.items() if source == host]
        if len(of_host) >= CONNECTIONS_PER_HOST_MAX:
            self._drop(of_host[0])
        elif len(self._serving) >= CONNECTIONS_MAX:
            self._drop(next(iter(self._serving)))
        self._counts["connections_in"] += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = host
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._serve(reader, writer)
        except (TimeoutError, OSError):
            self._counts["connections_broken"] += 1
        finally:
            self._serving.pop(task, None)
            writer.close()

    def _drop(self, oldest: asyncio.Task[None]) -> None:
        self._counts["connections_refused"] += 1
        self._serving.pop(oldest)
        oldest.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername") or ("?", 0)
        source: Address = (peer[0], peer[1])
        incoming = StreamReader(keyring=self._keyring, label=self._label, is_reply=False)
        held = 0
        try:
            blob: bytes | None = None
            while blob is None:
                data = await reader.read(READ_BYTES)
                if not data:
                    self._counts["connections_broken"] += 1
                    return
                held += len(data)
                self.held_bytes += len(data)
                if self.held_bytes > HELD_BYTES_MAX:
                    self._counts["connections_over_memory"] += 1
                    return
                blob = incoming.feed(data)
            answer = self._answer(blob, source)
        except GossipFault as fault:
            self._refused(fault, source)
            return
        finally:
            self.held_bytes -= held
        if answer is not None:
            writer.write(seal_stream(answer, keyring=self._keyring, label=self._label, is_reply=True))
            await writer.drain()
