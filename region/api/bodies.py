"""The bodies of HTTP requests: how large they may be, what they count in, and where large ones are read as JSON.

Rule 1: a handler asks for the caller's rights before it asks for the body; where only the body says what they are
        about, whether there are such rights at all.
Rule 2: administration is small: ADMIN_BODY_BYTES_MAX. Nobody's JSON has more values than it may: objects take twenty
        times the bytes that announce them.
Rule 3: every body counts in the budget of requests that Kafka's frames count in, from its first byte until the request
        is answered. While that is full, bodies are refused, those that have begun included. So are those of a principal
        that holds as much as stays free beside it: a socket takes bytes before anybody knows what they are for.
Rule 4: a body of over ON_LOOP_BYTES_MAX is turned into values in a thread, one at a time: what it takes beside the
        text is taken once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from aiohttp import web

from georelay.errors import Busy, TooLarge
from georelay.limits import ADMIN_BODY_BYTES_MAX, ADMIN_VALUES_MAX, HTTP_BODY_BYTES_MAX, KIB, REST_VALUES_MAX
from region.api.json_values_core import has_more_values, values_at_most
from region.api.principal import PRINCIPAL
from region.kafka.request_memory import RequestMemory

ON_LOOP_BYTES_MAX: Final = 32 * KIB

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Bodies:
    """The bodies of one listener; every application that reads some has one as `app[BODIES]`, and its middleware.

    Args:
        memory: what requests may hold, of this listener and others.

    Attributes:
        held_bytes: what this listener's requests hold of it.
    """

    def __init__(self, memory: RequestMemory | None = None) -> None:
        self._memory = RequestMemory() if memory is None else memory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="http-bodies")
        self.held_bytes = 0

    def install(self, app: web.Application) -> None:
        """Serve an application."""
        app[BODIES] = self
        app.middlewares.append(self._giving_back)

    def close(self) -> None:
        """End the thread once it has done what it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: web.Request, *, bytes_max: int) -> bytes:
        """Return the body of a request.

        Raises:
            TooLarge: it is over `bytes_max`. Busy: there is no room for it. Nothing was done.
        """
        if (request.content_length or 0) > bytes_max:
            raise TooLarge(f"a body of {request.content_length} bytes is over the limit of {bytes_max} here")
        body = bytearray()
        async for chunk in request.content.iter_any():
            if len(body) + len(chunk) > bytes_max:
                raise TooLarge(f"the body is over the limit of {bytes_max} bytes here")
            if not self.hold(request, len(chunk)):
                held = self._memory.held_by(_name_of(request))
                raise Busy(
                    f"requests of {self._memory.used_bytes} bytes, {held} of them yours, wait for their answers here; "
                    "try again later"
                )
            body += chunk
        return bytes(body)

    async def parse(self, body: bytes, parse: Callable[[bytes], T], *, values_max: int) -> T:
        """Return what `parse` makes of a body.

        Raises:
            TooLarge: it has more than `values_max` values. Others as `parse`.
        """

        def work() -> T:
            if values_at_most(body) > values_max and has_more_values(body, values_max):
                raise TooLarge(f"the body has more than {values_max} values: send less in one request")
            return parse(body)

        if len(body) <= ON_LOOP_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @web.middleware
    async def _giving_back(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            self.hold(request, -request.get(_HELD, 0))

    def hold(self, request: web.Request, size_bytes: int) -> bool:
        """Count bytes of a request, or give some back (below 0); False: there is no room, and nothing was counted."""
        name = _name_of(request)
        if size_bytes > 0 and not self._memory.has_room_for(name):
            return False
        request[_HELD] = request.get(_HELD, 0) + size_bytes
        self.held_bytes += size_bytes
        self._memory.take(size_bytes, name)
        return True


def _name_of(request: web.Request) -> str:
    principal = request.get(PRINCIPAL)
    return "" if principal is None else principal.name  # what is open to everybody has no body


BODIES: Final = web.AppKey("bodies", Bodies)
_HELD: Final = web.RequestKey("held_body_bytes", int)


async def read_wish(request: web.Request, parse: Callable[[bytes], T]) -> T:
    """Return what `parse` makes of the body of a request that administers something (TooLarge, Busy, as `parse`)."""
    bodies = request.app[BODIES]
    body = await bodies.read(request, bytes_max=ADMIN_BODY_BYTES_MAX)
    return await bodies.parse(body, parse, values_max=ADMIN_VALUES_MAX)


async def read_records(request: web.Request, parse: Callable[[bytes], T]) -> tuple[T, int]:
    """Return what `parse` makes of the body of a request that publishes, and the size of it (as `read_wish`)."""
    bodies = request.app[BODIES]
    body = await bodies.read(request, bytes_max=HTTP_BODY_BYTES_MAX)
    return await bodies.parse(body, parse, values_max=REST_VALUES_MAX), len(body)
