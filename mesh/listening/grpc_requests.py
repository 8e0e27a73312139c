"""What callers of a gRPC listener can make it hold: nothing before they have signed in, a bounded total afterwards.

grpcio receives a whole message before it calls the handler of a unary request: up to the largest message for each of
thousands of calls, of whoever can connect. Here every request is read by ourselves, as the first of a stream, which on
the wire is the same.

Rule 1: `admit` judges a call by its metadata before its request is read. Until then HTTP/2 flow control keeps the
        sender at the stream's first window: WINDOW_BYTES with WINDOW_OPTIONS. (grpcio's own probing of the path's
        bandwidth raises that window to 16 MiB, and the bytes are taken whether anybody reads them or not: measured.)
        A message that is read gets the window it needs, so only streams of small messages over long ways are held up.
Rule 2: messages count from their arrival until they are answered; a stream's until it reads its next one. Beyond the
        budget calls are refused with RESOURCE_EXHAUSTED.
Rule 3: what the reader of a message refuses ends the call as its error says (GeorelayError).
        An address holds as much as stays free beside it: who signs in needs no right to send what is never whole.
Rule 4: calls of services that are open to everybody have a budget of their own, OPEN_BYTES_MAX: strangers take nothing
        that those who have signed in could use.
Rule 5: a request that is not whole after QUICK_S counts as the largest one from then on, and is given up after
        REQUEST_S; so what trickles in is in the budget as well, and a burst of small requests is not taken for it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final

import grpc
import grpc.aio

from georelay.errors import Busy, GeorelayError
from georelay.limits import KIB, MIB
from mesh.listening.admission_core import AdmissionCounters, Refusal
from mesh.listening.grpc_limits import address_of, service_of, trailers_of

REQUESTS_BYTES_MAX: Final = 512 * MIB
OPEN_BYTES_MAX: Final = 32 * MIB
WINDOW_BYTES: Final = 128 * KIB
WINDOW_OPTIONS: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES))
QUICK_S: Final = 1.0
REQUEST_S: Final = 60.0

Admit = Callable[[str, Any], Awaitable[None]]


class RequestBudget:
    """What the calls of one listener hold.

    Args:
        limit_bytes: of requests that are not answered yet.
        calls_max: how many calls may run at once, as its server was told; shown only.
    """

    def __init__(self, limit_bytes: int = REQUESTS_BYTES_MAX, *, calls_max: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.held_by: Counter[str] = Counter()  # addresses; those that hold nothing are not in it
        self.calls_max = calls_max
        self.calls_open = 0
        self.calls_refused = 0  # because there was no room for their requests

    def take(self, size_bytes: int, address: str) -> bool:
        """Count bytes of an address; False: there is no room, nothing was counted."""
        used_bytes, held_bytes = self.used_bytes + size_bytes, self.held_by[address] + size_bytes
        if used_bytes > self.limit_bytes or held_bytes > max(size_bytes, self.limit_bytes - used_bytes):
            return False
        self.used_bytes = used_bytes
        if held_bytes:  # or every address that ever called would be kept
            self.held_by[address] = held_bytes
        return True

    def give(self, size_bytes: int, address: str) -> None:
        """Count them no more."""
        self.used_bytes -= size_bytes
        self.held_by[address] -= size_bytes
        if not self.held_by[address]:
            del self.held_by[address]


class _Held:
    """What one call holds of the budget, from when it begins until `end`."""

    __slots__ = ("_address", "_budget", "size_bytes")

    def __init__(self, budget: RequestBudget, address: str) -> None:
        self._budget = budget
        self._address = address
        self.size_bytes = 0
        budget.calls_open += 1

    def end(self) -> None:
        """Hold nothing any more."""
        self.set(0)
        self._budget.calls_open -= 1

    def set(self, size_bytes: int) -> bool:
        """Hold so much instead; False: there is no room, and nothing is held."""
        self._budget.give(self.size_bytes, self._address)
        taken = self._budget.take(size_bytes, self._address)
        self.size_bytes = size_bytes if taken else 0
        return taken


class RequestLimits:
    """Put it behind CallLimits, see mesh.listening.limited_handlers.

    Args:
        message_bytes_max: the largest message that the server receives.
        open_services: those whose callers are nobody that is known.
        counted_inside: methods whose messages are small and hold calls, which count one by one (`carried`).
        admit: called with method and context before anything is read; raises, or ends the call (context.abort).
    """

    def __init__(
        self,
        budget: RequestBudget,
        counters: AdmissionCounters,
        *,
        message_bytes_max: int,
        open_services: Collection[str] = (),
        admit: Admit | None = None,
        counted_inside: Collection[str] = (),
        quick_s: float = QUICK_S,
        request_s: float = REQUEST_S,
    ) -> None:
        self._budget = budget
        self._open_budget = RequestBudget(OPEN_BYTES_MAX)
        self._open_services = open_services
        self._counters = counters
        self._message_bytes_max = message_bytes_max
        self._admit = admit
        self._counted_inside = counted_inside
        self._quick_s = quick_s
        self._request_s = request_s

    def within(self, handler: Any, method: str) -> Any:
        """Return the handler of a method within its limits."""
        sized = _sized(handler.request_deserializer)
        if handler.request_streaming and handler.response_streaming:
            behaviour = self._streaming(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(behaviour, sized, handler.response_serializer)
        if handler.request_streaming:
            behaviour = self._streaming(method, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(behaviour, sized, handler.response_serializer)
        if handler.response_streaming:
            behaviour = self._unary(method, handler.unary_stream)
            return grpc.stream_stream_rpc_method_handler(behaviour, sized, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary), sized, handler.response_serializer
        )

    def carried(self, handler: Any, method: str) -> Any:
        """Return what answers a call that comes whole, inside another one: (request, context) -> response, in bytes."""
        sized, serialize = _sized(handler.request_deserializer), handler.response_serializer

        async def answer(request: bytes, context: Any) -> bytes:
            held = self._held(method, context)
            try:
                await self._begin(method, context)
                given = await self.taken(context, held, sized(request))
                return bytes(serialize(await handler.unary_unary(given, context)))
            finally:
                held.end()

        return answer

    def _unary(self, method: str, behaviour: Any) -> Any:
        """Return a handler of a stream for one of a single request."""
        if inspect.isasyncgenfunction(behaviour):

            async def answers(_: Any, context: Any) -> Any:
                held = self._held(method, context)
                try:
                    request = await self._only(method, context, held)
                    async for answer in behaviour(request, context):
                        yield answer
                finally:
                    held.end()

            return answers

        async def answer(_: Any, context: Any) -> Any:
            held = self._held(method, context)
            try:
                return await behaviour(await self._only(method, context, held), context)
            finally:
                held.end()

        return answer

    def _streaming(self, method: str, behaviour: Any) -> Any:
        if inspect.isasyncgenfunction(behaviour):

            async def answers(requests: Any, context: Any) -> Any:
                held = self._held(method, context)
                try:
                    await self._begin(method, context)
                    async for answer in behaviour(
                        self._counted(requests, context, held), _Counting(self, context, held)
                    ):
                        yield answer
                finally:
                    held.end()

            return answers

        async def answer(requests: Any, context: Any) -> Any:
            held = self._held(method, context)
            try:
                await self._begin(method, context)
                counting = _Counting(self, context, None if method in self._counted_inside else held)
                return await behaviour(self._counted(requests, context, held), counting)
            finally:
                held.end()

        return answer

    def _held(self, method: str, context: Any) -> _Held:
        budget = self._open_budget if service_of(method) in self._open_services else self._budget
        return _Held(budget, address_of(context.peer()))

    async def _begin(self, method: str, context: Any) -> None:
        if self._admit is not None:
            await self._admit(method, context)

    async def _only(self, method: str, context: Any, held: _Held) -> Any:
        """Return the request of a unary call once the call is admitted and it is there."""
        await self._begin(method, context)
        loop = asyncio.get_running_loop()
        is_full = False

        def is_slow() -> None:  # few are: most calls set one timer
            nonlocal is_full
            is_full = not held.set(self._message_bytes_max)
            patience.reschedule(loop.time() + (0 if is_full else self._request_s - self._quick_s))

        timer = loop.call_later(self._quick_s, is_slow)
        found: Any = grpc.aio.EOF
        try:
            async with asyncio.timeout(None) as patience:
                found = await context.read()
        except TimeoutError:
            if is_full:
                await self._refuse(context)
            self._counters.refuse(Refusal.TOO_SLOW)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come in time")
        finally:
            timer.cancel()
        if found is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            return None  # abort has raised already; this says so to the type checker
        return await self.taken(context, held, found)

    async def _counted(self, requests: Any, context: Any, held: _Held) -> AsyncIterator[Any]:
        async for found in requests:
            yield await self.taken(context, held, found)

    async def taken(self, context: Any, held: _Held | None, found: tuple[int, Any]) -> Any:
        """Return a request with what it takes held for its call, or end the call."""
        size_bytes, request = found
        if held is not None and not held.set(size_bytes):
            await self._refuse(context)
        if isinstance(request, GeorelayError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request), trailers_of(request))
        return request

    async def _refuse(self, context: Any) -> None:
        self._counters.refuse(Refusal.TOO_MANY)
        self._budget.calls_refused += 1
        text = f"requests of {self._budget.used_bytes} bytes wait for their answers here; try again"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text, trailers_of(Busy()))


class _Counting:
    """The context of a call whose handler reads by itself."""

    def __init__(self, limits: RequestLimits, context: Any, held: _Held | None) -> None:
        self._limits = limits
        self._context = context
        self._held = held

    async def read(self) -> Any:
        """Return the next request, counted, or grpc.aio.EOF."""
        found = await self._context.read()
        if found is grpc.aio.EOF:
            return found
        return await self._limits.taken(self._context, self._held, found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _sized(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], tuple[int, Any]]:
    """Return what gives a message, or the error that refuses it, with its size."""

    def sized(raw: bytes) -> tuple[int, Any]:
        try:
            return len(raw), raw if deserialize is None else deserialize(raw)
        except GeorelayError as error:
            return len(raw), error

    return sized
