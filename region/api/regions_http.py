"""The regions of the mesh over HTTP: list, add, drain, keep, remove. Mesh control orders; any broker may be asked.

Rule 1: every request may be repeated: what is so already is answered like what was done now.
Rule 2: a region whose records the others may lack is removed only with "?force=true"; the answer says what was lost.
"""

from __future__ import annotations

import re
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import REGION_NUMBER_MAX, RegionNumber
from georelay.limits import REGION_NAME_CHARS_MAX
from region.api.bodies import read_wish
from region.api.control_http import ControlRoom
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.controller.mesh_rows import read_seeds
from region.controller.topology import REGION_NAME
from region.security.access import Access, Operation, Resource

_WHAT: Final = {"drain": "region.drained", "keep": "region.kept"}  # verbs of the path, and as the audit log has them
REMOVE_S: Final = 30.0  # every region is asked whether it has what began there
_NUMBER: Final = re.compile(r"[0-9]{1,5}")


class RegionsHttp:
    """Handlers of /v1/regions."""

    def __init__(self, control: ControlRoom, access: Access) -> None:
        self._control = control
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the admin listener."""
        return [
            web.get("/v1/regions", self._list),
            web.post("/v1/regions", self._add),
            web.post("/v1/regions/{region}/{verb}", self._change),
            web.delete("/v1/regions/{region}", self._remove),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        return json_response({"regions": self._control.status()["regions"]})

    async def _add(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        wanted = await read_wish(request, _parse_region)
        about = {"region": str(wanted["name"]), "number": str(wanted["number"])}
        with self._access.noted(request[PRINCIPAL], "region.added", **about):
            answer = await self._control.call("region.add", wanted)
        return json_response(_shown(answer), status=201)

    async def _change(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        verb = request.match_info["verb"]
        if verb not in _WHAT:
            raise BadRequest(f"{verb[:40]!r}: known are {', '.join(_WHAT)}")
        number = await self._number(request)
        with self._access.noted(request[PRINCIPAL], _WHAT[verb], number=str(number)):
            answer = await self._control.call(f"region.{verb}", {"number": number})
        return json_response(_shown(answer))

    async def _remove(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        force = {"true": True, "false": False}.get(request.query.get("force", "false"))
        if force is None:
            raise BadRequest("force: known are true, false")
        number = await self._number(request)
        with self._access.noted(request[PRINCIPAL], "region.removed", number=str(number), force=str(force).lower()):
            body: JsonObject = {"number": number, "force": force}
            answer = await self._control.call("region.remove", body, timeout_s=REMOVE_S)
        return json_response({**_shown(answer), "lost": answer.get("lost", [])})

    async def _number(self, request: web.Request) -> int:
        """Return the number of the region that the path names by name or number."""
        named = request.match_info["region"]
        if _NUMBER.fullmatch(named) is not None:
            return int(named)
        listed = (await self._control.call("region.list", {}))["regions"]
        rows: list[dict[str, Any]] = listed if isinstance(listed, list) else []
        number = next((row["number"] for row in rows if row["name"] == named), None)
        if number is None:
            raise BadRequest(f"no region is called {named[:REGION_NAME_CHARS_MAX]!r}")
        return int(number)


def _shown(answer: JsonObject) -> dict[str, Any]:
    region = answer.get("region")
    return dict(region) if isinstance(region, dict) else {}


def _parse_region(body: bytes) -> JsonObject:
    value = parse_json(body)
    try:
        fields = Fields(value, "region")
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        wanted: JsonObject = {
            "number": number,
            "name": fields.text("name", chars_max=REGION_NAME_CHARS_MAX, pattern=REGION_NAME),
            "seeds": list(read_seeds(fields, "seeds", number)) if fields.has("seeds") else [],
            "witness": fields.flag("witness") if fields.has("witness") else False,
        }
        fields.done()
    except FieldError as error:
        raise BadRequest(str(error)) from error
    return wanted
