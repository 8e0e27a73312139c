"""Queues over HTTP: define, look, receive, settle leases.

Rule 1: a queue belongs to one region: any broker of it answers, none of another region.
Rule 2: a receive is a POST, because it changes whose the records are; `wait_ms` is a query parameter, so that a gateway
        knows how long it takes. What a receive leased whose answer is lost comes back when the leases are over.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest
from georelay.wire.records import Record
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json, record_json
from region.api.records_http import json_response
from region.api.unfolding import FIELD_BYTES, ON_LOOP_BYTES_MAX, POOL
from region.coordination.coordinators import CALL_TIMEOUT_S, Coordinators
from region.coordination.part import JsonObject, Part
from region.kafka.ports import Cluster
from region.queues.definition import DEAD_LETTERS_SUFFIX, MAX_DELIVERIES_DEFAULT
from region.queues.limits import RECEIVE_WAIT_MS_MAX
from region.security.access import Access, Operation, Principal, Resource
from region.security.quotas import Quotas

ACTIONS: Final = ("acknowledge", "reject", "extend", "release")
_RECEIVE_NUMBERS: Final = ("max", "wait_ms", "session_timeout_ms")
_RECEIVE_PARAMETERS: Final = frozenset({"consumer", "region", *_RECEIVE_NUMBERS})


class QueuesHttp:
    """Handlers of /v1/queues."""

    def __init__(
        self, *, coordinators: Coordinators, cluster: Cluster, access: Access, quotas: Quotas | None = None
    ) -> None:
        self._quotas = quotas if quotas is not None else Quotas()
        self._coordinators = coordinators
        self._cluster = cluster
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/queues", self._list),
            web.post("/v1/queues", self._create),
            web.get("/v1/queues/{queue}", self._describe),
            web.patch("/v1/queues/{queue}", self._alter),
            web.delete("/v1/queues/{queue}", self._delete),
            web.post("/v1/queues/{queue}/purge", self._purge),
            web.post("/v1/queues/{queue}/records", self._receive),
            web.post("/v1/queues/{queue}/leases", self._settle),
        ]

    def _checked(self, request: web.Request, operation: Operation) -> str:
        """Return the queue's name, which the caller may do this with (AccessDenied)."""
        name = request.match_info["queue"]
        self._access.check(request[PRINCIPAL], operation, Resource.QUEUE, name)
        return name

    async def _ask(
        self, request: web.Request, name: str, operation: str, body: JsonObject, *, wait_s: float = 0.0
    ) -> JsonObject:
        principal: Principal = request[PRINCIPAL]
        return await self._coordinators.call(
            Part.QUEUES,
            name,
            operation,
            {**body, "queue": name},
            principal=principal.name,
            timeout_s=CALL_TIMEOUT_S + wait_s,
        )

    # --- definitions ------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        principal: Principal = request[PRINCIPAL]
        answers = await self._coordinators.gather(Part.QUEUES, "list", {})
        rows = [
            row | {"coordinator": self._coordinators.leader_of(row["name"], Part.QUEUES)}
            for answer in answers
            for row in answer["queues"]
            if self._access.allows(principal, Operation.DESCRIBE, Resource.QUEUE, row["name"])
        ]
        return json_response({"queues": sorted(rows, key=lambda row: str(row["name"]))})

    async def _create(self, request: web.Request) -> web.Response:
        principal: Principal = request[PRINCIPAL]
        self._access.check_any(principal, Operation.CREATE, Resource.QUEUE)
        body = await _object(request)
        name, topic = body.pop("name", None), body.get("topic")
        if not isinstance(name, str) or not isinstance(topic, str) or "queue" in body:
            raise BadRequest("queue: must have the texts name and topic")
        self._access.check(principal, Operation.CREATE, Resource.QUEUE, name)
        self._access.check(principal, Operation.READ, Resource.TOPIC, topic)
        letters = body.get("dead_letter_topic")
        if letters is None and body.get("max_deliveries", MAX_DELIVERIES_DEFAULT):
            letters = f"{name}{DEAD_LETTERS_SUFFIX}"
        if isinstance(letters, str) and letters:
            self._check_letters(principal, letters)
        with self._access.noted(principal, "queue.created", queue=name, topic=topic):
            made = await self._ask(request, name, "create", body)
        return json_response(made, status=201)

    def _check_letters(self, principal: Principal, topic: str) -> None:
        self._access.check(principal, Operation.WRITE, Resource.TOPIC, topic)
        if self._cluster.topic(topic) is None:
            self._access.check_create_topic(principal, topic)

    async def _describe(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.DESCRIBE)
        described = await self._ask(request, name, "describe", {})
        return json_response(described | {"coordinator": self._coordinators.leader_of(name, Part.QUEUES)})

    async def _alter(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.ALTER)
        settings = await _object(request)
        letters = settings.get("dead_letter_topic")
        if isinstance(letters, str) and letters:
            self._check_letters(request[PRINCIPAL], letters)
        with self._access.noted(request[PRINCIPAL], "queue.altered", queue=name, settings=", ".join(sorted(settings))):
            altered = await self._ask(request, name, "alter", {"settings": settings})
        return json_response(altered)

    async def _delete(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.DELETE)
        with self._access.noted(request[PRINCIPAL], "queue.deleted", queue=name):
            await self._ask(request, name, "delete", {})
        return web.Response(status=204)

    async def _purge(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.DELETE)
        with self._access.noted(request[PRINCIPAL], "queue.purged", queue=name):
            purged = await self._ask(request, name, "purge", {})
        return json_response(purged)

    # --- consuming --------------------------------------------------------------------------------

    async def _receive(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.READ)
        query = _receive_query(request, self._cluster.region)
        wait_ms = min(query.get("wait_ms", 0), RECEIVE_WAIT_MS_MAX)
        answer = await self._ask(request, name, "receive", query, wait_s=wait_ms / 1000)
        self._checked(request, Operation.READ)  # it may have waited for long; the leases run out
        response = await _received(answer)
        await self._pause(self._quotas.fetch(request[PRINCIPAL], response.content_length or 0))
        return response

    @staticmethod
    async def _pause(pause_ms: int) -> None:
        """Let the answer wait until the caller's quota is kept."""
        if pause_ms:
            await asyncio.sleep(pause_ms / 1_000)

    async def _settle(self, request: web.Request) -> web.Response:
        name = self._checked(request, Operation.READ)
        body = await _object(request)
        action = body.pop("action", None)
        if action not in ACTIONS or "queue" in body:
            raise BadRequest(f"action: must be one of {', '.join(ACTIONS)}")
        return json_response(await self._ask(request, name, str(action), body))


