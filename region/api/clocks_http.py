"""GET /v1/clocks: what this broker knows of the clocks of every region, with bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from region.api.principal import PRINCIPAL
from region.api.records_http import json_response
from region.security.access import Access, Operation, Resource


class ClocksHttp:
    """The handler. `document`: what to answer, asked each time."""

    def __init__(self, document: Callable[[], dict[str, Any]], access: Access) -> None:
        self._document = document
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the admin listener."""
        return [web.get("/v1/clocks", self._show)]

    async def _show(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        return json_response(self._document())
