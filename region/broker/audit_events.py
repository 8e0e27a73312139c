"""The audit logs of this region's brokers as one: whoever is asked asks the others, once each.

Rule: a broker answers for what it wrote down itself. One that does not answer is named, and its events are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId
from region.audit.agent import AskBroker
from region.security.audit_events_core import (
    EventsAsked,
    EventsPage,
    KeptEvents,
    RegionEvents,
    merged,
    page_json,
    read_page,
)

log = structlog.get_logger()

EVENTS_METHOD: Final = "audit.events"
ASK_TIMEOUT_S: Final = 4.0


class RegionAuditEvents:
    """Implements region.api.audit_events_http.AuditTrail, and answers other brokers of the region.

    Args:
        known: the brokers of the region. alive: those of them that are heard; no other one is asked.
    """

    def __init__(
        self,
        me: BrokerId,
        *,
        known: Callable[[], Iterable[BrokerId]],
        alive: Callable[[], Iterable[BrokerId]],
        ask: AskBroker,
    ) -> None:
        self.kept = KeptEvents(me)
        self._me = me
        self._known = known
        self._alive = alive
        self._ask = ask

    async def page(self, asked: EventsAsked) -> RegionEvents:
        """Return the page of the region."""
        others = [broker for broker in self._alive() if broker != self._me]
        pages: dict[BrokerId, EventsPage | None] = dict.fromkeys(self._known())
        pages.update(zip(others, await asyncio.gather(*(self._asked(broker, asked) for broker in others)), strict=True))
        pages[self._me] = self.kept.page(asked)
        return merged(pages, asked.limit)

    def serve(self, body: Mapping[str, Any]) -> JsonObject:
        """Answer another broker of this region. Raises BadRequest."""
        try:
            return page_json(self.kept.page(EventsAsked.from_json(body)))
        except FieldError as error:
            raise BadRequest(f"{EVENTS_METHOD}: {error}") from error

    async def _asked(self, broker: BrokerId, asked: EventsAsked) -> EventsPage | None:
        try:
            answer = await self._ask(broker, EVENTS_METHOD, asked.to_json(), timeout_s=ASK_TIMEOUT_S)
            return read_page(answer, broker=broker, asked=asked)
        except (GeorelayError, FieldError) as error:
            log.warning("audit_events.not_heard", broker=broker, reason=str(error))
            return None
