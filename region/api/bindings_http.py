"""Bindings over HTTP: list, add, remove. They are of the whole mesh.

Rule: who may alter the cluster may bind, if the same caller may write to the target: copies are written in the name of
the mesh, not in that of whoever published the original.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.coordination.part import JsonObject
from region.routing.administration import BindingAdmin
from region.routing.binding import Binding
from region.security.access import Access, Operation, Resource


class BindingsHttp:
    """Handlers of /v1/bindings."""

    def __init__(self, admin: BindingAdmin, access: Access) -> None:
        self._admin = admin
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/bindings", self._list),
            web.post("/v1/bindings", self._add),
            web.delete("/v1/bindings/{binding}", self._remove),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        return json_response({"bindings": [binding_json(binding) for binding in self._admin.all()]})

    async def _add(self, request: web.Request) -> web.Response:
        principal = request[PRINCIPAL]
        self._access.check(principal, Operation.ALTER, Resource.CLUSTER)
        binding = await self._admin.resolve(await read_wish(request, parse_binding))
        self._access.check(principal, Operation.WRITE, Resource.TOPIC, binding.target)
        about = {"binding": binding.name, "source": binding.source, "target": binding.target}
        with self._access.noted(principal, "binding.added", **about):
            added = await self._admin.add(binding)
        answer = binding_json(added.binding) | {"active": not added.waiting, "waiting": list(added.waiting)}
        return json_response(answer, status=201)

    async def _remove(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        name = request.match_info["binding"]
        with self._access.noted(request[PRINCIPAL], "binding.removed", binding=name):
            await self._admin.remove(name)
        return web.Response(status=204)


def parse_binding(body: bytes) -> Binding:
    """Return the binding of a POST /v1/bindings body; its target is not resolved (BadRequest: names the field)."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    plain: JsonObject = {"match": "all", "headers": [], "topic": "", "queue": "", **value}
    topic, queue = plain.pop("topic"), plain["queue"]
    if not isinstance(topic, str) or not isinstance(queue, str) or bool(topic) == bool(queue):
        raise BadRequest("binding: names either a topic or a queue as its target")
    if "index" in plain or "target" in plain:
        raise BadRequest("binding: index and target are not given; name topic or queue")
    try:
        fields = Fields(plain, "binding")
        whole: dict[str, Any] = {name: fields.value(name) for name in ("name", "source", "match", "headers", "queue")}
        fields.done()
        return Binding.from_json({**whole, "target": topic or "unresolved", "index": 0})
    except FieldError as error:
        raise BadRequest(str(error)) from error


def binding_json(binding: Binding) -> JsonObject:
    """Return what the API says of a binding."""
    return {
        "name": binding.name,
        "source": binding.source,
        "match": str(binding.match),
        "headers": [rule.to_json() for rule in binding.headers],
        "topic": binding.target,
        "queue": binding.queue,
    }
