"""Mesh control over HTTP: its status, and its recovery from one survivor.

Rule 1: GET /v1/control always answers: with what control's leader says, else with what this broker knows, and why.
Rule 2: a recovery is begun by {"confirm": "<mesh id>"} only: it is a person's word that the majority is gone for good.
"""

from __future__ import annotations

from typing import Any, Protocol

from aiohttp import web

from georelay.errors import BadRequest, GeorelayError
from georelay.fields import JsonObject
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.security.access import Access, Operation, Resource


class ControlRoom(Protocol):
    """What the handlers need of region.control.mesh_control.MeshControl."""

    @property
    def mesh_id(self) -> str:
        """Return the mesh id."""

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Ask control's leader."""

    async def recover(self) -> JsonObject:
        """Begin a new generation in this region."""

    def status(self) -> JsonObject:
        """Return what this broker knows."""


class ControlHttp:
    """Handlers of /v1/control."""

    def __init__(self, control: ControlRoom, access: Access) -> None:
        self._control = control
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the admin listener."""
        return [web.get("/v1/control", self._show), web.post("/v1/control/recover", self._recover)]

    async def _show(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        said = self._control.status()
        answer: dict[str, Any] = {**said, "mesh_id": self._control.mesh_id, "asked": said["broker"]}
        try:
            led = await self._control.call("status", {}, timeout_s=2.0)
        except GeorelayError as error:
            return json_response({**answer, "has_majority": False, "error": str(error)})
        alarms = sorted({*_texts(said.get("alarms")), *_texts(led.get("alarms"))})
        return json_response({**answer, **led, "asked": said["broker"], "alarms": alarms, "has_majority": True})

    async def _recover(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        body = await read_wish(request, parse_json)
        if not isinstance(body, dict) or body.get("confirm") != self._control.mesh_id:
            raise BadRequest(
                f'the body must be {{"confirm": "{self._control.mesh_id}"}}: see docs/operate/mesh-control.md'
            )
        with self._access.noted(request[PRINCIPAL], "control.recovered"):
            recovered = await self._control.recover()
        return json_response(recovered)


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
