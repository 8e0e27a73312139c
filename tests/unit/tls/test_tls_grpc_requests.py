"""What callers of a gRPC listener can make it hold, measured by what it takes from their sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from georelay.errors import TooLarge
from georelay.limits import KIB, MIB
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.grpc_limits import CallLimits, connection_options
from mesh.listening.grpc_requests import (
    OPEN_BYTES_MAX,
    WINDOW_BYTES,
    WINDOW_OPTIONS,
    RequestBudget,
    RequestLimits,
)
from mesh.listening.limited_handlers import LimitedHandlers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
MESSAGE = 8 * MIB
DATA, HEADERS, RST, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
QUIET_S = 0.3


class Service:
    """A server behind the limits."""

    def __init__(self, **limits: Any) -> None:
        self.budget = RequestBudget(limits.pop("limit_bytes", 64 * MIB))
        reader = limits.pop("reader", None)
        counters = AdmissionCounters()
        requests = RequestLimits(self.budget, counters, message_bytes_max=MESSAGE + MIB, **limits)
        self.server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE + MIB),
                *connection_options(AdmissionLimits()),
                *WINDOW_OPTIONS,
            ),
        )
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo, reader),
            "Twice": grpc.unary_stream_rpc_method_handler(self.twice),
            "Each": grpc.stream_stream_rpc_method_handler(self.each),
            "Read": grpc.stream_stream_rpc_method_handler(self.read),
            "Sum": grpc.stream_unary_rpc_method_handler(self.sum, reader),
        }
        table = grpc.method_handlers_generic_handler("t.T", handlers)
        limits_of_calls = CallLimits(AdmissionLimits(), counters)
        self.server.add_generic_rpc_handlers((LimitedHandlers([table], limits_of_calls, requests),))
        self.held: list[int] = []
        self.calls: list[int] = []
        self.port = 0

    async def start(self) -> Service:
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return self

    async def echo(self, request: bytes, _: Any) -> bytes:
        self.held.append(self.budget.used_bytes)
        self.calls.append(self.budget.calls_open)
        return request

    async def twice(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield request
        yield request

    async def each(self, requests: Any, _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.held.append(self.budget.used_bytes)
            yield request

    async def read(self, _: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            self.held.append(self.budget.used_bytes)
            await context.write(request)

    async def sum(self, requests: Any, _: Any) -> bytes:
        return b"".join([request async for request in requests])


class Sender:
    """One HTTP/2 connection that begins calls and sends all but the end of a message of each, as far as it is let."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, streams: int) -> None:
        self._reader, self._writer = reader, writer
        self._window, self._first_window = 65_535, 65_535
        self._streams = {1 + 2 * at: 0 for at in range(streams)}
        self._windows = dict.fromkeys(self._streams, 0)  # beyond the first one
        self.closed: set[int] = set()
        path = b"/t.T/Echo"
        self._block = b"\x83\x86D" + bytes([len(path)]) + path + b"A\x01a_\x10application/grpc@\x02te\x08trailers"

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._writer.write(
            struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
        )

    async def run(self) -> int:
        """Return how many bytes the server took."""
        self._writer.write(PREFACE)
        for stream in self._streams:
            self._frame(HEADERS, 4, stream, self._block)
        while True:
            self._send()
            try:
                async with asyncio.timeout(QUIET_S):
                    head = await self._reader.readexactly(9)
                    payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            except (TimeoutError, asyncio.IncompleteReadError):
                return sum(self._streams.values())
            self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                self._first_window = value if name == 4 else self._first_window
            self._frame(SETTINGS, 1, 0, b"")
        elif kind == PING and not flags & 1:
            self._frame(PING, 1, 0, payload)
        elif kind == WINDOW:
            if stream == 0:
                self._window += int.from_bytes(payload, "big")
            elif stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == RST or (kind == HEADERS and flags & 1):
            self.closed.add(stream)

    def _send(self) -> None:
        for stream, sent in self._streams.items():
            room = min(self._window, self._first_window + self._windows[stream] - sent, MESSAGE + 4 - sent)
            while room > 0 and stream not in self.closed:
                size = min(room, 16 * KIB)
                prefix = b"" if sent else b"\0" + struct.pack(">I", MESSAGE)
                self._frame(DATA, 0, stream, prefix + bytes(size - len(prefix)) if size > 5 else bytes(size))
                room, sent, self._window = room - size, sent + size, self._window - size
                self._streams[stream] = sent

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Service]:
    service = await Service(**limits).start()
    try:
        yield service
    finally:
        await service.server.stop(None)


@asynccontextmanager
async def sending(service: Service, streams: int, *, address: str = "127.0.0.1") -> AsyncIterator[Sender]:
    connection = await asyncio.open_connection("127.0.0.1", service.port, local_addr=(address, 0))
    sender = Sender(*connection, streams)
    try:
        yield sender
    finally:
        await sender.leave()


