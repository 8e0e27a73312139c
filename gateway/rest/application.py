"""Routes of the gateway's HTTP listener, and the two things done around each: signing in, and one form of errors."""

from __future__ import annotations

import json
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.authentication import SignIn
from gateway.console.console_http import ConsoleHttp
from gateway.metrics import GatewayMetrics
from gateway.rest.asyncapi_core import asyncapi
from gateway.rest.caller import authorization_of
from gateway.rest.live_view import LiveView
from gateway.rest.openapi_core import openapi
from gateway.rest.problem import defect_problem, http_problem, problem_response
from gateway.rest.proxy import Proxy
from gateway.rest.resolve import StatusCollector
from gateway.rest.routes_http import RoutesHttp
from gateway.rest.sockets import SocketRelay
from gateway.routing.router import Router
from georelay.errors import GeorelayError
from mesh.listening.browser_guard import BrowserGuard, is_loopback_address
from mesh.tracing.pages_http import TracePages

# What a load balancer asks, the same as at a broker, and what somebody needs who is to sign in.
PUBLIC_PATHS: Final = frozenset(
    {
        "/healthz",
        "/readyz",
        "/console",
        "/console/",
        "/console/{file}",
        "/console/session",
        "/v1/openapi.json",
        "/v1/asyncapi.json",
    }
)
# What no broker answers, and so none judges. Where brokers are, every client has to know: Kafka's tells them too.
OWN_ROUTES: Final = frozenset({"/v1/resolve", "/v1/routes/{kind}"})
ABOUT_THE_MESH: Final = frozenset(
    {
        "/metrics",
        "/v1/routes",
        "/v1/routes/explain",
        "/v1/overview",
        "/v1/status",
        "/v1/live",
        "/v1/traces",
        "/v1/traces/{kind}",
        "/v1/traces/{kind}/end",
    }
)
METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

log = structlog.get_logger()


