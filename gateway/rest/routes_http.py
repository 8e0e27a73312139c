"""Where clients are sent, over HTTP: resolving, explaining, and what operators decide.

Rule 1: who is asked for decides only for itself: a client is its name at the address that it asks from.
Rule 2: a decision is judged and written down by a broker first (ALTER on the cluster, docs/operate/security.md); only
        then it is in force here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from gateway.rest.caller import authorization_of, client_of
from gateway.rest.resolve import region_json, resolve_document
from gateway.routing.client_book_core import NAME_CHARS_MAX, OBSERVED_REGIONS_MAX, ClientKey, Observation
from gateway.routing.client_routes import ClientRoutes, Question, answer_json
from gateway.routing.router import Router
from gateway.routing.rules_core import Kind
from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields, parse_object
from mesh.distance.tcp_info import sample_of

BODY_BYTES_MAX: Final = 16 * 1024
OBSERVED_MAX: Final = 64
TOPIC_CHARS_MAX: Final = 249
_FORWARDED: Final = ("Forwarded", "X-Forwarded-For")  # who sets these has ended the client's TCP

Permit = Callable[[str | None, str, dict[str, str]], Awaitable[str]]
HomeOf = Callable[[str, str | None], Awaitable[str]]


class RoutesHttp:
    """Handlers of /v1/resolve and /v1/routes.

    Args:
        permit: asks a broker for the right to a decision and has it written down; returns who decided.
        home_of: returns the home of a topic as a broker says to whom asks, "" where every region is home.
    """

    def __init__(self, mesh_id: str, router: Router, routes: ClientRoutes, *, permit: Permit, home_of: HomeOf) -> None:
        self._mesh_id = mesh_id
        self._router = router
        self._routes = routes
        self._permit = permit
        self._home_of = home_of

    async def resolve(self, request: web.Request) -> web.Response:
        """Answer GET /v1/resolve: for ?client= its regions, else every region, best first for this gateway."""
        if "client" not in request.query:
            ranked = self._router.ranking(request.query.get("region"))
            return web.json_response(resolve_document(self._mesh_id, ranked))
        query = request.query
        return await self._answer(request, query["client"], (), query.get("topic", ""), query.get("intent", "read"))

    async def resolve_for(self, request: web.Request) -> web.Response:
        """Answer POST /v1/resolve: {client, observed, topic, intent}, all of which may be left out."""
        try:
            fields = Fields(parse_object(await _body(request), bytes_max=BODY_BYTES_MAX), "the body")
            name = fields.text("client", chars_max=NAME_CHARS_MAX) if fields.has("client") else ""
            topic = fields.text("topic", chars_max=TOPIC_CHARS_MAX) if fields.has("topic") else ""
            intent = fields.text("intent", chars_max=10) if fields.has("intent") else "read"
            rows = fields.items("observed", count_max=OBSERVED_MAX) if fields.has("observed") else []
            observed = tuple(_observation(row) for row in rows)[:OBSERVED_REGIONS_MAX]
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        return await self._answer(request, name, observed, topic, intent)

    async def _answer(
        self, request: web.Request, name: str, observed: tuple[Observation, ...], topic: str, intent: str
    ) -> web.Response:
        if intent not in ("read", "publish"):
            raise BadRequest("intent: give read or publish")
        home = await self._home_of(topic, authorization_of(request)) if topic and intent == "publish" else ""
        question = Question(client=client_of(request, name), sample=_sample(request), observed=observed, home=home)
        choice, ttl_s = self._routes.resolve(question)
        document = answer_json(self._mesh_id, choice, ttl_s, self._router.seen(), region_json)
        return web.json_response(document, headers={"Cache-Control": "no-store"})

    async def list(self, _: web.Request) -> web.Response:
        """Answer GET /v1/routes: the decisions in force."""
        rules = self._router.rules
        rows = [
            {"kind": rule.kind, "subject": rule.subject, "value": rule.value, "by": rule.by, "made_us": rule.made_us}
            for rule in rules.in_force()
        ]
        return web.json_response({"rules": rows, "frozen": rules.is_frozen})

    async def explain(self, request: web.Request) -> web.Response:
        """Answer GET /v1/routes/explain?client=&address=&topic=: every input and score, and why not."""
        query = request.query
        address = query.get("address") or request.remote or ""
        topic = query.get("topic", "")
        home = await self._home_of(topic, authorization_of(request)) if topic else ""
        name = query.get("client", "")[:NAME_CHARS_MAX]
        return web.json_response(self._routes.explain(ClientKey(name, address), home=home))

    async def decide(self, request: web.Request) -> web.Response:
        """Answer POST /v1/routes/{pin,drain,freeze} with {"subject", "value"}; an empty value takes it back."""
        known = {kind.value: kind for kind in Kind}
        kind = known.get(request.match_info["kind"])
        if kind is None:
            raise BadRequest(f"{request.match_info['kind'][:40]!r}: known are {', '.join(known)}")
        try:
            fields = Fields(parse_object(await _body(request), bytes_max=BODY_BYTES_MAX), "the body")
            subject = fields.text("subject", chars_min=1, chars_max=NAME_CHARS_MAX)
            value = fields.text("value", chars_max=40)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        self._refuse_unknown(kind, subject, value)
        detail = {"kind": kind.value, "subject": subject, "value": value}
        by = await self._permit(authorization_of(request), request.remote or "", detail)
        rule = self._router.rules.make(
            kind, subject, value, now_us=time.time_ns() // 1000, now_s=self._router.now_s, by=by
        )
        return web.json_response({**detail, "subject": rule.subject, "by": by})

    def _refuse_unknown(self, kind: Kind, subject: str, value: str) -> None:
        """Refuse what would never have an effect (BadRequest)."""
        if kind is Kind.FREEZE and (subject != "switching" or value not in ("", "frozen")):
            raise BadRequest('freeze: subject is "switching", value "frozen" or empty')
        if kind is Kind.DRAIN and value not in ("", "clients"):
            raise BadRequest('drain: value is "clients" or empty')
        region = subject if kind is Kind.DRAIN else value if kind is Kind.PIN else ""
        if region:
            self._router.ranking(region)


def _sample(request: web.Request) -> Any:
    """Return the kernel's round trips of the connection; None when somebody else has ended the client's TCP."""
    if request.transport is None or any(name in request.headers for name in _FORWARDED):
        return None
    return sample_of(request.transport.get_extra_info("socket"))


async def _body(request: web.Request) -> bytes:
    raw = await request.content.read(BODY_BYTES_MAX + 1)
    while len(raw) <= BODY_BYTES_MAX and not request.content.at_eof():
        raw += await request.content.read(BODY_BYTES_MAX + 1 - len(raw))
    return raw


def _observation(row: object) -> Observation:
    fields = Fields(row, "an observation")
    found = Observation(
        region=fields.text("region", chars_max=40),
        rtt_ms=fields.integer("rtt_us", low=1, high=10_000_000) / 1000,
        samples=fields.integer("samples", low=1, high=1000),
        age_s=fields.integer("age_s", low=0, high=86_400) if fields.has("age_s") else 0.0,
    )
    fields.done()
    return found
