"""Where clients are sent, over HTTP: resolving, explaining, and what operators decide.

Rule: a decision is judged and written down by a broker first (ALTER on the cluster, docs/operate/security.md); only
      then it is in force here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from gateway.rest.caller import authorization_of, client_of
from gateway.rest.resolve import resolve_document
from gateway.routing.client_book_core import NAME_CHARS_MAX, ClientKey
from gateway.routing.client_routes import ClientRoutes
from gateway.routing.resolving import QUESTION_BYTES_MAX, Asker, HomeOf, Resolving
from gateway.routing.router import Router
from gateway.routing.rules_core import Kind
from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields, JsonObject, parse_object
from mesh.distance.tcp_info import sample_of

ASKED_IN_QUERY: Final = ("client", "topic", "intent")
_FORWARDED: Final = ("Forwarded", "X-Forwarded-For")  # who sets these has ended the client's TCP

Permit = Callable[[str | None, str, dict[str, str]], Awaitable[str]]


class RoutesHttp:
    """Handlers of /v1/resolve and /v1/routes.

    Args:
        permit: asks a broker for the right to a decision and has it written down; returns who decided.
        resolving: answers who asks for itself. home_of: as in gateway.routing.resolving.
    """

    def __init__(
        self,
        mesh_id: str,
        router: Router,
        routes: ClientRoutes,
        *,
        resolving: Resolving,
        permit: Permit,
        home_of: HomeOf,
    ) -> None:
        self._mesh_id = mesh_id
        self._router = router
        self._routes = routes
        self._resolving = resolving
        self._permit = permit
        self._home_of = home_of

    async def resolve(self, request: web.Request) -> web.Response:
        """Answer GET /v1/resolve: for ?client= its regions, else every region, best first for this gateway."""
        query = request.query
        if "client" not in query:
            return web.json_response(resolve_document(self._mesh_id, self._router.ranking(query.get("region"))))
        return await self._answer(request, {name: query[name] for name in ASKED_IN_QUERY if name in query})

    async def resolve_for(self, request: web.Request) -> web.Response:
        """Answer POST /v1/resolve: {client, region, observed, topic, intent}, all of which may be left out."""
        try:
            asked = parse_object(await _body(request), bytes_max=QUESTION_BYTES_MAX)
        except FieldError as error:
            raise BadRequest(str(error)) from error
        return await self._answer(request, asked)

    async def _answer(self, request: web.Request, asked: JsonObject) -> web.Response:
        client = client_of(request)
        asker = Asker(
            name=client.name,
            address=client.address,
            authorization=authorization_of(request),
            sample=_sample(request),
        )
        document = await self._resolving.answer(asker, asked)
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
            fields = Fields(parse_object(await _body(request), bytes_max=QUESTION_BYTES_MAX), "the body")
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
    raw = await request.content.read(QUESTION_BYTES_MAX + 1)
    while len(raw) <= QUESTION_BYTES_MAX and not request.content.at_eof():
        raw += await request.content.read(QUESTION_BYTES_MAX + 1 - len(raw))
    return raw
