"""Pages of traces leave in pieces, to a bounded number of readers, none of whom can hold a place for ever."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web

from georelay.errors import GeorelayError
from georelay.trace.kinds import TraceKind
from georelay.trace.position import NEXT_KEY, ROW_COLUMN
from mesh.listening.admission_core import AdmissionLimits, Refusal
from mesh.listening.http_site import HttpSite
from mesh.tracing import pages_http
from mesh.tracing.pages_http import READERS_MAX, TracePages
from mesh.tracing.recorder_core import Drained
from mesh.tracing.shelf import TraceShelf
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

PAGE = "/v1/traces/probe?from=a0/0&until=a0/{rows}&rows=100000&bytes=16777216"


def shelf_of(folder: Path, rows: int) -> TraceShelf:
    writer = TraceWriter(
        directory=folder,
        identity=Identity(region="us", broker=1001, boot_id="a0"),
        clock_ns=lambda: 1_700_000_000 * 10**9,
        roll_period_s=1e6,
        slow_roll_period_s=1e6,
    )
    probes = [("us", "eu", "us/1001", seq, seq * 7_919, None, None, "ok", 5_000) for seq in range(rows)]
    writer.take(Drained(rows={TraceKind.PROBE: list(probes)}))
    return TraceShelf(folder, region="us", broker=1001)


@asynccontextmanager
async def served(pages: TracePages, limits: AdmissionLimits | None = None) -> AsyncIterator[tuple[str, int, HttpSite]]:
    @web.middleware
    async def as_status(request: web.Request, handler: Any) -> Any:
        try:
            return await handler(request)
        except GeorelayError as error:
            return web.json_response({"detail": str(error)}, status=error.http_status)

    app = web.Application(middlewares=[as_status])
    app.router.add_get("/v1/traces", pages.positions)
    app.router.add_get("/v1/traces/{kind}/end", pages.end)
    app.router.add_get("/v1/traces/{kind}", pages.page)
    site = HttpSite(app, name="test", shutdown_s=0.1, limits=limits)
    port = await site.start("127.0.0.1", 0)
    try:
        yield "127.0.0.1", port, site
    finally:
        await site.close()


def pages_of(shelf: TraceShelf | None, **more: Any) -> TracePages:
    return TracePages(shelf, writer={"region": "us", "broker": 1001}, **more)


async def ask(port: int, target: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}{target}") as answer:
        return answer.status, await answer.read()


class SlowReader:
    """Asks for a page and takes nothing of it but what the kernel takes for it, which is little."""

    def __init__(self, port: int, rows: int) -> None:
        self._port = port
        self._target = PAGE.format(rows=rows)

    async def __aenter__(self) -> SlowReader:
        loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, f"GET {self._target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def read_to_end(self) -> int:
        """Return how many bytes there were before the server ended the connection."""
        size = 0
        with contextlib.suppress(ConnectionError):
            while raw := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
                size += len(raw)
        return size


async def test_a_page_leaves_in_pieces_between_which_others_have_a_turn(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 6_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    written: list[int] = []
    real = web.StreamResponse.write

    async def write(self: Any, data: Any) -> None:
        written.append(turns)
        await real(self, data)

    async with served(pages_of(shelf)) as (_, port, _site):
        counting = asyncio.create_task(count())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(web.StreamResponse, "write", write)
            patch.setattr(pages_http, "SEND_BYTES", 1_024)
            status, raw = await ask(port, PAGE.format(rows=6_000))
        counting.cancel()
    table = pa.ipc.open_stream(raw).read_all()
    assert (status, table.column(ROW_COLUMN).to_pylist()) == (200, list(range(6_000)))
    assert table.schema.metadata[NEXT_KEY] == b"a0/6000"
    assert len(written) == -(-len(raw) // 1_024) > 3
    assert len(set(written)) == len(written)


async def test_no_turn_of_the_loop_takes_five_ms_while_the_largest_page_leaves() -> None:
    body = memoryview(os.urandom(pages_http.PAGE_BYTES_MAX))
    pages = pages_of(None)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await pages._send(request, body)

    app = web.Application()
    app.router.add_get("/", answer)
    site = HttpSite(app, name="test", shutdown_s=0.1)
    port = await site.start("127.0.0.1", 0)
    turns_s: list[float] = []  # CPU time of this thread: what else the machine does is not in it

    async def measure() -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            turns_s.append(now_s - last_s)
            last_s = now_s

    def read() -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/")
            return len(connection.getresponse().read())

    gc.disable()
    measuring = asyncio.create_task(measure())
    try:
        assert await asyncio.to_thread(read) == len(body)
    finally:
        measuring.cancel()
        gc.enable()
        await site.close()
    assert max(turns_s) < 0.005


async def test_a_reader_that_takes_nothing_is_cut_off_and_its_place_is_free(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path, 100_000)
    whole = len(pages_http.encode_page(TraceKind.PROBE, shelf.page(
        TraceKind.PROBE, shelf.oldest(TraceKind.PROBE), shelf.latest(TraceKind.PROBE), rows_max=10**6, bytes_max=10**9
    )))  # fmt: skip
    pages = pages_of(shelf, send_s=0.2)
    async with served(pages) as (_, port, _site), SlowReader(port, 100_000) as slow:
        while not pages._readers:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            while pages._readers:
                await asyncio.sleep(0.01)
            assert await slow.read_to_end() < whole


async def test_who_finds_every_place_taken_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_http, "READERS_MAX", 2)
    pages = pages_of(shelf_of(tmp_path, 100_000))
    async with served(pages) as (_, port, _site):
        async with SlowReader(port, 100_000), SlowReader(port, 100_000):
            async with asyncio.timeout(20):
                while pages._readers < 2:
                    await asyncio.sleep(0.01)
            status, raw = await ask(port, "/v1/traces?kinds=probe")
            assert (status, b"2 readers of traces are served already; try again" in raw) == (503, True)
        async with asyncio.timeout(20):
            while pages._readers:
                await asyncio.sleep(0.01)
        assert (await ask(port, "/v1/traces?kinds=probe"))[0] == 200
    assert READERS_MAX == 16


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v1/traces/probe?from=a0/-1&until=a0/1", 400, "from: 'a0/-1' is no position"),
        ("/v1/traces/probe?from=a0/9999999999999999&until=a0/1", 400, "is no position"),
        ("/v1/traces/probe?from=a0/1.5&until=a0/2", 400, "is no position"),
        ("/v1/traces/probe?from=/1&until=a0/2", 400, "is no position"),
        ("/v1/traces/probe?from=a0/9&until=a0/3", 400, "from: a0/9 lies behind the end, a0/3"),
        ("/v1/traces/probe?from=a0/3&until=/0", 400, "from: a0/3 lies behind the end, /0"),
        ("/v1/traces/probe?from=a0/0&until=b7/3", 410, "position b7/3 is gone"),
        ("/v1/traces/probe?from=b7/0&until=a0/3", 410, "position b7/0 is gone"),
        ("/v1/traces/probe?from=a0/0&until=a0/3&rows=99999999999", 400, "rows: a whole number 1..100000"),
        ("/v1/traces/probe?from=a0/0&until=a0/3&bytes=-5", 400, "bytes: a whole number 1.."),
        ("/v1/traces/ledger?from=a0/0&until=a0/3", 400, "kind: one of probe, not 'ledger'"),
        ("/v1/traces?kinds=" + "probe," * 500 + "x", 400, "kind: one of probe, not 'x'"),
    ],
)
async def test_a_place_that_is_none_is_refused_in_words(tmp_path: Path, target: str, status: int, text: str) -> None:
    pages = pages_of(shelf_of(tmp_path, 10), kinds=(TraceKind.PROBE,))
    async with served(pages) as (_, port, _site):
        found, raw = await ask(port, target)
    assert (found, text in raw.decode()) == (status, True), raw


async def test_a_place_far_behind_the_newest_row_has_no_rows(tmp_path: Path) -> None:
    async with served(pages_of(shelf_of(tmp_path, 10))) as (_, port, _site):
        status, raw = await ask(port, "/v1/traces/probe?from=a0/10&until=a0/999999999999999")
        assert (status, pa.ipc.open_stream(raw).read_all().num_rows) == (200, 0)
        assert (await ask(port, "/v1/traces/probe/end?from=a0/999999999999999"))[0] == 200
        ahead = await ask(port, "/v1/traces/probe/end?from=a0/9&until=a0/3")
        assert ahead == (200, b'{"end": "a0/9", "rows": 0, "has_more": false}')


async def test_a_thousand_connections_more_than_allowed_keep_nobody_from_reading(tmp_path: Path) -> None:
    pages = pages_of(shelf_of(tmp_path, 10))
    limits = AdmissionLimits(connections_max=100, accepts_per_s=10_000, accepts_burst=5_000,
                             admits_per_address_per_s=10_000, admits_per_address_burst=5_000)  # fmt: skip
    async with served(pages, limits) as (host, port, site), aiohttp.ClientSession() as client:
        url = f"http://{host}:{port}/v1/traces?kinds=probe"
        async with client.get(url) as answer:
            assert answer.status == 200
        crowd = []
        for _ in range(1_100):
            with contextlib.suppress(ConnectionError):  # it is refused quickly
                crowd.append(await asyncio.open_connection(host, port))
        counters = site._acceptor.counters
        async with asyncio.timeout(20):
            while counters.refused.get(Refusal.TOO_MANY, 0) < 1_000:
                await asyncio.sleep(0.01)
        assert counters.connections_open <= 100
        async with client.get(url) as answer:  # on the connection that it has
            assert answer.status == 200
        for _, writer in crowd:
            writer.close()
