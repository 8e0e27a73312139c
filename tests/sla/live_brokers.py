"""Brokers that serve traces and nothing else, in a thread of the test: the real handlers over real spools and files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from georelay.errors import GeorelayError
from georelay.trace.histogram import LatencyHistogram
from georelay.trace.kinds import TraceKind
from mesh.tracing.recorder_core import Drained
from mesh.tracing.shelf import TraceShelf
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity
from region.api.principal import PRINCIPAL
from region.api.problem import problem_response
from region.api.traces_http import TracesHttp
from region.security.access import ANONYMOUS, Access

START_S = 1_700_000_040  # the start of a minute


class TracedBroker:
    """One broker's writer, and the app that serves what it wrote."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        region, _, number = name.partition("/")
        self.region, self.number = region, int(number)
        self.directory = directory
        self.tokens_seen: list[str | None] = []
        self.is_down = False
        self.boots = 0
        self.now_ns = START_S * 10**9
        self.boot()

    def boot(self) -> None:
        """Begin another run of the broker's process."""
        self.boots += 1
        self.now_ns += 3_600 * 10**9
        self.writer = TraceWriter(
            directory=self.directory,
            identity=Identity(region=self.region, broker=self.number, boot_id=f"b{self.boots}"),
            clock_ns=lambda: self.now_ns,
            roll_period_s=1e9,
            slow_roll_period_s=1e9,
        )
        self.writer.recover()

    def write(self, kind: TraceKind, rows: list[tuple[Any, ...]]) -> None:
        self.writer.take(Drained(rows={kind: rows}))

    def latencies(self, second: int, origin: str, latencies_us: list[int], *, stage: str = "total") -> None:
        """Write the histogram of one second of publishing."""
        counts = LatencyHistogram(clock_error_us=1_000)
        for latency_us in latencies_us:
            counts.add(latency_us)
        hist = sorted(counts.buckets.items())
        self.write(
            TraceKind.LATENCY_HIST,
            [
                (second, origin, self.region, "orders", "", 5, counts.n, counts.n_good, counts.lat_sum_us,
                 counts.lat_max_us, [{"b": b, "n": n} for b, n in hist], stage, counts.n_good_lo, counts.n_good_hi,
                 0, 1_000)
            ],
        )  # fmt: skip

    def probe(self, seq: int, origin: str, outcome: str = "ok") -> None:
        self.write(TraceKind.PROBE, [(origin, self.region, f"{origin}/1", seq, 1, None, None, outcome, 5_000)])

    def app(self) -> web.Application:
        shelf = TraceShelf(self.directory, region=self.region, broker=self.number)

        @web.middleware
        async def signed_in(request: web.Request, handler: Any) -> Any:
            if self.is_down:
                assert request.transport is not None
                request.transport.abort()
            self.tokens_seen.append(request.headers.get("Authorization"))
            request[PRINCIPAL] = ANONYMOUS
            try:
                return await handler(request)
            except GeorelayError as error:
                return problem_response(error)

        app = web.Application(middlewares=[signed_in])
        app.add_routes(TracesHttp(shelf, access=Access.open(), region=self.region, broker=self.number).routes())
        return app


def gateway_app(brokers: list[str]) -> web.Application:
    """Return a gateway that names these admin addresses."""

    async def resolve(_: web.Request) -> web.Response:
        return web.json_response({"mesh": "m", "ttl_s": 30, "regions": [{"region": "x", "http": brokers}]})

    app = web.Application()
    app.router.add_get("/v1/resolve", resolve)
    return app


@contextmanager
def serving(*apps: web.Application) -> Iterator[list[str]]:
    """Serve on loopback in a thread; give host:port of each."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[list[web.AppRunner], list[str]]:
        runners, addresses = [], []
        for app in apps:
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
            addresses.append("{}:{}".format(*runner.addresses[0][:2]))
        return runners, addresses

    runners, addresses = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield addresses
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
