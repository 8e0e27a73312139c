"""The admin HTTP listener: health, readiness, metrics, status, topics and records under /v1.

Rule 1: every error is a problem document (RFC 9457); no page, no traceback.
Rule 2: with users set, only /healthz and /readyz answer without credentials.
Rule 3: ready means "can commit", alive means "answers".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from aiohttp import web

from georelay.errors import BadRequest, GeorelayError, Unavailable, UnknownTopic
from georelay.limits import HTTP_BODY_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX
from region.api.metrics import CONTENT_TYPE, BrokerMetrics
from region.api.problem import http_problem, problem_response
from region.api.record_json import integer_field, parse_json
from region.api.records_http import RecordsHttp, json_response
from region.controller.topic import Homes
from region.kafka.ports import Cluster, CredentialCheck, TopicSpec, TopicView

log = structlog.get_logger()

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
REPLICATION_FACTOR_MAX: Final = 999
INT64_MAX: Final = 2**63 - 1
SHUTDOWN_S: Final = 1.0
TOPIC_FIELDS: Final = frozenset(
    {"name", "partitions", "replication_factor", "homes", "home", "retention_ms", "retention_bytes"}
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminHttp:
    """Routes and the handlers that are not about records."""

    def __init__(
        self, *, cluster: Cluster, credentials: CredentialCheck, metrics: BrokerMetrics, records: RecordsHttp
    ) -> None:
        self._cluster = cluster
        self._credentials = credentials
        self._metrics = metrics
        self._records = records
        self._runner: web.AppRunner | None = None

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._errors, self._sign_in], client_max_size=HTTP_BODY_BYTES_MAX)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/topics", self._list_topics)
        app.router.add_post("/v1/topics", self._create_topic)
        app.router.add_get("/v1/topics/{topic}", self._describe_topic)
        app.router.add_delete("/v1/topics/{topic}", self._delete_topic)
        app.router.add_get("/v1/topics/{topic}/records", self._records.read)
        app.router.add_post("/v1/topics/{topic}/records", self._records.publish)
        return app

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port (OSError: it cannot be bound)."""
        self._runner = web.AppRunner(
            self.app(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = int(self._runner.addresses[0][1])
        log.info("admin_listener.started", host=host, port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

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

    @web.middleware
    async def _sign_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._credentials.required and request.path not in OPEN_PATHS:
            await self._credentials.authenticate_header(request.headers.get("Authorization"))
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
        return json_response({"status": "ready"})

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, _: web.Request) -> web.Response:
        return json_response(self._cluster.status())

    async def _list_topics(self, _: web.Request) -> web.Response:
        return json_response({"topics": [topic_json(view) for view in self._cluster.topics()]})

    async def _create_topic(self, request: web.Request) -> web.Response:
        view = await self._cluster.create_topic(parse_topic(await request.read()))
        return json_response(topic_json(view), status=201)

    async def _describe_topic(self, request: web.Request) -> web.Response:
        name = request.match_info["topic"]
        view = self._cluster.topic(name)
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        rows = [self._partition_json(view.name, index) for index in range(view.partitions)]
        return json_response({**topic_json(view), "partition_states": rows})

    async def _delete_topic(self, request: web.Request) -> web.Response:
        await self._cluster.delete_topic(request.match_info["topic"])
        return web.Response(status=204)

    def _partition_json(self, name: str, index: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "partition": index,
            "leader": self._cluster.leader_of(name, index),
            "replicas": list(self._cluster.replicas_of(name, index)),
            "epoch": self._cluster.epoch_of(name, index),
        }
        stream = self._cluster.stream(name, index)
        if stream is not None:
            row |= {"log_start": stream.log_start, "high_watermark": stream.high_watermark}
        return row


def topic_json(view: TopicView) -> dict[str, Any]:
    """Return what the API says of a topic."""
    return {
        "name": view.name,
        "topic_id": view.topic_id.hex(),
        "partitions": view.partitions,
        "replication_factor": view.replication_factor,
        "homes": str(view.homes),
        "home": view.home,
        "is_mirror_name": view.is_mirror_name,
        "retention_ms": view.definition.retention_ms,
        "retention_bytes": view.definition.retention_bytes,
    }


def parse_topic(body: bytes) -> TopicSpec:
    """Return the spec of a POST /v1/topics body (BadRequest: the text names the field)."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    unknown = value.keys() - TOPIC_FIELDS
    if unknown:
        raise BadRequest(f"topic.{min(unknown)}: unknown field; known are {', '.join(sorted(TOPIC_FIELDS))}")
    homes = value.get("homes", "one")
    if homes not in ("one", "every"):
        raise BadRequest('topic.homes: must be "one" or "every"')
    return TopicSpec(
        name=_text(value, "name", required=True),
        partitions=_integer(value, "partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX),
        replication_factor=_integer(value, "replication_factor", low=1, high=REPLICATION_FACTOR_MAX),
        homes=Homes(homes),
        home=_text(value, "home", required=False),
        retention_ms=_integer(value, "retention_ms", low=-1, high=INT64_MAX),
        retention_bytes=_integer(value, "retention_bytes", low=-1, high=INT64_MAX),
    )


def _integer(value: dict[str, Any], name: str, *, low: int, high: int) -> int:
    number = integer_field(value, "topic", name, low=low, high=high)
    return -1 if number is None else number


def _text(value: dict[str, Any], name: str, *, required: bool) -> str:
    text = value.get(name, "")
    if not isinstance(text, str) or (required and not text):
        raise BadRequest(f"topic.{name}: must be a string{' that is not empty' if required else ''}")
    return text
