"""WebSockets of an HTTP listener: what their messages hold until they are done with, and who is there no more.

Rule 1: bytes count from when they come, messages that are not whole included; nothing is compressed. While the budget
        is full, a socket from which more comes is closed: try again later.
Rule 2: a message of over SLOW_BYTES has MESSAGE_S to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
from aiohttp import WSCloseCode, web

from georelay.limits import KIB, MIB
from mesh.listening.http_site import HttpConnection

log = structlog.get_logger()

MESSAGE_BYTES_MAX: Final = 9 * MIB  # from a client: a record batch of the largest size, and its head
ANSWER_MESSAGE_BYTES_MAX: Final = 17 * MIB  # from a broker: one record as JSON, and others
CLOSE_S: Final = 1.0  # how long the other end may take to answer that a socket is closed
HEADS_BYTES: Final = 64  # of the frames of a message
SLOW_BYTES: Final = 64 * KIB
MESSAGE_S: Final = 60.0


def new_socket() -> web.WebSocketResponse:
    """Return a socket that is to be prepared."""
    return web.WebSocketResponse(compress=False, max_msg_size=MESSAGE_BYTES_MAX, timeout=CLOSE_S)


class SocketMemory:
    """What one socket's messages hold of a budget.

    Args:
        take: counts bytes, or gives them back (below 0); False: there is no room, and nothing was counted.
    """

    def __init__(self, request: web.Request, ws: web.WebSocketResponse, take: Callable[[int], bool]) -> None:
        self._ws = ws
        self._peer = request.remote
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._held_bytes = 0
        self._released_s = self._loop.time()
        self._tasks: set[asyncio.Task[Any]] = set()
        if isinstance(request.protocol, HttpConnection):  # another one only in tests
            request.protocol.watch(heard=self.heard, ping=self.ping)

    def heard(self, size_bytes: int) -> None:
        """Count bytes that came, heads of frames among them."""
        if not self._held_bytes:
            self._released_s = self._loop.time()
        if not self._take(size_bytes):
            self._end(WSCloseCode.TRY_AGAIN_LATER, b"requests fill the budget here")
            return
        self._held_bytes += size_bytes
        if self._held_bytes > SLOW_BYTES and self._loop.time() - self._released_s > MESSAGE_S:
            self._end(WSCloseCode.POLICY_VIOLATION, b"a message takes too long")

    def release(self, size_bytes: int) -> None:
        """Give back what a message took, and the heads of the frames that it came in."""
        self._released_s = self._loop.time()
        given = self._held_bytes if size_bytes + HEADS_BYTES >= self._held_bytes else size_bytes
        self._held_bytes -= given
        self._take(-given)

    def ping(self) -> None:
        """Ask a silent client whether it is there; what its last pongs took is given back."""
        if self._held_bytes <= SLOW_BYTES:
            self.release(self._held_bytes)
        self._start(self._ws.ping())

    def close(self) -> None:
        """Give back everything."""
        self.release(self._held_bytes)

    def _end(self, code: WSCloseCode, why: bytes) -> None:
        log.warning("socket.ended", peer=self._peer, why=why.decode())
        self._start(self._ws.close(code=code, message=why))

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("socket.left", peer=self._peer, error=repr(error))