async def test_nothing_of_a_request_is_taken_before_its_caller_is_admitted() -> None:
    asked = asyncio.Event()

    async def admit(method: str, _: Any) -> None:
        assert method == "/t.T/Echo"
        asked.set()
        await asyncio.get_running_loop().create_future()

    async with serving(admit=admit) as service, sending(service, 12) as sender:
        taken = await asyncio.wait_for(sender.run(), 20)
        assert asked.is_set()
        assert taken < 12 * (WINDOW_BYTES + 64 * KIB), f"{taken} bytes were taken from callers that nobody knows"
        assert service.budget.used_bytes == 0


async def test_a_caller_that_is_not_admitted_learns_it_before_it_has_sent_its_request() -> None:
    async def admit(_: str, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

    async with serving(admit=admit) as service:
        async with sending(service, 12) as sender:
            assert await asyncio.wait_for(sender.run(), 20) < 12 * (WINDOW_BYTES + 64 * KIB)
            assert len(sender.closed) == 12
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            for call in (
                channel.unary_unary("/t.T/Echo")(b"x"),
                channel.stream_unary("/t.T/Sum")(iter([b"x"])),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_requests_that_trickle_in_count_as_whole_and_an_address_holds_as_much_as_stays_free() -> None:
    async with serving(limit_bytes=4 * (MESSAGE + MIB), quick_s=0.05) as service:
        async with sending(service, 10) as sender, sending(service, 10, address="127.0.0.2") as other:
            await asyncio.wait_for(sender.run(), 30)
            assert len(sender.closed) == 8
            await asyncio.wait_for(other.run(), 30)
            assert len(other.closed) == 9
            assert service.budget.used_bytes == 3 * (MESSAGE + MIB)
        for _ in range(200):
            if not service.budget.used_bytes:
                break
            await asyncio.sleep(0.02)
        assert service.budget.used_bytes == 0


async def test_requests_to_services_that_are_open_to_everybody_take_no_room_of_the_others() -> None:
    async with serving(open_services={"t.T"}, quick_s=0.05) as service, sending(service, 5) as sender:
        await asyncio.wait_for(sender.run(), 30)
        assert len(sender.closed) == 5 - OPEN_BYTES_MAX // (MESSAGE + MIB) // 2
        assert service.budget.used_bytes == 0


async def test_a_request_that_its_reader_refuses_ends_the_call_with_the_code_of_the_error() -> None:
    def refuse(raw: bytes) -> bytes:
        if len(raw) > 3:
            raise TooLarge("over 3 bytes")
        return raw

    async with serving(reader=refuse) as service, grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        for call in (
            channel.unary_unary("/t.T/Echo")(b"four"),
            channel.stream_unary("/t.T/Sum")(iter([b"one", b"four"])),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="over 3 bytes") as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert dict(refused.value.trailing_metadata() or ())["georelay-code"] == "TOO_LARGE"
        assert await channel.unary_unary("/t.T/Echo")(b"one") == b"one"


async def test_a_request_that_never_comes_is_given_up() -> None:
    async with serving(quick_s=0.01, request_s=0.05) as service, sending(service, 3) as sender:
        await asyncio.wait_for(sender.run(), 20)
        assert len(sender.closed) == 3 and service.budget.used_bytes == 0


async def test_all_four_kinds_of_calls_pass_and_give_back_what_they_held() -> None:
    async with (
        serving(limit_bytes=MIB) as service,
        grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel,
    ):
        assert await channel.unary_unary("/t.T/Echo")(b"abc") == b"abc"
        assert [row async for row in channel.unary_stream("/t.T/Twice")(b"ab")] == [b"ab", b"ab"]
        for name in ("Each", "Read"):
            sent = iter([b"a", b"bc", b"def"])
            assert [row async for row in channel.stream_stream(f"/t.T/{name}")(sent)] == [b"a", b"bc", b"def"]
        assert await channel.stream_unary("/t.T/Sum")(iter([b"a", b"bc"])) == b"abc"
        assert service.held == [3, 1, 2, 3, 1, 2, 3]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/t.T/Echo")(bytes(2 * MIB))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(200):  # the client hears of the refusal before the server is done with the call
            if not service.budget.calls_open:
                break
            await asyncio.sleep(0.02)
        assert service.budget.used_bytes == 0
        assert (service.calls, service.budget.calls_open, service.budget.calls_refused) == ([1], 0, 1)


async def test_nothing_is_kept_of_addresses_whose_calls_have_ended() -> None:
    class Caller:
        def __init__(self, number: int) -> None:
            self.number = number

        def peer(self) -> str:
            return f"ipv4:10.0.0.{self.number}:1"

    budget, held = RequestBudget(), []

    async def echo(request: bytes, _: Any) -> bytes:
        held.append(dict(budget.held_by))
        return request

    limits = RequestLimits(budget, AdmissionCounters(), message_bytes_max=MIB)
    answer = limits.carried(grpc.unary_unary_rpc_method_handler(echo, None, bytes), "/t.T/Echo")
    for number in range(100):
        await answer(b"x" * (number % 2), Caller(number))  # every other one is empty
    assert held[:2] == [{}, {"10.0.0.1": 1}]
    assert not budget.held_by
