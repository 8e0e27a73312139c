"""The broker's end of `georelay.v1.CarriedCalls`: Publish calls of a gateway's clients, many in one stream.

Rule 1: a call in a stream is the same call as one that comes by itself: its own caller is signed in, the same limits
        refuse it and count that, the same handler answers it. Nothing of who opened the stream is said of its calls.
Rule 2: calls of one stream are answered in any order; answers of one turn of the loop travel together.
Rule 3: a stream that is to end says so first (`closing`) and answers what was sent until the gateway ends its side: no
        call is lost because a broker stops, or because who opened the stream may no longer.
Rule 4: beyond CALLS_OPEN_MAX calls without an answer, or answers that are not taken, nothing more of a stream is begun
        or read. Everybody else has a turn after CALLS_PER_TURN_MAX: five bytes of a message are a call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
import structlog

from georelay._pb import carried_pb2 as pb
from georelay.credentials import CLIENT_HEADER
from georelay.errors import BadRequest, Busy, GeorelayError
from georelay.limits import MIB
from mesh.listening.bounded_messages import reader_of
from mesh.listening.grpc_limits import CallLimits
from mesh.listening.grpc_requests import RequestLimits
from region.api.grpc_calls import GrpcCalls
from region.api.streams.outbox import Writer
from region.security.access import Principal

log = structlog.get_logger()

PUBLISH_METHOD: Final = "/broker.Broker/Publish"
SERVICE: Final = "georelay.v1.CarriedCalls"
CARRY_METHOD: Final = f"/{SERVICE}/Publish"
CALLS_OPEN_MAX: Final = 2_000  # more than CALLS_PER_ADDRESS_MAX: those beyond that one are refused, with a code
CALLS_PER_TURN_MAX: Final = 100
STREAMS_MAX: Final = 100  # one or two for each gateway; without one a gateway hands its calls on one by one
REQUEST_BYTES_MAX: Final = MIB  # what is in a message counts call by call, the message does not
ANSWERS_PER_RESPONSE_MAX: Final = 500
DETAILS_CHARS_MAX: Final = 1_000
RECHECK_S: Final = 0.5  # of the sign-in that opened a stream

Publish = Callable[[bytes, Any], Awaitable[bytes]]


class CarriedCalls:
    """The service. `publish`: the handler of that method."""

    name: Final = SERVICE

    def __init__(self, calls: GrpcCalls, publish: Any) -> None:
        self._calls = calls
        self._handler = publish
        self._streams: set[_Stream] = set()
        self._publish: Publish | None = None

    def handler(self) -> Any:
        """Return the generic RPC handler of the service."""
        carry = grpc.stream_stream_rpc_method_handler(
            self._carry,
            request_deserializer=reader_of(pb.CarriedRequest, bytes_max=REQUEST_BYTES_MAX),
            response_serializer=pb.CarriedResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Publish": carry})

    def within(self, calls: CallLimits, requests: RequestLimits) -> None:
        """Keep carried calls within the limits of those that come by themselves."""
        self._publish = calls.limited(requests.carried(self._handler, PUBLISH_METHOD), PUBLISH_METHOD)

    def close(self) -> None:
        """Tell every gateway to send no more."""
        for stream in self._streams:
            stream.close()

    async def _carry(self, _: Any, context: Any) -> None:
        try:
            principal = await self._calls.sign_in(context)
            if len(self._streams) >= STREAMS_MAX:
                raise Busy(f"{STREAMS_MAX} streams of gateways are open here")
            assert self._publish is not None, "the listener tells the limits before it listens"
            stream = _Stream(context, self._publish)
            self._streams.add(stream)
            watching = asyncio.get_running_loop().create_task(self._watch(stream, principal))
            try:
                await stream.run()
            finally:
                watching.cancel()
                self._streams.discard(stream)
        except GeorelayError as error:
            await self._calls.refuse(context, "carry", error)
        except grpc.aio.AbortError:  # a message that was none: the gateway has its answer
            raise
        except Exception:  # noqa: BLE001 - logged there; the caller gets INTERNAL instead of its text
            await self._calls.refuse_defect(context, "carry")
        self._calls.served("carry")

    async def _watch(self, stream: _Stream, principal: Principal) -> None:
        with contextlib.suppress(GeorelayError):
            while True:
                await asyncio.sleep(RECHECK_S)
                self._calls.check_still_valid(principal)
        stream.close()


class _Stream:
    """One stream of a gateway; `run` is it."""

    def __init__(self, context: Any, publish: Publish) -> None:
        self._context = context
        self._publish = publish
        self._writer = Writer(context)
        self._peer = context.peer()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by tag
        self._answers: list[pb.CarriedAnswer] = []
        self._is_closing = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    def close(self) -> None:
        """Ask the gateway to end its side."""
        self._is_closing = True
        self._news.set()

    async def run(self) -> None:
        """Serve until the gateway has ended its side and everything is answered (BadRequest: it used a tag twice)."""
        loop = asyncio.get_running_loop()
        await self._writer.write(pb.CarriedResponse())
        reading, writing = loop.create_task(self._read()), loop.create_task(self._write())
        try:
            # Whichever ends first decides: everything is answered, or nobody can be answered any more.
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
        finally:
            tasks = (reading, writing, *self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._writer.settle()

    async def _read(self) -> None:
        while (request := await self._context.read()) is not grpc.aio.EOF:
            for tag in request.cancelled:
                if (task := self._tasks.get(tag)) is not None:
                    task.cancel()
            for count, call in enumerate(request.calls, start=1):
                if call.tag in self._tasks:
                    raise BadRequest(f"tag {call.tag} stands for a call that is not answered yet")
                self._begin(call)
                if count % CALLS_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
                while len(self._tasks) + len(self._answers) >= CALLS_OPEN_MAX:
                    await self._some_room()
        while self._tasks or self._answers:
            await self._some_room()

    def _begin(self, call: pb.CarriedCall) -> None:
        # A context of its own: what was found out about who opened the stream says nothing of this caller.
        task = asyncio.get_running_loop().create_task(self._answer(call), context=Context())
        self._tasks[call.tag] = task
        task.add_done_callback(partial(self._ended, call.tag))

    def _ended(self, tag: int, _: asyncio.Task[None]) -> None:
        del self._tasks[tag]
        self._room.set()

    async def _some_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def _answer(self, call: pb.CarriedCall) -> None:
        answer = pb.CarriedAnswer(tag=call.tag)
        try:
            answer.response = await self._publish(call.request, CarriedContext(self._context, self._peer, call))
        except Refused as refused:
            answer.status, answer.details = refused.code.value[0], refused.details[:DETAILS_CHARS_MAX]
            answer.trailing.update(refused.trailing)
        except Exception:
            log.exception("carried_call.broke")
            answer.status = grpc.StatusCode.INTERNAL.value[0]
            answer.details = "internal error; the broker's log has the cause"
        self._answers.append(answer)
        self._news.set()

    async def _write(self) -> None:
        is_told = False
        while True:
            await self._news.wait()
            self._news.clear()
            while self._answers or self._is_closing > is_told:
                now = self._answers[:ANSWERS_PER_RESPONSE_MAX]
                is_told = self._is_closing
                await self._writer.write(pb.CarriedResponse(answers=now, closing=is_told))
                del self._answers[: len(now)]
                self._room.set()


class Refused(Exception):
    """A carried call has ended with a status."""

    def __init__(self, code: Any, details: str, trailing: tuple[tuple[str, str], ...]) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.trailing = trailing


class CarriedContext:
    """What a handler sees of a carried call, as it sees the context of gRPC."""

    __slots__ = ("_call", "_peer", "_stream")

    def __init__(self, stream: Any, peer: str, call: pb.CarriedCall) -> None:
        self._stream = stream
        self._peer = peer
        self._call = call

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what the gateway would have passed on of the client's metadata."""
        client = (CLIENT_HEADER.lower(), self._call.client)
        return (
            (("authorization", self._call.authorization), client) if self._call.HasField("authorization") else (client,)
        )

    def peer(self) -> str:
        """Return gRPC's name of the gateway's address."""
        return self._peer

    def auth_context(self) -> Any:
        """Return what TLS says of the gateway."""
        return self._stream.auth_context()

    async def abort(self, code: Any, details: str = "", trailing: tuple[tuple[str, str], ...] = ()) -> NoReturn:
        """End the call with a status."""
        raise Refused(code, details, trailing)
