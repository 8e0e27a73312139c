"""Composition root of the gateway: makes the parts, starts them in order, ends them in reverse."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from gateway.authentication import BrokerSignIn, SignIn
from gateway.config import LISTENERS, GatewayConfig, split_address
from gateway.console.collector import Collector, ShownFiles
from gateway.console.console_http import ConsoleHttp
from gateway.console.drills import DrillReports
from gateway.console.sessions import Sessions
from gateway.kafka.listener import KafkaListener
from gateway.metrics import ClientsCollector, GatewayMetrics
from gateway.passthrough.broker_service import BrokerPassthrough
from gateway.rest.application import RestApplication
from gateway.rest.asked_brokers import AskedBrokers
from gateway.rest.live_view import LiveView
from gateway.rest.proxy import Proxy
from gateway.rest.resolve import StatusCollector
from gateway.rest.routes_http import RoutesHttp
from gateway.rest.sockets import SOCKETS_MAX, SocketRelay, refusals
from gateway.routing.broker_connector import broker_connector
from gateway.routing.client_book_core import ClientBook
from gateway.routing.client_routes import ClientRoutes
from gateway.routing.distance_sharer import DistanceSharer
from gateway.routing.drain_teller import DrainTeller
from gateway.routing.endpoints import RegionEndpoints
from gateway.routing.far_book_core import FarBook
from gateway.routing.gossip_follower import GossipFollower
from gateway.routing.known_brokers_core import KnownBrokers
from gateway.routing.places import Callers
from gateway.routing.prober import Prober
from gateway.routing.region_view_core import RegionView
from gateway.routing.resolving import Resolving
from gateway.routing.router import Router
from gateway.routing.rule_sharer import RuleSharer
from gateway.text.listener import TextListener
from gateway.traces import GatewayTraces, trace_pages
from georelay.credentials import Credentials
from georelay.errors import ConfigError
from georelay.ids import BrokerId
from mesh.gossip.directory_core import GATEWAY_ROLE, TAGS_VERSION
from mesh.gossip.distance_pages_core import OWN_QUERY
from mesh.gossip.metrics import GossipCollector
from mesh.gossip.pools import LAN, GossipPools
from mesh.gossip.rule_pages_core import RULES_QUERY
from mesh.gossip.starting import make_member
from mesh.listening.browser_guard import BrowserGuard
from mesh.listening.grpc_requests import RequestBudget
from mesh.listening.http_site import HttpSite
from mesh.listening.listeners import Listeners, ListeningCollector

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
    text: int  # 0: it does not listen


class Gateway:
    """One gateway. `start` and `close` are called once each."""

    def __init__(self, config: GatewayConfig, sign_in: SignIn | None = None) -> None:
        self._config = config
        self._given_sign_in = sign_in
        self._upstream = config.upstream_tls.contexts()
        self._listeners = Listeners(config.tls, config.limits, names=LISTENERS)
        self._view = RegionView([region.endpoints() for region in config.regions])
        self._follower: GossipFollower | None = None
        self._passthrough: BrokerPassthrough | None = None
        self._traces: GatewayTraces | None = None
        self._router = Router(self._view, monotonic_ns=time.monotonic_ns, settled=self._knows_the_regions)
        self._book, self._far = ClientBook(began_s=time.monotonic()), FarBook()
        self._routes = ClientRoutes(self._router, self._book, rng=random.Random(), far=self._far)
        self._metrics = GatewayMetrics(self._router)
        self._metrics.register(ClientsCollector(self._router, self._book, self._routes))
        dialing = () if self._upstream is None else (self._upstream,)
        self._metrics.register(ListeningCollector(self._listeners, dialing=dialing, budgets=self._budgets))
        self._stack = AsyncExitStack()

    def _budgets(self) -> dict[str, RequestBudget]:
        """Return what calls hold here, by listener."""
        return {} if self._passthrough is None else {"grpc": self._passthrough.budget}

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

    def ready(self) -> bool:
        """Return whether a region is ready, and what is known of the mesh is enough to say so: what /readyz tells."""
        return self._router.ready

    async def close(self) -> None:
        """Stop everything that was started."""
        await self._stack.aclose()
        log.info("gateway.stopped", mesh=self._config.mesh_id)

    async def _start(self) -> GatewayPorts:
        self._prober = Prober(self._view, monotonic_ns=time.monotonic_ns, rng=random.Random(), tls=self._upstream)
        self._prober.follow()
        self._stack.push_async_callback(self._prober.close)
        await self._start_gossip()
        if self._config.trace_dir:
            self._traces = GatewayTraces(self._config, self._metrics)
            self._traces.start()
            self._stack.push_async_callback(self._traces.close)
        judge = self._judge = self._given_sign_in or await self._ask_brokers()
        self._callers = Callers(required=lambda: judge.required)
        self._asking = await self._session()
        self._asked = AskedBrokers(self._router, self._asking, scheme=self._scheme)
        self._resolving = Resolving(self._config.mesh_id, self._router, self._routes, home_of=self._asked.home_of)
        listen = self._config.listen
        return GatewayPorts(
            http=await self._start_http(listen.http),
            kafka=await self._start_kafka(listen.kafka),
            grpc=await self._start_grpc(listen.grpc),
            text=await self._start_text(listen.text) if listen.text else 0,
        )

    async def _start_gossip(self) -> None:
        """Find the brokers in the pool of the region, and through it those of the others."""
        config = self._config
        if not config.gossip.is_on:
            return
        tags = {"cl": config.mesh_id, "rg": config.region, "role": GATEWAY_ROLE, "v": TAGS_VERSION}
        member = make_member(
            config.gossip.lan, pool=LAN, name=config.own_name, mesh=config.mesh_id, tags=tags, snapshot=None
        )
        assert member is not None, "the pool is on"
        pools = GossipPools({LAN: member}, region=config.region)
        try:
            await pools.start({LAN: tags})
        except OSError as error:
            raise _cannot_listen("gossip.lan", config.gossip.lan.listen, error) from error
        self._stack.push_async_callback(pools.stop)
        self._metrics.register(GossipCollector(pools))
        self._follower = GossipFollower(
            pools.pools[LAN],
            mesh=config.mesh_id,
            known=KnownBrokers([region.endpoints() for region in config.regions], may_dial=config.may_dial),
            apply=self._regions_changed,
            monotonic_s=time.monotonic,
            rng=random.Random(),
        )
        self._follower.start()
        self._stack.push_async_callback(self._follower.close)
        teller = DrainTeller(self._router, region=config.region, set_tags=pools.set_tags)
        sharer = DistanceSharer(
            self._router, self._book, self._far, pool=pools.pools[LAN], region=config.region, mesh=config.mesh_id
        )
        pools.answer_query(OWN_QUERY, sharer.answer)
        rules = RuleSharer(self._router, pool=pools.pools[LAN], mesh=config.mesh_id)
        pools.answer_query(RULES_QUERY, rules.answer)
        for recurring in (teller, sharer, rules):
            recurring.start()
            self._stack.push_async_callback(recurring.stop)

    def _knows_the_regions(self) -> bool:
        return self._follower is None or self._follower.is_settled

    def _regions_changed(self, regions: Sequence[RegionEndpoints], estimates_ns: Mapping[BrokerId, int]) -> None:
        before = self._view.regions
        self._view.replace(regions, estimates_ns)
        if self._view.regions == before:
            return
        log.info("regions.changed", regions={region.name: len(region.brokers) for region in regions})
        self._prober.follow()
        if self._passthrough is not None:
            self._passthrough.keep_channels({broker.grpc for region in regions for broker in region.brokers})

    async def _ask_brokers(self) -> SignIn:
        config = self._config
        sign_in = BrokerSignIn(
            Credentials.load(config.users_file or None),
            router=self._router,
            session=await self._session(),
            scheme=self._scheme,
            always=config.sign_in == "required",
            monotonic_s=time.monotonic,
        )
        sign_in.start()
        self._stack.push_async_callback(sign_in.close)
        return sign_in

    async def _start_http(self, address: str) -> int:
        reads, writes, asked = await self._session(), self._asking, self._asked
        live = LiveView(Path(self._config.live_file) if self._config.live_file else None)
        application = RestApplication(
            router=self._router,
            routes=RoutesHttp(
                self._config.mesh_id,
                self._router,
                self._routes,
                resolving=self._resolving,
                permit=asked.permit,
                home_of=asked.home_of,
            ),
            proxy=Proxy(
                self._router,
                reads=reads,
                writes=writes,
                metrics=self._metrics,
                callers=self._callers,
                connections_max=BROKER_CONNECTIONS_MAX,
                scheme=self._scheme,
            ),
            sockets=SocketRelay(
                self._router,
                session=await self._session(connections_max=SOCKETS_MAX, traces=[refusals()]),
                metrics=self._metrics,
                callers=self._callers,
                scheme=self._scheme,
            ),
            status=StatusCollector(self._config.mesh_id, self._router, writes, scheme=self._scheme),
            sign_in=self._judge,
            metrics=self._metrics,
            browsers=BrowserGuard(allowed_origins=self._config.http_allowed_origins),
            live=live,
            console=self._console(live, writes),
            traces=trace_pages(self._config, self._traces),
        )
        parts = self._listeners["http"]
        site = HttpSite(
            application.build(),
            name="http",
            shutdown_s=1.0,
            contexts=parts.contexts,
            limits=parts.limits,
            counters=parts.counters,
        )
        self._stack.push_async_callback(site.close)
        try:
            return await site.start(*split_address(address))
        except OSError as error:
            raise _cannot_listen("http", address, error) from error

    def _console(self, live: LiveView, session: aiohttp.ClientSession) -> ConsoleHttp:
        directory = self._config.drills_dir
        drills = DrillReports(Path(directory) if directory else None, mesh=self._config.mesh_id)
        files = ShownFiles(live=live.read, drills=drills.read)
        collector = Collector(self._config.mesh_id, self._router, session, scheme=self._scheme, files=files)
        self._stack.push_async_callback(collector.close)
        return ConsoleHttp(
            collector=collector,
            sessions=Sessions(monotonic_s=time.monotonic, random_hex=secrets.token_hex),
            sign_in=self._judge,
            mode=self._config.console,
        )

    @property
    def _scheme(self) -> str:
        return "http" if self._upstream is None else "https"

    async def _session(
        self, *, connections_max: int = BROKER_CONNECTIONS_MAX, traces: list[aiohttp.TraceConfig] | None = None
    ) -> aiohttp.ClientSession:
        return await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=broker_connector(self._upstream, limit=connections_max, keepalive_timeout=BROKER_KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=traces,
            )
        )

    async def _start_kafka(self, address: str) -> int:
        listener = KafkaListener(
            self._routes,
            self._router,
            self._metrics,
            sign_in_required=lambda: self._judge.required,
            parts=self._listeners["kafka"],
            upstream=self._upstream,
        )
        try:
            port = await listener.start(*split_address(address))
        except OSError as error:
            raise _cannot_listen("kafka", address, error) from error
        self._stack.push_async_callback(listener.close)
        return port

    async def _start_grpc(self, address: str) -> int:
        self._passthrough = BrokerPassthrough(
            self._router,
            self._metrics,
            self._judge,
            callers=self._callers,
            resolving=self._resolving,
            parts=self._listeners["grpc"],
            upstream=self._upstream,
        )
        self._stack.push_async_callback(self._passthrough.close)
        try:
            return await self._passthrough.start(address)
        except (OSError, RuntimeError) as error:  # grpcio has no own error for a taken port
            raise _cannot_listen("grpc", address, error) from error

    async def _start_text(self, address: str) -> int:
        listener = TextListener(self._resolving, self._judge, region=self._config.region, parts=self._listeners["text"])
        self._stack.push_async_callback(listener.close)
        try:
            return await listener.start(*split_address(address))
        except OSError as error:
            raise _cannot_listen("text", address, error) from error


def _cannot_listen(listener: str, address: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"cannot listen on {address} ({listener}): {reason}; is another process using the port?")
