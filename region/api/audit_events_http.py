"""GET /v1/audit/events?event=&limit=&before=: the audit logs of this region's brokers, the newest first, in pages.

Rule 1: as users and lists, they are for who may describe the cluster.
Rule 2: a page says where the next, older one begins: `next` is the value of `before`, null on the last.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from aiohttp import web

from georelay.errors import BadRequest, Unavailable
from region.api.principal import PRINCIPAL
from region.api.records_http import json_response
from region.security.access import Access, Operation, Resource
from region.security.audit_events_core import EVENTS, PAGE_EVENTS_MAX, EventsAsked, RegionEvents, read_key

PAGE_EVENTS: Final = 50
_NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)


class AuditTrail(Protocol):
    """The audit logs of a region's brokers."""

    async def page(self, asked: EventsAsked) -> RegionEvents:
        """Return the page; brokers that do not answer are named."""


class Named(Protocol):
    """What knows the name of this region."""

    @property
    def region(self) -> str:
        """The name."""


class AuditEventsHttp:
    """The handler. `trail`: None where nothing is remembered."""

    def __init__(self, trail: AuditTrail | None, *, access: Access, here: Named) -> None:
        self._trail = trail
        self._access = access
        self._here = here

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [web.get("/v1/audit/events", self._page, allow_head=False)]

    async def _page(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        asked = _asked(request)
        region = self._here.region
        wanted = request.query.get("region", region)
        if wanted != region:
            raise BadRequest(f"region: this broker is in {region!r}; a gateway reaches {wanted[:20]!r}")
        if self._trail is None:
            raise Unavailable("this broker remembers no audit events")
        page = await self._trail.page(asked)
        return json_response(
            {
                "region": region,
                "events": [row.to_json() for row in page.rows],
                "next": None if page.following is None else str(page.following),
                "unheard": list(page.unheard),
            }
        )


def _asked(request: web.Request) -> EventsAsked:
    """Return the question. Raises BadRequest."""
    event = request.query.get("event", "")
    if event and event not in EVENTS:
        raise BadRequest(f"event: one of {', '.join(EVENTS)}, not {event[:40]!r}")
    limit = request.query.get("limit", str(PAGE_EVENTS))
    if _NUMBER.fullmatch(limit) is None or not 1 <= int(limit) <= PAGE_EVENTS_MAX:
        raise BadRequest(f"limit: a whole number 1..{PAGE_EVENTS_MAX}, not {limit[:20]!r}")
    before = request.query.get("before", "")
    return EventsAsked(before=read_key(before) if before else None, event=event, limit=int(limit))