async def _received(answer: JsonObject) -> web.Response:
    """Return the response of a receive; large records are written in a thread, for escapes make them larger still."""
    rows = answer["records"]

    def write() -> web.Response:
        return json_response(answer | {"records": [_record(row) for row in rows]})

    if sum(map(_coded_bytes, rows)) <= ON_LOOP_BYTES_MAX:
        return write()
    return await asyncio.get_running_loop().run_in_executor(POOL, write)


def _coded_bytes(row: JsonObject) -> int:
    headers = sum(FIELD_BYTES + len(name) + len(value or "") for name, value in row["headers"])
    return len(row["key"] or "") + len(row["value"] or "") + headers


async def _object(request: web.Request) -> JsonObject:
    value = await read_wish(request, parse_json)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    return value


def _receive_query(request: web.Request, own_region: str) -> dict[str, Any]:
    query = request.query
    for name in query:
        if name not in _RECEIVE_PARAMETERS or len(query.getall(name)) > 1:
            known = ", ".join(sorted(_RECEIVE_PARAMETERS))
            raise BadRequest(f"{name[:64]}: unknown parameter, or there twice; known are {known}")
    if query.get("region", own_region) != own_region:
        raise BadRequest(f"region: this broker is in {own_region!r}; ask the gateway for another region")
    wanted: dict[str, Any] = {"consumer": query.get("consumer", "")}
    for name in _RECEIVE_NUMBERS:
        if name in query:
            text = query[name]
            if not (text.isascii() and text.isdigit() and len(text) <= 9):
                raise BadRequest(f"{name}: must be an integer")
            wanted[name] = int(text)
    return wanted


def _record(row: JsonObject) -> JsonObject:
    """Return a received record as other records are over HTTP: text where it is text."""
    record = Record(
        offset=row["offset"],
        timestamp_ms=row["timestamp_ms"],
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=tuple((name, _bytes(value)) for name, value in row["headers"]),
    )
    lease = {name: row[name] for name in ("lease", "partition", "deliveries", "leased_until_ms")}
    return {**lease, **record_json(record)}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
