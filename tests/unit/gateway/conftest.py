"""A gateway in this process with fake brokers around it, all on loopback."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway, GatewayPorts
from gateway.config import LISTENERS, BrokerConfig, GatewayConfig, ListenConfig, RegionConfig
from georelay.errors import AccessDenied, Unauthenticated
from mesh.distance.shed_core import SHED_HEADER
from tests.free_ports import free_port

ANN = "basic " + base64.b64encode(b"ann:secret").decode()
BOB = "basic " + base64.b64encode(b"bob:secret").decode()
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OneUser:
    """Knows ann:secret, and bob:secret who has no right, or lets everybody in."""

    def __init__(self, *, required: bool) -> None:
        self.required = self.checks_forwarded = required

    async def authenticate_header(self, authorization: str | None, client: str = "") -> str:
        if self.required and authorization not in (ANN, BOB):
            raise Unauthenticated("wrong user or password")
        return "bob" if authorization == BOB else "ann"

    async def check_describes_cluster(self, authorization: str | None, client: str = "") -> None:
        if await self.authenticate_header(authorization) == "bob":
            raise AccessDenied.to("cluster")


@dataclass
class FakeBroker:
    """Answers the admin HTTP of one broker; `answer` serves everything under /v1."""

    answer: Answer
    ready: bool = True
    shed: str = ""  # what it says of its load; empty: a broker of an older version
    requests: list[str] = field(default_factory=list)
    admin: str = ""
    kafka: str = "127.0.0.1:1"
    grpc: str = "127.0.0.1:1"
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/readyz", self._readyz)
        app.router.add_route("*", "/v1/{rest:.*}", self._serve)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.admin = f"127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self.runner is not None:
            runner, self.runner = self.runner, None
            await runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        headers = {SHED_HEADER: self.shed} if self.shed else {}
        return web.Response(status=200 if self.ready else 503, headers=headers)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        return await self.answer(request)


@dataclass
class Mesh:
    """A running gateway and how to talk to it."""

    gateway: Gateway
    ports: GatewayPorts
    client: aiohttp.ClientSession

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.ports.http}{path}"

    async def until(self, wanted: Callable[[dict[str, dict[str, object]]], bool]) -> None:
        """Wait until /v1/resolve, keyed by region, satisfies `wanted`."""
        headers = {"Authorization": ANN}
        async with asyncio.timeout(10):
            while True:
                async with self.client.get(self.url("/v1/resolve"), headers=headers) as answer:
                    document = await answer.json()
                if wanted({region["region"]: region for region in document["regions"]}):
                    return
                await asyncio.sleep(0.02)


StartMesh = Callable[..., Awaitable[Mesh]]
StartBroker = Callable[..., Awaitable[FakeBroker]]


@pytest.fixture
async def start_broker() -> AsyncIterator[StartBroker]:
    """Start a fake broker; without `answer` it echoes method and path."""
    started: list[FakeBroker] = []

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path_qs, "body": (await request.read()).decode()})

    async def start(answer: Answer = echo) -> FakeBroker:
        broker = FakeBroker(answer=answer)
        await broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        await broker.stop()


@pytest.fixture
async def start_mesh() -> AsyncIterator[StartMesh]:
    """Start a gateway in front of regions given as name=[brokers]; waits until `ready` of them are ready."""
    running: list[Mesh] = []

    async def start(*, users: bool = False, ready: int | None = None, **regions: list[FakeBroker]) -> Mesh:
        config = GatewayConfig(
            mesh_id="mesh-1",
            region=next(iter(regions)),
            listen=ListenConfig(**dict.fromkeys(LISTENERS, "127.0.0.1:0")),
            regions=tuple(
                RegionConfig(
                    name=name,
                    number=number,
                    brokers=tuple(
                        BrokerConfig(number=place, kafka=broker.kafka, grpc=broker.grpc, admin=broker.admin)
                        for place, broker in enumerate(brokers, 1)
                    ),
                )
                for number, (name, brokers) in enumerate(regions.items(), 1)
            ),
        )
        gateway = Gateway(config, OneUser(required=users))
        mesh = Mesh(gateway, await gateway.start(), aiohttp.ClientSession())
        running.append(mesh)
        wanted = len(regions) if ready is None else ready
        await mesh.until(lambda seen: sum(bool(region["ready"]) for region in seen.values()) == wanted)
        return mesh

    yield start
    for mesh in running:
        await mesh.client.close()
        await mesh.gateway.close()


@pytest.fixture
def dead_address() -> str:
    """Return a loopback address nothing listens on."""
    return f"127.0.0.1:{free_port()}"
