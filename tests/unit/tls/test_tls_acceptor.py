"""Real sockets: admission before a byte is read, TLS with the newest files, and ends for those who are too slow."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest
from aiohttp import web

from georelay.tls import ClientAuth, certificate_names
from mesh.listening import http_site
from mesh.listening.acceptor import Acceptor, cut_off
from mesh.listening.admission_core import AdmissionLimits, Refusal
from mesh.listening.http_site import HttpSite
from tests.conditions import until

Start = Callable[..., Any]


@pytest.fixture
async def start(echo: Any) -> AsyncIterator[Start]:
    """Start acceptors of echoes; returns (acceptor, port)."""
    started: list[Acceptor] = []

    async def begin(**options: Any) -> tuple[Acceptor, int]:
        options.setdefault("name", "test")
        acceptor = Acceptor(options.pop("factory", echo), **options)
        started.append(acceptor)
        return acceptor, await acceptor.start("127.0.0.1", 0)

    yield begin
    for acceptor in started:
        await acceptor.close()
        await until(partial(is_empty, acceptor))


def is_empty(acceptor: Acceptor) -> bool:
    return acceptor.counters.connections_open == 0


async def ask(port: int, **options: Any) -> bytes:
    """Connect, send one byte and return what comes back; b"" for a closed connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    except (ConnectionError, ssl.SSLError):
        return b""
    try:
        writer.write(b"x")
        async with asyncio.timeout(5):
            return await reader.read(1)
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_plain_connection_is_served_and_counted(start: Start) -> None:
    acceptor, port = await start()
    assert await ask(port) == b"x"
    await until(lambda: acceptor.counters.connections_open == 0)
    assert acceptor.counters.accepted == 1


async def test_a_connection_over_the_limit_is_reset_and_the_next_one_served_after_a_close(start: Start) -> None:
    acceptor, port = await start(limits=AdmissionLimits(connections_max=1))
    _, first = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: acceptor.counters.connections_open == 1)
    assert await ask(port) == b""
    first.close()
    await until(lambda: acceptor.counters.connections_open == 0)
    assert await ask(port) == b"x"
    assert acceptor.counters.refused == {Refusal.TOO_MANY: 1}


async def test_a_flood_waits_in_the_kernel_while_the_rate_is_used_up(start: Start) -> None:
    acceptor, port = await start(limits=AdmissionLimits(accepts_per_s=50, accepts_burst=5))
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await asyncio.gather(*(ask(port) for _ in range(15))) == [b"x"] * 15
    assert loop.time() - started_s > 0.15  # 10 beyond the burst, at 50 a second
    assert acceptor.counters.refused == {}


async def test_tls_is_spoken_with_the_newest_certificate(start: Start, mesh: Any) -> None:
    _, port = await start(contexts=mesh.contexts("broker-1001"))
    assert await ask(port, ssl=mesh.contexts("").client()) == b"x"
    mesh.pki.issue_broker(1001, hosts=("new.example.com",), renew=True)
    assert await ask(port, ssl=mesh.contexts("").client(), server_hostname="new.example.com") == b"x"


async def test_the_protocol_learns_who_the_other_end_is(start: Start, mesh: Any, echo: Any) -> None:
    met: list[frozenset[str]] = []

    class Curious(echo):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            met.append(certificate_names(transport.get_extra_info("ssl_object")))
            super().connection_made(transport)

    _, port = await start(contexts=mesh.contexts("broker-1001", ClientAuth.REQUIRED), factory=Curious)
    assert await ask(port, ssl=mesh.contexts("broker-1002").client()) == b"x"
    assert "broker-1002.test-mesh" in met[0]