class RestApplication:
    """The aiohttp application; `build()` makes it once."""

    def __init__(
        self,
        *,
        router: Router,
        proxy: Proxy,
        sockets: SocketRelay,
        status: StatusCollector,
        sign_in: SignIn,
        metrics: GatewayMetrics,
        console: ConsoleHttp,
        routes: RoutesHttp,
        browsers: BrowserGuard | None = None,
        live: LiveView | None = None,
        traces: TracePages | None = None,
    ) -> None:
        self._routes = routes
        self._router = router
        self._proxy = proxy
        self._sockets = sockets
        self._status = status
        self._sign_in = sign_in
        self._metrics = metrics
        self._console = console
        self._browsers = browsers or BrowserGuard()
        self._live = live or LiveView(None)
        self._api = b""
        self._traces = traces or TracePages(None, writer={})

    def build(self) -> web.Application:
        """Return the application with its routes."""
        console = self._console
        app = web.Application(
            middlewares=[self._answer_errors, self._guard_browsers, console.act_for_session, self._require_sign_in]
        )
        app.on_response_prepare.append(console.no_challenge)
        forward = self._proxy.forward
        in_one_region = self._proxy.in_one_region
        app.add_routes(
            [
                web.get("/healthz", self._healthz, allow_head=False),
                web.get("/readyz", self._readyz, allow_head=False),
                web.get("/metrics", self._expose_metrics, allow_head=False),
                web.get("/v1/resolve", self._routes.resolve, allow_head=False),
                web.post("/v1/resolve", self._routes.resolve_for),
                web.get("/v1/routes", self._routes.list, allow_head=False),
                web.get("/v1/routes/explain", self._routes.explain, allow_head=False),
                web.post("/v1/routes/{kind}", self._routes.decide),
                web.get("/v1/status", self._collect_status, allow_head=False),
                web.get("/v1/openapi.json", self._describe_api, allow_head=False),
                web.get("/v1/asyncapi.json", self._describe_sockets, allow_head=False),
                web.get("/v1/overview", console.overview, allow_head=False),
                web.get("/console", console.redirect, allow_head=False),
                web.get("/console/", console.page, allow_head=False),
                web.get("/console/session", console.session, allow_head=False),
                web.post("/console/session", console.begin),
                web.delete("/console/session", console.end),
                web.get("/console/{file}", console.page, allow_head=False),
                web.get("/v1/live", self._live.show, allow_head=False),
                web.get("/v1/traces", self._traces.positions, allow_head=False),
                web.get("/v1/traces/{kind}/end", self._traces.end, allow_head=False),
                web.get("/v1/traces/{kind}", self._traces.page, allow_head=False),
                web.get("/v1/topics", forward, allow_head=False),
                web.post("/v1/topics", forward),
                web.get("/v1/topics/{topic}", forward, allow_head=False),
                web.delete("/v1/topics/{topic}", forward),
                web.patch("/v1/topics/{topic}", forward),
                web.post("/v1/topics/{topic}/reassign", forward),
                web.post("/v1/topics/{topic}/delete-records", forward),
                web.get("/v1/orphans", in_one_region, allow_head=False),
                web.get("/v1/orphans/{topic}/{partition}/{epoch}", in_one_region, allow_head=False),
                web.delete("/v1/orphans/{topic}/{partition}/{epoch}", in_one_region),
                web.post("/v1/orphans/{topic}/{partition}/{epoch}/republish", in_one_region),
                web.get("/v1/audit", forward, allow_head=False),
                web.get("/v1/audit/deep", forward, allow_head=False),
                web.get("/v1/audit/events", in_one_region, allow_head=False),
                web.get("/v1/groups", in_one_region, allow_head=False),
                web.get("/v1/groups/{group}", in_one_region, allow_head=False),
                web.delete("/v1/groups/{group}", in_one_region),
                web.post("/v1/groups/{group}/reset-offsets", in_one_region),
                web.get("/v1/queues", in_one_region, allow_head=False),
                web.post("/v1/queues", in_one_region),
                web.get("/v1/queues/{queue}", in_one_region, allow_head=False),
                web.patch("/v1/queues/{queue}", in_one_region),
                web.delete("/v1/queues/{queue}", in_one_region),
                web.post("/v1/queues/{queue}/purge", in_one_region),
                web.post("/v1/queues/{queue}/records", in_one_region),
                web.post("/v1/queues/{queue}/leases", in_one_region),
                web.get("/v1/bindings", forward, allow_head=False),
                web.post("/v1/bindings", forward),
                web.delete("/v1/bindings/{binding}", forward),
                web.get("/v1/brokers", forward, allow_head=False),
                web.get("/v1/clocks", forward, allow_head=False),
                web.get("/v1/control", forward, allow_head=False),
                web.post("/v1/control/recover", in_one_region),
                web.get("/v1/homes", forward, allow_head=False),
                web.post("/v1/homes/move", forward),
                web.post("/v1/homes/failover", forward),
                web.get("/v1/homes/moves/{move}", forward, allow_head=False),
                web.get("/v1/regions", forward, allow_head=False),
                web.post("/v1/regions", forward),
                web.post("/v1/regions/{region}/{verb}", forward),
                web.delete("/v1/regions/{region}", forward),
                web.post("/v1/brokers/{broker}", forward),
                web.post("/v1/brokers/{broker}/drain", forward),
                web.delete("/v1/brokers/{broker}", forward),
                web.get("/v1/gossip/members", in_one_region, allow_head=False),
                web.get("/v1/gossip/rtt", in_one_region, allow_head=False),
                web.get("/v1/gossip/keys", in_one_region, allow_head=False),
                web.post("/v1/gossip/keys", in_one_region),
                web.post("/v1/gossip/events", in_one_region),
                web.post("/v1/gossip/queries", in_one_region),
                web.post("/v1/gossip/force-leave", in_one_region),
                web.get("/v1/whoami", forward, allow_head=False),
                web.get("/v1/users", forward, allow_head=False),
                web.post("/v1/users", forward),
                web.patch("/v1/users/{user}", forward),
                web.delete("/v1/users/{user}", forward),
                web.post("/v1/users/{user}/tokens", forward),
                web.delete("/v1/users/{user}/tokens/{token}", forward),
                web.get("/v1/acls", forward, allow_head=False),
                web.post("/v1/acls", forward),
                web.post("/v1/acls/remove", forward),
                web.get("/v1/quotas", forward, allow_head=False),
                web.post("/v1/quotas", forward),
                web.get("/v1/topics/{topic}/records", self._proxy.read_records, allow_head=False),
                web.post("/v1/topics/{topic}/records", forward),
                web.get("/v1/topics/{topic}/events", self._proxy.read_records, allow_head=False),
                web.get("/v1/socket", self._sockets.serve, allow_head=False),
                web.get("/v1/topics/{topic}/resolve", forward, allow_head=False),
                web.post("/v1/topics/{topic}/consumers/{consumer}", in_one_region),
                web.get("/v1/topics/{topic}/consumers/{consumer}/records", in_one_region, allow_head=False),
                web.get("/v1/topics/{topic}/consumers/{consumer}/events", in_one_region, allow_head=False),
                web.post("/v1/topics/{topic}/consumers/{consumer}/acknowledge", in_one_region),
            ]
        )
        routes = [
            (route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None
        ]
        self._api = json.dumps(openapi(routes)).encode()
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._router.ready
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "no region is ready\n")

    async def _expose_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.expose(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    async def _describe_api(self, _: web.Request) -> web.Response:
        return web.Response(body=self._api, content_type="application/json", headers={"Cache-Control": "no-cache"})

    async def _describe_sockets(self, _: web.Request) -> web.Response:
        body = json.dumps(asyncapi()).encode()
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-cache"})

    async def _collect_status(self, request: web.Request) -> web.Response:
        return web.json_response(await self._status.collect(authorization_of(request)))

    @web.middleware
    async def _guard_browsers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_on_loopback = is_loopback_address(request.get_extra_info("sockname"))
        scheme = "http" if request.get_extra_info("ssl_object") is None else "https"
        self._browsers.check(request.method, request.headers, is_on_loopback=is_on_loopback, scheme=scheme)
        return await handler(request)

    @web.middleware
    async def _require_sign_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        authorization = authorization_of(request)
        if path in ABOUT_THE_MESH:
            await self._sign_in.check_describes_cluster(authorization, request.remote or "")
        elif path not in PUBLIC_PATHS and (path in OWN_ROUTES or self._sign_in.checks_forwarded):
            await self._sign_in.authenticate_header(authorization, request.remote or "")
        return await handler(request)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except GeorelayError as error:
            response = problem_response(error)
        except web.HTTPException as error:
            response = http_problem(error)
        except Exception:
            log.exception("request.failed", method=request.method, path=request.path)
            response = defect_problem()
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        self._metrics.http_requests.labels(f"{request.method} {route}", str(response.status)).inc()
        return response
