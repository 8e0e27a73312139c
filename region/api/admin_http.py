"""The admin HTTP listener: health, readiness, metrics, status, brokers, topics and records under /v1.

Rule 1: every error is a problem document (RFC 9457); no page, no traceback.
Rule 2: where clients have to sign in, only /healthz and /readyz answer without credentials. Every other handler asks
        the access control lists before it does anything.
Rule 3: pages of other sites change nothing through a browser, and names that were made to point here reach nothing: see
        mesh.listening.browser_guard.
Rule 4: one answer to a request: behind one that has begun, the connection ends. A second one would be read as the
        answer to the next request, and every later one with it.
Rule 5: ready means "can commit", alive means "answers".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web

from georelay.credentials import CLIENT_HEADER
from georelay.errors import GeorelayError, Unauthenticated, Unavailable
from georelay.limits import HTTP_BODY_BYTES_MAX
from mesh.distance.shed_core import SHED_HEADER
from mesh.listening.browser_guard import BrowserGuard, is_loopback_address
from mesh.listening.http_site import HttpSite
from mesh.listening.listeners import ListenerParts
from region.api.audit_events_http import AuditEventsHttp, AuditTrail
from region.api.audit_http import AuditHttp
from region.api.bindings_http import BindingsHttp
from region.api.bodies import Bodies
from region.api.brokers_http import BrokersHttp
from region.api.clocks_http import ClocksHttp
from region.api.consumers_http import ConsumersHttp
from region.api.control_http import ControlHttp
from region.api.events_http import EventsHttp
from region.api.gossip_http import GossipHttp
from region.api.groups_http import GroupsHttp
from region.api.homes_http import HomesHttp
from region.api.metrics import CONTENT_TYPE, BrokerMetrics
from region.api.orphans_http import OrphansHttp
from region.api.principal import PRINCIPAL
from region.api.problem import http_problem, problem_response
from region.api.queues_http import QueuesHttp
from region.api.records_http import RecordsHttp, json_response
from region.api.regions_http import RegionsHttp
from region.api.security_http import SecurityHttp
from region.api.sockets_http import SocketsHttp
from region.api.topics_http import TopicsHttp
from region.api.traces_http import TracesHttp
from region.kafka.ports import Cluster, CredentialCheck
from region.security.access import Access, Operation, Resource
from region.security.administration import SecurityAdmin
from region.security.sign_in import SignInService

log = structlog.get_logger()

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
SHUTDOWN_S: Final = 1.0
ANSWERED: Final = web.RequestKey("answered", bool)  # the head of an answer leaves

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _note_answer(request: web.Request, _: web.StreamResponse) -> None:
    request[ANSWERED] = True


class AdminHttp:
    """Routes and the handlers that are not about records."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        credentials: CredentialCheck,
        metrics: BrokerMetrics,
        records: RecordsHttp,
        parts: ListenerParts | None = None,
        sign_in: SignInService | None = None,
        access: Access | None = None,
        security: SecurityAdmin | None = None,
        groups: GroupsHttp | None = None,
        consumers: ConsumersHttp | None = None,
        events: EventsHttp | None = None,
        sockets: SocketsHttp | None = None,
        queues: QueuesHttp | None = None,
        bindings: BindingsHttp | None = None,
        clocks: ClocksHttp | None = None,
        control: ControlHttp | None = None,
        regions: RegionsHttp | None = None,
        homes: HomesHttp | None = None,
        gossip: GossipHttp | None = None,
        orphans: OrphansHttp | None = None,
        audit: AuditHttp | None = None,
        audit_trail: AuditTrail | None = None,
        traces: TracesHttp | None = None,
        browsers: BrowserGuard | None = None,
        bodies: Bodies | None = None,
        shed: Callable[[], float] | None = None,
    ) -> None:
        self._cluster = cluster
        self._sign_in_service = sign_in if sign_in is not None else SignInService(credentials)
        self._access = access if access is not None else Access.open()
        self._security = SecurityHttp(sign_in=self._sign_in_service, access=self._access, admin=security)
        self._audit_events = AuditEventsHttp(audit_trail, access=self._access, here=cluster)
        self._metrics = metrics
        self._records = records
        self._groups = groups
        self._consumers = consumers
        self._events = events
        self._sockets = sockets
        self._queues = queues
        self._bindings = bindings
        self._gossip = gossip
        self._orphans = orphans
        self._audit = audit
        self._clocks = clocks
        self._control = control
        self._regions = regions
        self._homes = homes
        self._traces = traces
        self._topics = TopicsHttp(cluster, self._access)
        self._brokers = BrokersHttp(cluster, self._access)
        self._browsers = browsers or BrowserGuard()
        self._bodies = bodies or Bodies()
        self._parts = parts
        self._shed = shed
        self._site: HttpSite | None = None
        if sockets is not None:
            metrics.registry.register(sockets)

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(
            middlewares=[self._errors, self._guard_browsers, self._sign_in], client_max_size=HTTP_BODY_BYTES_MAX
        )
        self._bodies.install(app)
        app.on_response_prepare.append(_note_answer)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/brokers", self._brokers.list)
        app.router.add_post("/v1/brokers/{broker}", self._brokers.add)
        app.router.add_post("/v1/brokers/{broker}/drain", self._brokers.drain)
        app.router.add_delete("/v1/brokers/{broker}", self._brokers.remove)
        app.router.add_post("/v1/routes/{kind}", self._brokers.note_route)
        app.router.add_get("/v1/topics", self._topics.list)
        app.router.add_post("/v1/topics", self._topics.create)
        app.router.add_get("/v1/topics/{topic}", self._topics.describe)
        app.router.add_patch("/v1/topics/{topic}", self._topics.alter)
        app.router.add_delete("/v1/topics/{topic}", self._topics.delete)
        app.router.add_post("/v1/topics/{topic}/reassign", self._topics.reassign)
        app.router.add_post("/v1/topics/{topic}/delete-records", self._topics.delete_records)
        app.router.add_get("/v1/topics/{topic}/records", self._records.read)
        app.router.add_post("/v1/topics/{topic}/records", self._records.publish)
        app.router.add_get("/v1/topics/{topic}/resolve", self._records.resolve)
        app.add_routes(self._security.routes())
        app.add_routes(self._audit_events.routes())
        if self._orphans is not None:
            app.add_routes(self._orphans.routes())
        if self._audit is not None:
            app.add_routes(self._audit.routes())
        if self._groups is not None:
            app.add_routes(self._groups.routes())
        if self._consumers is not None:
            app.add_routes(self._consumers.routes())
        if self._events is not None:
            app.add_routes(self._events.routes())
        if self._sockets is not None:
            app.add_routes(self._sockets.routes())
            app.on_shutdown.append(self._sockets.close)
        if self._queues is not None:
            app.add_routes(self._queues.routes())
        if self._bindings is not None:
            app.add_routes(self._bindings.routes())
        if self._gossip is not None:
            app.add_routes(self._gossip.routes())
        if self._clocks is not None:
            app.add_routes(self._clocks.routes())
        if self._control is not None:
            app.add_routes(self._control.routes())
        if self._regions is not None:
            app.add_routes(self._regions.routes())
        if self._homes is not None:
            app.add_routes(self._homes.routes())
        if self._traces is not None:
            app.add_routes(self._traces.routes())
        return app

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port (OSError: it cannot be bound)."""
        parts = self._parts
        self._site = HttpSite(
            self.app(),
            name="admin",
            shutdown_s=SHUTDOWN_S,
            contexts=None if parts is None else parts.contexts,
            limits=None if parts is None else parts.limits,
            counters=None if parts is None else parts.counters,
        )
        bound = await self._site.start(host, port)
        log.info("admin_listener.started", host=host, port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving."""
        if self._site is not None:
            await self._site.close()
        self._bodies.close()

    # --- middlewares -----------------------------------------------------------------------------

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except GeorelayError as error:
            response = problem_response(error)
            self._count(request, error.code)
        except web.HTTPException as error:
            response = http_problem(error)
            self._count(request, f"HTTP_{error.status}")
        except Exception:
            log.exception("http_request.broke", path=request.path)
            response = problem_response(GeorelayError("internal error; the broker's log has the cause"))
            self._count(request, "INTERNAL")
        else:
            self._count(request, "OK")
            return response
        if ANSWERED in request and request.transport is not None:
            request.transport.abort()  # so what is returned goes nowhere
        return response

    @web.middleware
    async def _guard_browsers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_on_loopback = is_loopback_address(request.get_extra_info("sockname"))
        scheme = "http" if request.get_extra_info("ssl_object") is None else "https"
        self._browsers.check(request.method, request.headers, is_on_loopback=is_on_loopback, scheme=scheme)
        return await handler(request)

    @web.middleware
    async def _sign_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            contexts = None if self._parts is None else self._parts.contexts
            ssl_object = request.get_extra_info("ssl_object")
            certificate = "" if contexts is None else contexts.principal_of(ssl_object)
            principal = request[PRINCIPAL] = await self._sign_in_service.caller(
                request.headers.get("Authorization"),
                certificate=certificate,
                host=request.remote or "",
                reported=request.headers.get(CLIENT_HEADER),
            )
            response = await handler(request)
            if request.method == "GET" and not self._sign_in_service.is_still_valid(principal):
                if response.prepared:
                    response.force_close()
                    return response
                raise Unauthenticated("the sign-in has ended while the request waited")
            return response
        return await handler(request)

    def _count(self, request: web.Request, code: str) -> None:
        route = request.match_info.route.resource
        path = route.canonical if route is not None else "unknown"
        self._metrics.edge_requests.labels("http", f"{request.method} {path}", code).inc()

    # --- handlers --------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return json_response({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        if not self._cluster.ready():
            raise Unavailable("not ready: the region's controller has no leader that commits, or it is not reached")
        # Said to anybody who may ask whether this broker is ready: gateways choose regions by it.
        headers = {} if self._shed is None else {SHED_HEADER: f"{self._shed():.3f}"}
        return web.json_response({"status": "ready"}, headers=headers)

    async def _render_metrics(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        return json_response(self._cluster.status())
