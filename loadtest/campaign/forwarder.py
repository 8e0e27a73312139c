"""A TCP forwarder between two brokers that can be cut or frozen.

Cut: open connections are reset, new ones are refused. Refused means what a client sees: nobody listens on the port.
Frozen: connections stay open and nothing passes, as behind a router that drops packets; what was sent arrives late.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # close() then sends a reset


class Forwarder:
    """Listens on a port of its own from construction on; `target` may be set later."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.connections_accepted = 0
        self._socket = _listening(0)
        self.port = int(self._socket.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def address(self) -> str:
        """Return "host:port" to connect to."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._accepted, sock=self._socket)

    async def cut(self) -> None:
        """Refuse new connections and reset those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            _reset(writer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def heal(self) -> None:
        """Accept again on the same port."""
        self._socket = _listening(self.port)
        await self.start()

    def freeze(self) -> None:
        """Let nothing pass; new connections are accepted and hear nothing."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything pass again, what waited first."""
        self._flowing.set()

    async def close(self) -> None:
        """End."""
        await self.cut()
        self._socket.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_accepted += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._forward(reader, writer)
        except* OSError:
            _reset(writer)  # the other side is gone: so is this one
        finally:
            self._open.discard(writer)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            return
        await self._flowing.wait()
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        self._open.add(far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        finally:
            self._open.discard(far_writer)
            _reset(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            if writer.transport.is_closing():  # uvloop would answer a write with RuntimeError
                raise ConnectionResetError("the other side is gone")
            writer.write(data)
            await writer.drain()
        await self._flowing.wait()  # the end of a connection does not pass either
        raise ConnectionResetError("end of stream")


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(128)
    listening.setblocking(False)
    return listening


def _reset(writer: asyncio.StreamWriter) -> None:
    stream = writer.get_extra_info("socket")
    if stream is not None and stream.fileno() >= 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()
