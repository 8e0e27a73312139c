"""Composition root of the gateway: makes the parts, starts them in order, ends them in reverse."""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import structlog
from aiohttp import web

from gateway.authentication import SignIn
from gateway.config import GatewayConfig, split_address
from gateway.kafka.listener import KafkaListener
from gateway.metrics import GatewayMetrics
from gateway.passthrough.broker_service import BrokerPassthrough
from gateway.rest.application import RestApplication
from gateway.rest.proxy import Proxy
from gateway.rest.resolve import StatusCollector
from gateway.routing.prober import Prober
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router
from georelay.errors import ConfigError

BROKER_CONNECTIONS_MAX = 1_000  # HTTP, to all brokers together, for reads and as many for writes; others wait
# Shorter than a broker keeps idle connections, so that a publish is not sent into one that is being closed.
BROKER_KEEPALIVE_S = 15.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPorts:
    """Ports really bound (the configuration may say 0)."""

    http: int
    kafka: int
    grpc: int


class Gateway:
    """One gateway. `start` and `close` are called once each."""

    def __init__(self, config: GatewayConfig, sign_in: SignIn) -> None:
        self._config = config
        self._sign_in = sign_in
        self._view = RegionView([region.endpoints() for region in config.regions])
        self._router = Router(self._view, monotonic_ns=time.monotonic_ns)
        self._metrics = GatewayMetrics(self._router)
        self._stack = AsyncExitStack()

    async def start(self) -> GatewayPorts:
        """Listen and start measuring.

        Raises:
            ConfigError: an address cannot be listened on; the text names it.
        """
        try:
            ports = await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        log.info("gateway.started", mesh=self._config.mesh_id, http=ports.http, kafka=ports.kafka, grpc=ports.grpc)
        return ports

    async def close(self) -> None:
        """Stop everything that was started."""
        await self._stack.aclose()
        log.info("gateway.stopped", mesh=self._config.mesh_id)

    async def _start(self) -> GatewayPorts:
        prober = Prober(self._view, monotonic_ns=time.monotonic_ns, rng=random.Random())
        prober.start()
        self._stack.push_async_callback(prober.close)
        listen = self._config.listen
        return GatewayPorts(
            http=await self._start_http(listen.http),
            kafka=await self._start_kafka(listen.kafka),
            grpc=await self._start_grpc(listen.grpc),
        )

    async def _start_http(self, address: str) -> int:
        reads, writes = await self._session(), await self._session()
        application = RestApplication(
            mesh_id=self._config.mesh_id,
            router=self._router,
            proxy=Proxy(self._router, reads=reads, writes=writes, metrics=self._metrics),
            status=StatusCollector(self._config.mesh_id, self._router, writes),
            sign_in=self._sign_in,
            metrics=self._metrics,
        )
        # A client that leaves ends its long poll at the broker too.
        runner = web.AppRunner(application.build(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        host, port = split_address(address)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise _cannot_listen("http", address, error) from error
        bound: int = runner.addresses[0][1]
        return bound

    async def _session(self) -> aiohttp.ClientSession:
        return await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=BROKER_CONNECTIONS_MAX, keepalive_timeout=BROKER_KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        )

    async def _start_kafka(self, address: str) -> int:
        listener = KafkaListener(self._router, self._metrics, sign_in_required=self._sign_in.required)
        try:
            port = await listener.start(*split_address(address))
        except OSError as error:
            raise _cannot_listen("kafka", address, error) from error
        self._stack.push_async_callback(listener.close)
        return port

    async def _start_grpc(self, address: str) -> int:
        passthrough = BrokerPassthrough(self._router, self._metrics, self._sign_in)
        self._stack.push_async_callback(passthrough.close)
        try:
            return await passthrough.start(address)
        except (OSError, RuntimeError) as error:  # grpcio has no own error for a taken port
            raise _cannot_listen("grpc", address, error) from error


def _cannot_listen(listener: str, address: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"cannot listen on {address} ({listener}): {reason}; is another process using the port?")
