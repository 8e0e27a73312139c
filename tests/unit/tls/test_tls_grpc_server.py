"""A gRPC server that one request can stop is there again, and what limits its callers."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from mesh.listening import grpc_server, pending_calls
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal
from mesh.listening.grpc_limits import CallLimits, address_of, connection_options
from mesh.listening.grpc_server import GrpcServer
from mesh.listening.limited_handlers import LimitedHandlers
from mesh.listening.pending_calls import PendingCalls
from mesh.replication.link_listener import LinkListener

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


def request(path: bytes) -> bytes:
    """Return a gRPC request with this path, as HTTP/2 bytes."""
    block = b"\x83\x86D" + bytes([len(path)]) + path + b"A\x01a_\x10application/grpc@\x02te\x08trailers"
    return PREFACE + struct.pack(">I", len(block))[1:] + b"\x01\x05\0\0\0\x01" + block


class Service:
    """Echo, and a call that lasts until it is told to end."""

    def __init__(self, counters: AdmissionCounters, calls_max: int) -> None:
        self.begun = asyncio.Event()
        self.finish = asyncio.Event()
        self._limits = CallLimits(AdmissionLimits(), counters, calls_per_address_max=calls_max)

    def make(self) -> Any:
        server = grpc.aio.server(options=connection_options(AdmissionLimits()))
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Last": grpc.unary_stream_rpc_method_handler(self.last),
            "Write": grpc.unary_stream_rpc_method_handler(self.write),
        }
        table = grpc.method_handlers_generic_handler("t.T", handlers)
        server.add_generic_rpc_handlers((LimitedHandlers([table], self._limits),))
        return server

    async def echo(self, request: bytes, _: Any) -> bytes:
        return request

    async def last(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield b"begun"
        self.begun.set()
        await self.finish.wait()
        yield request

    async def write(self, request: bytes, context: Any) -> None:
        await context.write(request)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Service, AdmissionCounters, int]]:
    """A service on a port, at most two calls of one address."""
    counters = AdmissionCounters()
    service = Service(counters, calls_max=2)
    server = GrpcServer(service.make, "127.0.0.1:0", counters=counters)
    yield service, counters, await server.start()
    service.finish.set()
    await server.stop(None)


def channel_to(port: int) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),))


async def test_a_method_that_is_no_text_does_not_end_the_service(
    served: tuple[Service, AdmissionCounters, int],
) -> None:
    service, counters, port = served
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # grpcio's own task is nobody's
    async with channel_to(port) as old:
        running = old.unary_stream("/t.T/Last")(b"end")
        assert await running.read() == b"begun"
        for round_ in range(1, 4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"/t.T/\x8dcho"))
            async with asyncio.timeout(5):
                while counters.restarts < round_:
                    await asyncio.sleep(0.01)
            writer.close()
            del reader
            async with channel_to(port) as channel:
                assert await channel.unary_unary("/t.T/Echo")(b"x", timeout=5, wait_for_ready=True) == b"x"
        service.finish.set()
        assert await running.read() == b"end"  # calls that ran were not harmed


def no_descriptors(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Connections:
    """Looked at by a server; the first look finds no descriptor to look with."""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self, _: int) -> None:
        self.looks += 1
        if self.looks == 1:
            no_descriptors()


async def test_a_watch_that_had_no_descriptors_goes_on_when_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, connections = AdmissionCounters(), Connections()
    monkeypatch.setattr(grpc_server, "CONNECTIONS_LOOK_S", 0.0)
    server = GrpcServer(
        Service(counters, calls_max=2).make,
        "127.0.0.1:0",
        counters=counters,
        connections=connections,  # type: ignore[arg-type]
    )
    port = await server.start()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # grpcio's own task is nobody's
    with monkeypatch.context() as scarce:  # the server stops while the port cannot be looked at
        asked = asyncio.Event()

        def none_left(*_: Any) -> None:
            asked.set()
            no_descriptors()

        _, writer = await asyncio.open_connection("127.0.0.1", port)
        scarce.setattr(socket, "socket", none_left)
        scarce.setattr(grpc_server, "listening_on", no_descriptors)
        writer.write(request(b"/t.T/\x8dcho"))
        async with asyncio.timeout(5):
            await asked.wait()
        writer.close()
    looks = connections.looks
    async with asyncio.timeout(5):
        while not counters.restarts or connections.looks <= looks:
            await asyncio.sleep(0.01)
    async with channel_to(port) as channel:
        assert await channel.unary_unary("/t.T/Echo")(b"x", timeout=5, wait_for_ready=True) == b"x"
    await server.stop(None)


async def test_a_server_that_starts_without_a_descriptor_to_look_with_is_the_one_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = AdmissionCounters()
    monkeypatch.setattr(grpc_server, "listening_on", no_descriptors)
    server = GrpcServer(Service(counters, calls_max=2).make, "127.0.0.1:0", counters=counters)
    port = await server.start()
    await asyncio.sleep(3 * grpc_server.LOOK_S)
    assert counters.restarts == 0
    await server.stop(None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))  # nobody has it any more


async def test_a_server_that_stops_says_so_before_its_calls_say_anything_more() -> None:
    service = Service(AdmissionCounters(), calls_max=2)
    server = GrpcServer(service.make, "127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
    headers = request(b"/t.T/Last").replace(b"\x01\x05\0\0\0\x01", b"\x01\x04\0\0\0\x01")  # a message follows
    writer.write(headers + b"\0\0\x08\0\x01\0\0\0\x01" + b"\0\0\0\0\x03end")
    await service.begun.wait()
    stopping = asyncio.create_task(server.stop(5.0, when_told=service.finish.set))
    kinds: list[tuple[int, bytes]] = []
    async with asyncio.timeout(5):
        while (0, b"\0\0\0\0\x03end") not in kinds:
            head = await reader.readexactly(9)
            kinds.append((head[3], await reader.readexactly(int.from_bytes(head[:3], "big"))))
    writer.close()
    await stopping
    data, goaway = 0, 7
    assert [kind for kind, _ in kinds if kind in (data, goaway)] == [data, goaway, data]


async def test_an_address_with_too_many_calls_is_refused_and_counted(
    served: tuple[Service, AdmissionCounters, int],
) -> None:
    service, counters, port = served
    async with channel_to(port) as channel:
        held = [channel.unary_stream("/t.T/Last")(b"x") for _ in range(2)]
        for call in held:
            assert await call.read() == b"begun"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/t.T/Echo")(b"x", timeout=5)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counters.refused == {Refusal.TOO_MANY_OF_ADDRESS: 1}
        service.finish.set()
        for call in held:
            assert await call.read() == b"x"
        assert await channel.unary_unary("/t.T/Echo")(b"x", timeout=5) == b"x"


async def test_calls_that_come_while_the_loop_is_busy_are_all_answered_by_us(
    served: tuple[Service, AdmissionCounters, int],
) -> None:
    port = served[2]

    def call_often() -> list[grpc.StatusCode]:
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(2)]
        echoes = [channel.unary_unary("/t.T/Echo") for channel in channels]
        for echo in echoes:
            echo(b"x", timeout=5)
        may_begin.set()
        futures = [echoes[number % 2].future(b"x", timeout=20) for number in range(1_600)]
        codes = [future.code() for future in futures]
        for channel in channels:
            channel.close()
        return codes

    may_begin = threading.Event()
    calling = asyncio.get_running_loop().run_in_executor(None, call_often)
    while not may_begin.is_set():
        await asyncio.sleep(0.01)
    time.sleep(0.8)
    assert set(await calling) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_what_the_core_has_begun_and_nobody_has_seen_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [1, 2, 60, 61]
    monkeypatch.setattr(pending_calls, "calls_begun", lambda _: begun.pop(0))
    pending, waits = PendingCalls(1), []
    for number in range(4):
        pending.seen(number * pending_calls.LOOK_NS)
        pending.seen(number * pending_calls.LOOK_NS)  # too soon to look again
        waits.append(pending.waiting)
    assert waits == [0, 0, 56, 55]


async def test_a_handler_that_writes_by_itself_passes_the_limits(
    served: tuple[Service, AdmissionCounters, int],
) -> None:
    async with channel_to(served[2]) as channel:
        assert [answer async for answer in channel.unary_stream("/t.T/Write")(b"x", timeout=5)] == [b"x"]


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:5", "10.0.0.1"), ("ipv6:%5B2001:db8::1%5D:5", "2001:db8:0:0"), ("unix:/tmp/x", "unix:/tmp/x")],
)
def test_callers_are_told_apart_by_their_address(peer: str, address: str) -> None:
    assert address_of(peer) == address


async def test_restarts_of_the_link_listener_are_counted() -> None:
    counters = AdmissionCounters()
    listener = LinkListener(lambda _: None, counters=counters)
    port = await listener.start("127.0.0.1:0")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # grpcio's own task is nobody's
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"/t.T/\x8dcho"))
    async with asyncio.timeout(5):
        while not counters.restarts:
            await asyncio.sleep(0.01)
    writer.close()
    await listener.stop()