async def test_plain_text_at_a_tls_listener_ends_and_is_counted(start: Start, mesh: Any) -> None:
    acceptor, port = await start(contexts=mesh.contexts("broker-1001"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with suppress(ConnectionResetError):
        assert b"HTTP" not in await asyncio.wait_for(reader.read(), 5)  # an alert, or nothing
    writer.close()
    await until(lambda: acceptor.counters.refused == {Refusal.HANDSHAKE_FAILED: 1})
    assert (acceptor.counters.connections_open, acceptor.counters.handshakes_open) == (0, 0)


async def test_a_client_without_the_required_certificate_never_reaches_the_protocol(start: Start, mesh: Any) -> None:
    made: list[bool] = []

    class Never(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.append(True)

    acceptor, port = await start(contexts=mesh.contexts("broker-1001", ClientAuth.REQUIRED), factory=Never)
    assert await ask(port, ssl=mesh.contexts("").client()) == b""
    await until(lambda: acceptor.counters.refused == {Refusal.HANDSHAKE_FAILED: 1})
    assert not made


async def test_a_handshake_that_does_not_end_is_cut_off(start: Start, mesh: Any) -> None:
    acceptor, port = await start(contexts=mesh.contexts("broker-1001"), limits=AdmissionLimits(handshake_s=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(1), 5) == b""
    await until(lambda: acceptor.counters.refused == {Refusal.HANDSHAKE_TIMEOUT: 1})
    assert (acceptor.counters.connections_open, acceptor.counters.handshakes_open) == (0, 0)
    writer.close()


async def test_handshakes_under_way_are_bounded(start: Start, mesh: Any) -> None:
    limits = AdmissionLimits(handshakes_per_address_max=2)
    acceptor, port = await start(contexts=mesh.contexts("broker-1001"), limits=limits)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    await until(lambda: acceptor.counters.handshakes_open == 2)
    assert await ask(port, ssl=mesh.contexts("").client()) == b""
    for _, writer in held:
        writer.close()
    await until(lambda: acceptor.counters.handshakes_open == 0)
    assert await ask(port, ssl=mesh.contexts("").client()) == b"x"


async def test_closing_drops_handshakes_and_leaves_connections_to_their_owner(start: Start, mesh: Any) -> None:
    acceptor, port = await start(contexts=mesh.contexts("broker-1001"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=mesh.contexts("").client())
    _, silent = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: acceptor.counters.handshakes_open == 1)
    await acceptor.close()
    assert acceptor.counters.handshakes_open == 0
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    writer.close()
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_taken_port_is_an_error_that_names_it(start: Start, echo: Any) -> None:
    _, port = await start()
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        await Acceptor(echo, name="second").start("127.0.0.1", port)


LARGE_BYTES = 32 << 20  # more than the kernel takes


# --- HTTP ---------------------------------------------------------------------------------------------


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[HttpSite, int]]:
    """A site with little patience."""
    for name in ("FIRST_HEAD_S", "HEAD_S", "BODY_S"):
        monkeypatch.setattr(http_site, name, 0.2)
    monkeypatch.setattr(http_site, "SWEEP_S", 0.05)

    async def read(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(0.6)
        return web.Response(text="late")

    app = web.Application()

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(LARGE_BYTES))

    app.add_routes([web.post("/", read), web.get("/slow", slow), web.get("/large", large), web.get("/", read)])
    site = HttpSite(app, name="http", shutdown_s=0.1)
    port = await site.start("127.0.0.1", 0)
    yield site, port
    await site.close()


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_request_that_does_not_come_whole_is_cut_off(site: tuple[HttpSite, int], begun: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site[1])
    writer.write(begun)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert site[0]._acceptor.counters.refused == {Refusal.TOO_SLOW: 1}
    writer.close()


async def test_a_slow_answer_and_an_idle_connection_are_not_the_clients_fault(site: tuple[HttpSite, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site[1])
    for path, answer in (("/slow", b"late"), ("/", b"0")):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert await reader.readexactly(len(answer)) == answer
        await asyncio.sleep(0.4)
    assert site[0]._acceptor.counters.refused == {}
    writer.close()


@pytest.mark.parametrize("pressed", [False, True])
async def test_who_takes_nothing_of_an_answer_is_cut_off_and_sooner_where_much_waits_for_all(
    site: tuple[HttpSite, int], monkeypatch: pytest.MonkeyPatch, pressed: bool
) -> None:
    monkeypatch.setattr(http_site, "UNREAD_PRESSED_S" if pressed else "UNREAD_S", 0.2)
    if pressed:
        monkeypatch.setattr(http_site, "UNREAD_BYTES_MAX", 1_000)
    taking, mute = [await asyncio.open_connection("127.0.0.1", site[1], limit=1_024) for _ in range(2)]
    for _, writer in (taking, mute):
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    got = 0
    async with asyncio.timeout(10):
        while got < LARGE_BYTES:
            got += len(await taking[0].read(1 << 20))
    await until(lambda: site[0]._acceptor.counters.refused == {Refusal.TOO_SLOW: 1})
    for _, writer in (taking, mute):
        writer.close()


def test_who_reads_what_is_written_anew_is_not_cut_off_however_much_waits() -> None:
    class Transport:
        acked = 0

        def get_write_buffer_size(self) -> int:
            return 1_000  # a stream refills it

        def get_extra_info(self, _: str) -> Any:
            return self

        def getsockopt(self, *_: int) -> bytes:
            return bytes(120) + self.acked.to_bytes(8, sys.byteorder)

    connection = http_site.HttpConnection.__new__(http_site.HttpConnection)
    connection.transport = transport = cast("Any", Transport())
    for now_s in range(10):
        transport.acked += 1
        connection.note_unread(now_s)
        assert not connection.reads_nothing(now_s, 2.0)
    for now_s in (10, 11, 12):
        connection.note_unread(now_s)
    assert connection.reads_nothing(12, 2.0)


async def test_who_does_not_read_is_told_that_it_was_cut_off(start: Start) -> None:
    class Flood(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(bytes(16 * 1024 * 1024))  # more than the kernel takes
            asyncio.get_running_loop().call_later(0.01, cut_off, transport)

    _, port = await start(factory=Flood)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        async with asyncio.timeout(5):
            while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x01":  # established; nothing is read
                await asyncio.sleep(0.005)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "reset"
