"""/v1/traces of a broker: see mesh.tracing.pages_http.

Rule 1: traces name every topic and group: they need DESCRIBE of the cluster, as metrics do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from mesh.tracing.pages_http import TracePages
from region.api.principal import PRINCIPAL
from region.security.access import Access, Operation, Resource

if TYPE_CHECKING:
    from mesh.tracing.shelf import TraceShelf


class TracesHttp:
    """Handlers of /v1/traces.

    Args:
        shelf: what to read from; None at a broker that writes no traces.
        region, broker: of this broker.
    """

    def __init__(self, shelf: TraceShelf | None, *, access: Access, region: str, broker: int) -> None:
        def may_read(request: web.Request) -> None:
            access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)

        self._pages = TracePages(shelf, writer={"region": region, "broker": broker}, may_read=may_read)

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/traces", self._pages.positions, allow_head=False),
            web.get("/v1/traces/{kind}/end", self._pages.end, allow_head=False),
            web.get("/v1/traces/{kind}", self._pages.page, allow_head=False),
        ]
